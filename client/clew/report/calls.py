"""The model calls of a session: their usage, how long they took, and what was in their windows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from clew.report.types import Call
from clew.report.windows import make_window
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import AppliedReplace, OperationPayload, Recipe, SummaryPayload
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

MAX_WINDOWS = 1000
"""Most windows of a report; the newest calls that it shows have theirs."""


@dataclass(frozen=True, slots=True)
class CallUsage:
    """The usage of all model calls together.

    Attributes:
        total: The sum.
        unpriced: The number of calls whose cost is not known.
    """

    total: Usage
    unpriced: int


def list_calls(thread: Thread, shown: range) -> Iterator[Call]:
    """List the model calls in order. The newest of those whose replies are in `shown` get their windows."""
    replies = [entry.seq for entry in thread.slice(shown.start, shown.stop - 1) if _find_recipe(entry)]
    with_windows = set(replies[-MAX_WINDOWS:])
    for entry in thread:
        if recipe := _find_recipe(entry):
            yield _make_call(thread, entry, recipe, with_window=entry.seq in with_windows)
        elif summary := _find_summary_usage(entry):
            lane, model, usage = summary
            summary_id = str(entry.refs.get("summary_id", f"summary at {entry.seq}"))
            yield Call(
                seq=entry.seq,
                at=entry.at,
                call_id=summary_id,
                lane=lane,
                model=model,
                is_summary=True,
                usage=usage.model_copy(update={"model_calls": 1}),
            )


def _find_recipe(entry: Entry) -> Recipe | None:
    return entry.recipe if entry.kind == "ai_message" else None


def _make_call(thread: Thread, entry: Entry, recipe: Recipe, *, with_window: bool) -> Call:
    window = problem = None
    if with_window:
        try:
            window = make_window(thread, recipe)
        except ClewError as error:
            problem = str(error)
        except ValueError:
            problem = "its policy has fields of a later release"
    return Call(
        seq=entry.seq,
        at=entry.at,
        call_id=entry.refs.get("call_id", ""),
        lane=recipe.context_ref,
        model=recipe.model,
        usage=recipe.call_usage,
        seconds=_count_call_seconds(thread, entry, recipe),
        attempt=recipe.attempt,
        stop_reason=recipe.stop_reason,
        window=window,
        problem=problem,
    )


def _count_call_seconds(thread: Thread, entry: Entry, recipe: Recipe) -> float | None:
    if not 0 <= recipe.basis_seq < entry.seq:
        return None
    return count_seconds(thread[recipe.basis_seq].at, entry.at)


def _find_summary_usage(entry: Entry) -> tuple[str, str, Usage] | None:
    """The lane, the model and the usage of an entry that a summarizing model call has made; None: none has."""
    match entry.body:
        case SummaryPayload(context_ref=lane, model=model, usage=Usage() as usage):
            return lane, model, usage
        case OperationPayload(context_ref=lane, operation=AppliedReplace(reason="compaction", meta=dict() as meta)):
            # A caller's own compaction may have any `meta`.
            try:
                return lane, str(meta["model"]), Usage.model_validate(meta["usage"])
            except (KeyError, ValueError):
                return None
        case _:
            return None


def sum_usage(calls: Iterable[Call]) -> CallUsage:
    """Sum up the usage of model calls."""
    total, unpriced = Usage(), 0
    for call in calls:
        total = total.plus(call.usage)
        unpriced += call.usage.cost_usd is None
    return CallUsage(total, unpriced)


def count_seconds(first: str, last: str) -> float | None:
    """Count the seconds between the times of two entries; None if either is not a time."""
    try:
        return max((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
