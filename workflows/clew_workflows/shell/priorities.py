"""The place of a session's activities and subagents among those that wait for workers."""

from __future__ import annotations

from temporalio import workflow
from temporalio.common import Priority

from clew.contract.fairness import find_fairness_key
from clew_workflows.core.state import State


def make_priority(state: State) -> Priority:
    """Make the priority of what a session starts: its configuration's, and the fairness key of its tenant or user."""
    config, inherited = state.config, workflow.info().priority.fairness_key
    return Priority(config.priority, find_fairness_key(state.session_id, config.metadata, inherited))
