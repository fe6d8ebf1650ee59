"""The details of a session in the Temporal UI, in Markdown.

The UI puts them into the address of a page, so they stay short.
"""

from __future__ import annotations

from collections.abc import Iterator

from clew.contract.payloads import AssistantMessage, ForkPayload, MessagePayload, RunPayload, ToolMessage
from clew.outcomes import Usage
from clew.thread.thread import Thread
from clew_workflows.core import approvals, external_calls, labels, tool_rounds
from clew_workflows.core.calls import RequestedCall
from clew_workflows.core.markdown import escape, format_arguments, format_code, link_session
from clew_workflows.core.state import State

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
    if state.model:
        parts.insert(1, format_code(state.model, 80))
    if agent := state.agent:
        parts.insert(1, f"agent {format_code(agent.name, 80)} {escape(agent.label or agent.version, 40)}")
    if run := state.run:
        parts.append(
            f"{format_code(run.run_id, 40)}, call {run.iteration} of {run.request.max_iterations}, "
            f"for request {format_code(run.request.request_id, 60)}"
        )
    return " · ".join(parts)


def _describe_waits(state: State, texts: bool) -> Iterator[str]:
    lists = (
        ("Waits for approval (update `resolve_approval`)", approvals.list_pending(state)),
        ("Waits for results (update `submit_tool_result`)", external_calls.list_pending(state)),
        ("Runs", tool_rounds.list_running(state)),
    )
    for title, calls in lists:
        if calls:
            yield _make_list(title, [_describe_call(call, texts) for call in calls])
    waiting = {
        "queued messages": len(state.queue),
        "inputs": len(state.inbox),
        "context operations": len(state.pending_ops),
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
    if state.run and state.run.tightened:
        yield "⚠ The model is called again with a shorter context: the provider refused the longer one."
    if state.run and state.run.fallback:
        failed = ", ".join(format_code(model, 80) for model in state.run.failed_models)
        yield f"⚠ The run goes on with {format_code(state.run.fallback, 80)}: {failed} had an outage."
    if problem := state.problem:
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
        parts.append(escape(message.content, MAX_TEXT))
    if isinstance(message, AssistantMessage) and message.tool_calls:
        parts.append("calls " + ", ".join(format_code(call["name"], 80) for call in message.tool_calls[:MAX_LISTED]))
    if isinstance(message, AssistantMessage) and message.interrupted:
        parts.append("(interrupted)")
    return " ".join(parts)


def _describe_usage(state: State, thread: Thread) -> str:
    parts = [
        f"{thread.rev} entries",
        f"{state.runs} runs",
        f"{state.usage.model_calls} model calls",
        labels.describe_usage(state.usage),
    ]
    if state.subagent_usage != Usage():
        parts.append(f"subagents {labels.describe_usage(state.subagent_usage)}")
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
