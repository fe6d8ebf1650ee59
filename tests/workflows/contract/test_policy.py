"""Policies: what they may say, how they combine, and their presets."""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.errors import InvalidTokenBudget
from clew_workflows.contract.policy import ClearMedia, ClearToolResults, ContextPolicy, resolve

# A value for each field that is not its default.
OTHERS: dict[str, Any] = {
    "max_input_tokens": 9000,
    "reserve_output_tokens": 1000,
    "max_messages": 7,
    "keep_last_turns": 1,
    "low_water": 0.25,
    "summarization": "request_new",
    "summary_role": "user",
    "include_kinds": ("message",),
    "system_prompt": "You are terse.",
    "projector": "mine",
    "token_estimator": "heuristic",
    "summarize_threshold": 100,
    "max_thread_tokens": 5000,
    "summarization_model": "local:tiny",
    "clear_tool_results": ClearToolResults(keep=3, min_tokens=100),
    "clear_media": ClearMedia(keep=2, min_tokens=1000),
    "unsupported_content": "refuse",
}


def test_the_presets_are_those_of_the_contract() -> None:
    """Each sets these fields, and no others."""
    presets = (ContextPolicy.short_context(), ContextPolicy.long_context(), ContextPolicy.tool_focused())
    assert [preset.model_dump(mode="json", exclude_unset=True) for preset in presets] == [
        {"max_input_tokens": 6000, "keep_last_turns": 2},
        {"max_input_tokens": 100_000, "keep_last_turns": 10, "max_messages": 0},
        {"keep_last_turns": 5, "include_kinds": ["message", "tool_call", "tool_result"], "summarization": "none"},
    ]


def test_the_defaults_are_those_of_the_contract() -> None:
    """A policy that says nothing means exactly this."""
    assert ContextPolicy().model_dump(mode="json") == {
        "max_input_tokens": 8000,
        "reserve_output_tokens": 2000,
        "max_messages": 0,
        "keep_last_turns": 3,
        "window": "sliding",
        "low_water": 0.5,
        "summarization": "use_existing",
        "summary_role": "system",
        "include_kinds": ["message", "tool_call", "tool_result", "summary"],
        "system_prompt": None,
        "projector": "default",
        "token_estimator": "exact",
        "summarize_threshold": None,
        "max_thread_tokens": None,
        "summarization_model": None,
        "clear_tool_results": None,
        "clear_media": None,
        "unsupported_content": "marker",
    }
    assert ContextPolicy().budget == 6000
    assert OTHERS.keys() | {"window"} == ContextPolicy.model_fields.keys()


@pytest.mark.parametrize(
    ("preset", "fields"),
    [
        (ContextPolicy.short_context(), {"max_input_tokens": 6000, "keep_last_turns": 2}),
        (ContextPolicy.long_context(), {"max_input_tokens": 100_000, "keep_last_turns": 10, "max_messages": 0}),
        (
            ContextPolicy.tool_focused(),
            {
                "keep_last_turns": 5,
                "include_kinds": ("message", "tool_call", "tool_result"),
                "summarization": "none",
            },
        ),
    ],
)
def test_presets(preset: ContextPolicy, fields: dict[str, Any]) -> None:
    """A preset sets its own fields and leaves the others to the levels below."""
    assert preset.model_dump(exclude_unset=True) == fields
    assert preset.ensure_usable() == preset


_levels = st.fixed_dictionaries({}, optional={name: st.just(value) for name, value in OTHERS.items()})


@given(st.tuples(_levels, _levels, _levels), st.tuples(*[st.booleans()] * 3))
def test_levels_field_by_field(levels: tuple[dict[str, Any], ...], plain: tuple[bool, ...]) -> None:
    """The highest of request, session, agent and default that sets a field decides it, to its default too."""
    defaults = {name: field.default for name, field in ContextPolicy.model_fields.items()}
    said = [
        {name: defaults[name] for name in level} if dull else level for level, dull in zip(levels, plain, strict=True)
    ]
    request, session, agent = (ContextPolicy(**level) if level else None for level in said)
    policy = resolve(session=session, agent=agent).overlay(request)
    expected = defaults | said[2] | said[1] | said[0]
    assert {name: getattr(policy, name) for name in expected} == expected
    assert policy.model_fields_set | {"clear_media", "unsupported_content"} == defaults.keys()


