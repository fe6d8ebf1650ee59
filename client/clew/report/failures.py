"""The failures of a session: requests, tool calls and model calls that failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from clew.contract.payloads import ApprovalPayload, ErrorPayload, RunPayload, ToolMessage
from clew.report.conversation import MAX_NAME_CHARACTERS
from clew.report.texts import Texts
from clew.report.types import Failure, FailureKind
from clew.thread.entries import Entry
from clew.thread.thread import Thread

MAX_REASON_CHARACTERS = 300
"""Most characters of the reason of a failure; its entry has all of it."""


def list_failures(thread: Thread, texts: Texts, results: Mapping[str, Entry]) -> Iterator[Failure]:
    """List the failures in order. The error that ended a request is listed as the request.

    `results`: the results of tool calls, by the ids of the calls.
    """

    def make(entry: Entry, kind: FailureKind, title: str, reason: str | None, in_doubt: bool = False) -> Failure:
        text = texts.take(reason, MAX_REASON_CHARACTERS)
        return Failure(seq=entry.seq, at=entry.at, kind=kind, title=title, text=text, in_doubt=in_doubt)

    ended = {
        (entry.refs.get("run_id"), run.error.type, run.error.message)
        for entry in thread
        if isinstance(run := entry.body, RunPayload) and run.status == "failed" and run.error
    }
    for entry in thread:
        match entry.body:
            case RunPayload(status="failed") as run:
                title = run.error.type if run.error else run.termination_reason
                yield make(entry, "request", title, run.error.message if run.error else None)
            case ErrorPayload() as error if (entry.refs.get("run_id"), error.type, error.message) not in ended:
                yield make(entry, "error", error.type, error.message)
            case ToolMessage() as result if results[result.tool_call_id] is entry and _has_failed(thread, result):
                name = (result.name or result.tool_call_id)[:MAX_NAME_CHARACTERS]
                yield make(entry, "tool_call", name, result.content, result.in_doubt)
            case _:
                pass


def _has_failed(thread: Thread, result: ToolMessage) -> bool:
    """Whether a tool call has failed, or may have. That a person denied it is no failure."""
    decided = thread.find_approval(result.tool_call_id)
    is_denied = decided is not None and decided.read(ApprovalPayload).decision == "deny"
    return (result.is_error or result.in_doubt) and not is_denied
