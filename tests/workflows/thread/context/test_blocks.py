"""Blocks: their results are cleared or truncated, and a marker says how to read them."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.contract import READ_RESULT, VIEW_BLOB
from clew.errors import ContextOverflow
from clew_workflows.contract.content import Part, describe_part, get_text, iterate_blobs
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import Recipe
from clew_workflows.contract.policy import ClearMedia, ClearToolResults, ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.blocks import (
    Block,
    clear_results,
    compute_results_share,
    count_cleared_marker,
    count_media_marker,
    count_smallest,
    count_truncation_marker,
    format_cleared_marker,
    format_media_marker,
    format_truncation_marker,
)
from clew_workflows.thread.context.contexts import build_context, rebuild_context
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.examples import examples
from tests.support.generated_threads import make_part
from tests.support.reference import count_tokens
from tests.support.threads import (
    Writer,
    assistant_calls,
    assistant_says,
    project_messages,
    project_thread,
    rebuild,
    tool_returns,
    user_says,
)

# Clearing of tool results: what gives way to a marker, when, and what stays.


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
        if get_text(message["content"]).startswith("[cleared"):
            assert message["content"] == format_cleared_marker(message.get("tool_call_id", ""))
    return [
        "cleared" if get_text(m["content"]).startswith("[cleared") else get_text(m["content"]) for m in said_there
    ]


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


# Truncation: which parts of tool results that do not fit are shown, and their tokens.


READER: ToolSpec = {"name": READ_RESULT, "description": "", "parameters": {}}
Window = Literal["sliding", "epoch"]


def write_round(*sizes: int, writer: Writer | None = None, run: str = "r1") -> Writer:
    """A run with one round of tools, its results of so many bytes."""
    writer = writer or Writer()
    ids = [f"t{writer.thread.rev}-{index}" for index in range(len(sizes))]
    writer.talk(user_says("Do it"), assistant_calls(*ids), run=run)
    return writer.talk(*(tool_returns(i, text(n)) for i, n in zip(ids, sizes, strict=True)), run=run)


def text(length: int) -> str:
    """A text no part of which is like another."""
    return "".join(f"{number:07} " for number in range(length // 8 + 1))[:length]


def read_results(context: Projection) -> list[str]:
    """What a context shows of each tool result."""
    return [get_text(message["content"]) for message in context.messages if message["role"] == "tool"]


def budget(tokens: int, window: Window = "sliding") -> ContextPolicy:
    return ContextPolicy(max_input_tokens=tokens, reserve_output_tokens=0, window=window)


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_a_result_that_has_no_room_is_shown_in_part(window: Window) -> None:
    """It shows the beginning and the end, and between them the bytes left out, all bytes, and how to read on."""
    thread = write_round(70_000).thread
    context = project_thread(thread, budget(6000, window), tools=[READER])
    (content,) = read_results(context)
    head, tail = (context.meta.truncated_tool_results or {})["t0-0"]
    marker = (
        f"[bytes {head} to {70_000 - tail} of 70000 are left out: read_result(tool_call_id='t0-0', offset={head})"
    )
    assert content == f"{text(70_000)[:head]}\n{marker} reads on]\n{text(70_000)[70_000 - tail :]}"
    assert -2 <= head - tail < 600
    assert len(content) > 4 * 1500
    assert context.meta.estimated_tokens <= 6000
    assert context.meta.truncated is False


def test_a_result_that_fits_a_sliding_window_is_shown_whole() -> None:
    """A result that fits is not truncated, and a truncated result fills the room."""
    thread = write_round(12_000).thread
    assert read_results(project_thread(thread, budget(3200))) == [text(12_000)]
    truncated = project_thread(thread, budget(3000))
    assert truncated.meta.truncated_tool_results
    assert truncated.meta.estimated_tokens > 2800


def test_results_are_truncated_fairly() -> None:
    """Short results are not truncated, and long ones are truncated to about the same size."""
    context = project_thread(write_round(60_000, 400, 30_000, 60_000).thread, budget(8000), tools=[READER])
    first, short, second, third = map(len, read_results(context))
    assert short == 400
    assert max(first, second, third) - min(first, second, third) < 1200
    assert list(context.meta.truncated_tool_results or {}) == ["t0-0", "t0-2", "t0-3"]


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_a_round_stays_when_it_is_no_longer_the_newest(window: Window) -> None:
    """A truncated result is truncated in later calls, too; in an epoch it is truncated alike."""
    writer, policy = write_round(70_000), budget(6000, window)
    before = project_thread(writer.thread, policy)
    writer.talk(assistant_calls("late"), tool_returns("late", text(300)), run="r1")
    after = project_thread(writer.thread, policy)
    assert len(read_results(after)) == 2
    assert len(read_results(after)[0]) > 4000
    if window == "epoch":
        assert after.messages[: len(before.messages)] == before.messages
        assert after.meta.epoch == before.meta.epoch


def test_in_an_epoch_results_take_their_share_at_most() -> None:
    """Which follows from the policy alone, so that every context of it shows them alike."""
    policy = budget(6000, "epoch")
    assert compute_results_share(policy) == 1792
    full, truncated = write_round(6000).thread, write_round(8000).thread
    assert read_results(project_thread(full, policy)) == [text(6000)]
    assert project_thread(truncated, policy).meta.truncated_tool_results
    assert read_results(project_thread(truncated, policy)) == read_results(
        project_thread(truncated, policy, system="s" * 9000)
    )


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_as_much_is_truncated_as_must_be(window: Window) -> None:
    """The newest results are truncated to the marker before a run fails; only other parts make it fail."""
    policy = budget(1000, window)
    thread = write_round(*[5000] * 8).thread
    context = project_thread(thread, policy, tools=[READER])
    assert set((context.meta.truncated_tool_results or {}).values()) == {(0, 0)}
    assert read_results(context)[0] == (
        "[bytes 0 to 5000 of 5000 are left out: read_result(tool_call_id='t0-0', offset=0) reads on]"
    )
    with pytest.raises(ContextOverflow, match=r"^tool_results needs"):
        project_thread(write_round(*[5000] * 40).thread, policy)


def test_pinned_results_are_truncated_last() -> None:
    """They are not truncated while truncating the newest round is enough."""
    writer = write_round(4000)
    writer.pin(2)
    write_round(20_000, writer=writer, run="r2")
    context = project_thread(writer.thread, budget(2000))
    pinned, newest = read_results(context)
    assert pinned == text(4000)
    assert len(newest) < 4000
    both = project_thread(writer.thread, budget(1000))
    assert list(both.meta.truncated_tool_results or {}) == ["t0-0", "t4-0"]


def test_what_is_stored_elsewhere_is_read_there() -> None:
    """If the thread holds a part of a result, the marker says the bytes of the full result."""
    writer = Writer().talk(user_says("Do it"), assistant_calls("t"), run="r1")
    content = text(9000) + "\n[truncated: the first 9000 of 500000 bytes are shown]"
    payload = {"context_ref": DEFAULT_LANE, **tool_returns("t", content)}
    writer.commit("ai_message", payload | {"result": {"digest": "d", "bytes": 500_000, "shown": 9000}}, run_id="r1")
    context = project_thread(writer.thread, budget(1000), tools=[READER])
    head, tail = (context.meta.truncated_tool_results or {})["t"]
    end = len(content) - tail
    assert (
        f"[bytes {head} to {end} of 500000 are left out: read_result(tool_call_id='t', offset={head})"
        in read_results(context)[0]
    )
    assert read_results(context)[0].endswith("of 500000 bytes are shown]")
    smallest = project_thread(writer.thread, budget(120), tools=[READER])
    assert read_results(smallest)[0].startswith("[bytes 0 to 500000 of 500000 are left out")


def test_the_marker_names_read_result_only_where_the_model_can_use_it() -> None:
    """In a context without `read_result`, or for a session that has another thread, it only says what is left out."""
    thread = write_round(70_000).thread
    for context in (
        project_thread(thread, budget(6000)),
        project_thread(thread, budget(6000), tools=[READER], standalone=True),
    ):
        assert READ_RESULT not in read_results(context)[0]
        assert " of 70000 are left out]\n" in read_results(context)[0]


def test_a_long_run_in_an_epoch_begins_anew_in_steps() -> None:
    """Also where the run is one turn that does not fit: most calls begin as the one before them."""
    writer, policy = Writer().talk(user_says("Do it"), run="r1"), budget(2000, "epoch")
    contexts = []
    for number in range(60):
        writer.talk(assistant_calls(f"t{number}"), tool_returns(f"t{number}", text(400)), run="r1")
        contexts.append(project_thread(writer.thread, policy))
    shared = [later.messages[: len(earlier.messages)] == earlier.messages for earlier, later in pairwise(contexts)]
    assert shared.count(False) <= 10
    assert shared == [earlier.meta.epoch == later.meta.epoch for earlier, later in pairwise(contexts)]


@pytest.mark.parametrize("name", ["heuristic", "o200k_base", "cl100k_base"])
@given(
    call_id=st.from_regex(r"\A[A-Za-z0-9_-]{1,40}\Z"),
    tool=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=64),
    bounds=st.tuples(st.integers(0, 65_536), st.integers(0, 65_536), st.integers(0, 10**11)),
)
def test_a_marker_of_truncation_is_sized_without_a_vocabulary(
    name: str, call_id: str, tool: str, bounds: tuple[int, ...]
) -> None:
    """Its size is the same for every reader, and no less than any encoding counts."""
    begin, end, all_bytes = bounds
    content = f"\n{format_truncation_marker(call_id, begin, end, all_bytes, readable=True)}\n"
    message: Message = {"role": "tool", "content": content, "tool_call_id": call_id, "name": tool}
    assert load_encoding(name).count_message(message) <= count_truncation_marker(message)


@pytest.mark.parametrize("name", ["heuristic", "o200k_base", "cl100k_base"])
@examples(60)
@given(
    texts=st.lists(
        st.tuples(st.text(st.sampled_from('xyXY 01\n\t=-{}",é日🧵'), min_size=1, max_size=30), st.integers(1, 900)),
        min_size=1,
        max_size=3,
    ),
    tokens=st.integers(300, 6000),
)
def test_what_is_truncated_is_never_larger_than_it_is_taken_for(
    name: str, texts: list[tuple[str, int]], tokens: int
) -> None:
    """The counts of pieces and markers are an upper bound of the tokens shown, under every encoding."""
    ids = [f"t{index}" for index in range(len(texts))]
    writer = Writer(name).talk(user_says("a"), assistant_calls(*ids), run="r1")
    writer.talk(*(tool_returns(i, part * times) for i, (part, times) in zip(ids, texts, strict=True)), run="r1")
    context = project_thread(writer.thread, budget(tokens), tools=[READER], encoding=name, tools_tokens=0)
    counted = sum(count_tokens(message, load_encoding(name)) for message in context.messages)
    assert counted <= context.meta.estimated_tokens <= tokens


@pytest.mark.parametrize("heavy", [0, 1, 2], ids=["first", "inside", "last"])
def test_what_is_shown_of_an_uneven_result_is_counted_piece_by_piece(heavy: int) -> None:
    """Some parts of a text have many more tokens than others of the same size."""
    parts = ["word " * 400] * 3
    parts[heavy] = "🧵" * 500
    writer = Writer("o200k_base").talk(user_says("a"), assistant_calls("x"), tool_returns("x", "".join(parts)))
    for tokens in range(300, 2200, 50):
        context = project_thread(writer.thread, budget(tokens), tools=[READER], encoding="o200k_base", tools_tokens=0)
        counted = sum(count_tokens(message, load_encoding("o200k_base")) for message in context.messages)
        assert counted <= context.meta.estimated_tokens <= tokens


def test_results_of_a_snapshot_are_not_truncated() -> None:
    """They are shown in full, or left out."""
    writer = Writer()
    writer.replace(
        [user_says("go"), assistant_calls("then-1"), tool_returns("then-1", text(9000)), assistant_says("done")]
    )
    writer.talk(user_says("more?"))
    assert project_messages(writer.thread, budget(1000)) == [assistant_says("done"), user_says("more?")]
    assert read_results(project_thread(writer.thread, budget(4000))) == [text(9000)]


# Clearing of media.


def clearing_media(keep: int = 1, min_tokens: int = 0, **policy: object) -> ContextPolicy:
    """A policy that clears media."""
    rule = ClearMedia(keep=keep, min_tokens=min_tokens)
    return ContextPolicy.model_validate({"max_input_tokens": 100_000, **policy, "clear_media": rule})


def show(number: int) -> Part:
    """An image of about 1 300 tokens."""
    return make_part("image", number, width=1000, height=1000, name=f"{number}.png")


def show_again(number: int) -> str:
    """The marker of that image for a model that can see it again."""
    digest = f"{number:064x}"[:12]
    how = f"view_blob(blob='{digest}') shows it again"
    return f"[image: {number}.png, image/png, 1000 x 1000, 1000 bytes; cleared: {how}]"


def show_runs(number: int, writer: Writer | None = None, first: int = 0) -> Writer:
    """So many answered requests with an image each."""
    writer = writer or Writer()
    for index in range(first, first + number):
        writer.message(
            {"role": "user", "content": [{"type": "text", "text": "look"}, show(index)]}, run=f"run-{index}"
        )
        writer.message(assistant_says("I see"), run=f"run-{index}")
    return writer


def list_shown(context: Projection) -> list[str]:
    """The names of the images that a context shows."""
    return [blob.get("name", "") for blob in iterate_blobs(message["content"] for message in context.messages)]


VIEWER: ToolSpec = {"name": VIEW_BLOB, "description": "", "parameters": {}}


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_the_newest_media_stay(window: Literal["sliding", "epoch"]) -> None:
    """Older ones are markers that name them, and how to see them again where the model can."""
    thread = show_runs(4).talk(user_says("and now?"), run="run-9").thread
    context = project_thread(thread, clearing_media(2, window=window), tools=[VIEWER])
    assert list_shown(context) == ["2.png", "3.png"]
    assert context.messages[0]["content"] == [
        {"type": "text", "text": "look"},
        {"type": "text", "text": show_again(0)},
    ]
    assert context.meta.cleared_media == 2
    full = project_thread(thread, tools=[VIEWER])
    assert full.meta.cleared_media is None
    assert "cleared_media" not in full.meta.as_dict()
    freed = 2 * (load_encoding("heuristic").count_media([show(0)])[0] - count_media_marker(show(0)))
    assert context.meta.estimated_tokens == full.meta.estimated_tokens - freed
    for fields in ({}, {"tools": [VIEWER], "standalone": True}):
        plain = project_thread(thread, clearing_media(2, window=window), **fields)
        assert get_text(plain.messages[0]["content"]) == f"look\n{describe_part(show(0))}"


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_media_of_the_request_of_pins_and_of_the_newest_round_stay(window: Literal["sliding", "epoch"]) -> None:
    """The next reply needs them, or a person wants them there; older results of the same run are cleared."""
    writer = show_runs(2)
    writer.pin(0)
    writer.message({"role": "user", "content": [show(10), show(11)]}, run="run-10")
    for index in (20, 21, 22):
        call_id = f"tool{index}"
        writer.message(assistant_calls(call_id), run="run-10")
        writer.message({**tool_returns(call_id), "content": [show(index)]}, run="run-10")
    context = project_thread(writer.thread, clearing_media(0, window=window))
    assert list_shown(context) == ["0.png", "10.png", "11.png", "22.png"]
    assert context.meta.cleared_media == 3


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_small_media_and_little_savings_clear_nothing(window: Literal["sliding", "epoch"]) -> None:
    """A part that is smaller than its marker stays, and all stay unless the policy's least is freed."""
    small = make_part("audio", 1, seconds=0.5)
    writer = Writer().talk({"role": "user", "content": [small]}, assistant_says("yes"), run="run-s")
    thread = show_runs(3, writer).talk(user_says("and now?"), run="run-9").thread
    freed = 3 * (load_encoding("heuristic").count_media([show(0)])[0] - count_media_marker(show(0)))
    assert project_thread(thread, clearing_media(0, freed, window=window)).meta.cleared_media == 3
    assert project_thread(thread, clearing_media(0, freed + 1, window=window)).meta.cleared_media == 0


