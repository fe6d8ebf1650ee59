"""The arguments that start a session's workflow, for a client, a fork, a restore and a recovery alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.contract.config import SessionConfig, SessionStart
from clew.contract.names import WORKFLOW_TYPE

MAX_TITLE = 60
"""Most characters of a title in a summary."""


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments of Temporal's `start_workflow` for a session.

    Attributes:
        workflow: The workflow type.
        argument: The workflow's only argument, as JSON: a `SessionStart`.
        id: The workflow id, which is the session id.
        static_summary: The text beside the workflow in the Temporal UI.
    """

    workflow: str
    argument: dict[str, Any]
    id: str
    static_summary: str


def make_start_arguments(session_id: str, config: SessionConfig) -> StartArguments:
    """Make the arguments that start a session, or wake one from its archive."""
    argument = SessionStart(config=config).model_dump(mode="json", exclude_unset=True)
    summary = f"session · {config.agent or config.model}"
    if title := " ".join(config.metadata.get("title", "").split()):
        summary += f" · {title[:MAX_TITLE]}"
    return StartArguments(WORKFLOW_TYPE, argument, session_id, summary)
