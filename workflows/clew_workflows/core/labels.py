"""Labels in the Temporal UI: the summaries of activities and timers, and the names of event groups.

A label is fixed when its event is written: it tells what is known by then.
"""

from __future__ import annotations

from collections.abc import Sequence

from clew.outcomes import Usage
from clew_workflows.core.calls import RequestedCall
from clew_workflows.core.markdown import format_arguments, shorten
from clew_workflows.core.state import State
from clew_workflows.protocol import (
    Archiving,
    CallModel,
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

MAX_BYTES = 400
"""Longest label, in bytes: Temporal takes no more."""
MAX_QUESTION = 60
"""Most characters of a message in a label."""
MAX_ARGUMENTS = 80
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
            return " · ".join(filter(None, _describe_call(effect, state)))
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


def _describe_call(effect: CallModel, state: State) -> tuple[str, ...]:
    """Describe a model call: its number in the session, its model, the message, and what was spent before it."""
    return (
        f"call {state.calls}",
        effect.model.partition(":")[2][:40],
        _quote_question(state) if effect.iteration == 1 else "",
        f"so far {describe_usage(state.usage)}" if state.usage.model_calls else "",
    )


def _quote_question(state: State) -> str:
    if state.run is None or not state.run.request.content or not state.shows_texts:
        return ""
    return f"“{shorten(state.run.request.content, MAX_QUESTION)}”"


def _name_call(name: str, arguments: object, state: State) -> str:
    return f"{name} {format_arguments(arguments, MAX_ARGUMENTS)}" if state.shows_texts else name


def _label_wait(what: str, calls: Sequence[RequestedCall], state: State) -> str:
    names = [f"{_name_call(call.name, call.arguments, state)} · {call.tool_call_id}" for call in calls]
    return _fit(f"{what} {', '.join(names)}")


def _fit(label: str) -> str:
    """Truncate a label to the bytes that Temporal takes."""
    encoded = label.encode()
    return label if len(encoded) <= MAX_BYTES - 3 else f"{encoded[: MAX_BYTES - 6].decode(errors='ignore')}…"


def _format_number(number: int) -> str:
    return f"{number:,}".replace(",", "\u202f")