def test_media_of_an_epoch_are_cleared_in_steps() -> None:
    """Each frees the least that the policy asks for and is an epoch of its own; between them the prefix holds."""
    one = load_encoding("heuristic").count_media([show(0)])[0] - count_media_marker(show(0))
    policy = clearing_media(1, 3 * one - 30, window="epoch")
    writer, before = Writer(), list[Message]()
    seen, epochs = list[int | None](), list[tuple[int, ...] | None]()
    for number in range(12):
        show_runs(1, writer, number)
        context = project_thread(writer.thread, policy)
        seen.append(context.meta.cleared_media)
        if epochs and context.meta.epoch == epochs[-1]:
            assert context.messages[: len(before)] == before
        epochs.append(context.meta.epoch)
        before = context.messages
    assert seen == [0, 0, 0, 3, 3, 3, 6, 6, 6, 9, 9, 9]
    assert len(set(epochs)) == 4


def test_media_of_a_snapshot_are_cleared_too() -> None:
    """Their counts are recorded with it."""
    writer = Writer()
    writer.replace([{"role": "user", "content": [show(0), show(1)]}, assistant_says("done")])
    writer.talk(user_says("more?"))
    assert list_shown(project_thread(writer.thread, clearing_media(1))) == ["1.png"]
    assert list_shown(project_thread(rebuild(writer.thread), clearing_media(0))) == []


