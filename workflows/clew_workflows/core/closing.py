"""The close of a run: results for its open tool calls, outcomes for its requests, and its unread inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from clew.outcomes import Usage
from clew.thread.entries import Draft
from clew_workflows.core import assignments, children, drafts, requests, tool_rounds
from clew_workflows.core.decision import Decision
from clew_workflows.core.run import Run
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import Failure

FOLLOW_UP = "followup:"
"""The prefix of the ids of follow-up requests, which the session makes itself."""


def close_run(
    state: State,
    run: Run,
    status: Literal["completed", "failed", "cancelled"],
    reason: str,
    at: Moment,
    *,
    failure: Failure | None = None,
    inputs: Literal["drop", "follow_up"] = "follow_up",
    explanation: str | None = None,
) -> Decision:
    """End the run: commit a result for each tool call and an outcome for each request of the run.

    Messages that hooks had to check and have not accepted are withdrawn.

    `explanation` is the reason that a caller has sent with a cancellation.
    """
    closers, late = tool_rounds.close_calls(state, run, reason)
    unread = leave_unread(assignments.note_work(children.release_children(state), run, at), run, reason, inputs)

    def draft_outcome(request_id: str) -> Draft:
        # One of the requests that shared the run has its usage, so that the sum over requests is right.
        opened = run.request.request_id
        return drafts.draft_run(
            state,
            run,
            request_id,
            status=status,
            reason=reason,
            usage=run.usage if request_id == opened else Usage(shared_with=opened),
            subagent_usage=run.subagent_usage if request_id == opened else Usage(),
            answer_seq=run.answer_seq,
            failure=failure,
            explanation=explanation,
        )

    waiting = {request.request_id for request in unread.state.queue}
    joined = tuple(draft_outcome(joined) for joined in run.joined if joined not in waiting)
    ended = replace(unread.state, run=None, phase="idle", late_calls=(*state.late_calls, *late))
    withdrawn = (drafts.draft_withdrawal(state, run),) if run.unchecked else ()
    outcome = draft_outcome(run.request.request_id)
    return Decision(ended, (*closers, *withdrawn, *unread.commit, outcome, *joined))


def leave_unread(state: State, run: Run, reason: str, inputs: Literal["drop", "follow_up"]) -> Decision:
    """Put the inputs that a run has not read into a follow-up request, which is next, or commit them as dropped."""
    keeps = inputs == "follow_up"
    following = tuple(i for i in state.inbox if keeps and not i.request_id and i.on_failure == "follow_up")
    rejoining = tuple(i for i in state.inbox if keeps and i.request_id)
    dropped = tuple(
        drafts.draft_dropped_input(state, dropped, reason)
        for dropped in state.inbox
        if dropped not in following and dropped not in rejoining
    )
    later = tuple(
        replace(requests.make_request(state, i.joined, i.request_id or ""), tokens=i.tokens)
        for i in rejoining
        if i.joined
    )
    if following:
        later = (requests.make_follow_up(state, f"{FOLLOW_UP}{run.run_id}", following), *later)
    return Decision(replace(state, inbox=(), queue=(*later, *state.queue)), dropped)
