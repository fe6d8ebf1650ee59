"""Inputs that cannot be decrypted, or that are not encrypted where they must be: each is refused.

Workers may have different keys, so whether an input can be read is no fact of the history. A refused start or signal
is recorded by a marker, so that every worker replays the refusal. A worker that lacks the key of an input which
another worker has accepted fails the workflow task: the server repeats it until a worker has the key.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio import workflow
from temporalio.common import RawValue
from temporalio.exceptions import ApplicationError

from clew.encryption.admission import FOREIGN_FIELD, PLAIN_FIELD, SEAL_FIELD, UNDECODABLE
from clew.errors import NotEncrypted, Refusal, UnknownKey

REFUSES_PLAIN = "refuses_plain"
"""The attribute of a worker's payload converter that is True where inputs must be encrypted."""

# The same text on every worker, since it becomes part of the thread.
_REFUSALS: tuple[Refusal, ...] = (
    UnknownKey("the worker cannot decrypt the input: it does not have its key, or the input was changed"),
    NotEncrypted("the input is not encrypted: the sender needs the keys of the workers (CLEW_ENCRYPTION_KEYS)"),
)


class QueryRefused(ApplicationError):
    """A refused query. The server hands its message to the caller and stores nothing of it."""


class KeyMissing(RuntimeError):
    """The worker cannot decrypt an input that the session has accepted: the workflow task fails and is repeated."""


def find_refusal(args: Sequence[RawValue]) -> Refusal | None:
    """Find why the input of an update or of a service is refused; None: it can be read. Replays must not ask.

    An input without an argument is one that is not encrypted.
    """
    undecodable, plain = _REFUSALS
    if _find_undecodable(args) is not None or any(FOREIGN_FIELD in arg.payload.metadata for arg in args):
        return undecodable
    is_bare = not args and _refuses_plain()
    return plain if is_bare or any(PLAIN_FIELD in arg.payload.metadata for arg in args) else None


def _refuses_plain() -> bool:
    converter = workflow.payload_converter()
    # The SDK wraps the worker's converter, and shows it nowhere. A test sends inputs without arguments.
    converter = getattr(converter, "_inner_payload_converter", converter)
    return bool(getattr(converter, REFUSES_PLAIN, False))


def find_seal(args: Sequence[RawValue]) -> str | None:
    """Find the id in the encrypted text of an input, by which a repetition is recognized; None: it has none."""
    seals = (arg.payload.metadata.get(SEAL_FIELD) for arg in args)
    return next((seal.decode() for seal in seals if seal), None)


def settle(args: Sequence[RawValue], name: str, *, waits_for_key: bool = False) -> Refusal | None:
    """Find why an input of the history is refused, a start or a signal; None: it is accepted. Replays agree.

    Args:
        args: The input.
        name: Names the input among those of this workflow run.
        waits_for_key: An input that the worker cannot decrypt is not refused but left to another worker: Clew has
            sent it.

    Raises:
        KeyMissing: The worker cannot decrypt an input that another worker has accepted.
    """
    if waits_for_key:
        require_key(args)
    current = None if workflow.unsafe.is_replaying() else find_refusal(args)
    for refusal in _REFUSALS:
        asks = refusal is current or workflow.unsafe.is_replaying()
        if asks and workflow.patched(f"{refusal.type}-{name}"):
            return refusal
    require_key(args)
    return None


def require_key(args: Sequence[RawValue]) -> None:
    """Check that an accepted input can be read.

    Raises:
        KeyMissing: The worker cannot decrypt it.
    """
    reason = _find_undecodable(args)
    if reason is not None:
        raise KeyMissing(f"the worker cannot decrypt an input of the session: {reason}")


def require_own(args: Sequence[RawValue]) -> None:
    """Check that the argument with which a session continues as new can be read, and is encrypted if it must be.

    Raises:
        KeyMissing: It is not. The session waits: no worker of Clew's has written this argument.
    """
    require_key(args)
    if not workflow.unsafe.is_replaying() and (refusal := find_refusal(args)):
        raise KeyMissing(f"the session cannot continue: {refusal}")


def _find_undecodable(args: Sequence[RawValue]) -> str | None:
    """Find why the first undecodable argument cannot be decoded; None: there is none."""
    for arg in args:
        if arg.payload.metadata.get("encoding") == UNDECODABLE:
            return arg.payload.data.decode(errors="replace")
    return None