@pytest.mark.parametrize("name", ["o200k_base", "cl100k_base", "heuristic"])
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="/\\"), min_size=1, max_size=40),
    st.randoms(),
)
@examples(50)
def test_a_media_marker_has_no_more_tokens_than_it_counts(name: str, title: str, random: Random) -> None:
    """Its size needs no vocabulary: it is an upper bound under every encoding."""
    for part in (
        make_part("image", random.getrandbits(256), width=12_345, height=99_999, name=title),
        make_part("audio", random.getrandbits(256), seconds=1234.5678, media_type="audio/x-wav"),
        make_part("file", random.getrandbits(256), pages=1234, bytes=50_000_000, name=title),
    ):
        text = format_media_marker(part, viewable=True)
        assert load_encoding(name).count(text) <= count_media_marker(part)


def test_a_result_whose_media_do_not_fit_keeps_all_of_its_text() -> None:
    """It says of no text that it is left out."""
    content: list[Part] = [{"type": "text", "text": "Two images."}, show(0), show(1)]
    writer = Writer().talk(user_says("go"), assistant_calls("x"), tool_returns("x", content))
    context = project_thread(writer.thread, ContextPolicy(max_input_tokens=2000, reserve_output_tokens=0))
    assert list_shown(context) == ["0.png"]
    assert context.messages[-1]["content"][0] == {"type": "text", "text": get_text(content)}


