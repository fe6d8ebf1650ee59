"""Texts for the Temporal UI: the summaries of activities, and the workflow's current details."""

from __future__ import annotations

from clew.thread.thread import Thread
from clew_workflows.core import approvals, external_calls
from clew_workflows.core.state import State
from clew_workflows.protocol import (
    Archiving,
    CallModel,
    DescribeModel,
    Effect,
    PlannedCall,
    Prepare,
    Recall,
    SignCheckpoint,
    Summarize,
    Thaw,
)


def make_label(effect: Effect) -> str:
    """Label the activity of an effect."""
    match effect:
        case Prepare():
            return (effect.agent or effect.model or "")[:80]
        case DescribeModel():
            return effect.model[:80]
        case CallModel():
            return f"model call {effect.iteration} · {effect.model.partition(':')[2][:80]}"
        case PlannedCall(call, _):
            return f"tool {call.name} · {call.tool_call_id}"
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


def describe_session(state: State, thread: Thread) -> str:
    """Describe the session in Markdown, without text of the conversation."""
    usage = state.usage
    parts = [f"**{state.phase.replace('_', ' ')}**", f"`{state.model}`", f"lane `{state.context_ref}`"]
    if agent := state.agent:
        parts.insert(1, f"agent `{agent.name}` {agent.label or agent.version}")
    lines = [
        " · ".join(parts),
        "",
        f"{thread.rev} entries · {state.runs} runs · {usage.model_calls} model calls · "
        f"{_format_number(usage.input_tokens)} → {_format_number(usage.output_tokens)} tokens",
    ]
    if run := state.run:
        lines += [
            "",
            f"`{run.run_id}` serves `{run.request.request_id}` · iteration {run.iteration} of "
            f"{run.request.max_iterations}",
        ]
        lines += [f"- tool `{call.name}` · `{call.tool_call_id}`" for call in run.tool_calls if not call.returned]
    waiting = {
        "inputs": len(state.inbox),
        "queued messages": len(state.queue),
        "approvals": len(approvals.list_pending(state)),
        "external calls": len(external_calls.list_pending(state)),
        "subagents": len(state.children),
        "context operations": len(state.pending_ops),
    }
    if any(waiting.values()):
        lines += ["", "waiting: " + " · ".join(f"{count} {name}" for name, count in waiting.items() if count)]
    if state.archive and state.archive.upto >= 0:
        lines += ["", f"entries up to {state.archive.upto} are in the archive"]
    if state.problem:
        lines += ["", f"⚠ {state.problem.type}: {state.problem.message}"]
    return "\n".join(lines)


def _format_number(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")
