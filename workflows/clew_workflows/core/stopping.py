"""Stopping a model call: what was read of its reply is committed before its run ends.

`end_run` lets the run end. While a model call is in flight the phase is `stopping`, until `decisions.take_event`
takes the end of the call: a worker learns of the cancellation with its next heartbeat, and a lost worker is given up
after the heartbeat timeout. The session takes no other input meanwhile (`Intake`), so that the next decision meets a
session whose run has ended.
"""

from __future__ import annotations

from dataclasses import replace

from clew_workflows.core import budgets, drafts, runs
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Ending
from clew_workflows.core.state import Moment, State, get_run
from clew_workflows.protocol import Event, ModelAnswered, ModelStopped


def end_run(state: State, ending: Ending, at: Moment) -> Decision:
    """End the active run. A model call in flight is stopped first."""
    if state.phase != "awaiting_model":
        return finish_run(state, ending, at)
    run = replace(get_run(state), ending=ending)
    return Decision(replace(state, run=run, phase="stopping"))


def finish_run(state: State, ending: Ending, at: Moment) -> Decision:
    """End the active run, and begin what waits for its end."""
    return runs.finish_run(
        state,
        "cancelled",
        ending.reason,
        at,
        inputs=ending.inputs,
        explanation=ending.explanation,
        interrupts=ending.reason == "interrupted",
    )


def commit_unfinished(state: State, event: Event) -> Decision:
    """Commit what was read of the reply of a call that has ended otherwise than its run expected.

    A reply that was complete already stays as it is, unless it has tool calls, which are not run. An entry without
    text would show nothing: then only the usage is counted. The text is never the run's answer.
    """
    answer = event.answer if isinstance(event, ModelStopped) else event
    if not isinstance(answer, ModelAnswered):
        return Decision(state)
    run, reply = get_run(state), answer.reply
    if reply.tool_calls:
        bare = {"tool_calls": (), "thinking": None, "provider_data": None, "stop_reason": "interrupted"}
        answer = answer.model_copy(update={"reply": reply.model_copy(update=bare), "tokens": None})
    if run.call and answer.reply.stop_reason != "interrupted":
        state = budgets.note_reply(state, run.call, answer)
    message = drafts.draft_assistant_message(state, run, answer, ())
    used = answer.usage
    state = replace(state, run=replace(run, usage=run.usage.plus(used)), usage=state.usage.plus(used))
    return Decision(state, (message,) if reply.content.strip() else ())
