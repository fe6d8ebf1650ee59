"""Forking: the state of a session that begins with another session's thread, and the `fork` entries of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from clew.contract import ForkedInput
from clew.contract.payloads import ConfigPayload, ForkPayload
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import Draft, Entry
from clew.thread.thread import Thread
from clew_workflows.core import configuration, drafts
from clew_workflows.core.advance import Session
from clew_workflows.core.decision import Decision
from clew_workflows.core.remembered import Remembered
from clew_workflows.core.state import State


def make_fork_payload(
    event: Literal["forked_from", "forked_to"], session_id: str, fork_seq: int, metadata: Mapping[str, str] | None
) -> ForkPayload:
    """Make the payload of a `fork` entry; `session_id` is that of the other session."""
    known = dict(metadata) if metadata else None
    return ForkPayload(event=event, session_id=session_id, fork_seq=fork_seq, metadata=known)


def record_fork(state: State, thread: Thread, command: ForkedInput) -> Decision:
    """Record a fork. The signal is delivered at least once; the entry is written once."""
    payload = make_fork_payload("forked_to", command.session_id, command.fork_seq, command.metadata)
    if any(entry.body == payload for entry in thread.filter_by_kind("fork")):
        return Decision(state)
    return Decision(state, (Draft(payload, drafts.make_session_refs(state)),))


def make_fork_state(parent: Session, thread: Thread, session_id: str, op_ids: Sequence[str]) -> State:
    """Make the state that a fork continues from: the parent's at the thread's last entry, with nothing running.

    The counters are the parent's present ones, so that no id is used twice. The usage is the parent's without that of
    runs that were not over at that entry.

    Args:
        parent: The parent as it is now.
        thread: The parent's thread up to the last entry that the fork shares.
        session_id: The id of the fork.
        op_ids: The ids of the operations in the thread.
    """
    state, at_seq = parent.state, thread.last_seq
    config = thread.find_config(at_seq)
    newest = parent.thread.find_config(parent.thread.last_seq)
    if config is None:
        state = replace(state, agent=None, agent_due=True, tools=None, config_due=True)
    elif state.config_due or newest is None or newest.seq != config.seq:
        state = _restore_config(state, config)
    known = state.outcomes.unpack()
    outcomes = Remembered.pack([outcome for outcome in known if outcome.last_seq <= at_seq])
    later = [outcome for outcome in known if outcome.last_seq > at_seq]
    return replace(
        state,
        session_id=session_id,
        phase="idle",
        problem=None,
        run=None,
        queue=(),
        inbox=(),
        receipts=tuple(receipt for receipt in state.receipts if receipt.request_id in outcomes),
        pending_ops=(),
        late_calls=(),
        detached_calls=(),
        pending_config=None,
        summarizing=None,
        summary_due=None,
        known_ops=tuple(op_ids),
        context_ref=thread.find_active_lane(at_seq),
        usage=_compute_usage(state, later),
        # Running subagents stay with the parent, and so does its own task.
        children=(),
        subagent_usage=_compute_subagent_usage(state, later),
        assignment=None,
        archive=None,
        outcomes=outcomes,
        # What was encrypted for the parent cannot be sent to the fork.
        seals="",
    )


def _restore_config(state: State, config: Entry) -> State:
    """Restore the configuration of an earlier `config` entry. The entry has no resolved tools, only their schemas."""
    payload = config.read(ConfigPayload)
    policy = payload.policy
    own, own_policy, agent = configuration.split_config(payload)
    if own.agent is None:
        own_policy = state.own_policy if policy == state.policy else policy
    return replace(
        state,
        own=own,
        policy=policy,
        own_policy=own_policy,
        agent=agent,
        agent_due=own.agent is not None and agent is None,
        tools=drafts.make_unresolved_tools(payload),
        config_due=False,
    )


def _compute_usage(state: State, later: Iterable[RequestOutcome]) -> Usage:
    spent = _list_usages(later, lambda outcome: outcome.usage)
    return _subtract(state.usage, [*spent, *([state.run.usage] if state.run else [])])


def _compute_subagent_usage(state: State, later: Iterable[RequestOutcome]) -> Usage:
    spent = _list_usages(later, lambda outcome: outcome.subagent_usage or Usage())
    return _subtract(state.subagent_usage, [*spent, *([state.run.subagent_usage] if state.run else [])])


def _list_usages(known: Iterable[RequestOutcome], usage: Callable[[RequestOutcome], Usage]) -> list[Usage]:
    """List the usage of the outcomes' runs, each once."""
    return list({outcome.run_id: usage(outcome) for outcome in known if outcome.usage.shared_with is None}.values())


def _subtract(total: Usage, parts: Sequence[Usage]) -> Usage:
    rest = total.model_dump()
    for usage in parts:
        for name, tokens in usage.model_dump(exclude_none=True, exclude={"shared_with"}).items():
            rest[name] = max((rest[name] or 0) - tokens, 0)
    return Usage(**rest)
