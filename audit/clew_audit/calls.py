"""What models saw, made again from entries alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clew.context.contexts import context_of_call
from clew.context.projection import Projection
from clew.errors import Archived, ClewError
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_audit.comparing import Difference


@dataclass(slots=True)
class Calls:
    """How many model calls were made again, and which could not be for want of entries."""

    verified: int = 0
    unverified: list[str] = field(default_factory=list)


def verify(thread: Thread, calls: Calls) -> Iterator[Difference]:
    """Make the context of every model call again, and compare it with what the call's recipe says of it."""
    for entry in thread:
        if entry.kind != "ai_message" or "recipe" not in entry.payload:
            continue
        call_id = str(entry.refs.get("call_id"))
        try:
            found = list(_compared(entry, call_id, context(thread, entry)))
        except Archived:
            calls.unverified.append(call_id)
            continue
        except (ClewError, KeyError, IndexError, TypeError, ValueError) as error:
            found = [Difference("call", f"its context cannot be made: {error!r}", call_id, entry.seq)]
        calls.verified += 1
        yield from found


def context(thread: Thread, reply: Entry) -> Projection:
    """What a model was shown for a reply.

    Raises:
        ClewError: it cannot be made of this thread.
    """
    seq = reply.payload["recipe"].get("output_schema_seq")
    return context_of_call(thread, reply, None if seq is None else thread[seq].payload["output_schema"])


def _compared(entry: Entry, call_id: str, made: Projection) -> Iterator[Difference]:
    recipe = entry.payload["recipe"]
    again = {
        "digest": made.meta.digest,
        "policy_hash": made.meta.policy_hash,
        "input_tokens": made.meta.estimated_tokens,
    }
    for name, value in again.items():
        if recipe.get(name) != value:
            problem = f"{recipe.get(name)!r} is recorded, and the entries make {value!r}"
            yield Difference("call", problem, call_id, entry.seq, f"payload.recipe.{name}")
