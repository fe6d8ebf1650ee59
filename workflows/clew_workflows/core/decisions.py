"""The session's decisions: pure functions from what is and what happened to what follows.

A decision says what the session becomes, which entries enter the thread, in order, and which effect is carried out
next. The clock and the thread's next seq are passed in as a `Moment`; the workflow commits, then acts. What is
decided about a run stands in `runs`, about what is asked in `inputs`, about contexts in `operations`.
"""

from __future__ import annotations

from dataclasses import replace

from clew.context.projection import find_projector
from clew.contract import SessionConfig
from clew.contract.policy import ContextPolicy, resolve
from clew.errors import ArchiveUnavailable, Busy, Closed
from clew_workflows.core import configuration, drafts, inputs, operations, profiles, runs, summaries
from clew_workflows.core.decision import Decision
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import (
    Event,
    Failure,
    ModelAnswered,
    ModelProfile,
    Prepared,
    Summarized,
    ToolReturned,
)


def begin(session_id: str, config: SessionConfig) -> State:
    """A session starts: a worker resolves its tools and its model before anything else.

    Raises:
        InvalidInput, InvalidTokenBudget: the configuration's policy cannot be used.
        UnknownTool: approval is required for a tool that the session does not have.
    """
    state = State(session_id, config, policy=ContextPolicy())
    state = replace(state, policy=resolve(agent=profiles.find_agent_policy(state, config)))
    find_projector(state.policy.projector)
    configuration.check_approvals(config)
    return state


def take_event(state: State, event: Event, at: Moment) -> Decision:
    """An effect has come to its end; nothing of it matters to a session that has closed."""
    if state.closed:
        return Decision(state)
    match event:
        case Prepared():
            return take_preparation(state, event, at)
        case ModelProfile():
            return runs.take_profile(state, event, at)
        case ModelAnswered():
            return runs.take_reply(state, event, at)
        case ToolReturned():
            return runs.take_result(state, event, at)
        case Summarized():
            return _follow_summary(summaries.commit_summary(state, event, at), at)
        case Failure() if state.phase == "summarizing":
            return _follow_summary(summaries.note_failure(state, event, at), at)
        case Failure() if state.phase == "preparing" and not state.describing:
            return take_preparation(state, Prepared(tools=state.tools or (), problem=event), at)
        case Failure(type="timeout"):
            return runs.fail_run(state, runs.make_timeout(runs.get_run(state), event.message), at)
        case Failure(type="context_length_exceeded"):
            return runs.shorten_context(state, event, at)
        case Failure():
            return runs.fail_run(state, event, at)


def take_preparation(state: State, answer: Prepared, at: Moment) -> Decision:
    """A worker has resolved the configuration, or said what it does not know.

    A session that cannot be prepared still lives: its requests fail with the reason, and each tries again.
    """
    before = None if state.tools is None else [tool.spec for tool in state.tools]
    policy, state = state.policy, profiles.adopt_profile(state, answer)
    changed = state.config_due or policy != state.policy or before != [tool.spec for tool in answer.tools]
    state = replace(state, tools=answer.tools, problem=answer.problem, phase="idle", config_due=False)
    ready = Decision(state, (drafts.draft_config(state),) if changed else ())
    if state.run:
        return ready.then(_resume_run, at)
    # Operations that wait beside a request came after it.
    apply = configuration.apply_config if state.queue else operations.apply_deferred
    return ready.then(apply, at).then(_open_first_run, at)


def reject(state: State, signal: str, reason: str, content: str) -> Decision:
    """A signal cannot be refused to its sender, so that it was refused becomes a fact."""
    return Decision(state, (drafts.draft_input(state, "rejected", signal, reason, content),))


def hibernate(state: State, reason: str | None) -> Decision:
    """The session is put away: until that is done, or has failed, it takes nothing.

    Raises:
        ArchiveUnavailable: there is no archive to put it into.
        Busy: a request is running or waits, or a summary is in the making that was asked for.
        Closed: it hibernates already, or has ended.
    """
    if state.phase in ("hibernating", "closed"):
        raise Closed("the session hibernates: open it again")
    if state.archive is None:
        raise ArchiveUnavailable("the session was begun by a worker that had no archive")
    if state.busy:
        raise Busy("a request is running or waits: wait for it, or cancel it")
    entry = drafts.draft_session(state, "hibernated", reason)
    return Decision(replace(state, phase="hibernating"), (entry,))


def wake(state: State, reason: str) -> Decision:
    """The session could not be put away, and goes on."""
    return Decision(replace(state, phase="idle"), (drafts.draft_session(state, "woken", reason),))


def end(state: State) -> Decision:
    """The session is in the archive whole, and ends."""
    return Decision(replace(state, phase="closed"))


def close(state: State, at: Moment, reason: str | None = None) -> Decision:
    """The session ends. What runs is cancelled; what was accepted and never ran leaves its outcome too."""
    if state.closed:
        return Decision(state)
    cut = _end_all(state, "closed", at, reason)
    # A thread begins with its configuration, and not with its end.
    told = (drafts.draft_session(state, "closed", reason),) if at.rev else ()
    return Decision(replace(cut.state, phase="closed"), (*cut.commit, *told))


def recover(state: State, at: Moment) -> Decision:
    """The session was cut off, and is to go on: what ran and what waited ends as at a close, with its own reason.

    A configuration that no worker has resolved is still due.
    """
    cut = _end_all(replace(state, config_due=False), "recovered", at)
    ended = replace(cut.state, phase="idle", config_due=state.config_due, late_calls=())
    return Decision(ended, cut.commit)


def _end_all(state: State, reason: str, at: Moment, explanation: str | None = None) -> Decision:
    """What was begun ends; whatever was accepted and waits leaves a fact, and requests leave their outcome."""
    decision = (
        runs.end_run(state, "cancelled", reason, inputs="drop", explanation=explanation)
        if state.run
        else summaries.give_up(state, reason)
    )
    return decision.then(lambda state, at: _drop_waiting(state, reason, at), at)


def _drop_waiting(state: State, reason: str, at: Moment) -> Decision:
    decision = operations.drop_deferred(state, reason)
    decision = decision.then(lambda state, _at: configuration.drop_config(state, reason), at)
    for request in state.queue:
        dropped = inputs.drop_request(decision.state, request, reason, at)
        decision = Decision(dropped.state, (*decision.commit, *dropped.commit))
    return decision


def _follow_summary(decision: Decision, at: Moment) -> Decision:
    """What waited for the summary comes next, in the order of a run's end."""
    return decision.then(operations.apply_deferred, at).then(runs.next_run, at)


def _resume_run(state: State, at: Moment) -> Decision:
    return runs.fail_run(state, state.problem, at) if state.problem else runs.start_run(state, at)


def _open_first_run(state: State, at: Moment) -> Decision:
    """The request that waited for the preparation; it fails with its answer if that is a problem."""
    if state.phase != "idle" or not state.queue:
        return Decision(state)
    return runs.open_run(replace(state, queue=state.queue[1:]), state.queue[0], at, prepared_now=True)
