"""The session's decisions: pure functions from a state and an event to the consequences.

A decision names the next state, the entries to commit, in order, and the next effect. The clock and the thread's next
seq are passed in as a `Moment`. The workflow commits first and carries out the effect then. Decisions about runs are
in `runs`, about messages and inputs in `messages_taken`, about contexts in `operations`.
"""

from __future__ import annotations

from dataclasses import replace

from clew_workflows.contract import SessionConfig, Task
from clew_workflows.contract.errors import ArchiveUnavailable, Busy, Closed
from clew_workflows.contract.policy import ContextPolicy, resolve
from clew_workflows.contract.tokens import check_encoding
from clew_workflows.protocol import (
    OUTAGES,
    Declined,
    Event,
    Failure,
    HooksAnswered,
    ModelAnswered,
    ModelProfile,
    ModelStopped,
    Outdated,
    Prepared,
    Summarized,
    ToolReturned,
)
from clew_workflows.session import (
    configuration,
    drafts,
    hooks,
    operations,
    requests,
    runs,
    subagents,
    summaries,
    tool_rounds,
)
from clew_workflows.session.state import Decision, Ending, Moment, Settings, State, get_run
from clew_workflows.thread.context.projection import find_projector


def begin(session_id: str, config: SessionConfig, task: Task | None = None) -> State:
    """Make the first state of a new session. A worker resolves its configuration before anything else.

    With a task, the session serves it first and reports the result. What depends on an agent is checked when a worker
    has resolved the agent.

    Raises:
        InvalidInput: The encoding is unknown, the policy names an unknown projector, or its fields contradict each
            other.
        InvalidTokenBudget: The policy leaves no budget.
        UnknownTool: `require_approval` names a tool that the session does not have.
    """
    settings = Settings(config, ContextPolicy())
    check_encoding(config.encoding)
    if config.agent:
        settings = replace(settings, policy=resolve())
    else:
        settings = replace(settings, policy=resolve(agent=requests.find_agent_policy(settings)))
        find_projector(settings.policy.projector)
        configuration.check_approvals(config)
    state = State(session_id, settings)
    return subagents.assign(state, task) if task else state


def take_event(state: State, event: Event, at: Moment) -> Decision:
    """Decide what follows from the result of an effect. A closed session ignores it."""
    if state.closed:
        return Decision(state)
    if state.stopping:
        return _follow_stop(state, event, at)
    match event:
        case Prepared():
            return take_preparation(state, event, at)
        case ModelProfile():
            return runs.take_profile(state, at, event)
        case ModelAnswered():
            return runs.take_reply(state, at, event)
        case ModelStopped():
            failure = event.failure or Failure(type="internal", message="the model call was cancelled")
            return runs.commit_unfinished(state, event).then(_take_failure, at, failure)
        case Outdated():
            return runs.prepare_again(state, at, event)
        case Declined():
            return runs.call_elsewhere(state, event)
        case HooksAnswered():
            return runs.take_check_answer(state, at, event)
        case ToolReturned():
            return tool_rounds.take_result(state, event).then(runs.proceed, at)
        case Summarized():
            return summaries.commit_summary(state, event).then(runs.follow_end, at)
        case Failure():
            return _take_failure(state, at, event)


def _take_failure(state: State, at: Moment, failure: Failure) -> Decision:
    if state.phase == "checking":
        return runs.take_check_failure(state, at, failure)
    if state.phase == "summarizing":
        return summaries.note_failure(state, failure).then(runs.follow_end, at)
    if state.phase == "preparing" and not state.describing:
        return take_preparation(state, _make_problem(state, failure), at)
    if failure.type == "hook_failed":
        # The worker that was to call the model has hooks that the session does not know.
        state = replace(state, run=replace(get_run(state), unchecked=True))
        return runs.fail_run(state, at, failure)
    if failure.type == "timeout":
        return runs.fail_run(state, at, runs.make_timeout(get_run(state), failure.message))
    if failure.type == "context_length_exceeded":
        return runs.shorten_context(state, at, failure)
    if failure.type == "content_refused":
        return runs.fail_refused(state, at, failure)
    if failure.type in OUTAGES and state.phase == "awaiting_model":
        return runs.fall_back(state, at, failure)
    return runs.fail_run(state, at, failure)


def take_preparation(state: State, answer: Prepared, at: Moment) -> Decision:
    """Adopt a worker's answer about the configuration, and continue what waited for it.

    If the worker could not resolve it, the session's requests fail for that reason, and each has a worker try again.
    """
    before = state.settings
    recorded = None if before.due else drafts.make_config(before)
    state = configuration.adopt_preparation(state, answer)
    is_same = drafts.make_config(state.settings) == recorded
    ready = Decision(state, () if is_same else (drafts.draft_config(state.settings),))
    if state.run:
        # The run's messages were committed under the hooks that the session knew.
        unchecked = "request" in state.settings.hooks and "request" not in before.hooks
        state = replace(state, run=replace(state.run, unchecked=unchecked))
        return replace(ready, state=state).then(_resume_run, at)
    # Operations that wait beside a queued request arrived after it, so they wait for its end.
    apply = configuration.apply_config if state.queue else operations.apply_deferred
    return ready.then(apply, at).then(_open_first_run, at)


