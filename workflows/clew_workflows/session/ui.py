"""What Temporal's UI and lists show of a session."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from pydantic_core import to_json

from clew_workflows.contract.content import Content, Part, describe_part, get_blob, list_media
from clew_workflows.contract.lists import (
    AttributeValue,
    ListedStatus,
    SessionSummary,
    choose_title,
    make_attributes,
    split_tags,
)
from clew_workflows.contract.messages import list_cited_pages
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import AssistantMessage, ForkPayload, MessagePayload, RunPayload, ToolMessage
from clew_workflows.protocol import (
    Archiving,
    CallModel,
    CheckBlobs,
    DescribeModel,
    Effect,
    PlannedCall,
    Prepare,
    Recall,
    RunHooks,
    SignCheckpoint,
    Summarize,
    Thaw,
)
from clew_workflows.session import outside, tool_rounds
from clew_workflows.session.state import RequestedCall, State
from clew_workflows.thread.thread import Thread

# Texts of strangers in Markdown: none of them can add a heading, a link, an image or HTML, or end its line.
#
# The Temporal UI's renderer passes HTML on, scripts included, and does not know every escape of CommonMark. Character
# references work everywhere.


MAX_MARKER = 80
"""Most characters of the marker of an image, a recording or a file."""
MAX_COUNT = 12
"""Characters that the number of the other markers has room in."""
_PUNCTUATION = re.compile(r"[\"-+\-/:<->@\[-`{-~]")
"""The ASCII punctuation except `!`, `,`, `.`, `;` and `?`."""


def shorten(text: str, limit: int) -> str:
    """Put a text on one line of at most `limit` characters, without characters that are not visible."""
    # Twice the limit, so that a megabyte is not read for a line.
    begin = text[: 2 * limit]
    if not begin.isprintable():
        begin = "".join(char if char.isprintable() else " " for char in begin)
    line = " ".join(begin.split())
    return line if len(line) <= limit and len(text) <= 2 * limit else f"{line[: limit - 1]}…"


def quote_content(content: Content, limit: int) -> str:
    """Put a content on one line of at most `limit` characters: its texts, and behind them markers of its other parts.

    A marker that has no room is a name, and one whose name has none is counted: the names of files may be long.
    """
    if isinstance(content, str):
        return shorten(content, limit)
    media = list_media(content)
    texts = [part["text"][: 2 * limit] for part in content if part["type"] == "text"]
    line = shorten("\n".join(texts), limit - MAX_COUNT if media else limit)
    for number, part in enumerate(media):
        room = limit - len(line) - 1 - (MAX_COUNT if number + 1 < len(media) else 0)
        markers = (shorten(marker, MAX_MARKER) for marker in (describe_part(part), _name_part(part)))
        marker = next((marker for marker in markers if len(marker) <= room), None)
        if marker is None:
            return f"{line} [{len(media) - number} media]".strip()
        line = f"{line} {marker}".strip()
    return line


def _name_part(part: Part) -> str:
    blob = get_blob(part)
    return f"[{part['type']}: {blob.get('name') or blob['digest'][:12]}]" if blob else describe_part(part)


def escape(text: str, limit: int) -> str:
    """Shorten a text, and write every character that could mean something in Markdown or HTML as a reference."""
    return _PUNCTUATION.sub(lambda match: f"&#{ord(match[0])};", shorten(text, limit))


def format_code(text: str, limit: int) -> str:
    """Shorten a text, and make it a code span. A backtick in it is replaced by a character that looks like one."""
    return f"`{shorten(text, limit).replace('`', 'ˋ')}`"  # noqa: RUF001 - the look-alike is meant


def format_arguments(arguments: Any, limit: int) -> str:
    """Write a call's arguments on one line of JSON."""
    return shorten(to_json(arguments, inf_nan_mode="constants").decode(errors="replace"), limit)


def link_session(session_id: str) -> str:
    """Link the page of a session; the Temporal UI puts the namespace in."""
    return f"[{escape(session_id, 200)}](/namespaces/{{namespace}}/workflows/{quote(session_id, safe='')})"


