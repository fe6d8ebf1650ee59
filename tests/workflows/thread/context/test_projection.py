"""Contexts by example."""

from __future__ import annotations

import uuid
from dataclasses import replace
from typing import Any

import pytest

from clew.errors import ContextOverflow, InvalidInput, InvalidTokenBudget
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message, compute_digest
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.blocks import MISSING_RESULT
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, find_projector, register_projector
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.reference import count_tokens
from tests.support.threads import (
    CALCULATOR,
    WIDE,
    Writer,
    assistant_calls,
    assistant_says,
    project_messages,
    project_thread,
    system_says,
    tool_returns,
    user_says,
)

PROMPT = "You are terse."
HEURISTIC = load_encoding("heuristic")


def room_for(*messages: Message, **more: Any) -> ContextPolicy:
    """A policy with just enough room for some messages."""
    budget = sum(count_tokens(message, HEURISTIC) for message in messages)
    return ContextPolicy(max_input_tokens=budget, reserve_output_tokens=0, **more)


ARITHMETIC = [
    user_says("What's 2+2?"),
    assistant_says("4"),
    user_says("Multiply by 3"),
    assistant_calls("tc_1"),
    tool_returns("tc_1", "12"),
    assistant_says("The result is 12"),
]
WEATHER = [
    user_says("What's the weather?"),
    assistant_calls("tc_1", name="get_weather"),
    tool_returns("tc_1", name="get_weather"),
]


@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6])
def test_turns_one_and_two(count: int) -> None:
    """Multi-Turn Flow and Example Session Flow: each call sees the prompt and all earlier messages."""
    thread = Writer().talk(*ARITHMETIC).thread
    assert project_messages(thread, system=PROMPT, at_seq=count - 1) == [system_says(PROMPT), *ARITHMETIC[:count]]
    assert project_messages(Writer().talk(*ARITHMETIC[:count]).thread, system=PROMPT) == [
        system_says(PROMPT),
        *ARITHMETIC[:count],
    ]


@pytest.mark.parametrize(("call", "messages"), [(0, 2), (2, 4), (4, 6)])
def test_example_session_flow_counts(call: int, messages: int) -> None:
    """Example Session Flow: its three model calls see two, four and six messages; the thread ends with six."""
    thread = Writer().talk(*ARITHMETIC).thread
    assert len(project_messages(thread, system=PROMPT, at_seq=call)) == messages
    assert thread.rev == 6


def test_turn_three() -> None:
    """Multi-Turn Flow, turn 3: after 102 entries a summary and what it does not cover make twelve messages."""
    writer = Writer()
    for turn in range(50):
        writer.talk(user_says(f"question {turn}"), assistant_says(f"answer {turn}"), run=f"run-{turn}")
    writer.summary(90, "They talked of much.")
    writer.talk(user_says("Remind me what we discussed"), run="run-50")
    context = project_thread(writer.thread, system=PROMPT)
    assert context.messages == [
        system_says(PROMPT),
        system_says("Summary of earlier conversation:\nThey talked of much."),
        *(writer.thread[seq].message for seq in range(91, 100)),
        user_says("Remind me what we discussed"),
    ]
    assert len(context.messages) == 12
    assert (context.meta.summary_used, context.meta.truncated, context.meta.entries_included) == (True, False, 10)
    assert context.meta.entries_total == 102


def test_projection_boundary() -> None:
    """Thread as Append-Only Log: messages that a summary covers are replaced by it, later ones are shown."""
    writer = Writer().talk(*WEATHER, assistant_says("It's 72°"))
    writer.summary(4, "Talked weather")
    writer.talk(user_says("What about LA?"))
    assert project_messages(writer.thread) == [
        system_says("Summary of earlier conversation:\nTalked weather"),
        user_says("What about LA?"),
    ]


def test_an_empty_thread_is_an_empty_context() -> None:
    """The context of an empty lane is the prompt, and `meta` counts no entries."""
    context = project_thread(Thread(), system=PROMPT)
    assert context.messages == [system_says(PROMPT)]
    assert (context.meta.basis_rev, context.meta.basis_last_seq) == (0, -1)
    assert project_messages(Thread()) == []


