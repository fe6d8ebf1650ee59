"""Contexts built from a thread alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from clew.contract.payloads import ConfigPayload
from clew.errors import InvalidInput
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.contexts import (
    ModelSettings,
    build_context,
    iterate_transcript,
    reconfigure,
    take_page,
)
from clew_workflows.thread.thread import Thread
from tests.support.threads import (
    CALCULATOR,
    Writer,
    assistant_calls,
    assistant_says,
    rebuild,
    system_says,
    tool_returns,
    user_says,
)

# Contexts of a thread alone: what its `config` entries put in force.


def test_a_context_needs_only_the_thread() -> None:
    """Prompt, tool schemas and policy come from the configuration in the thread, also when read from JSON."""
    writer = Writer()
    writer.config(context_policy=ContextPolicy(max_messages=2))
    writer.talk(user_says("a"), assistant_says("b"), user_says("c"))
    for thread in (writer.thread, rebuild(writer.thread)):
        context = build_context(thread)
        assert context.messages == [system_says("You are terse."), assistant_says("b"), user_says("c")]
        assert context.tool_spec == [CALCULATOR]
        assert context.meta.policy_hash == ContextPolicy(max_messages=2).hash


def test_every_seq_has_the_configuration_of_its_time() -> None:
    """A change of configuration changes later contexts, and none before it."""
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"))
    writer.config(system_prompt="You are kind.", tools=[])
    assert build_context(writer.thread, at_seq=1).messages == [system_says("You are terse."), user_says("a")]
    assert build_context(writer.thread, at_seq=1).tool_spec == [CALCULATOR]
    assert build_context(writer.thread).messages == [system_says("You are kind."), user_says("a")]
    assert build_context(writer.thread).tool_spec == []


def test_recorded_counts_are_used_and_right() -> None:
    """The estimate from recorded counts is the one that counting anew gives."""
    writer = Writer()
    writer.config()
    recorded = build_context(writer.thread).meta.estimated_tokens
    counted = build_context(writer.thread, policy=ContextPolicy(token_estimator="heuristic")).meta.estimated_tokens
    assert recorded == counted == sum(writer.thread[0].payload["tokens"].values())


def test_a_requests_own_tools_are_counted() -> None:
    """The recorded count is that of the session's tools, and is used for them."""
    writer = Writer()
    writer.config(system_prompt=None, tokens={"system_prompt": 0, "tools": 7})
    assert build_context(writer.thread).meta.estimated_tokens == 7
    external: ToolSpec = {"name": "clock", "description": "Tells the time.", "parameters": {"type": "object"}}
    context = build_context(writer.thread, external_tools=[external])
    assert context.tool_spec == [CALCULATOR, external]
    assert context.meta.estimated_tokens == writer.encoding.count_tools([CALCULATOR, external])


def test_the_active_lane_is_the_one_shown() -> None:
    """The context is of the lane that is active at the seq, unless a lane is named."""
    writer = Writer()
    writer.config(system_prompt=None)
    writer.talk(user_says("a")).talk(user_says("b"), lane="draft")
    writer.switch("draft")
    assert build_context(writer.thread).messages == [user_says("b")]
    assert build_context(writer.thread, context_ref="default").messages == [user_says("a")]
    assert build_context(writer.thread, at_seq=2).messages == [user_says("a")]


@pytest.mark.parametrize(
    ("policy", "snapshot", "prompt"),
    [
        (ContextPolicy(system_prompt="request's"), "snapshot's", "request's"),
        (None, "snapshot's", "snapshot's"),
        (None, None, "policy's"),
    ],
)
def test_whose_prompt(policy: ContextPolicy | None, snapshot: str | None, prompt: str) -> None:
    """The request's prompt goes before the snapshot's, and that before the configuration's that it came after."""
    writer = Writer()
    writer.config(context_policy=ContextPolicy(system_prompt="policy's"))
    writer.replace([user_says("a")], system_prompt=snapshot)
    assert build_context(writer.thread, policy=policy).messages == [system_says(prompt), user_says("a")]