def _make_problem(state: State, problem: Failure) -> Prepared:
    settings = state.settings
    return Prepared(
        tools=settings.tools or (),
        problem=problem,
        search_attributes=settings.attributes,
        webhooks=settings.webhooks,
    )


def reject(state: State, signal: str, reason: str, content: str) -> Decision:
    """Commit an `input` entry for a refused signal: a signal has no answer that could tell its sender."""
    return Decision(state, (drafts.draft_input("rejected", signal, reason, content),))


def hibernate(state: State, reason: str | None) -> Decision:
    """Begin to hibernate: the session accepts nothing until it is archived, or that has failed.

    Raises:
        ArchiveUnavailable: The session has no archive.
        Busy: A run is active, a request waits, a summary is being written that a caller asked for, a tool call of
            a run that has ended may still return, a subagent is being cancelled, or the session is a subagent that
            has not reported.
        Closed: The session hibernates or is closed.
    """
    if state.phase in ("hibernating", "closed"):
        raise Closed("the session hibernates: open it again")
    if state.archive is None:
        raise ArchiveUnavailable("the session has no archive: the worker that began it had none")
    if state.busy:
        raise Busy("a request is running or waits: wait for it, or cancel it")
    if state.late_calls:
        raise Busy("a tool call of a run that has ended may still return: try again in a moment")
    if any(child.step != "cancelled" for child in state.children):
        raise Busy("a subagent is being cancelled: try again in a moment")
    if state.assignment and state.assignment.step != "over":
        raise Busy("the session reports to the one that has started it, and closes then")
    entry = drafts.draft_session("hibernated", reason)
    # Cancelled subagents that have not reported are forgotten: their signals do not wake the session.
    return Decision(replace(state, phase="hibernating", children=()), (entry,))


def wake(state: State, reason: str) -> Decision:
    """Continue a session that could not be archived."""
    return Decision(replace(state, phase="idle"), (drafts.draft_session("woken", reason),))


def end(state: State) -> Decision:
    """End a session that has been archived."""
    return Decision(replace(state, phase="closed"))


def close(state: State, at: Moment, reason: str | None = None) -> Decision:
    """Close the session: the active run is cancelled, and each queued request gets its outcome.

    A model call in flight is stopped first; a session that is stopping already closes at once.
    """
    if state.closed:
        return Decision(state)
    if state.phase == "awaiting_model":
        return runs.stop_run(state, at, Ending("cancelled", "closed", "drop", reason))
    ended = _end_all(state, "closed", at, reason)
    # A thread begins with a `config` entry: a session that was never prepared commits nothing.
    closing = (drafts.draft_session("closed", reason),) if at.rev else ()
    after = replace(ended.state, phase="closed")
    if after.assignment and after.assignment.step == "reported":
        after = replace(after, assignment=replace(after.assignment, step="over"))
    return Decision(after, (*ended.commit, *closing))


def recover(state: State, at: Moment) -> Decision:
    """Make a session that was terminated ready to continue: what ran and what waited ends, as `recovered`.

    A configuration that no worker has resolved is still to be prepared.
    """
    ended = _end_all(replace(state, settings=replace(state.settings, due=False)), "recovered", at)
    settings = replace(ended.state.settings, due=state.settings.due)
    return Decision(replace(ended.state, phase="idle", late_calls=(), settings=settings), ended.commit)


def _follow_stop(state: State, event: Event, at: Moment) -> Decision:
    """End the run whose model call has stopped, as the caller wanted."""
    kept, ending = runs.commit_unfinished(state, event), get_run(state).ending
    assert ending is not None, "a run that is stopping has an ending"
    if ending.reason == "closed":
        return kept.then(close, at, ending.explanation)
    return kept.then(runs.end_run, at, ending)


def _end_all(state: State, reason: str, at: Moment, explanation: str | None = None) -> Decision:
    """Cancel the active run or summary, and drop all that waits; requests get outcomes, the rest `input` entries."""
    ending = Ending("cancelled", reason, "drop", explanation)
    decision = runs.close_run(state, at, ending) if state.run else summaries.give_up(state, reason)
    decision = decision.then(operations.drop_deferred, at, reason).then(configuration.drop_config, at, reason)
    ending = Ending("cancelled", reason, "drop")
    for request in decision.state.queue:
        decision = decision.then(runs.close_unopened, at, request, ending)
    return decision


def _resume_run(state: State, at: Moment) -> Decision:
    if state.settings.problem:
        return runs.fail_run(state, at, state.settings.problem)
    run = get_run(state)
    return hooks.check_committed(state, run) if run.unchecked else runs.resume_run(state, at)


def _open_first_run(state: State, at: Moment) -> Decision:
    """Open the run of the request that waited for the preparation; it fails if the preparation has failed."""
    if state.phase != "idle" or not state.queue:
        return Decision(state)
    return runs.open_run(replace(state, queue=state.queue[1:]), at, state.queue[0], prepared_now=True)
