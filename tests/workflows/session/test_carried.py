"""What one run of the workflow hands to the next."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import pytest
from pydantic_core import to_json

from clew.errors import InvalidInput, NewerVersion
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import ArchiveRef, Prepared
from clew_workflows.session import advance, carried
from clew_workflows.session.carried import MAX_CARRIED_BYTES, carry, make_fork_state, restore
from clew_workflows.thread.thread import Thread
from clew_workflows.values import Packed
from tests.support.session_harness import SessionHarness, carry_over, make_tool


def busy_session() -> SessionHarness:
    """A session with something of everything that can wait."""
    session = SessionHarness(tools=("add", "ask_first"), on_busy="queue", system_prompt="Be brief.")
    session.ask("one", "r-1", metadata={"a": "b"})
    session.reply("", "add", "ask_first")
    session.steer("rather", "i-1")
    session.ask("two", "r-2", output_schema={"type": "object"}, context_policy=ContextPolicy(keep_last_turns=1))
    session.operate("o-1")
    session.configure(model_options={"seed": 3}, context_policy=ContextPolicy(keep_last_turns=7))
    return session


def test_all_that_waits_arrives() -> None:
    """The run in progress with its approvals, inputs, queue, operation, configuration, and known ids."""
    session = busy_session()
    arrived = carry_over(session)
    assert arrived.state.run == session.state.run
    assert arrived.state.inbox == session.state.inbox
    assert arrived.state.queue == session.state.queue
    assert arrived.state.memory.receipts == session.state.memory.receipts
    assert arrived.state.deferred.operations == session.state.deferred.operations
    assert arrived.state.deferred.config == session.state.deferred.config
    assert arrived.effect == session.effect
    assert arrived.thread.rev == session.thread.rev
    # Which fields were given decides how policies and options overlay one another.
    given, again = session.state.deferred.config, arrived.state.deferred.config
    assert given
    assert again
    assert again.model_dump(exclude_unset=True) == given.model_dump(exclude_unset=True)


def test_outcomes_are_known_when_their_entries_are_gone() -> None:
    """The newest thousand; a long error is truncated, for the thread has the whole of it."""
    session = SessionHarness()
    for number in range(1010):
        session.ask("x", f"r-{number}")
        if number == 1009:
            session.take_event(_failure("y" * 5000))
        else:
            session.reply("fine")
    outcomes = carry_over(session).state.memory.outcomes.unpack()
    assert [outcome.request_id for outcome in outcomes] == [f"r-{number}" for number in range(10, 1010)]
    assert outcomes[-1].error
    assert outcomes[-1].error.message == "y" * 200
    assert outcomes[490].model_dump(mode="json") == session.find_outcome("r-500")


def _failure(message: str) -> Any:
    from clew_workflows.protocol import Failure  # noqa: PLC0415 - beside its only use

    return Failure(type="bad_request", message=message)


def test_what_is_carried_stays_under_its_limit() -> None:
    """A window that does not fit is left to the archive, its oldest part first; nothing else is."""
    noise = random.Random(7)
    session = SessionHarness(context_policy=ContextPolicy(max_input_tokens=2_000_000))
    for number in range(40):
        session.ask("".join(chr(noise.randrange(0x4E00, 0x9FFF)) for _ in range(12_000)), f"r-{number}")
        session.reply("fine")
    whole = carry(advance.Session(session.state, session.thread))
    assert len(json.dumps(whole)) > 2 * MAX_CARRIED_BYTES, "nothing is archived: all of it must be carried"
    place = ArchiveRef(execution="x", family="s-1", upto=session.thread.last_seq)
    state = replace(session.state, archive=place)
    parted = carry(advance.Session(state, session.thread))
    assert MAX_CARRIED_BYTES // 2 < len(json.dumps(parted)) <= MAX_CARRIED_BYTES + 100
    arrived = restore(parted)
    lane = arrived.thread.get_lane("default")
    assert lane
    assert 0 < lane.gap.newest_seq < session.thread.last_seq
    assert len(arrived.state.memory.outcomes.unpack()) == 40


def test_a_session_without_outcomes_arrives() -> None:
    """As it was."""
    assert restore(make_carried()).state == SessionHarness().state


def make_carried(**changes: Any) -> dict[str, Any]:
    """Make a carried session with other values in its state."""
    session = SessionHarness()
    value = Packed(zlib=carry(advance.Session(session.state, session.thread))["zlib"]).value
    value["state"].update(changes)
    return {"version": 1, **Packed.pack(value).model_dump()}


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"version": 0},
        {"version": 1},
        {"version": 1, "zlib": "%%%"},
        {"version": 1, "zlib": "AAAA"},
        {"version": 1, **Packed.pack({}).model_dump()},
        {"version": 1, **Packed.pack({"state": {}, "effect": None, "thread": 3}).model_dump()},
        {"version": 1, **Packed.pack([]).model_dump()},
        make_carried(memory={"outcomes": {"request_id": ["r-1"]}}),
        make_carried(memory={"outcomes": {"request_id": ["r-1"], "run_id": [], "answer_seq": [], "last_seq": []}}),
    ],
)
def test_what_clew_has_not_written_is_refused(value: dict[str, Any]) -> None:
    """Typed, whatever it is."""
    with pytest.raises(InvalidInput, match="carried"):
        restore(value)


def test_a_newer_session_is_refused_by_its_version() -> None:
    """The version alone decides: the other fields are not looked at."""
    for value in ({"version": 2}, {"version": 2, "zlib": "%%%"}):
        with pytest.raises(NewerVersion, match="carried state is of version 2, and this version of Clew reads 1"):
            restore(value)


def test_a_carried_session_is_what_it_was() -> None:
    """Also when hardly anything may be carried of the archived part."""
    session = busy_session()
    arrived = carry_over(session, recent_entries=0)
    assert arrived.thread.first_seq == session.thread.rev
    assert arrived.thread.find_config(arrived.thread.last_seq) == session.thread.find_config(session.thread.last_seq)
    with pytest.raises(LookupError):
        session.thread[session.thread.rev]


def test_a_fork_of_a_pinned_session_keeps_the_schemas_of_its_entry() -> None:
    """A pinned session has them without an agent, too, whatever the workers' tools have become. It makes no entry."""
    session = SessionHarness(tools=("add",), pin=True)
    shared = Thread(session.thread.slice(0, 0))
    session.configure(system_prompt="Be brief.")
    session.state, session.thread = make_fork_state(session.session, shared, "s-2", ()), shared
    tool = make_tool("add")
    changed: Any = {**tool.spec, "description": "Adds otherwise."}
    session.take_event(Prepared(tools=(tool.model_copy(update={"spec": changed}),)))
    assert [known.spec for known in session.state.settings.tools or ()] == [tool.spec]
    assert session.entry_names == ["config"]


