"""The Python client: a connection, its sessions and their requests.

| module | content |
|---|---|
| `connection` | `Clew`: connects to Temporal, opens sessions |
| `session`, `session_reads` | `Session`: its changes, and what it reads |
| `request` | `Request` and `Outcome`: waits for a request, reads its answer |
| `keywords` | the types of keyword arguments |
| `handle`, `transport` | updates, queries and service workflows of one session; time limits, errors, retries |
| `session_blobs` | the images, recordings and files of a session |
| `events` | the events of a session or a request, for viewers |
| `session_lists`, `namespace` | lists of sessions; the search attributes that a namespace has |
"""

from clew.session.connection import Clew
from clew.session.request import Request
from clew.session.session import Session
from clew.session.session_reads import WaitingCall

__all__ = ["Clew", "Request", "Session", "WaitingCall"]
