"""How a session's workflow is started is said once, for clients, forks, restores and recoveries."""

from __future__ import annotations

from clew.contract import SessionConfig, SessionStart
from clew_workflows.contract.services import make_start_arguments


def test_a_session_is_started_with_the_settings_that_were_given() -> None:
    """What was left open stays open, for the worker to choose; the summary names the model."""
    start = make_start_arguments("s-1", SessionConfig(model="openai:gpt-4o", on_busy="queue"))
    assert (start.workflow, start.id) == ("AgentSession", "s-1")
    assert start.argument == {"config": {"model": "openai:gpt-4o", "on_busy": "queue"}}
    assert SessionStart.model_validate(start.argument).config.model == "openai:gpt-4o"
    assert start.static_summary == "session · openai:gpt-4o"


def test_the_summary_has_the_title() -> None:
    """The title of the metadata, on one line and shortened."""
    config = SessionConfig(agent="support", metadata={"title": "A broken\ncup " + "x" * 100})
    summary = make_start_arguments("s-1", config).static_summary
    assert summary == ("session · support · A broken cup " + "x" * 100)[: len("session · support · ") + 60]
