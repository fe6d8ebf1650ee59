"""The Python client: a connection, its sessions and their requests."""

from clew.session.connection import Clew
from clew.session.request import Request
from clew.session.session import Session
from clew.session.waiting import WaitingCall

__all__ = ["Clew", "Request", "Session", "WaitingCall"]
