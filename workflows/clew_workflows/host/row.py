"""The session's row in lists: when its search attributes and its memo are written, with which Temporal lists it.

`contract.lists` defines the search attributes, `ui.summarize_session` makes their values.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from temporalio import workflow
from temporalio.common import SearchAttributeKey, SearchAttributeUpdate

from clew_workflows.contract.lists import SEARCH_ATTRIBUTES, AttributeValue
from clew_workflows.host.runtime import Runtime
from clew_workflows.session import ui
from clew_workflows.session.state import State

QUICK_SECONDS = 2.0
"""Seconds after an update within which figures wait for the end of the interval."""
QUICK_UPDATES = 3
"""Updates of figures that come at once within an interval."""


class Row:
    """Updates a session's search attributes and its memo: each update adds an event to the history.

    Sessions are shown at rest, with one update for a turn. Quick turns share one: figures that come less than
    `QUICK_SECONDS` after an update, or after `QUICK_UPDATES` within `interval`, wait for its end, and a timer then
    brings them. A timer costs as much as an update.

    A workflow run that continues another has its search attributes. The memo is handed on by `memo`.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._interval_seconds = runtime.waits.lists_interval.total_seconds()
        self._shown = _read_attributes()
        self._finished = runtime.state.listed.finished
        self._memo = self.memo if workflow.info().continued_run_id else {}
        # A workflow run that continues another begins with an update of that one.
        self._updates = deque([workflow.time()] if workflow.info().continued_run_id else [], QUICK_UPDATES)
        self._busy_since: float | None = None
        self._is_timed = False
        self._checked: State | None = None

    @property
    def memo(self) -> dict[str, Any]:
        """The memo as it should be."""
        return ui.make_memo(self._runtime.state)

    def update(self, *, shows_all: bool = False) -> None:
        """Update what is due now; with `shows_all`, also what could wait."""
        if self._checked is self._runtime.state and not shows_all:
            return
        self._checked = state = self._runtime.state
        seconds_left, is_long = self._measure_left(), self._note_work(state)
        is_recent = not shows_all and (self._is_timed or seconds_left > 0)
        if ui.is_update_due(state, self._shown, self._finished, is_recent=is_recent, is_long=is_long):
            self._upsert()
        elif not self._is_timed and ui.is_update_due(state, self._shown, self._finished):
            self._is_timed = True
            self._runtime.start(self._update_later(seconds_left))
        memo = self.memo
        if memo != self._memo and not state.closed:
            workflow.upsert_memo({**dict.fromkeys(self._memo), **memo})
            self._memo = memo

    def _measure_left(self) -> float:
        """Measure the seconds until the next update of figures: 0 or less if it may come now."""
        now = workflow.time()
        if self._updates and now - self._updates[-1] < min(QUICK_SECONDS, self._interval_seconds):
            return self._updates[-1] + self._interval_seconds - now
        if len(self._updates) < QUICK_UPDATES:
            return 0.0
        return self._updates[0] + self._interval_seconds - now

    def _note_work(self, state: State) -> bool:
        """Note since when the session works; returns whether that is longer than the interval."""
        if not state.busy:
            self._busy_since = None
            return False
        now = workflow.time()
        self._busy_since = now if self._busy_since is None else self._busy_since
        return now - self._busy_since > self._interval_seconds

    async def _update_later(self, seconds: float) -> None:
        await workflow.sleep(seconds, summary="lists show the session as it is then")
        self._is_timed = False
        self.update(shows_all=True)

    def end(self) -> None:
        """Show that the session has ended, in its last workflow task."""
        if self._runtime.state.settings.attributes:
            self._upsert()

    def _upsert(self) -> None:
        state = self._runtime.state
        values = ui.select_attributes(state)
        # An attribute that the namespace no longer has cannot be removed from the session.
        names = [name for name in SEARCH_ATTRIBUTES if name in state.settings.attributes]
        updates = [
            _make_update(name, values.get(name)) for name in names if values.get(name) != self._shown.get(name)
        ]
        if updates:
            workflow.upsert_search_attributes(updates)
        self._shown = values
        self._finished = state.listed.finished
        self._updates.append(workflow.time())


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
    if SEARCH_ATTRIBUTES[name] == "Datetime":
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
