"""Summarizing: determining the range of a summary in the present thread, and having it written."""

from __future__ import annotations

from typing import Any

from temporalio.exceptions import ApplicationError

from clew.context.contexts import find_lane_prompt
from clew.contract import ContextQuery
from clew.contract.payloads import ErrorPayload, SummaryPayload
from clew.contract.receipts import SummaryReceipt
from clew.errors import Refusal
from clew_workflows.core import limits, summaries
from clew_workflows.protocol import Event, Failure, Summarize, Summarized
from clew_workflows.shell import execution
from clew_workflows.shell.recalling import Recalling
from clew_workflows.shell.runtime import Runtime


async def summarize(runtime: Runtime, recalling: Recalling, effect: Summarize) -> Event:
    """Determine the range of a summary and run the activity that writes it; returns the summary or a failure."""
    lane = effect.context_ref
    if problem := limits.find_reached_limit(runtime.state):
        return problem
    if failure := await recalling.recall(lane, runtime.state.policy, ContextQuery(context_ref=lane)):
        return failure
    try:
        ranged = summaries.find_range(runtime.state, runtime.thread, effect)
    except Refusal as refused:
        return Failure(type=refused.type, message=str(refused))
    match await execution.carry_out(ranged, None, runtime.state):
        case Failure() as failure:
            return failure
        case summary:
            prompt, tokens = find_lane_prompt(runtime.thread, lane)
            return Summarized(effect=ranged, summary=summary, system_prompt=prompt, system_prompt_tokens=tokens)


def make_receipt(runtime: Runtime, summary_id: str) -> dict[str, Any]:
    """Make the answer to the update `summarize`.

    Raises:
        ApplicationError: There is no summary: the type and the message are those of its `error` entry, or `busy` if
            the session continues as new.
    """
    entries = runtime.thread.filter_by_ref("summary_id", summary_id)
    if not entries:
        message = "the summary is still being written, while the session continues in a new run of its workflow"
        raise ApplicationError(message, type="busy", non_retryable=True)
    entry = entries[-1]
    held = entry.body
    if isinstance(held, ErrorPayload):
        raise ApplicationError(held.message, type=held.type, non_retryable=True)
    summary = entry.read(SummaryPayload)
    return SummaryReceipt(
        seq=entry.seq,
        from_seq=summary.from_seq,
        to_seq=summary.to_seq,
        tokens=entry.tokens,
    ).as_dict()