def test_a_fork_has_used_what_its_entries_have() -> None:
    """Neither what later runs have used nor the active one. It has the outcomes and the tools of its last entry."""
    session = SessionHarness()
    session.ask("one", "r-1")
    session.reply("fine", usage=Usage(input_tokens=1))
    shared = Thread(session.thread.slice(0, session.thread.last_seq))
    session.ask("two", "r-2")
    session.ask("too", "r-3", on_busy="steer")
    session.reply("fine", usage=Usage(input_tokens=10))
    session.reply("fine", usage=Usage(input_tokens=20))
    session.ask("three", "r-4")
    session.reply("", "add", usage=Usage(input_tokens=100))
    fork = make_fork_state(carry_over(session), shared, "s-2", ())
    assert fork.spent.own == Usage(input_tokens=1, model_calls=1)
    assert [outcome.request_id for outcome in fork.memory.outcomes.unpack()] == ["r-1"]
    assert fork.settings == session.state.settings


@pytest.mark.parametrize("upto", [-1, 1])
def test_entries_that_are_not_archived_are_carried(upto: int) -> None:
    """There is no other place for them."""
    session = SessionHarness()
    session.ask()
    session.reply("fine")
    archive = ArchiveRef(execution="x", family="s-1", upto=upto) if upto >= 0 else None
    state = replace(session.state, archive=archive)
    arrived = restore(carry(advance.Session(state, session.thread), recent_entries=0))
    assert arrived.thread.first_seq == upto + 1
    assert list(arrived.thread) == list(session.thread)[upto + 1 :]


def test_the_newest_entries_are_carried_as_far_as_they_have_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the archive has them: readers find them without it."""
    session = SessionHarness()
    session.ask()
    session.reply("fine")
    assert carry_over(session, recent_entries=1).thread.first_seq == session.thread.last_seq
    size = sum(len(to_json(entry.as_dict())) for entry in session.thread.slice(2, 3))
    for room, first_seq in ((size, 2), (size - 1, 3)):
        monkeypatch.setattr(carried, "RECENT_BYTES", room)
        assert carry_over(session).thread.first_seq == first_seq
