"""Clearing of tool results: what gives way to a marker, when, and what stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ClearToolResults, ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.blocks import count_cleared_marker, format_cleared_marker
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.threads import (
    Writer,
    assistant_calls,
    assistant_says,
    project_messages,
    project_thread,
    tool_returns,
    user_says,
)

LONG = "word " * 100


def clearing(keep: int = 1, min_tokens: int = 0, *exclude: str, **policy: object) -> ContextPolicy:
    """A policy that clears."""
    rule = ClearToolResults(keep=keep, min_tokens=min_tokens, exclude_tools=exclude)
    return ContextPolicy.model_validate({"max_input_tokens": 100_000, **policy, "clear_tool_results": rule})


def rounds(*contents: str, name: str = "calculator", writer: Writer | None = None, run: str = "run-1") -> Writer:
    """A run of so many tool calls, each with its result."""
    writer = writer or Writer()
    writer.message(user_says("go"), run=run)
    for content in contents:
        call_id = f"tool{writer.thread.rev:05d}"
        writer.talk(assistant_calls(call_id, name=name), tool_returns(call_id, content, name), run=run)
    return writer


def results(thread: Thread, policy: ContextPolicy) -> list[str]:
    """What a context shows of each tool result: its text, or that it is cleared."""
    said_there = [message for message in project_messages(thread, policy) if message["role"] == "tool"]
    for message in said_there:
        if message["content"].startswith("[cleared"):
            assert message["content"] == format_cleared_marker(message.get("tool_call_id", ""))
    return ["cleared" if m["content"].startswith("[cleared") else m["content"] for m in said_there]


def test_the_newest_results_stay() -> None:
    """Older ones are a marker with their id and the tool that reads them; their calls and their names stay."""
    thread = (
        rounds(*(f"{number} {LONG}" for number in range(4))).talk(assistant_says("done"), user_says("more?")).thread
    )
    assert results(thread, clearing(keep=2)) == ["cleared", "cleared", f"2 {LONG}", f"3 {LONG}"]
    full, part = project_thread(thread), project_thread(thread, clearing(keep=2))
    assert part.messages[2] == {
        "role": "tool",
        "content": "[cleared: read_result(tool_call_id='tool00001') reads it again]",
        "tool_call_id": "tool00001",
        "name": "calculator",
    }
    assert [message for message in part.messages if message["role"] != "tool"] == [
        message for message in full.messages if message["role"] != "tool"
    ]
    assert (full.meta.cleared_tool_results, part.meta.cleared_tool_results) == (None, 2)
    assert part.meta.estimated_tokens == full.meta.estimated_tokens - 2 * (thread[2].tokens - 24 - 9 - 10)
    assert "cleared_tool_results" not in full.meta.as_dict()


def test_what_the_next_reply_answers_stays() -> None:
    """The newest round is never cleared, whatever `keep` says; after its answer it is cleared like any other."""
    writer = rounds(LONG)
    calls = ("tool-a", "tool-b")
    writer.talk(assistant_calls(*calls), *(tool_returns(call, LONG) for call in calls), run="run-1")
    assert results(writer.thread, clearing(keep=0)) == ["cleared", LONG, LONG]
    writer.message(assistant_says("done"), run="run-1")
    assert results(writer.thread, clearing(keep=0)) == ["cleared"] * 3
    assert results(writer.thread, clearing(keep=1)) == ["cleared", "cleared", LONG]


def test_nothing_is_cleared_for_little() -> None:
    """It must free so many tokens, all together; of excluded tools and of short results nothing is freed."""
    thread = rounds(LONG, "short", LONG).talk(assistant_says("done")).thread
    freed = 2 * (thread[2].tokens - count_cleared_marker(thread[2].message))
    assert results(thread, clearing(0, freed)) == ["cleared", "short", "cleared"]
    assert results(thread, clearing(0, freed + 1)) == [LONG, "short", LONG]
    assert project_thread(thread, clearing(0, freed + 1)).meta.cleared_tool_results == 0
    assert results(thread, clearing(0, 0, "calculator")) == [LONG, "short", LONG]
    mixed = rounds(LONG, name="look_up", writer=rounds(LONG)).talk(assistant_says("done")).thread
    assert results(mixed, clearing(0, 0, "calculator")) == [LONG, "cleared"]


def test_what_clearing_frees_lets_older_blocks_in() -> None:
    """A sliding window reaches further back than it would with the results."""
    writer = Writer().talk(user_says("the first word"), assistant_says("yes"))
    thread = rounds(*[LONG] * 5, writer=writer).talk(assistant_says("done"), user_says("more?")).thread
    tight = clearing(1, max_input_tokens=700, reserve_output_tokens=0, keep_last_turns=1)
    without = tight.model_copy(update={"clear_tool_results": None})
    assert user_says("the first word") not in project_messages(thread, without)
    assert user_says("the first word") in project_messages(thread, tight)


def test_results_of_a_snapshot_are_cleared_too() -> None:
    """They have ids like any other."""
    writer = Writer()
    writer.replace([user_says("go"), assistant_calls("then-1"), tool_returns("then-1", LONG), assistant_says("done")])
    writer.talk(user_says("more?"))
    assert results(writer.thread, clearing(keep=0)) == ["cleared"]
    assert project_thread(writer.thread, clearing(keep=0)).meta.cleared_tool_results == 1


def test_an_epoch_is_cleared_in_steps() -> None:
    """Each frees the least that the policy asks for and is an epoch of its own; between them all stays as it was."""
    one = rounds(LONG).thread[2]
    # Later ids are a little longer.
    step = 3 * (one.tokens - count_cleared_marker(one.message)) - 10
    policy = clearing(1, step, window="epoch")
    writer, seen = Writer(), []
    for number in range(12):
        rounds(LONG, writer=writer)
        writer.message(assistant_says(f"done {number}"), run="run-1")
        meta = project_thread(writer.thread, policy).meta
        assert meta.epoch is not None
        assert meta.epoch[-1] == meta.cleared_tool_results
        seen.append(meta.cleared_tool_results)
    assert seen == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9]


@pytest.mark.parametrize("name", ["heuristic", "o200k_base", "cl100k_base"])
@given(
    call_id=st.from_regex(r"\A[A-Za-z0-9_-]{1,40}\Z"),
    tool=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64),
)
def test_a_marker_is_sized_without_a_vocabulary(name: str, call_id: str, tool: str) -> None:
    """Its size is the same for every reader, and no less than any encoding counts."""
    message: Message = {
        "role": "tool",
        "content": format_cleared_marker(call_id),
        "tool_call_id": call_id,
        "name": tool,
    }
    assert load_encoding(name).count_message(message) <= count_cleared_marker(message)


def test_clearing_costs_by_the_window() -> None:
    """As many entries are looked at in a long thread as in a short one."""
    policy = clearing(2, max_input_tokens=2000, reserve_output_tokens=0)
    included = []
    for runs in (50, 500):
        writer = Writer()
        for number in range(runs):
            run = f"run-{number}"
            rounds(LONG, writer=writer, run=run).message(assistant_says(f"done {number}"), DEFAULT_LANE, run)
        included.append(project_thread(writer.thread, policy).meta.entries_included)
    assert abs(included[0] - included[1]) <= 4