def test_the_media_of_a_truncated_result_are_listed_where_they_are_then() -> None:
    """Those of the other results of its round stay."""
    writer = Writer().talk(user_says("look"), assistant_calls("x", "y"))
    for number, text in enumerate((LONG * 20, "short")):
        content: list[Part] = [{"type": "text", "text": text}, {"type": "text", "text": text}, show(number)]
        writer.message(tool_returns("xy"[number], content))
    view = LaneView(ProjectionInput(writer.thread, ContextPolicy()))
    (block, _) = view.iterate_blocks()
    assert [(media.message, media.index) for media in block.media] == [(1, 2), (2, 2)]
    (truncated,) = view.truncator.truncate_to_room([block], block.tokens - 1000)
    assert [(media.message, media.index) for media in truncated.media] == [(1, 1), (2, 2)]


def test_a_truncated_result_keeps_the_media_that_fit() -> None:
    """Its text names all of them, and is truncated before they are left out."""
    writer = Writer().talk(user_says("go"), assistant_calls("tool-a"))
    content = [{"type": "text", "text": LONG * 20}, show(0), show(1)]
    writer.message({**tool_returns("tool-a"), "content": content})  # type: ignore[typeddict-item]
    seen = []
    for budget in (6000, 4000, 2500, 1000, 300):
        policy = ContextPolicy(max_input_tokens=budget, reserve_output_tokens=0)
        context = project_thread(writer.thread, policy)
        assert context.meta.estimated_tokens <= budget
        encoding = load_encoding("heuristic")
        assert sum(map(encoding.count_message, context.messages)) <= context.meta.estimated_tokens
        seen.append(list_shown(context))
    assert seen == [["0.png", "1.png"], ["0.png", "1.png"], ["0.png"], [], []]