@pytest.mark.parametrize("by_policy", [True, False])
def test_of_two_prompts_the_newer_is_in_force(by_policy: bool) -> None:
    """A snapshot's and the configuration's: whichever was set last, at every seq as if nothing came after it."""

    def configured(prompt: str) -> dict[str, Any]:
        return {"context_policy": ContextPolicy(system_prompt=prompt)} if by_policy else {"system_prompt": prompt}

    writer = Writer()
    expected: list[Message] = []
    steps: list[tuple[Callable[[], object], str]] = [
        (lambda: writer.config(**configured("first")), "first"),
        (lambda: writer.replace([], system_prompt="snapshot's"), "snapshot's"),
        (lambda: writer.config(**configured("first"), model="openai:gpt-4.1"), "snapshot's"),
        (lambda: writer.config(**configured("second")), "second"),
        (lambda: writer.config(**configured("second"), tools=[]), "second"),
        (lambda: writer.replace([], system_prompt="elsewhere", lane="draft"), "second"),
        (lambda: writer.replace([], system_prompt="newer"), "newer"),
        (lambda: writer.config(**configured("first")), "first"),
        (lambda: writer.replace([]), "first"),
    ]
    for step, prompt in steps:
        step()
        expected.append(system_says(prompt))
    for thread in (writer.thread, rebuild(writer.thread)):
        contexts = [build_context(thread, at_seq=seq) for seq in range(thread.rev)]
        assert [context.messages for context in contexts] == [[prompt] for prompt in expected]
        assert build_context(thread, context_ref="draft", at_seq=6).messages == [system_says("elsewhere")]
    for seq, context in enumerate(contexts):
        config = writer.thread.find_config(seq)
        assert config is not None
        counted = (
            writer.encoding.count_system_prompt(get_text(expected[seq]["content"]))
            + config.payload["tokens"]["tools"]
        )
        assert context.meta.estimated_tokens == counted


def test_a_request_overlays_the_configuration_field_by_field() -> None:
    """A request's policy decides the fields it sets, and no others."""
    writer = Writer()
    writer.config(system_prompt=None, context_policy=ContextPolicy(max_messages=3, keep_last_turns=1))
    writer.talk(user_says("a"), assistant_says("b"), user_says("c"))
    context = build_context(writer.thread, policy=ContextPolicy(max_messages=1))
    assert context.messages == [user_says("c")]
    assert context.meta.policy_hash == ContextPolicy(max_messages=1, keep_last_turns=1).hash
    with pytest.raises(InvalidInput):
        build_context(writer.thread, policy=ContextPolicy(window="epoch", token_estimator="heuristic"))


@pytest.mark.parametrize(("model", "is_kept"), [(None, False), ("anthropic:claude-x", True), ("openai:gpt-x", False)])
def test_the_model_decides_whose_data_goes_along(model: str | None, is_kept: bool) -> None:
    """Messages keep `provider_data` only for the provider of the called model."""
    calls = assistant_calls("x")
    calls["provider_data"] = {"provider": "anthropic", "blocks": [{"signature": "c2ln"}]}
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"), calls, tool_returns("x"))
    context = build_context(writer.thread, model=model)
    assert ("provider_data" in context.messages[2]) == is_kept


def test_an_output_schema_changes_the_digest_alone() -> None:
    """The output schema is part of the digest, and of no message."""
    writer = Writer()
    writer.config()
    plain, shaped = build_context(writer.thread), build_context(writer.thread, output_schema={"type": "object"})
    assert plain.messages == shaped.messages
    assert plain.meta.digest != shaped.meta.digest


def test_a_page_of_a_context_has_room_for_what_only_the_first_has() -> None:
    """The first page has the tools and the output schema, and fewer messages for it."""
    writer = Writer()
    writer.config(system_prompt=None, context_policy=ContextPolicy(max_input_tokens=1_000_000))
    writer.talk(*[user_says("x" * 300_000)] * 4)
    schema = {"type": "object", "description": "y" * 400_000}
    context = build_context(writer.thread, output_schema=schema)
    first, second, third = (take_page(context, number) for number in (0, 1, 3))
    assert [len(page["messages"]) for page in (first, second, third)] == [1, 2, 1]
    assert [page.get("next_page") for page in (first, second, third)] == [1, 3, None]
    assert (first["tool_spec"], first["output_schema"]) == ([CALCULATOR], schema)
    assert (second["tool_spec"], "output_schema" in second) == ([], False)
    assert "output_schema" not in take_page(build_context(writer.thread), 0)