# Labels in the Temporal UI: the summaries of activities and timers, and the names of event groups.
#
# A label is fixed when its event is written: it tells what is known by then.


MAX_BYTES = 400
"""Longest label, in bytes: Temporal takes no more."""
MAX_QUESTION = 60
"""Most characters of a message in a label."""
MAX_LABEL_ARGUMENTS = 80
"""Most characters of a call's arguments in a label."""


def make_label(effect: Effect, state: State) -> str:
    """Label the activity of an effect that begins now."""
    return _fit(_describe(effect, state))


def label_run(state: State) -> str | None:
    """Label the active run by its message, at its first model call: one of its events needs the label."""
    if state.run is None or state.run.iteration != 1 or state.phase != "awaiting_model":
        return None
    question = _quote_question(state)
    return _fit(f"{state.run.run_id} · {question}" if question else state.run.run_id)


def label_approval(calls: Sequence[RequestedCall], state: State) -> str:
    """Label the wait for a person's decision about calls."""
    return _label_wait("waits for approval of", calls, state)


def label_external(calls: Sequence[RequestedCall], state: State) -> str:
    """Label the wait for the results of calls from outside."""
    return _label_wait("waits for the result of", calls, state)


def describe_usage(usage: Usage) -> str:
    """Describe tokens and cost, as `1 234 → 56 tokens, 0.0123 USD`."""
    tokens = f"{_format_number(usage.input_tokens)} → {_format_number(usage.output_tokens)} tokens"
    return tokens if usage.cost_usd is None else f"{tokens}, {usage.cost_usd:.4f} USD"


def _describe(effect: Effect, state: State) -> str:
    match effect:
        case Prepare():
            return f"agent {effect.agent[:80]}" if effect.agent else (effect.model or "")[:80]
        case DescribeModel():
            return effect.model[:80]
        case RunHooks():
            names = ", ".join(item.name for item in effect.items if item.name)
            return f"{effect.point} {names[:80]}".strip()
        case CallModel():
            return " · ".join(filter(None, _label_call(effect, state)))
        case PlannedCall(call, _):
            return f"{_name_call(call.name, call.arguments, state)} · {call.tool_call_id}"
        case Summarize():
            return f"summary of {effect.from_seq} to {effect.to_seq} of lane {effect.context_ref[:80]}"
        case Archiving():
            return f"entries from {effect.archive.upto + 1}"
        case Thaw():
            return f"entries up to {effect.archive.upto}"
        case Recall():
            return f"lane {effect.context_ref[:80]} before {effect.before}"
        case SignCheckpoint():
            return f"checkpoint {effect.number}"
        case CheckBlobs():
            return f"{len(effect.blobs)} blob{'s' * (len(effect.blobs) != 1)} of a message"


def _label_call(effect: CallModel, state: State) -> tuple[str, ...]:
    """Describe a model call: its number in the session, its model, the message, and what was spent before it."""
    return (
        f"call {state.counters.calls}",
        effect.model.partition(":")[2][:40],
        f"may use {', '.join(effect.provider_tools)}" if effect.provider_tools else "",
        _quote_question(state) if effect.iteration == 1 else "",
        f"so far {describe_usage(state.spent.own)}" if state.spent.own.model_calls else "",
    )


def _quote_question(state: State) -> str:
    if state.run is None or not state.run.request.content or not state.settings.shows_texts:
        return ""
    return f"“{quote_content(state.run.request.content, MAX_QUESTION)}”"


def _name_call(name: str, arguments: object, state: State) -> str:
    return f"{name} {format_arguments(arguments, MAX_LABEL_ARGUMENTS)}" if state.settings.shows_texts else name


def _label_wait(what: str, calls: Sequence[RequestedCall], state: State) -> str:
    names = [f"{_name_call(call.name, call.arguments, state)} · {call.tool_call_id}" for call in calls]
    return _fit(f"{what} {', '.join(names)}")


def _fit(label: str) -> str:
    """Truncate a label to the bytes that Temporal takes."""
    encoded = label.encode()
    return label if len(encoded) <= MAX_BYTES - 3 else f"{encoded[: MAX_BYTES - 6].decode(errors='ignore')}…"