def test_pending_comes_last() -> None:
    """Pending messages come after the history, and are not in the thread."""
    thread = Writer().talk(user_says("a"), assistant_says("b")).thread
    context = project_thread(thread, pending=[user_says("c")])
    assert context.messages == [user_says("a"), assistant_says("b"), user_says("c")]
    assert (context.meta.pending_count, context.meta.basis_last_seq) == (1, 1)


@pytest.mark.parametrize(
    ("messages", "context"),
    [
        pytest.param([user_says("a"), tool_returns("x")], [user_says("a")], id="a result without its call"),
        pytest.param(
            [user_says("a"), assistant_calls("x"), tool_returns("x", "1"), tool_returns("x", "2")],
            [user_says("a"), assistant_calls("x"), tool_returns("x", "1")],
            id="a second result",
        ),
        pytest.param(
            [user_says("a"), assistant_calls("x", "y"), tool_returns("y")],
            [user_says("a"), assistant_calls("x", "y"), tool_returns("y"), tool_returns("x", MISSING_RESULT)],
            id="a call without its result",
        ),
        pytest.param(
            [user_says("a"), assistant_calls("x"), user_says("b"), tool_returns("x")],
            [user_says("a"), assistant_calls("x"), tool_returns("x", MISSING_RESULT), user_says("b")],
            id="a result that came too late",
        ),
    ],
)
def test_tool_groups_are_made_whole(messages: list[Message], context: list[Message]) -> None:
    """Each call in a context has one result, right after it, for any thread."""
    assert project_messages(Writer().talk(*messages).thread) == context
    writer = Writer()
    writer.replace(messages)
    assert project_messages(writer.thread) == context


@pytest.mark.parametrize("name", ["calculator", "Q7" * 32, "x_" * 32, "日本語" * 20])
@pytest.mark.parametrize("vocabulary", ["o200k_base", "cl100k_base", "heuristic"])
def test_a_repair_is_never_larger_than_it_is_taken_for(vocabulary: str, name: str) -> None:
    """What is put in for a missing result stays within the estimate, whatever the tool is called."""
    thread = Writer(vocabulary).talk(user_says("a"), assistant_calls("x", name=name)).thread
    context = project_thread(thread, encoding=vocabulary)
    by = load_encoding(vocabulary)
    assert sum(count_tokens(message, by) for message in context.messages) <= context.meta.estimated_tokens


def test_a_long_run_drops_its_own_oldest_tools() -> None:
    """Of a run that outgrows its window the request stays, and the newest rounds of tools with it."""
    rounds = [(assistant_calls(f"t{n}"), tool_returns(f"t{n}", "x" * 40)) for n in range(6)]
    writer = Writer().talk(user_says("old"), assistant_says("older"), run="r1").talk(user_says("Do it"), run="r2")
    for pair in rounds:
        writer.talk(*pair, run="r2")
    policy = room_for(user_says("Do it"), *rounds[4], *rounds[5])
    context = project_thread(writer.thread, policy)
    assert context.messages == [user_says("Do it"), *rounds[4], *rounds[5]]
    assert (context.meta.truncated, context.meta.estimated_tokens) == (True, policy.budget)


def test_a_steered_message_does_not_replace_the_request() -> None:
    """A steered message belongs to the run, and the request that opened the run is still kept first."""
    writer = Writer().talk(
        user_says("Do it"), assistant_says("x" * 400), user_says("Gently"), assistant_says("y"), run="r1"
    )
    policy = room_for(user_says("Do it"), user_says("Gently"), assistant_says("y"))
    assert project_messages(writer.thread, policy) == [user_says("Do it"), user_says("Gently"), assistant_says("y")]