@pytest.mark.parametrize("window", ["sliding", "epoch"])
def test_a_context_with_cleared_media_is_made_again_from_its_recipe(window: Literal["sliding", "epoch"]) -> None:
    """To the byte, from the JSON of the thread, also after later entries and from another model."""
    writer = Writer()
    writer.config(context_policy=clearing_media(2, 1000, window=window), tools=[VIEWER])
    show_runs(6, writer)
    context = build_context(writer.thread, model="openai:gpt-4o")
    assert context.meta.cleared_media
    recipe = Recipe(
        context_ref=DEFAULT_LANE,
        basis_seq=writer.thread.last_seq,
        model="openai:gpt-4o",
        model_options={},
        policy_hash=context.meta.policy_hash,
        digest=context.meta.digest,
        input_tokens=context.meta.estimated_tokens,
        usage=Usage(),
        attempt=1,
        stop_reason="stop",
        cleared_media=context.meta.cleared_media,
    )
    show_runs(3, writer, 6)
    again = rebuild_context(rebuild(writer.thread), Recipe.from_json(recipe.as_dict()), None)
    assert (again.meta.digest, again.meta.cleared_media) == (recipe.digest, recipe.cleared_media)
    assert again.messages == context.messages


# Blocks alone.


def list_blocks(thread: Thread, policy: ContextPolicy) -> list[Block]:
    """The blocks of the default lane, the newest first."""
    return list(LaneView(ProjectionInput(thread, policy)).iterate_blocks())


