"""The turns of a conversation: what its page folds together. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from clew.report.calls import count_seconds
from clew.report.conversation import MAX_NAME_CHARACTERS
from clew.report.texts import Texts
from clew.report.types import Failure, FailureKind, Item, MessageItem
from clew_workflows.contract.payloads import ApprovalPayload, ErrorPayload, RunPayload, ToolMessage
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

# The failures of a session: requests, tool calls and model calls that failed.


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


OPEN_TURNS = 3
"""The newest turns that a page shows open."""
LONG_TURN = 40
"""Items of a turn from which on it is folded, however new it is."""
_TITLE_CHARACTERS = 160


@dataclass(frozen=True, slots=True)
class Turn:
    """A message to the session, and all that happened until the next one.

    Attributes:
        items: The items, in order.
        title: The beginning of the message, if it has one and the report has texts.
        calls: The number of model calls.
        tools: The number of tool calls.
        failures: The number of failures.
        seconds: The seconds between the first and the last item; None: they have no times.
        is_open: Whether the page shows it open.
    """

    items: tuple[Item, ...]
    title: str
    calls: int
    tools: int
    failures: int
    seconds: float | None
    is_open: bool

    @property
    def first_seq(self) -> int:
        """The first entry."""
        return self.items[0].seq


def list_turns(items: Iterable[Item], failures: Sequence[Failure]) -> list[Turn]:
    """Split the items of a conversation into turns. What precedes the first message is a turn of its own."""
    groups = list(_split(items))
    failed = [failure.seq for failure in failures]
    turns = []
    for index, group in enumerate(groups):
        end = groups[index + 1][0].seq if index + 1 < len(groups) else None
        first_failure = bisect_left(failed, group[0].seq)
        end_failure = len(failed) if end is None else bisect_left(failed, end)
        is_new = index >= len(groups) - OPEN_TURNS
        turns.append(
            Turn(
                items=tuple(group),
                title=_find_title(group),
                calls=sum(isinstance(item, MessageItem) and item.call is not None for item in group),
                tools=sum(len(item.tools) for item in group if isinstance(item, MessageItem)),
                failures=end_failure - first_failure,
                seconds=count_seconds(group[0].at, group[-1].at),
                is_open=is_new and len(group) < LONG_TURN,
            )
        )
    return turns


def _split(items: Iterable[Item]) -> Iterator[list[Item]]:
    group: list[Item] = []
    request_id: str | None = None
    for item in items:
        if isinstance(item, MessageItem) and item.role == "user":
            # A message of the request that is being served is a correction of it.
            if group and (item.request_id is None or item.request_id != request_id):
                yield group
                group = []
            request_id = item.request_id
        group.append(item)
    if group:
        yield group


def _find_title(group: Sequence[Item]) -> str:
    first = group[0]
    if not isinstance(first, MessageItem) or first.role != "user":
        return "Before the first message"
    line = " ".join(first.text.content[: 4 * _TITLE_CHARACTERS].split())
    return (line if len(line) <= _TITLE_CHARACTERS else f"{line[: _TITLE_CHARACTERS - 1]}…") or "Message"