def test_what_is_set_adds_up() -> None:
    """A policy over another sets what either set, so that it can go under a third."""
    both = ContextPolicy(max_messages=3).overlay(ContextPolicy(keep_last_turns=1))
    assert both.model_fields_set == {"max_messages", "keep_last_turns"}
    assert both.overlay(None) is both


@pytest.mark.parametrize(
    ("most", "reserve", "good"), [(1, 0, True), (0, 0, False), (-5, 0, False), (9, 9, False), (9, -1, False)]
)
def test_a_policy_leaves_a_budget(most: int, reserve: int, good: bool) -> None:
    """At least one token is left for the context, or the policy is refused by that name."""
    policy = ContextPolicy(max_input_tokens=most, reserve_output_tokens=reserve)
    if good:
        assert policy.ensure_usable().budget == most - reserve
    else:
        with pytest.raises(InvalidTokenBudget):
            resolve(session=policy)


@pytest.mark.parametrize(
    "fields",
    [
        {"max_inputs_tokens": 1},
        {"max_input_tokens": "8000"},
        {"max_input_tokens": True},
        {"max_input_tokens": 10**400},
        {"max_messages": -1},
        {"keep_last_turns": 2**53},
        {"window": "round"},
        {"low_water": 1.0},
        {"low_water": float("nan")},
        {"include_kinds": ["gossip"]},
        {"system_prompt": "\ud800"},
        {"summarize_threshold": 0},
        {"clear_tool_results": {"keep": -1}},
        {"clear_tool_results": {}},
        {"clear_media": {"keep": -1}},
        {"clear_media": {}},
    ],
)
def test_what_no_policy_may_say(fields: dict[str, Any]) -> None:
    """Unknown fields, wrong types and values out of range are refused, never guessed at."""
    with pytest.raises(ValidationError):
        ContextPolicy.model_validate(fields)
    if "\ud800" not in fields.values():
        with pytest.raises(ValidationError):
            ContextPolicy.model_validate_json(json.dumps(fields))


def test_a_policy_travels_as_json() -> None:
    """What a policy is written as reads back equal, with the same fields set."""
    for policy in (ContextPolicy(**OTHERS), ContextPolicy.tool_focused()):
        again = ContextPolicy.model_validate_json(policy.model_dump_json(exclude_unset=True))
        assert again == policy
        assert again.model_fields_set == policy.model_fields_set


def test_the_hash_names_what_a_policy_does() -> None:
    """Equal policies have one hash however they came about; it is SHA-256 over the fields that are no defaults."""
    assert ContextPolicy().hash == sha256(b"{}").hexdigest()
    assert ContextPolicy().complete().hash == ContextPolicy().hash
    assert ContextPolicy(max_messages=0).hash == ContextPolicy().hash
    assert ContextPolicy(max_messages=7).hash == sha256(b'{"max_messages":7}').hexdigest()
    others: dict[str, Any] = {**OTHERS, "window": "epoch"}
    one_field_each = [ContextPolicy(**{name: value}).hash for name, value in others.items()]
    assert len({ContextPolicy().hash, *one_field_each}) == len(ContextPolicy.model_fields) + 1
    assert all(ContextPolicy(max_input_tokens=n).hash for n in (2**53 - 1, 1 - 2**53))


def test_a_level_may_set_a_default_over_another_level() -> None:
    """What it says counts, not whether it differs from the default."""
    own = ContextPolicy(clear_media=None, unsupported_content="marker")
    below = ContextPolicy(clear_media=ClearMedia(keep=1), unsupported_content="refuse")
    assert below.overlay(own).complete() == ContextPolicy().complete()