def test_the_last_turns_come_before_the_summary() -> None:
    """If the summary does not fit beside the last turns, it is dropped; if it fits, older turns are dropped first."""
    talk = [
        user_says("a" * 40),
        assistant_says("b" * 40),
        user_says("c" * 40),
        assistant_says("d" * 40),
        user_says("e" * 40),
    ]
    writer = Writer().talk(user_says("0"))
    writer.summary(0, "zero" * 10)
    writer.talk(*talk)
    summary = system_says("Summary of earlier conversation:\n" + "zero" * 10)
    tight = project_thread(writer.thread, room_for(*talk[2:], keep_last_turns=2))
    assert (tight.messages, tight.meta.summary_used) == (talk[2:], False)
    looser = project_thread(writer.thread, room_for(summary, *talk[2:], keep_last_turns=2))
    assert (looser.messages, looser.meta.summary_used) == ([summary, *talk[2:]], True)
    assert tight.meta.truncated
    assert looser.meta.truncated


@pytest.mark.parametrize(
    ("kinds", "context"),
    [
        (("message",), [user_says("a"), assistant_says("b")]),
        (("message", "tool_call"), [user_says("a"), assistant_says("b")]),
        (("message", "tool_result"), [user_says("a"), assistant_says("b")]),
        (("tool_call", "tool_result"), [assistant_calls("x"), tool_returns("x")]),
    ],
)
def test_kinds_left_out(kinds: tuple[Any, ...], context: list[Message]) -> None:
    """A tool group needs both of its kinds."""
    thread = Writer().talk(user_says("a"), assistant_calls("x"), tool_returns("x"), assistant_says("b")).thread
    assert project_messages(thread, ContextPolicy(include_kinds=kinds)) == context


@pytest.mark.parametrize(
    ("part", "fields"),
    [
        ("tools", {"tools": [CALCULATOR]}),
        ("system_prompt", {"system": "s" * 400}),
        ("pending", {"pending": [user_says("p" * 400)]}),
        ("request", {}),
    ],
)
def test_what_must_fit_and_does_not(part: str, fields: dict[str, Any]) -> None:
    """Tool schemas, prompt, pending and request are never truncated; the error names part, tokens and room."""
    thread = Writer().talk(user_says("q" * 200 if part == "request" else "")).thread
    policy = ContextPolicy(max_input_tokens=40, reserve_output_tokens=10)
    with pytest.raises(ContextOverflow) as raised:
        project_thread(thread, policy, **fields)
    assert (raised.value.part, raised.value.available) == (part, 30)
    assert raised.value.needed > 30


def test_a_window_may_do_without_the_request() -> None:
    """Where the request need not fit it is windowed like the rest of the history."""
    thread = Writer().talk(user_says("q" * 400)).thread
    context = project_thread(
        thread, ContextPolicy(max_input_tokens=40, reserve_output_tokens=10), request_must_fit=False
    )
    assert (context.messages, context.meta.truncated) == ([], True)


def test_the_heuristic_estimator() -> None:
    """`heuristic` sizes a message at a quarter of its bytes and ten, whatever its recorded count is."""
    thread = Writer("o200k_base").talk(user_says("日本語" * 30)).thread
    policy = WIDE.overlay(ContextPolicy(token_estimator="heuristic"))
    assert project_thread(thread, policy, encoding="o200k_base").meta.estimated_tokens == 270 // 4 + 10
    assert project_thread(thread, encoding="o200k_base").meta.estimated_tokens == thread[0].tokens


@pytest.mark.parametrize(
    ("policy", "due"),
    [
        (ContextPolicy(), False),
        (ContextPolicy(summarize_threshold=4), False),
        (ContextPolicy(summarize_threshold=3), True),
        (ContextPolicy(max_thread_tokens=43), False),
        (ContextPolicy(max_thread_tokens=42), True),
        (ContextPolicy(max_messages=1), True),
        (ContextPolicy(max_messages=1, summarization="none"), False),
        (ContextPolicy(summarize_threshold=3, summarization="none"), False),
    ],
)
def test_a_summary_is_due(policy: ContextPolicy, due: bool) -> None:
    """A summary is due where the window was truncated, or more entries or tokens came than a threshold allows."""
    thread = Writer().talk(user_says("aaaa"), assistant_says("bbbb"), user_says("c"), assistant_says("dddd")).thread
    assert sum(entry.tokens for entry in thread) == 43
    assert project_thread(thread, policy).meta.needs_summary == due


