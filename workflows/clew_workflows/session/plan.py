"""What should be going on: a pure function of a session.

The host carries it out: it begins what is new under its key, ends what is gone, and each end is an event for the next
decision. A part of the plan is made anew only when a field of the state that it reads is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clew_workflows.contract import SubagentResultInput
from clew_workflows.protocol import Notice, PlannedCall, RunTools
from clew_workflows.session import outside, subagents
from clew_workflows.session.advance import Session
from clew_workflows.session.state import Child

Key = tuple[str, ...]
"""What names a thing that goes on: its kind, and which one it is."""


@dataclass(frozen=True, slots=True)
class ShowApproval:
    """The bar in the Temporal UI while calls of a round wait for a person's decision."""


@dataclass(frozen=True, slots=True)
class Expire:
    """The end of the time of calls that wait for results from outside.

    Attributes:
        at: The time, in seconds of the workflow's clock.
    """

    at: float


@dataclass(frozen=True, slots=True)
class StartChild:
    """The start of a subagent's session."""

    child: Child


@dataclass(frozen=True, slots=True)
class CancelChild:
    """The cancellation of a subagent's request."""

    child: Child


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The report of a subagent to the session that has started it."""

    result: SubagentResultInput


@dataclass(frozen=True, slots=True)
class CloseTask:
    """The end of a subagent that has reported."""


@dataclass(frozen=True, slots=True)
class Deliver:
    """The start of the workflow that sends a notice to webhooks."""

    notice: Notice


@dataclass(frozen=True, slots=True)
class HibernateWhenIdle:
    """The wait for the idle time after which the session hibernates."""


Wanted = (
    PlannedCall
    | ShowApproval
    | Expire
    | StartChild
    | CancelChild
    | ReportResult
    | CloseTask
    | Deliver
    | HibernateWhenIdle
)
"""What should be going on."""


class Plan:
    """What should be going on in a session, kept up to date.

    Attributes:
        wanted: It, by its keys. It is another object whenever anything in it has changed.
    """

    def __init__(self) -> None:
        self.wanted: Mapping[Key, Wanted] = {}
        self._read: list[tuple[Any, ...] | None] = [None] * len(_PARTS)
        self._made: list[dict[Key, Wanted]] = [{} for _ in _PARTS]

    def update(self, session: Session) -> None:
        """Follow a session to what it is now."""
        has_changed = False
        for number, (list_read, make) in enumerate(_PARTS):
            read, before = list_read(session), self._read[number]
            if before is None or any(field is not known for field, known in zip(read, before, strict=True)):
                self._read[number], made = read, dict(make(session))
                if made != self._made[number]:
                    self._made[number], has_changed = made, True
        if has_changed:
            self.wanted = {key: wanted for made in self._made for key, wanted in made.items()}


def plan(session: Session) -> dict[Key, Wanted]:
    """Say what should be going on, beside the session's one effect."""
    return {key: wanted for _, make in _PARTS for key, wanted in make(session)}


def _plan_calls(session: Session) -> Iterator[tuple[Key, Wanted]]:
    run, effect = session.state.run, session.effect
    if run is None or not isinstance(effect, RunTools):
        return
    returned = {call.tool_call_id for call in run.tool_calls if call.returned}
    for planned in effect.calls:
        if planned.call.tool_call_id not in returned:
            yield ("call", planned.call.tool_call_id), planned


def _plan_waits(session: Session) -> Iterator[tuple[Key, Wanted]]:
    state = session.state
    if state.run is None or not state.run.tool_calls or state.closed:
        return
    if outside.list_pending_approvals(state):
        yield ("approval", state.run.run_id, str(state.run.iteration)), ShowApproval()
    if (expiry := outside.find_next_expiry(state)) is not None:
        yield ("expiry", str(expiry)), Expire(expiry)


def _plan_children(session: Session) -> Iterator[tuple[Key, Wanted]]:
    for child in session.state.children:
        if child.step == "start":
            yield ("start", child.session_id), StartChild(child)
        elif child.step == "cancel":
            yield ("cancel", child.session_id), CancelChild(child)


def _plan_task(session: Session) -> Iterator[tuple[Key, Wanted]]:
    if session.state.assignment is None:
        return
    if result := subagents.find_task_result(session.state, session.thread):
        yield ("report",), ReportResult(result)
    if subagents.is_task_over(session.state):
        yield ("close",), CloseTask()


def _plan_deliveries(session: Session) -> Iterator[tuple[Key, Wanted]]:
    for notice in session.state.notices:
        yield ("webhook", notice.notice_id), Deliver(notice)


def _plan_hibernation(session: Session) -> Iterator[tuple[Key, Wanted]]:
    state = session.state
    rests = not (state.busy or state.late_calls or state.closed)
    # A new version of the agent may set, change or remove the time.
    if rests and state.settings.config.idle_timeout_seconds is not None:
        yield ("idle",), HibernateWhenIdle()


_Read = Callable[[Session], tuple[Any, ...]]
_Make = Callable[[Session], Iterator[tuple[Key, Wanted]]]
_PARTS: tuple[tuple[_Read, _Make], ...] = (
    (lambda session: (session.effect, session.state.run), _plan_calls),
    (lambda session: (session.state.run, session.state.phase), _plan_waits),
    (lambda session: (session.state.children,), _plan_children),
    (lambda session: (session.state if session.state.assignment else None,), _plan_task),
    (lambda session: (session.state.notices,), _plan_deliveries),
    (lambda session: (session.state,), _plan_hibernation),
)
"""The parts of the plan: the fields that each reads, and how it is made."""
