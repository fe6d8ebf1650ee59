"""The session in lists: its summary, its search attributes, its memo, and when they are to be updated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.contract.lists import ListedStatus, SessionSummary, choose_title, split_tags
from clew.contract.search_attributes import AttributeValue, make_attributes
from clew_workflows.core.state import State

FIGURES = frozenset({"ClewTokens", "ClewCostUsd", "ClewLastActive"})
"""The search attributes that change with each turn."""


def summarize_session(state: State) -> SessionSummary:
    """Summarize the session for lists."""
    metadata, listed = state.config.metadata, state.listed
    usage = state.usage.plus(state.subagent_usage)
    return SessionSummary(
        session_id=state.session_id,
        status=find_status(state),
        title=find_title(state),
        agent=state.config.agent,
        model=state.model or None,
        user=metadata.get("user") or None,
        tags=split_tags(metadata),
        tokens=usage.input_tokens + usage.output_tokens,
        cost_usd=usage.cost_usd,
        started_at=listed.started_at,
        active_at=listed.active_at,
        parent=state.assignment.task.session_id if state.assignment else listed.origin,
        metadata=metadata,
    )


def summarize_archived(state: State) -> SessionSummary:
    """Summarize a session whose archive is written from outside: it waits there to be opened."""
    return summarize_session(state).model_copy(update={"status": "hibernated"})


def find_status(state: State) -> ListedStatus:
    """Find the status that lists show."""
    match state.phase:
        case "hibernating":
            return "hibernated"
        case "closed":
            return "hibernated" if state.listed.hibernated else "closed"
        case "awaiting_approval" | "awaiting_external":
            return state.phase
        case _ if state.busy:
            return "working"
        case _:
            return "failed" if state.listed.failed else "idle"


def find_title(state: State) -> str | None:
    """Find the title; None: there is none."""
    return choose_title(state.config.metadata, state.listed.opening)


def select_attributes(state: State) -> dict[str, AttributeValue]:
    """Make the values of the search attributes that the namespace has."""
    values = make_attributes(summarize_session(state))
    return {name: value for name, value in values.items() if name in state.attributes}


def is_update_due(state: State, shown: Mapping[str, AttributeValue], finished: int, *, is_recent: bool) -> bool:
    """Whether the search attributes are to be updated now.

    After a recent update, figures wait, and so does the status of a run that makes its first model call: quick turns
    share an update. The end of the session is shown by its last workflow task.

    Args:
        state: The session.
        shown: The attributes as they were last updated.
        finished: The number of requests that had ended by then.
        is_recent: The last update was a moment ago: what can wait for the next one waits.
    """
    if not state.attributes or state.phase in ("hibernating", "closed"):
        return False
    if not shown:
        # The agent and the model are known once a worker has resolved the configuration.
        return state.phase != "preparing"
    has_finished = state.listed.finished != finished
    if state.busy:
        is_first_call = state.phase in ("preparing", "checking", "awaiting_model", "stopping", "summarizing") and (
            state.run is None or state.run.iteration <= 1
        )
        changes = shown.get("ClewStatus") != find_status(state) and not (is_recent and is_first_call)
        return changes or (has_finished and not is_recent)
    if state.phase != "idle":
        return has_finished
    values = select_attributes(state)
    changed = {name for name in values.keys() | shown.keys() if values.get(name) != shown.get(name)}
    if changed <= {"ClewLastActive"} and not has_finished:
        return False
    # The first figures of a session do not wait.
    return not (is_recent and all(name in FIGURES and shown.get(name) for name in changed))


def make_memo(state: State) -> dict[str, Any]:
    """Make the memo; empty until the title is known, so that one update has all of it."""
    metadata, listed = state.config.metadata, state.listed
    if listed.opening is None and "title" not in metadata:
        return {}
    fields = {"title": find_title(state), "metadata": metadata, "started_at": listed.started_at}
    return {name: value for name, value in fields.items() if value}
