"""What models saw, made again from entries alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clew.context.contexts import find_output_schema, rebuild_context
from clew.context.projection import Projection
from clew.contract.payloads import Recipe
from clew.errors import Archived, ClewError
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_audit.differences import Difference


@dataclass(slots=True)
class Calls:
    """How many model calls were made again, and which could not be for want of entries."""

    verified: int = 0
    unverified: list[str] = field(default_factory=list)


def verify(thread: Thread, calls: Calls) -> Iterator[Difference]:
    """Make the context of every model call again, and compare it with what the call's recipe says of it."""
    for entry in thread:
        recipe = entry.recipe
        if recipe is None:
            continue
        call_id = str(entry.refs.get("call_id"))
        try:
            found = list(_compared(entry, recipe, call_id, context(thread, recipe)))
        except Archived:
            calls.unverified.append(call_id)
            continue
        except (ClewError, KeyError, IndexError, TypeError, ValueError) as error:
            found = [Difference("call", f"its context cannot be made: {error!r}", call_id, entry.seq)]
        calls.verified += 1
        yield from found


def context(thread: Thread, recipe: Recipe) -> Projection:
    """What a model was shown for a reply, by its recipe.

    Raises:
        ClewError: it cannot be made of this thread.
    """
    return rebuild_context(thread, recipe, find_output_schema(thread, recipe))


def _compared(entry: Entry, recipe: Recipe, call_id: str, made: Projection) -> Iterator[Difference]:
    rows: tuple[tuple[str, str | int, str | int], ...] = (
        ("digest", recipe.digest, made.meta.digest),
        ("policy_hash", recipe.policy_hash, made.meta.policy_hash),
        ("input_tokens", recipe.input_tokens, made.meta.estimated_tokens),
    )
    for name, recorded, value in rows:
        if recorded != value:
            problem = f"{recorded!r} is recorded, and the entries make {value!r}"
            yield Difference("call", problem, call_id, entry.seq, f"payload.recipe.{name}")
