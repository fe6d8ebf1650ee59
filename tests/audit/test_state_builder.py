"""A session's state from its entries alone."""

from __future__ import annotations

from operator import attrgetter

import pytest

from clew import Clew, Session
from clew_activities.model.prepare import make_profile
from clew_audit.histories import ServerHistories
from clew_audit.replay import replay_run
from clew_audit.state_builder import StateBuilder
from clew_workflows.contract.payloads import Refused, SentRequest
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import ArchiveRef
from clew_workflows.session import advance, carried
from clew_workflows.session.state import State
from clew_workflows.thread.entries import Entry
from tests.support.corpus import NEXT, read_corpus
from tests.support.session_harness import MODEL, begin_small, make_refusal, reply, take_turn


def fold_entries(entries: list[Entry], *, pieces: int) -> State:
    """The state that some entries make, given a few at a time."""
    folding = StateBuilder("s")
    for start in range(0, len(entries), pieces):
        piece = entries[start : start + pieces]
        folding.add(piece, ArchiveRef(execution="x", family="s", upto=piece[-1].seq))
    session = folding.build(ArchiveRef(execution="x", family="s", upto=entries[-1].seq))
    return carried.restore(carried.carry(advance.Session(session.state, session.thread))).state


@pytest.mark.slow
async def test_the_state_is_the_one_that_the_session_had() -> None:
    """What a replayed session has counted, spent and learned its entries tell, however they are divided."""
    compared = 0
    for history in read_corpus(NEXT).histories:
        rebuilt = await replay_run(history)
        assert rebuilt.session
        real, entries = rebuilt.session.state, list(rebuilt.session.thread)
        if real.run or rebuilt.session.thread.first_seq:
            continue
        compared += 1
        made = fold_entries(entries, pieces=len(entries))
        compared_parts = (
            "settings.policy", "context_ref", "spent.own", "counters.runs", "counters.tool_calls",
            "memory.operations", "run",
        )  # fmt: skip
        for name in compared_parts:
            get = attrgetter(name)
            assert get(made) == get(real), (history.workflow_id, name)
        assert made.counters.calls <= real.counters.calls
        ended = {entry.refs["request_id"] for entry in entries if entry.kind == "run"}
        assert {outcome.request_id for outcome in made.memory.outcomes.unpack()} == ended
        assert [tool.spec for tool in made.settings.tools or ()] == [tool.spec for tool in real.settings.tools or ()]
        assert made.settings.config.model == real.settings.config.model
        assert (made.settings.agent and made.settings.agent.version) == (
            real.settings.agent and real.settings.agent.version
        )
        if real.settings.own.agent and not real.settings.due:
            assert made.settings.own == real.settings.own
        for size in (1, 3, 7):
            assert fold_entries(entries, pieces=size) == made
    assert compared >= 3


async def test_ids_of_any_length_are_no_numbers() -> None:
    """Entries that are imported may have any ids. A session that continues counts from its own."""
    rebuilt = await replay_run(read_corpus(NEXT).histories[0])
    assert rebuilt.session
    entries = list(rebuilt.session.thread)
    strange = [
        Entry.from_json({**entry.as_dict(), "refs": {**entry.refs, "run_id": f"run-{'9' * 5_000}"}})
        if entry.kind == "run"
        else entry
        for entry in entries
    ]
    assert strange != entries
    assert fold_entries(strange, pieces=100).counters.calls == fold_entries(entries, pieces=100).counters.calls


async def test_a_run_that_the_entries_leave_open_is_open(clew: Clew, long_session: Session) -> None:
    """Truncate anywhere, the state has the run that was in progress there, with the calls that have no result."""
    runs = [run async for run in ServerHistories(clew.temporal, long_session.id).read_runs()]
    assert runs[0].history
    rebuilt = await replay_run(runs[0].history)
    assert rebuilt.session
    entries = list(rebuilt.session.thread)
    for end in range(1, len(entries) + 1):
        state = fold_entries(entries[:end], pieces=5)
        newest = entries[end - 1]
        if newest.kind in ("run", "config"):
            assert state.run is None
        else:
            assert state.run
            assert state.run.run_id == newest.refs["run_id"]


def test_what_providers_told_is_in_the_entries() -> None:
    """Refusals, ratios of tokens, the encoding and the worker's choices; a policy that was set since starts anew."""
    session = begin_small(policy=None)
    assert session.state.settings.profiles == {MODEL: make_profile(MODEL)}
    for tokens, ratio in ((4_000, 1.3), (300, 1.3)):
        take_turn(session, tokens, ratio)
    session.ask("x" * 400)
    session.take_event(make_refusal(session, limit=4_000, actual=5_000))
    refused = Refused(kind="media", ids=("a",), reason="Could not process image")
    reply(session, 1.3, request=SentRequest(digest="d", encoder="openai-chat/1", refused=(refused,)))
    real = session.state
    made = fold_entries(list(session.thread), pieces=2)
    assert real.settings.learned[made.settings.model].budget
    assert real.settings.learned[made.settings.model].ratio > 1
    assert real.settings.refused
    for name in ("learned", "refused", "profiles", "policy"):
        assert getattr(made.settings, name) == getattr(real.settings, name), name
    assert (made.settings.config.encoding, made.settings.config.context_policy) == (
        real.settings.config.encoding,
        None,
    )
    session.configure(context_policy=ContextPolicy(keep_last_turns=2))
    made = fold_entries(list(session.thread), pieces=2)
    assert (made.settings.learned, made.settings.policy) == ({}, session.state.settings.policy)
