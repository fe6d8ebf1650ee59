"""Replays the event history of a workflow run offline, with the workflow's own code. Returns the session's state."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import Replayer

from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.host import ingress
from clew_workflows.host.agent_session import AgentSession
from clew_workflows.host.payload_converter import make_tolerant
from clew_workflows.host.runtime import Runtime as SessionRuntime
from clew_workflows.protocol import SessionEffect
from clew_workflows.session.advance import Session
from clew_workflows.session.state import State
from clew_workflows.temporal_faults.replayed_state import ObservedRunner
from clew_workflows.thread.thread import Thread


class ReplayFailed(ClewError):
    """The history was made by another version of the workflow's code, or is damaged."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """A workflow run, as it was after the last completed workflow task in its history.

    Attributes:
        session: The session; None: its start was refused.
        handed_over: State and effect that the run before it handed over; None: it is the first of its execution.
        thawed: It continued from the archive.
        unread: Signals that arrived after that task: the name and the first characters of each.
        reason: The reason that the operator gave when terminating the run.
    """

    session: Session | None = None
    handed_over: tuple[State, SessionEffect | None] | None = None
    thawed: bool = False
    unread: tuple[tuple[str, str], ...] = ()
    reason: str | None = None

    @property
    def is_new_thread(self) -> bool:
        """Whether its thread starts with this run, and not in an earlier run or the archive."""
        return (
            self.handed_over is None and not self.thawed and self.session is not None and self.session.thread.rev > 0
        )


async def replay_run(history: WorkflowHistory, converter: DataConverter = pydantic_data_converter) -> ReplayedRun:
    """Replay one workflow run.

    Raises:
        ReplayFailed: The code's commands differ from the history's, or the history cannot be decoded.
    """
    load_encodings()
    observer, converter = _Observer(), make_tolerant(converter)

    replayer = Replayer(
        workflows=[_Replayed],
        data_converter=converter,
        workflow_runner=ObservedRunner(observer.watch, observer.note_state),
        runtime=_make_quiet_runtime(),
        # No deadlock detection: on a busy machine a workflow task may take long, and no caller waits for it.
        debug_mode=True,
    )
    try:
        await replayer.replay_workflow(history)
    except Exception as error:
        # A process that lacks an encoding or a projector of the session refuses its start.
        problem = str(observer.refusal or error)[:500]
        raise ReplayFailed(f"its history does not replay with this version of Clew: {problem}") from error
    unread = [await _read_signal(event, converter) for event in _find_unread_signals(history)]
    reason = history.events[-1].workflow_execution_terminated_event_attributes.reason or None
    return replace(observer.rebuilt, thawed=any(map(_is_thaw, history.events)), unread=tuple(unread), reason=reason)


def _find_unread_signals(history: WorkflowHistory) -> list[HistoryEvent]:
    """Find the signals after the last completed workflow task."""
    signals: list[HistoryEvent] = []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            signals.clear()
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            signals.append(event)
    return signals


async def _read_signal(event: HistoryEvent, converter: DataConverter) -> tuple[str, str]:
    attributes = event.workflow_execution_signaled_event_attributes
    payloads = list(attributes.input.payloads)
    return attributes.signal_name, ingress.make_excerpt(await converter.decode(payloads, [RawValue] * len(payloads)))


def _is_thaw(event: HistoryEvent) -> bool:
    return event.activity_task_scheduled_event_attributes.activity_type.name == "thaw"


@functools.cache
def _make_quiet_runtime() -> Runtime:
    """Make a runtime without the SDK's log, which goes to stdout; failures are raised as errors."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


class _Observer:
    """Records a session's state when its workflow starts, and before it is evicted."""

    def __init__(self) -> None:
        self.rebuilt = ReplayedRun()
        self.refusal: ClewError | None = None
        self._runtime: SessionRuntime | None = None

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Be the observer of the workflow that runs in this context."""
        token = _observer.set(self)
        try:
            yield
        finally:
            _observer.reset(token)

    def note_start(self, session: AgentSession) -> None:
        self.refusal = session._refusal
        if session._refusal is None:
            self._runtime = runtime = session._runtime
            if session._intake.is_open:
                self.rebuilt = replace(self.rebuilt, handed_over=(runtime.state, runtime.effect))

    def note_state(self) -> None:
        if runtime := self._runtime:
            thread = runtime.thread
            copy = Thread(thread, thread.first_seq, thread.retained)
            self.rebuilt = replace(self.rebuilt, session=Session(runtime.state, copy, runtime.effect))


_observer: ContextVar[_Observer] = ContextVar("_watching")


@workflow.defn(dynamic=True)
class _Replayed(AgentSession):
    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)
        _observer.get().note_start(self)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)
