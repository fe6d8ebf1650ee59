"""The Python client: a connection, its sessions and their requests."""

from clew.session.connection import Clew
from clew.session.reading import WaitingCall
from clew.session.request import Request
from clew.session.session import Session

__all__ = ["Clew", "Request", "Session", "WaitingCall"]
