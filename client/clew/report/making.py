"""Make the report of a session from its thread alone, so that it is the same for live and archived sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from clew.report.calls import count_seconds, list_calls, sum_usage
from clew.report.conversation import Conversation, collect_results
from clew.report.texts import Texts
from clew.report.turns import list_failures
from clew.report.types import ActiveLane, Relative, Report, Run, Timeline
from clew_workflows.contract.lists import choose_title, cut_title
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import (
    AssistantMessage,
    ConfigPayload,
    ForkPayload,
    MessagePayload,
    RunPayload,
    SessionPayload,
    Subagent,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.thread import Thread

MAX_ENTRIES = 2000
"""Entries whose content a report shows, unless it is made with another limit."""
_OPERATION_KINDS = {"ai_context_operation", "summary", "config", "error", "fork", "session"}


def make_report(
    entries: Iterable[Entry],
    *,
    made_at: str,
    session_id: str | None = None,
    from_seq: int | None = None,
    limit: int = MAX_ENTRIES,
    with_texts: bool = True,
) -> Report:
    """Make the report of a session.

    `entries`: all entries of the session.
    `made_at`: the time of the report, ISO 8601 in UTC.
    `session_id`: the session; None: the one that the newest entry names.
    `from_seq`: the first entry whose content is shown; None: the newest entries are shown.
    `limit`: the most entries whose content is shown. Numbers and timeline always include all entries.
    `with_texts`: whether the report has the texts of the conversation.
    """
    thread = Thread(entries)
    first = max(thread.rev - limit, 0) if from_seq is None else from_seq
    last = min(first + limit, thread.rev) - 1
    texts = Texts(with_texts)
    calls = list(list_calls(thread, range(first, last + 1)))
    results = collect_results(thread)
    conversation = Conversation(thread, texts, {call.seq: call for call in calls}, results)
    config_entry = thread.find_config(thread.last_seq)
    config = config_entry.read(ConfigPayload) if config_entry else None
    usage = sum_usage(calls)
    relatives = tuple(_list_relatives(thread, results))
    return Report(
        session_id=session_id or _find_session_id(thread),
        made_at=made_at,
        title=texts.take(_find_title(thread, config)),
        status=_find_status(thread),
        agent=config.agent.name if config and config.agent else None,
        model=config.model if config else None,
        metadata={name: texts.take(value) for name, value in config.metadata.items()} if config else {},
        has_texts=with_texts,
        entries=len(thread),
        first_at=thread[0].at if len(thread) else None,
        last_at=thread[thread.last_seq].at if len(thread) else None,
        first_shown=first,
        last_shown=last,
        requests=dict(Counter(entry.read(RunPayload).status for entry in thread.outcomes.values())),
        tool_calls=sum(len(body.call_ids) for entry in thread if isinstance(body := entry.body, AssistantMessage)),
        usage=usage.total,
        unpriced_calls=usage.unpriced,
        subagent_usage=_sum_subagents(relatives),
        system_prompt=texts.take(config.prompt if config else None),
        calls=tuple(calls),
        failures=tuple(list_failures(thread, texts, results)),
        items=tuple(conversation.list_items(first, last)),
        timeline=_make_timeline(conversation),
        relatives=relatives,
    )


def _find_session_id(thread: Thread) -> str:
    """Find the session of the newest entry that names one. The first entries of a fork name its parent."""
    for entry in reversed(list(thread)):
        if session_id := entry.refs.get("session_id"):
            return session_id
    return ""


def _find_title(thread: Thread, config: ConfigPayload | None) -> str:
    messages = (entry.body for entry in thread if entry.kind == "ai_message")
    first = next((body for body in messages if isinstance(body, UserMessage)), None)
    return choose_title(config.metadata if config else {}, cut_title(first.content) if first else None) or ""


def _find_status(thread: Thread) -> str:
    for entry in reversed(list(thread)):
        match entry.body:
            case SessionPayload(event="hibernated" | "closed" as event):
                return event
            case RunPayload(status=status):
                return "failed" if status == "failed" else "idle"
            case MessagePayload(request_id=str() as request_id) if thread.find_outcome(request_id) is None:
                return "working"
            case _:
                pass
    return "idle"


def _make_timeline(conversation: Conversation) -> Timeline:
    thread = conversation.thread
    operations = (entry for entry in thread if entry.kind in _OPERATION_KINDS)
    return Timeline(
        lanes=tuple(dict.fromkeys(entry.lane for entry in thread if entry.lane is not None)) or (DEFAULT_LANE,),
        active=tuple(_list_active(thread)),
        runs=tuple(_list_runs(thread)),
        operations=tuple(conversation.make_event(entry, with_text=False) for entry in operations),
    )


def _list_active(thread: Thread) -> Iterator[ActiveLane]:
    first, lane = 0, DEFAULT_LANE
    for entry in thread.activations:
        if (name := entry.lane or lane) == lane:
            continue
        if entry.seq > first:
            yield ActiveLane(lane=lane, first_seq=first, last_seq=entry.seq - 1)
        first, lane = entry.seq, name
    if thread.rev > first:
        yield ActiveLane(lane=lane, first_seq=first, last_seq=thread.last_seq)


def _list_runs(thread: Thread) -> Iterator[Run]:
    spans: dict[str, tuple[Entry, Entry, str, str | None]] = {}
    for entry in thread:
        if (run_id := entry.refs.get("run_id")) is None:
            continue
        first, _, lane, status = spans.get(run_id, (entry, entry, entry.lane or DEFAULT_LANE, None))
        if isinstance(body := entry.body, RunPayload):
            status = body.status
        spans[run_id] = (first, entry, lane, status)
    for run_id, (first, last, lane, status) in spans.items():
        seconds = count_seconds(first.at, last.at) or 0.0
        yield Run(
            run_id=run_id,
            lane=lane,
            first_seq=first.seq,
            last_seq=last.seq,
            at=first.at,
            seconds=seconds,
            status=status,
        )


def _list_relatives(thread: Thread, results: Mapping[str, Entry]) -> Iterator[Relative]:
    for entry in thread:
        match entry.body:
            case ForkPayload() as fork:
                yield Relative(
                    session_id=fork.session_id,
                    relation=fork.event,
                    seq=entry.seq,
                    at=entry.at,
                    fork_seq=fork.fork_seq,
                )
            case ToolMessage(subagent=Subagent() as subagent) as result if results[result.tool_call_id] is entry:
                yield Relative(
                    session_id=subagent.session_id,
                    relation="subagent",
                    seq=entry.seq,
                    at=entry.at,
                    agent=subagent.agent,
                    status="in doubt" if result.in_doubt else "failed" if result.is_error else "completed",
                    usage=subagent.usage,
                )
            case _:
                pass


def _sum_subagents(relatives: Iterable[Relative]) -> Usage | None:
    total: Usage | None = None
    for relative in relatives:
        if relative.usage:
            total = relative.usage if total is None else total.plus(relative.usage)
    return total