def _format_number(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")


# The details of a session in the Temporal UI, in Markdown.
#
# The UI puts them into the address of a page, so they stay short.


MAX_MESSAGES = 6
"""Most messages that the details show."""
MAX_TEXT = 200
"""Most characters of each message."""
MAX_ARGUMENTS = 300
"""Most characters of the arguments of each call."""
MAX_LISTED = 8
"""Most calls, and most relatives, that the details list."""


def describe_session(state: State, thread: Thread, *, texts: bool) -> str:
    """Describe a session for an operator.

    Args:
        state: The session's state.
        thread: Its thread.
        texts: Show texts of the conversation and arguments of calls.
    """
    sections = (
        _describe_status(state),
        *_describe_waits(state, texts),
        *_describe_failures(state, thread, texts),
        *(_describe_turns(state, thread) if texts else ()),
        _describe_usage(state, thread),
        *_describe_relatives(state, thread),
        f"Everything, with each context: {format_code(f'clew report {state.session_id} -o report.html', 250)}",
    )
    return "\n\n".join(sections)


def _describe_status(state: State) -> str:
    parts = [f"**{state.phase.replace('_', ' ')}**", f"lane {format_code(state.context_ref, 80)}"]
    if state.settings.model:
        parts.insert(1, format_code(state.settings.model, 80))
    if agent := state.settings.agent:
        parts.insert(1, f"agent {format_code(agent.name, 80)} {escape(agent.label or agent.version, 40)}")
    if own := state.settings.config.provider_tools:
        parts.append(f"the provider's {', '.join(format_code(name, 40) for name in own)}")
    if run := state.run:
        parts.append(
            f"{format_code(run.run_id, 40)}, call {run.iteration} of {run.request.max_iterations}, "
            f"for request {format_code(run.request.request_id, 60)}"
        )
    return " · ".join(parts)


def _describe_waits(state: State, texts: bool) -> Iterator[str]:
    lists = (
        ("Waits for approval (update `resolve_approval`)", outside.list_pending_approvals(state)),
        ("Waits for results (update `submit_tool_result`)", outside.list_pending_results(state)),
        ("Runs", tool_rounds.list_running(state)),
    )
    for title, calls in lists:
        if calls:
            yield _make_list(title, [_describe_call(call, texts) for call in calls])
    waiting = {
        "queued messages": len(state.queue),
        "inputs": len(state.inbox),
        "context operations": len(state.deferred.operations),
    }
    if any(waiting.values()):
        yield "Waits for its turn: " + " · ".join(f"{count} {name}" for name, count in waiting.items() if count)


def _describe_call(call: RequestedCall, texts: bool) -> str:
    line = f"{format_code(call.name, 80)} {format_code(call.tool_call_id, 80)}"
    if not texts:
        return line
    edited = " (edited by a person)" if call.edited else ""
    return f"{line} {format_code(format_arguments(call.arguments, MAX_ARGUMENTS), MAX_ARGUMENTS)}{edited}"


def _describe_failures(state: State, thread: Thread, texts: bool) -> Iterator[str]:
    works = state.phase in ("checking", "awaiting_model", "stopping", "awaiting_tools", "preparing", "summarizing")
    if works or tool_rounds.list_running(state):
        yield "Attempts and their failures: tab **Pending Activities**"
    if state.run and state.run.tried.shortened:
        yield "⚠ The model is called again with a shorter context: the provider refused the longer one."
    if state.run and state.run.fallback:
        failed = ", ".join(format_code(model, 80) for model in state.run.tried.failed_models)
        yield f"⚠ The run goes on with {format_code(state.run.fallback, 80)}: {failed} had an outage."
    if problem := state.settings.problem:
        yield f"⚠ {format_code(problem.type, 80)} {escape(problem.message, MAX_TEXT)}"
    newest = next(reversed(thread.outcomes.values()), None)
    outcome = newest.read(RunPayload) if newest else None
    if newest and outcome and outcome.status != "completed" and state.run is None:
        reason = outcome.error.message if outcome.error else outcome.reason or ""
        yield (
            f"⚠ The last request {outcome.status}: {format_code(outcome.termination_reason, 80)} "
            f"{escape(reason, MAX_TEXT) if texts else ''} (entry {newest.seq})"
        )


def _describe_turns(state: State, thread: Thread) -> Iterator[str]:
    lane = thread.get_lane(state.context_ref)
    lines: list[str] = []
    for seq in reversed(lane.message_seqs if lane else ()):
        if len(lines) == MAX_MESSAGES or seq < thread.first_seq:
            break
        body = thread[seq].body
        if isinstance(body, MessagePayload) and not isinstance(body, ToolMessage):
            lines.append(_describe_message(body))
    if lines:
        yield _make_list("Last messages", lines[::-1])


def _describe_message(message: MessagePayload) -> str:
    parts = [f"**{message.role}**"]
    if message.content:
        parts.append(escape(quote_content(message.content, MAX_TEXT), MAX_TEXT))
    if isinstance(message, AssistantMessage) and message.tool_calls:
        parts.append("calls " + ", ".join(format_code(call["name"], 80) for call in message.tool_calls[:MAX_LISTED]))
    if isinstance(message, AssistantMessage) and (own := _describe_provider_calls(message)):
        parts.append(own)
    if isinstance(message, AssistantMessage) and message.interrupted:
        parts.append("(interrupted)")
    return " ".join(parts)


def _describe_provider_calls(reply: AssistantMessage) -> str:
    """Describe the calls that the provider ran itself, and how many pages the reply names; empty: none."""
    parts = []
    if calls := reply.provider_calls:
        names = [
            f"{format_code(call['tool'], 40)} {escape(call.get('input', ''), MAX_LABEL_ARGUMENTS)}".rstrip()
            for call in calls[:MAX_LISTED]
        ]
        more = f" and {len(calls) - MAX_LISTED} more" if len(calls) > MAX_LISTED else ""
        parts.append(f"the provider ran {', '.join(names)}{more}")
    if pages := list_cited_pages(reply.citations or ()):
        parts.append(f"({len(pages)} source{'' if len(pages) == 1 else 's'})")
    return " ".join(parts)


def _describe_usage(state: State, thread: Thread) -> str:
    parts = [
        f"{thread.rev} entries",
        f"{state.counters.runs} runs",
        f"{state.spent.own.model_calls} model calls",
        describe_usage(state.spent.own),
    ]
    if state.spent.subagents != Usage():
        parts.append(f"subagents {describe_usage(state.spent.subagents)}")
    if state.archive and state.archive.upto >= 0:
        parts.append(f"entries up to {state.archive.upto} are in the archive")
    return " · ".join(parts)


def _describe_relatives(state: State, thread: Thread) -> Iterator[str]:
    lines = list[str]()
    if state.assignment:
        task = state.assignment.task
        lines.append(f"subagent of {link_session(task.session_id)}, call {format_code(task.tool_call_id, 80)}")
    for entry in thread:
        match entry.body:
            case ForkPayload(event="forked_from") as fork:
                lines.append(f"fork of {link_session(fork.session_id)} at entry {fork.fork_seq}")
            case ForkPayload() as fork:
                lines.append(f"fork {link_session(fork.session_id)} at entry {fork.fork_seq}")
            case ToolMessage(subagent=subagent) if subagent:
                lines.append(
                    f"subagent {link_session(subagent.session_id)}: {format_code(subagent.agent, 80)}, ended"
                )
            case _:
                pass
    lines += [
        f"subagent {link_session(child.session_id)}: {format_code(child.agent, 80)}, "
        f"{'works' if child.step == 'working' else 'starts' if child.step == 'start' else 'is cancelled'}"
        for child in state.children
    ]
    if lines:
        yield _make_list("Relatives", lines[::-1])


def _make_list(title: str, lines: list[str]) -> str:
    """Make a list of the first lines, with the number of those that are left out."""
    more = [f"and {len(lines) - MAX_LISTED} more"] if len(lines) > MAX_LISTED else []
    return "\n".join((f"**{title}**", "", *(f"- {line}" for line in (*lines[:MAX_LISTED], *more))))


# The session in lists: its summary, its search attributes, its memo, and when they are to be updated.


WAITING: frozenset[ListedStatus] = frozenset({"awaiting_approval", "awaiting_external"})
"""Busy, and the session waits for people or for results from outside."""
FIGURES = frozenset({"ClewTokens", "ClewCostUsd", "ClewLastActive"})
"""The search attributes that change with each turn."""


def summarize_session(state: State) -> SessionSummary:
    """Summarize the session for lists."""
    metadata, listed = state.settings.config.metadata, state.listed
    usage = state.spent.own.plus(state.spent.subagents)
    return SessionSummary(
        session_id=state.session_id,
        status=find_status(state),
        title=find_title(state),
        agent=state.settings.config.agent,
        model=state.settings.model or None,
        user=metadata.get("user") or None,
        tags=split_tags(metadata),
        tokens=usage.input_tokens + usage.output_tokens,
        cost_usd=usage.cost_usd,
        started_at=listed.started_at,
        active_at=listed.active_at,
        parent=state.assignment.task.session_id if state.assignment else listed.origin,
        metadata=metadata,
    )


def summarize_archived(state: State) -> SessionSummary:
    """Summarize a session whose archive is written from outside: it waits there to be opened."""
    return summarize_session(state).model_copy(update={"status": "hibernated"})


def find_status(state: State) -> ListedStatus:
    """Find the status that lists show."""
    match state.phase:
        case "hibernating":
            return "hibernated"
        case "closed":
            return "hibernated" if state.listed.hibernated else "closed"
        case "awaiting_approval" | "awaiting_external":
            return state.phase
        case _ if state.busy:
            return "working"
        case _:
            return "failed" if state.listed.failed else "idle"


def find_title(state: State) -> str | None:
    """Find the title; None: there is none."""
    return choose_title(state.settings.config.metadata, state.listed.opening)


def select_attributes(state: State) -> dict[str, AttributeValue]:
    """Make the values of the search attributes that the namespace has."""
    values = make_attributes(summarize_session(state))
    return {name: value for name, value in values.items() if name in state.settings.attributes}


def is_update_due(
    state: State,
    shown: Mapping[str, AttributeValue],
    finished: int,
    *,
    is_recent: bool = False,
    is_long: bool = False,
) -> bool:
    """Whether the search attributes are to be updated now: when the session rests, or waits for people.

    Each update costs money, so that a run which is soon over is not shown as `working`. The end of the session is
    shown by its last workflow task.

    Args:
        state: The session.
        shown: The attributes as they were last updated.
        finished: The number of requests that had ended by then.
        is_recent: There were some updates a moment ago: figures wait, so that quick turns share an update.
        is_long: The session has worked for some time.
    """
    if not state.settings.attributes or state.phase in ("hibernating", "closed"):
        return False
    if not shown:
        # The agent and the model are known once a worker has resolved the configuration.
        return state.phase != "preparing"
    has_finished = state.listed.finished != finished
    if state.busy:
        before, status = shown.get("ClewStatus"), find_status(state)
        # People look for sessions that wait for them: these come at once, and go at once.
        changes = before != status and (status != "working" or is_long or before in WAITING)
        return changes or (has_finished and not is_recent)
    if state.phase != "idle":
        return has_finished
    values = select_attributes(state)
    changed = {name for name in values.keys() | shown.keys() if values.get(name) != shown.get(name)}
    if changed <= {"ClewLastActive"} and not has_finished:
        return False
    # The first figures of a session do not wait.
    return not (is_recent and all(name in FIGURES and shown.get(name) for name in changed))


def make_memo(state: State) -> dict[str, Any]:
    """Make the memo; empty until the title is known, so that one update has all of it."""
    metadata, listed = state.settings.config.metadata, state.listed
    if listed.opening is None and "title" not in metadata:
        return {}
    fields = {"title": find_title(state), "metadata": metadata, "started_at": listed.started_at}
    return {name: value for name, value in fields.items() if value}
