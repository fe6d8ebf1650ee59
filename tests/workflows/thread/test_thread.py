"""The log and its queries."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given

from clew.contract.payloads import KINDS
from clew.errors import Archived, InvalidInput
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread, find_last
from tests.support.generated_threads import Step, histories, write
from tests.support.threads import (
    OTHER_PAYLOADS,
    Writer,
    assistant_calls,
    assistant_says,
    make_recipe,
    rebuild,
    tool_returns,
    user_says,
)


def made_of(basis_seq: int) -> Any:
    """Make the payload's fields of a reply with a basis seq."""
    return {"recipe": make_recipe(basis_seq)}


def example() -> Thread:
    """A configuration, and a run with two model calls and a tool."""
    writer = Writer()
    writer.config()
    writer.message(user_says("a"), run="r1")
    writer.message(assistant_calls("x") | made_of(1), run="r1", call_id="call-1")
    writer.message(tool_returns("x"), run="r1", tool_call_id="x")
    writer.message(assistant_says("b") | made_of(3), run="r1", call_id="call-2")
    writer.commit("run", OTHER_PAYLOADS["run"], request_id="request-r1", run_id="r1")
    return writer.thread


def seqs(entries: list[Entry]) -> list[int]:
    """The seqs of some entries."""
    return [entry.seq for entry in entries]


def test_seqs_have_no_gaps() -> None:
    """Only the next entry can be appended; what is refused leaves the thread as it was."""
    thread = example()
    assert (thread.rev, thread.last_seq, len(thread)) == (6, 5, 6)
    for wrong in (thread[5], thread[0]):
        with pytest.raises(ValueError, match="next entry has seq 6"):
            thread.append(wrong)
    assert thread.rev == 6


def test_an_empty_thread() -> None:
    """Before the first entry there is none, and every query answers so."""
    thread = Thread()
    assert (thread.rev, thread.last_seq, list(thread), thread.slice(0, 9)) == (0, -1, [], [])
    assert thread.find_config(0) is None
    assert thread.find_active_lane(0) == "default"


@pytest.mark.parametrize(
    ("from_seq", "to_seq", "expected"),
    [
        (0, 5, [0, 1, 2, 3, 4, 5]),
        (2, 3, [2, 3]),
        (3, 2, []),
        (-5, 1, [0, 1]),
        (4, 99, [4, 5]),
        (9, 99, []),
        (-5, -1, []),
    ],
)
def test_slices_include_both_ends(from_seq: int, to_seq: int, expected: list[int]) -> None:
    """A slice holds both seqs named, and of what is not there nothing."""
    assert seqs(example().slice(from_seq, to_seq)) == expected


@pytest.mark.parametrize("seq", [-1, 6])
def test_there_is_no_entry_outside(seq: int) -> None:
    """A seq that the thread does not hold is an error, also a negative one."""
    with pytest.raises(IndexError, match="holds 0 to 5"):
        example()[seq]


def test_older_entries_may_live_elsewhere() -> None:
    """A thread that begins later keeps every seq; what is before it is said to be in the archive."""
    complete = example()
    later = Thread(complete.slice(2, 5), first_seq=2)
    assert (later.rev, later.last_seq, len(later)) == (6, 5, 4)
    assert later[2] == complete[2]
    assert seqs(later.slice(0, 3)) == [2, 3]
    with pytest.raises(Archived):
        later[1]
    with pytest.raises(IndexError):
        later[6]


def test_filters() -> None:
    """Entries are found by kind and by any reference."""
    thread = example()
    assert seqs(thread.filter_by_kind("ai_message")) == [1, 2, 3, 4]
    assert seqs(thread.filter_by_kind("summary")) == []
    assert seqs(thread.filter_by_ref("run_id", "r1")) == [1, 2, 3, 4, 5]
    assert seqs(thread.filter_by_ref("call_id", "call-2")) == [4]
    assert seqs(thread.filter_by_ref("nothing", "r1")) == []


def test_what_a_call_was_made_from() -> None:
    """The entries before a call are those its context was projected from; an unknown call has none."""
    thread = example()
    assert thread.find_reply("call-2") == thread[4]
    assert thread.find_reply("call-3") is None


def test_how_a_request_ended() -> None:
    """A request's outcome is its `run` entry, once there is one."""
    thread = example()
    assert thread.find_outcome("request-r1") == thread[5]
    assert thread.find_outcome("request-r2") is None


def test_lanes_and_configurations_by_seq() -> None:
    """The active lane and the configuration in force can be looked up for every seq."""
    writer = Writer()
    first = writer.config()
    writer.switch("draft")
    second = writer.config()
    writer.switch("default")
    thread = writer.thread
    assert [thread.find_active_lane(seq) for seq in range(-1, 4)] == [
        "default",
        "default",
        "draft",
        "draft",
        "default",
    ]
    assert [thread.find_config(seq) for seq in range(-1, 4)] == [None, first, first, second, second]
    assert thread.get_lane("draft") is not None
    assert thread.get_lane("nowhere") is None


@given(histories)
def test_a_thread_is_its_entries(steps: list[Step]) -> None:
    """A thread read from JSON has the same entries and the same indexes."""
    thread = write(steps)
    again = rebuild(thread)
    assert list(again) == list(thread)
    for name in {entry.lane for entry in thread} - {None}:
        assert again.get_lane(name or "") == thread.get_lane(name or "")
    assert json.dumps([e.as_dict() for e in again]) == json.dumps([e.as_dict() for e in thread])


@given(histories)
def test_queries_agree_with_reading_everything(steps: list[Step]) -> None:
    """The indexes answer what a walk over all entries would."""
    thread = write(steps)
    for kind in KINDS:
        assert thread.filter_by_kind(kind) == [entry for entry in thread if entry.kind == kind]
    configs = thread.filter_by_kind("config")
    for seq in range(thread.rev):
        before = [entry for entry in configs if entry.seq <= seq]
        assert thread.find_config(seq) == find_last(configs, seq) == (before[-1] if before else None)


def test_the_entries_before_a_call_are_those_that_its_context_could_hold() -> None:
    """All up to the basis of its recipe, which neither the reply nor what came meanwhile belongs to."""
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"), user_says("arrived meanwhile"))
    reply = {"context_ref": "default", **assistant_says("b"), **made_of(1)}
    writer.commit("ai_message", reply, call_id="call-1")
    assert [entry.seq for entry in writer.thread.list_entries_before_call("call-1")] == [0, 1]
    with pytest.raises(InvalidInput, match="call-2"):
        writer.thread.list_entries_before_call("call-2")
    with pytest.raises(Archived, match="entry 0 "):
        Thread(writer.thread.slice(2, 3), 2).list_entries_before_call("call-1")


def test_from_which_entry_on_a_thread_has_all_of_a_lane() -> None:
    """The one after the newest message of the lane that is in the archive alone; a whole thread has all."""
    assert example().find_first_held_seq("default") == 0
    assert example().find_first_held_seq("other") == 0
