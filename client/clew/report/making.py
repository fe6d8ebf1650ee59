"""Make the report of a session from its thread alone, so that it is the same for live and archived sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from clew.report.conversation import MAX_NAME_CHARACTERS, Conversation, Texts, collect_results, count_seconds
from clew.report.report_types import ActiveLane, Call, Failure, FailureKind, Overview, Relative, Report, Run, Timeline
from clew.report.windows import count_media, make_window
from clew_workflows.contract.content import get_opening
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.lists import choose_title, cut_title
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import (
    AppliedReplace,
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    ForkPayload,
    MessagePayload,
    OperationPayload,
    Recipe,
    RunPayload,
    SessionPayload,
    Subagent,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.thread import Thread

MAX_ENTRIES = 2000
"""Entries whose content a report shows, unless it is made with another limit."""
MAX_WINDOWS = 1000
"""Most windows of a report; the newest calls that it shows have theirs."""
MAX_REASON_CHARACTERS = 300
"""Most characters of the reason of a failure; its entry has all of it."""
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
    calls = list(_list_calls(thread, range(first, last + 1)))
    results = collect_results(thread)
    conversation = Conversation(thread, texts, {call.seq: call for call in calls}, results)
    config_entry = thread.find_config(thread.last_seq)
    config = config_entry.read(ConfigPayload) if config_entry else None
    relatives = tuple(_list_relatives(thread, results))
    reported = [relative.usage for relative in relatives if relative.usage]
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
        usage=_sum_usage(call.usage for call in calls),
        unpriced_calls=sum(call.usage.cost_usd is None for call in calls),
        subagent_usage=_sum_usage(reported) if reported else None,
        system_prompt=texts.take(config.prompt if config else None),
        calls=tuple(calls),
        failures=tuple(_list_failures(thread, texts, results)),
        items=tuple(conversation.list_items(first, last)),
        timeline=_make_timeline(conversation),
        relatives=relatives,
    )


def make_overview(entries: Iterable[Entry], limit: int) -> Overview:
    """Make the overview of a session, with the windows of its newest model calls.

    `entries`: all entries of the session.
    """
    thread = Thread(entries)
    replies = [entry.seq for entry in thread if _find_recipe(entry)][-limit:]
    calls = _list_calls(thread, range(replies[0] if replies else 0, thread.rev))
    return Overview(
        entries=len(thread),
        first_at=thread[0].at if len(thread) else None,
        last_at=thread[thread.last_seq].at if len(thread) else None,
        calls=tuple(calls)[-limit:],
        timeline=_make_timeline(Conversation(thread, Texts(), {}, {})),
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
    return (
        choose_title(config.metadata if config else {}, cut_title(get_opening(first.content)) if first else None)
        or ""
    )


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


def _sum_usage(usages: Iterable[Usage]) -> Usage:
    total = Usage()
    for usage in usages:
        total = total.plus(usage)
    return total


# The model calls: their usage, how long they took, and what was in their windows.


def _list_calls(thread: Thread, shown: range) -> Iterator[Call]:
    """List the model calls in order. The newest of those whose replies are in `shown` get their windows."""
    replies = [entry.seq for entry in thread.slice(shown.start, shown.stop - 1) if _find_recipe(entry)]
    with_windows = set(replies[-MAX_WINDOWS:])
    media = count_media(thread)
    for entry in thread:
        if recipe := _find_recipe(entry):
            yield _make_call(thread, entry, recipe, media if entry.seq in with_windows else None)
        elif summary := _find_summary_usage(entry):
            lane, model, usage = summary
            summary_id = str(entry.refs.get("summary_id", f"summary at {entry.seq}"))
            made = entry.summary_recipe
            sent = made.request if made else None
            yield Call(
                seq=entry.seq,
                at=entry.at,
                call_id=summary_id,
                lane=lane,
                model=model,
                is_summary=True,
                usage=usage.model_copy(update={"model_calls": 1}),
                request_digest=sent.digest if sent else None,
                encoder=sent.encoder if sent else None,
                dialect=sent.dialect if sent else None,
            )


def _find_recipe(entry: Entry) -> Recipe | None:
    return entry.recipe if entry.kind == "ai_message" else None


def _make_call(thread: Thread, entry: Entry, recipe: Recipe, media: Mapping[int, int] | None) -> Call:
    """Make a call; with the number of the media of each message it gets its window."""
    window = problem = None
    if media is not None:
        try:
            window = make_window(thread, recipe, media)
        except ClewError as error:
            problem = str(error)
        except ValueError:
            problem = "its policy has fields of a later release"
    sent = recipe.request
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
        provider_tools=recipe.provider_tools,
        request_digest=sent.digest if sent else None,
        encoder=sent.encoder if sent else None,
        dialect=sent.dialect if sent else None,
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


# What failed: requests, tool calls and model calls.


def _list_failures(thread: Thread, texts: Texts, results: Mapping[str, Entry]) -> Iterator[Failure]:
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
                told = "\n".join(filter(None, [result.text, result.problem]))
                yield make(entry, "tool_call", name, told, result.in_doubt)
            case _:
                pass


def _has_failed(thread: Thread, result: ToolMessage) -> bool:
    """Whether a tool call has failed, or may have. That a person denied it is no failure."""
    decided = thread.find_approval(result.tool_call_id)
    is_denied = decided is not None and decided.read(ApprovalPayload).decision == "deny"
    return (result.is_error or result.in_doubt) and not is_denied
