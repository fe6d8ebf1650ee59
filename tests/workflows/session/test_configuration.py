"""Changes of a configuration."""

from __future__ import annotations

from typing import Any

import pytest

from clew import ContextPolicy
from clew.contract import ConfigureInput
from clew_workflows.session.configuration import change_settings
from tests.support.session_harness import SessionHarness


def test_a_change_without_a_policy_sets_none() -> None:
    """The session goes on to follow the policy of its agent or its model, in its checkpoints too."""
    settings = SessionHarness().state.settings
    assert change_settings(settings, ConfigureInput(system_prompt="new")).own_policy is None
    changed = change_settings(settings, ConfigureInput(context_policy=ContextPolicy(max_messages=7)))
    assert changed.own_policy == ContextPolicy(max_messages=7)
    assert change_settings(changed, ConfigureInput(system_prompt="new")).own_policy == changed.own_policy


@pytest.mark.parametrize(
    ("change", "content"),
    [
        ({"tools": ("add",)}, "model openai:gpt-4o, tools add"),
        ({"tools": (), "model": "openai:other"}, "model openai:other, tools none"),
        ({"agent": "support"}, "agent support, model openai:gpt-4o, tools add, look"),
    ],
)
def test_a_change_that_a_worker_prepares_is_dropped_when_the_session_is_closed(
    change: dict[str, Any], content: str
) -> None:
    """The entry says what would have been in force."""
    session = SessionHarness()
    session.configure(**change)
    session.close()
    assert [(entry["kind"], entry["content"]) for entry in session.events("dropped")] == [("configure", content)]
