"""What a hub knows of a session at one moment."""

from __future__ import annotations

from dataclasses import dataclass

from clew.contract.outputs import LiveStatus, ReplyProgress, ToolProgress

HIBERNATED = "hibernated"
CLOSED = "closed"


@dataclass(frozen=True, slots=True)
class Retry:
    """An activity whose last attempt failed.

    Attributes:
        attempt: The number of the attempt that follows.
        error: The type of the error.
        message: A description for people.
        next_at: When the attempt starts at the earliest; None: it has started, or starts now.
    """

    attempt: int
    error: str
    message: str
    next_at: str | None


@dataclass(frozen=True, slots=True)
class Flight:
    """A model call or a tool call in flight, from the server's description of its activity.

    Attributes:
        activity_id: The activity.
        is_model_call: It is a model call.
        progress: The newest heartbeat; None: there is none. It may be of an earlier attempt.
        retry: The failure of the attempt before; None: none has failed.
    """

    activity_id: str
    is_model_call: bool
    progress: ReplyProgress | ToolProgress | None
    retry: Retry | None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A session at one moment: the thread's length, the status after the newest entry, and the calls in flight.

    Attributes:
        next_seq: The seq after the newest entry.
        status: The status after that entry; None: the session has ended.
        flights: The calls in flight, as the server describes them. They may be of a moment before or after.
        ended: `hibernated` or `closed`, if no workflow of the session runs.
    """

    next_seq: int
    status: LiveStatus | None
    flights: tuple[Flight, ...] = ()
    ended: str | None = None
