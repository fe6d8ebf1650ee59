"""How a session's workflow is started: the same by a client, a fork, a restore and a recovery."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clew.contract.config import SessionConfig, SessionStart
from clew.contract.names import WORKFLOW_TYPE


@dataclass(frozen=True, slots=True)
class StartArguments:
    """What Temporal is given to start a session.

    Attributes:
        workflow: The workflow type.
        argument: The workflow's only argument, as JSON: a `SessionStart`.
        id: The workflow id, which is the session id.
        static_summary: What the Temporal UI shows beside the workflow.
    """

    workflow: str
    argument: dict[str, Any]
    id: str
    static_summary: str


def make_start_arguments(session_id: str, config: SessionConfig) -> StartArguments:
    """The arguments that start a session, or let one go on from its archive."""
    argument = SessionStart(config=config).model_dump(mode="json", exclude_unset=True)
    return StartArguments(WORKFLOW_TYPE, argument, session_id, f"session · {config.model}")
