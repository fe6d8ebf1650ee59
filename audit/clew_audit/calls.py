"""Comparison of the contexts of model calls, built again from the entries, with their recipes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from clew_audit.differences import Difference
from clew_workflows.contract.errors import Archived, ClewError
from clew_workflows.contract.payloads import Recipe
from clew_workflows.thread.context.contexts import find_output_schema, rebuild_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread


@dataclass(slots=True)
class Calls:
    """The model calls of an audit.

    Attributes:
        verified: Number of calls whose contexts were built again.
        unverified: Ids of the calls whose entries are not all at hand.
    """

    verified: int = 0
    unverified: list[str] = field(default_factory=list)


def verify_calls(thread: Thread, calls: Calls) -> Iterator[Difference]:
    """Build the context of every model call again, and compare it with the call's recipe."""
    for entry in thread:
        recipe = entry.recipe
        if recipe is None:
            continue
        call_id = str(entry.refs.get("call_id"))
        try:
            differences = list(_compare(entry, recipe, call_id, project_call(thread, recipe)))
        except Archived:
            calls.unverified.append(call_id)
            continue
        except (ClewError, KeyError, IndexError, TypeError, ValueError) as error:
            differences = [Difference("call", f"its context cannot be built: {error!r}", call_id, entry.seq)]
        calls.verified += 1
        yield from differences


def project_call(thread: Thread, recipe: Recipe) -> Projection:
    """Build the context of a reply again by its recipe.

    Raises:
        ClewError: The thread does not hold all the entries that this needs.
    """
    return rebuild_context(thread, recipe, find_output_schema(thread, recipe))


def _compare(entry: Entry, recipe: Recipe, call_id: str, projection: Projection) -> Iterator[Difference]:
    rows: tuple[tuple[str, str | int, str | int], ...] = (
        ("digest", recipe.digest, projection.meta.digest),
        ("policy_hash", recipe.policy_hash, projection.meta.policy_hash),
        ("input_tokens", recipe.input_tokens, projection.meta.estimated_tokens),
    )
    for name, recorded, value in rows:
        if recorded != value:
            problem = f"{recorded!r} is recorded, but the entries give {value!r}"
            yield Difference("call", problem, call_id, entry.seq, f"payload.recipe.{name}")