@pytest.mark.parametrize("kinds", [("message", "summary"), ("message",)])
def test_thresholds_count_from_the_last_summary(kinds: tuple[Any, ...]) -> None:
    """Messages that a summary covers make no other summary due, whether the summary is shown or not."""
    writer = Writer().talk(user_says("a"), assistant_says("b"), user_says("c"), assistant_says("d"))
    policy = ContextPolicy(summarize_threshold=2, max_thread_tokens=30, include_kinds=kinds)
    assert project_thread(writer.thread, policy).meta.needs_summary
    writer.summary(3)
    assert not project_thread(writer.thread, policy).meta.needs_summary
    writer.talk(user_says("e"), assistant_says("f"), user_says("g"))
    assert project_thread(writer.thread, policy).meta.needs_summary


@pytest.mark.parametrize(
    "policy",
    [
        ContextPolicy(window="epoch", token_estimator="heuristic"),
        ContextPolicy(projector="nobody's"),
    ],
)
def test_what_is_not_available_is_refused(policy: ContextPolicy) -> None:
    """A policy that contradicts itself or names an unknown projector is refused."""
    with pytest.raises(InvalidInput):
        project_thread(Thread(), policy)


@pytest.mark.parametrize(("most", "reserve"), [(0, 0), (-1, 0), (100, 100), (100, 101), (100, -1)])
def test_no_budget_is_refused(most: int, reserve: int) -> None:
    """A policy that leaves no token for the context makes none."""
    with pytest.raises(InvalidTokenBudget):
        project_thread(Thread(), ContextPolicy(max_input_tokens=most, reserve_output_tokens=reserve))


def test_a_projector_of_ones_own() -> None:
    """A policy chooses a projector by its name; a name is registered once."""
    name = f"loud-{uuid.uuid4().hex}"

    def loud(inputs: ProjectionInput) -> Projection:
        quiet = find_projector("default")(inputs)
        return replace(
            quiet,
            messages=[{**message, "content": get_text(message["content"]).upper()} for message in quiet.messages],
        )

    register_projector(name, loud)
    context = project_thread(Writer().talk(user_says("a")).thread, ContextPolicy(projector=name))
    assert context.messages == [user_says("A")]
    shown = {"messages": context.messages, "tool_spec": [], "output_schema": None}
    assert context.meta.digest == compute_digest(shown)
    assert context.blocks == ()
    with pytest.raises(ValueError, match="already registered"):
        register_projector(name, loud)


def test_a_context_can_be_changed_without_changing_others() -> None:
    """Its messages, their tool calls, the tools' schemas and the answer's schema are copies."""
    call = assistant_calls("tc_1")
    writer = Writer()
    writer.config(tools=[CALCULATOR])
    thread = writer.talk(user_says("2+2?"), call, tool_returns("tc_1")).thread
    form = {"type": "object"}
    first, second = (build_context(thread, output_schema=form) for _ in range(2))
    first.messages[-3]["content"] = "X"
    first.messages[-2]["tool_calls"][0]["arguments"]["x"] = 1
    first.tool_spec[0]["parameters"]["x"] = 1
    assert first.output_schema is not None
    first.output_schema["x"] = 1
    again = build_context(thread, output_schema=form)
    assert (again.messages, again.tool_spec, again.output_schema, again.meta.digest) == (
        second.messages,
        second.tool_spec,
        form,
        second.meta.digest,
    )


def test_the_default_lane_is_called_default() -> None:
    """Without a lane's name, the lane is `default`."""
    assert DEFAULT_LANE == "default"
    assert ProjectionInput(Thread(), WIDE).context_ref == "default"