def test_a_thread_without_configuration() -> None:
    """An empty thread has an empty context under the default policy."""
    context = build_context(Thread())
    assert (context.messages, context.tool_spec) == ([], [])
    assert context.meta.policy_hash == ContextPolicy().hash


def test_the_policy_of_a_configuration_is_complete() -> None:
    """A configuration fixes every field, so that a later default cannot show through it."""
    config = Writer().config(context_policy=ContextPolicy(max_messages=2))
    assert config.read(ConfigPayload).policy == ContextPolicy(max_messages=2)
    assert config.read(ConfigPayload).policy.model_fields_set == set(ContextPolicy.model_fields)


# A thread under another configuration.


def test_contexts_have_the_other_prompt_tools_and_policy() -> None:
    """At every seq, also before a `config` entry of the thread; the thread itself does not change."""
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"), assistant_says("b"))
    writer.config()
    writer.talk(user_says("c"))
    before = build_context(writer.thread)
    spec: ToolSpec = {"name": "search", "description": "", "parameters": {"type": "object"}}
    policy = ContextPolicy(max_input_tokens=5000, keep_last_turns=1).complete()
    changed = reconfigure(writer.thread, ModelSettings("anthropic:claude", "new", [spec], policy))
    for seq in (1, changed.last_seq):
        context = build_context(changed, at_seq=seq)
        assert context.messages[0] == {"role": "system", "content": "new"}
        assert context.tool_spec == [spec]
        assert context.meta.policy_hash == policy.hash
    assert build_context(writer.thread) == before
    assert len(changed) == len(writer.thread)


# Transcripts.


def test_a_transcript_begins_with_the_prompt_that_the_lanes_contexts_have() -> None:
    """The session's, or that of the lane's snapshot, whichever is newer; a lane without either has none."""
    writer = Writer()
    writer.config(system_prompt="the session's")
    writer.talk(user_says("a"), assistant_says("b"))
    writer.replace([user_says("before")], "draft", system_prompt="the lane's")
    writer.talk(user_says("c"), lane="draft")
    lanes = ("default", "draft")

    def list_prompts(thread: Thread) -> list[tuple[str, Any, Any]]:
        return [
            (
                lane,
                next(
                    (m["content"] for m in build_context(thread, context_ref=lane).messages if m["role"] == "system"),
                    None,
                ),
                next(
                    (
                        m["content"]
                        for m in iterate_transcript(thread, lane, include_system=True)
                        if m["role"] == "system"
                    ),
                    None,
                ),
            )
            for lane in lanes
        ]

    assert list_prompts(writer.thread) == [
        ("default", "the session's", "the session's"),
        ("draft", "the lane's", "the lane's"),
    ]
    assert [next(iter(iterate_transcript(writer.thread, lane, include_system=True)))["seq"] for lane in lanes] == [
        0,
        3,
    ]
    newer = writer.config(system_prompt="a newer one")
    assert next(iter(iterate_transcript(writer.thread, "draft", include_system=True)))["seq"] == newer.seq
    assert {prompt for _, *prompts in list_prompts(rebuild(writer.thread)) for prompt in prompts} == {"a newer one"}
    writer.config(system_prompt=None)
    assert {prompt for _, *prompts in list_prompts(writer.thread) for prompt in prompts} == {None}


def test_a_transcript_has_the_newest_messages_of_one_lane() -> None:
    """Unabridged, each with its seq; the prompt is not counted, and comes only at the beginning."""
    writer = Writer()
    writer.config()
    writer.talk(user_says("a"), assistant_says("b")).talk(user_says("x"), lane="draft").talk(user_says("c"))
    assert [(m["seq"], m["content"]) for m in iterate_transcript(writer.thread)] == [(1, "a"), (2, "b"), (4, "c")]
    newest = iterate_transcript(writer.thread, limit=1, include_system=True)
    assert [(m["seq"], m["role"]) for m in newest] == [(0, "system"), (4, "user")]
    assert [m["seq"] for m in iterate_transcript(writer.thread, from_seq=2, include_system=True)] == [2, 4]
    assert list(iterate_transcript(Thread())) == []
