"""Visibility: the search attributes and the memo with which Temporal lists a session."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from clew.contract.search_attributes import SEARCH_ATTRIBUTES, AttributeValue
from clew_workflows.core import lists
from clew_workflows.core.state import State
from clew_workflows.shell.runtime import Runtime
from clew_workflows.shell.task_commands import TaskCommands
from clew_workflows.shell.waiters import Waiters


class Visibility:
    """Updates a session's search attributes and its memo: each update adds an event to the history.

    A workflow run that continues another has its search attributes. The memo is handed on by `memo`.
    """

    def __init__(self, runtime: Runtime, waiters: Waiters, task_commands: TaskCommands) -> None:
        self._runtime = runtime
        self._waiters = waiters
        self._task_commands = task_commands
        self._shown = _read_attributes()
        self._finished = runtime.state.listed.finished
        self._expired = 0
        self._memo = self.memo if workflow.info().continued_run_id else {}
        self._checked: tuple[State | None, int] = None, 0
        waiters.on_timer = partial(self.update, shows_figures=True)

    @property
    def memo(self) -> dict[str, Any]:
        """The memo as it should be."""
        return lists.make_memo(self._runtime.state)

    @property
    def is_due(self) -> bool:
        """Whether anything has changed since the last check."""
        state, expired = self._checked
        return state is not self._runtime.state or expired != self._waiters.expired

    def begin(self) -> None:
        """Update what is due, at the end of the workflow task that makes it due."""
        self.update()

    def update(self, *, shows_figures: bool = False) -> None:
        """Update what is due now. While the timer of the callers' waits runs, figures wait for it (`shows_figures`).

        So quick turns share one update, and no timer is added to the history for it.
        """
        if not (self.is_due or shows_figures):
            return
        state, expired = self._runtime.state, self._waiters.expired
        self._checked = state, expired
        is_slow, figures_wait = expired > self._expired, self._waiters.is_timed and not shows_figures
        if lists.is_update_due(state, self._shown, self._finished, is_slow=is_slow, figures_wait=figures_wait):
            self._upsert()
        memo = self.memo
        if memo != self._memo and not state.closed:
            workflow.upsert_memo({**dict.fromkeys(self._memo.keys() - memo.keys()), **memo})
            self._memo = memo
            self._task_commands.note()

    def end(self) -> None:
        """Show that the session has ended, in its last workflow task."""
        if self._runtime.state.attributes:
            self._upsert()

    def _upsert(self) -> None:
        state = self._runtime.state
        values = lists.select_attributes(state)
        # An attribute that the namespace no longer has cannot be removed from the session.
        names = [name for name in SEARCH_ATTRIBUTES if name in state.attributes]
        updates = [
            _make_update(name, values.get(name)) for name in names if values.get(name) != self._shown.get(name)
        ]
        if updates:
            workflow.upsert_search_attributes(updates)
            self._task_commands.note()
        self._shown = values
        self._finished, self._expired = state.listed.finished, self._waiters.expired


def _read_attributes() -> dict[str, AttributeValue]:
    """Read the search attributes that this workflow run has begun with."""
    values: dict[str, AttributeValue] = {}
    for pair in workflow.info().typed_search_attributes:
        if pair.key.name in SEARCH_ATTRIBUTES:
            values[pair.key.name] = _make_plain(pair.value)
    return values


def _make_plain(value: Any) -> AttributeValue:
    if isinstance(value, datetime):
        return value.isoformat()
    plain: AttributeValue = value if isinstance(value, str | int | float) else tuple(value)
    return plain


def _make_update(name: str, value: AttributeValue | None) -> SearchAttributeUpdate[Any]:
    key = _KEYS[name]
    if value is None:
        return key.value_unset()
    if name == "ClewLastActive":
        return key.value_set(datetime.fromisoformat(str(value)))
    return key.value_set(list(value) if isinstance(value, tuple) else value)


_MAKERS: Mapping[str, Any] = {
    "Keyword": SearchAttributeKey.for_keyword,
    "KeywordList": SearchAttributeKey.for_keyword_list,
    "Int": SearchAttributeKey.for_int,
    "Double": SearchAttributeKey.for_float,
    "Datetime": SearchAttributeKey.for_datetime,
}
_KEYS: Mapping[str, SearchAttributeKey[Any]] = {name: _MAKERS[kind](name) for name, kind in SEARCH_ATTRIBUTES.items()}
