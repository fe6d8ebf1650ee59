"""Changes of a configuration."""

from __future__ import annotations

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