@pytest.mark.parametrize("is_required", [True, False])
def test_a_block_whose_results_are_missing_is_never_smaller_than_its_bound(is_required: bool) -> None:
    """The results that arrive may be smaller than what stands for them: an archive keeps enough for that."""
    writer = Writer()
    writer.talk(user_says("go"), assistant_calls("x", "y"), run="r1")
    policy = ContextPolicy(max_input_tokens=10_000, reserve_output_tokens=0)
    block = list_blocks(writer.thread, policy)[0]
    assert block.missing_tokens
    least = count_smallest(block, policy, is_required=is_required)
    assert 0 < least <= block.tokens - block.missing_tokens
    writer.talk(tool_returns("x", ""), tool_returns("y", ""), run="r1")
    assert least <= list_blocks(writer.thread, policy)[0].tokens


def test_a_cleared_result_is_not_truncated() -> None:
    """What a context says of truncated results names those alone whose beginning and end it shows."""
    writer = rounds("a" * 4_000, "b" * 4_000)
    policy = ContextPolicy(max_input_tokens=1_000, reserve_output_tokens=0)
    view = LaneView(ProjectionInput(writer.thread, policy))
    block = next(iter(view.iterate_blocks()))
    truncated = view.truncator.truncate_to_share(block)
    assert [part[0] for part in truncated.truncated] == [block.messages[1].get("tool_call_id")]
    assert clear_results(truncated, 1, ClearToolResults(keep=0)).truncated == ()
    assert clear_results(truncated, 0, ClearToolResults(keep=0)) is truncated


def test_an_epoch_is_another_where_the_newest_results_have_less_than_their_share() -> None:
    """Later contexts show them at their share: they do not begin as this one does."""
    policy, thread = budget(6000, "epoch"), write_round(60_000).thread
    at_share, shorter = (project_thread(thread, policy, system="s" * size) for size in (100, 19_000))
    assert len(read_results(shorter)[0]) < len(read_results(at_share)[0])
    assert shorter.meta.epoch != at_share.meta.epoch


def test_a_rule_that_keeps_more_results_than_there_are_clears_none() -> None:
    """However few a round has."""
    writer = Writer()
    writer.talk(user_says("go"), assistant_calls("a", "b"), tool_returns("a", LONG), tool_returns("b", LONG))
    writer.talk(assistant_calls("c"), tool_returns("c", LONG))
    assert results(writer.thread, clearing(keep=4)) == [LONG] * 3
    assert results(writer.thread, clearing(keep=2)) == ["cleared", LONG, LONG]


def test_a_cleared_result_has_no_media() -> None:
    """Those of the other results of its round stay."""
    writer = Writer().talk(user_says("look"), assistant_calls("x", "y"))
    for number, call_id in enumerate(("x", "y")):
        writer.message({**tool_returns(call_id), "content": [show(number)]})
    (block,) = (block for block in list_blocks(writer.thread, ContextPolicy()) if block.results)
    assert [media.message for media in block.media] == [1, 2]
    cleared = clear_results(block, 1, ClearToolResults(keep=1))
    assert [media.message for media in cleared.media] == [2]
