"""The overlay of configurations: what a caller sets wins, what it leaves out is the agent's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from clew.contract import ContextPolicy, Limits, ModelOptions, SessionConfig

PARTS: dict[str, st.SearchStrategy[Any]] = {
    "context_policy": st.builds(
        lambda fields: ContextPolicy(**fields),
        st.fixed_dictionaries({}, optional={"keep_last_turns": st.integers(0, 9), "max_messages": st.integers(0, 9)}),
    ),
    "model_options": st.builds(
        lambda fields: ModelOptions(**fields),
        st.fixed_dictionaries(
            {}, optional={"seed": st.none() | st.integers(0, 9), "temperature": st.none() | st.floats(0, 2)}
        ),
    ),
    "limits": st.builds(
        lambda fields: Limits(**fields),
        st.fixed_dictionaries(
            {}, optional={"max_total_tokens": st.none() | st.integers(1, 9), "max_message_bytes": st.integers(1, 9)}
        ),
    ),
    "metadata": st.dictionaries(st.sampled_from("abc"), st.text(max_size=2), max_size=3),
}
"""Fields whose own fields are overlaid one by one."""
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "pin": st.booleans(),
    "system_prompt": st.none() | st.text(max_size=3),
    "tools": st.lists(st.sampled_from(["add", "look"]), unique=True).map(tuple),
    "require_approval": st.lists(st.sampled_from(["add", "look"]), unique=True).map(tuple),
    "max_iterations": st.integers(1, 9),
    "on_busy": st.sampled_from(["reject", "queue"]),
    "idle_timeout_seconds": st.none() | st.integers(1, 9),
}
CONFIGS = st.fixed_dictionaries({}, optional={"model": st.sampled_from(["a:one", "a:two"]), **FIELDS, **PARTS}).map(
    lambda fields: SessionConfig.model_validate({"agent": "support", **fields})
)


@given(CONFIGS, CONFIGS)
def test_what_is_set_wins_and_what_is_not_follows(agent: SessionConfig, own: SessionConfig) -> None:
    """Field by field; null is like absent."""
    config = agent.overlay(own)
    for name in ("model", *FIELDS):
        is_set = name in own.model_fields_set and getattr(own, name) is not None
        assert getattr(config, name) == getattr(own if is_set else agent, name), name


@given(CONFIGS, CONFIGS)
def test_parts_are_overlaid_field_by_field(agent: SessionConfig, own: SessionConfig) -> None:
    """Within them an explicit null takes a value of the agent's away."""
    config = agent.overlay(own)
    for name in PARTS:
        lower, upper, result = (_read_set_fields(getattr(one, name)) for one in (agent, own, config))
        assert result == lower | upper, name


def _read_set_fields(part: Any) -> dict[str, Any]:
    if part is None or isinstance(part, dict):
        return part or {}
    return {name: getattr(part, name) for name in part.model_fields_set}


@given(CONFIGS, CONFIGS, CONFIGS)
def test_overlays_can_be_joined(agent: SessionConfig, own: SessionConfig, later: SessionConfig) -> None:
    """To overlay one change after the other is to overlay both at once."""
    one_by_one, at_once = agent.overlay(own).overlay(later), agent.overlay(own.overlay(later))
    assert one_by_one == at_once
    assert SessionConfig.model_validate_json(one_by_one.model_dump_json(exclude_unset=True)) == one_by_one


def test_a_configuration_names_a_model_or_an_agent() -> None:
    """Without either there is nothing to call."""
    assert SessionConfig(agent="support").model is None
    for fields in ({}, {"agent": None}, {"model": None}, {"agent": "not a name"}):
        with pytest.raises(ValidationError):
            SessionConfig.model_validate(fields)


@pytest.mark.parametrize("seconds", [0, 3650 * 86400 + 1, 10**300])
def test_an_idle_time_is_one_that_a_timer_can_have(seconds: int) -> None:
    """A longer timer would fail the workflow task."""
    with pytest.raises(ValidationError):
        SessionConfig(model="openai:gpt-4o", idle_timeout_seconds=seconds)
