"""The ids of this API. Each names what it stands for, so that no process keeps a table of them.

An id holds the session's name as the caller knows it, and never the tenant, which comes from the key alone.
"""

from __future__ import annotations

import binascii
import hashlib
import re
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

from clew_workflows.contract.errors import NotFound

_SEPARATOR = "\x1f"
"""Between the parts of an id. No id of the contract has a control character."""
_SEQ = re.compile("[0-9]{1,15}")
_HEX_DIGITS = 24
"""Digits of the ids that are made here."""

# The kinds of items, as the API names them by the beginnings of their ids.
MESSAGE = "msg"
REASONING = "rs"
FUNCTION_CALL = "fc"
FUNCTION_OUTPUT = "fco"
SERVER_CALL = "mcp"
APPROVAL_REQUEST = "mcpr"
APPROVAL_RESPONSE = "mcpa"
SEARCH = "ws"
CODE = "ci"
CALL = "call"
"""A tool call, as the results of functions name it."""
THREAD_KINDS = (
    MESSAGE, REASONING, FUNCTION_CALL, SERVER_CALL, APPROVAL_REQUEST, SEARCH, CODE, CALL,
)  # fmt: skip
"""The kinds of ids that name what a session's thread has."""


def encode(kind: str, *parts: str) -> str:
    """Make an id of a kind that names its parts."""
    named = _SEPARATOR.join(parts).encode()
    return f"{kind}_{urlsafe_b64encode(named).decode().rstrip('=')}"


def decode(name: str, *kinds: str) -> tuple[str, ...] | None:
    """Read the parts of an id of some kinds; None: it is no such id."""
    kind, _, encoded = name.partition("_")
    if kind not in kinds:
        return None
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        parts = tuple(urlsafe_b64decode(padded.encode("ascii")).decode().split(_SEPARATOR))
    except (binascii.Error, UnicodeError, ValueError):
        return None
    # Several texts decode alike: one id names one thing.
    return parts if encode(kind, *parts) == name else None


@dataclass(frozen=True)
class ResponseName:
    """What a response is in a session.

    A request is one response, unless it waits for results of the caller's functions: then each part is one.

    Attributes:
        session_id: The session, as the caller names it.
        request_id: The request.
        after_seq: The entry with the calls whose results the caller has sent to begin this part; None: the response
            begins with the request.
    """

    session_id: str
    request_id: str
    after_seq: int | None = None

    @property
    def id(self) -> str:
        """The response's id."""
        part = () if self.after_seq is None else (str(self.after_seq),)
        return encode("resp", self.session_id, self.request_id, *part)

    @classmethod
    def read(cls, name: str) -> ResponseName:
        """Read a response's id.

        Raises:
            NotFound: It is none.
        """
        match decode(name, "resp", "chatcmpl"):
            case (session_id, request_id):
                return cls(session_id, request_id)
            case (session_id, request_id, seq) if _SEQ.fullmatch(seq):
                return cls(session_id, request_id, int(seq))
        raise NotFound(f"Response with id '{name[:200]}' not found.")


def name_seq(session_id: str, seq: int, number: int | None = None) -> str:
    """Name the message of an entry, or the message with a number of a snapshot."""
    return encode(MESSAGE, session_id, f"#{seq}" if number is None else f"#{seq}.{number}")


def make_session_id(key: str | None) -> str:
    """Make the id of a new session; with a caller's key, the same one each time."""
    return f"conv_{_digest('session', key) if key else secrets.token_hex(_HEX_DIGITS // 2)}"


def make_request_id(key: str | None) -> str:
    """Make the id of a new request; with a caller's key, the same one each time."""
    return _digest("request", key) if key else secrets.token_hex(_HEX_DIGITS // 2)


def _digest(what: str, key: str) -> str:
    return hashlib.sha256(f"{what}{_SEPARATOR}{key}".encode()).hexdigest()[:_HEX_DIGITS]
