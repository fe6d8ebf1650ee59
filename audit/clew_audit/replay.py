"""A session as its event history alone has it: replayed with the workflow's own code, offline."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

from temporalio import workflow
from temporalio.api.enums.v1 import EventType
from temporalio.api.history.v1 import HistoryEvent
from temporalio.bridge.proto.workflow_activation import WorkflowActivation
from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
from temporalio.client import WorkflowHistory
from temporalio.common import RawValue
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.runtime import Runtime, TelemetryConfig
from temporalio.worker import (
    Replayer,
    UnsandboxedWorkflowRunner,
    WorkflowInstance,
    WorkflowInstanceDetails,
    WorkflowRunner,
)

from clew.errors import ClewError
from clew.thread.thread import Thread
from clew_workflows.core.advance import Session
from clew_workflows.core.state import State
from clew_workflows.protocol import SessionEffect
from clew_workflows.session import AgentSession
from clew_workflows.shell import ingress
from clew_workflows.shell.payload_converter import make_tolerant
from clew_workflows.shell.runtime import Runtime as SessionRuntime


class ReplayFailed(ClewError):
    """A history that the workflow's code, as it is here, cannot have made."""


@dataclass(frozen=True, slots=True)
class ReplayedRun:
    """One run of a session's workflow, as it was after the last task of its history that was completed.

    `session` is None where the start was refused. `handed_over` is the state, and the effect, that the run before it
    has left to it; None where it is the first of its execution. `thawed` says that it went on from the archive.
    `unread` are signals that came after that last task: their names, and the first characters of each. `reason` is
    what the operator who terminated the run gave as the reason.
    """

    session: Session | None = None
    handed_over: tuple[State, SessionEffect | None] | None = None
    thawed: bool = False
    unread: tuple[tuple[str, str], ...] = ()
    reason: str | None = None

    @property
    def is_new_thread(self) -> bool:
        """Whether its thread is none that was there before."""
        return (
            self.handed_over is None and not self.thawed and self.session is not None and self.session.thread.rev > 0
        )


async def replay_run(history: WorkflowHistory, converter: DataConverter = pydantic_data_converter) -> ReplayedRun:
    """Replay one run.

    Raises:
        DoesNotReplay: the code would have done another thing than the history says, or cannot read it.
    """
    watch, converter = _Watch(), make_tolerant(converter)

    replayer = Replayer(
        workflows=[_Replayed],
        data_converter=converter,
        workflow_runner=_Runner(watch),
        runtime=_quiet(),
        # On a busy machine a task may take its time; nobody waits for it here.
        debug_mode=True,
    )
    try:
        await replayer.replay_workflow(history)
    except Exception as error:
        raise ReplayFailed(f"its history does not replay: {str(error)[:500]}") from error
    unread = [await _signal(event, converter) for event in _unread(history)]
    reason = history.events[-1].workflow_execution_terminated_event_attributes.reason or None
    return replace(watch.rebuilt, thawed=any(map(_is_thaw, history.events)), unread=tuple(unread), reason=reason)


def _unread(history: WorkflowHistory) -> list[HistoryEvent]:
    """The signals that no task of the workflow has seen."""
    found: list[HistoryEvent] = []
    for event in history.events:
        if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_COMPLETED:
            found.clear()
        elif event.event_type == EventType.EVENT_TYPE_WORKFLOW_EXECUTION_SIGNALED:
            found.append(event)
    return found


async def _signal(event: HistoryEvent, converter: DataConverter) -> tuple[str, str]:
    given = event.workflow_execution_signaled_event_attributes
    payloads = list(given.input.payloads)
    return given.signal_name, ingress.make_excerpt(await converter.decode(payloads, [RawValue] * len(payloads)))


def _is_thaw(event: HistoryEvent) -> bool:
    return event.activity_task_scheduled_event_attributes.activity_type.name == "thaw"


@functools.cache
def _quiet() -> Runtime:
    """The SDK says what it thinks of a history on stdout; here that is raised as an error."""
    return Runtime(telemetry=TelemetryConfig(logging=None))


class _Watch:
    """Sees what a session is after each of its workflow's tasks."""

    def __init__(self) -> None:
        self.rebuilt = ReplayedRun()
        self._runtime: SessionRuntime | None = None

    def begins(self, session: AgentSession) -> None:
        if session._refusal is None:
            self._runtime = runtime = session._runtime
            if session._intake.is_open:
                self.rebuilt = replace(self.rebuilt, handed_over=(runtime.state, runtime.effect))

    def look(self) -> None:
        if runtime := self._runtime:
            thread = runtime.thread
            seen = Thread(thread, thread.first_seq, thread.retained)
            self.rebuilt = replace(self.rebuilt, session=Session(runtime.state, seen, runtime.effect))


_watching: ContextVar[_Watch] = ContextVar("_watching")


@workflow.defn(dynamic=True)
class _Replayed(AgentSession):
    @workflow.init
    def __init__(self, args: Sequence[RawValue]) -> None:
        super().__init__(args)
        _watching.get().begins(self)

    @workflow.run
    async def run(self, args: Sequence[RawValue]) -> dict[str, Any]:
        return await super().run(args)


class _Runner(WorkflowRunner):
    """Runs workflow code as it stands: in a sandbox it would be another copy, out of sight."""

    def __init__(self, watch: _Watch) -> None:
        self._runner = UnsandboxedWorkflowRunner()
        self._watch = watch

    def prepare_workflow(self, defn: Any) -> None:
        self._runner.prepare_workflow(defn)

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        instance = self._runner.create_instance(det)
        activate = instance.activate

        def watched(act: WorkflowActivation) -> WorkflowActivationCompletion:
            # At the end the worker throws the workflow out, which is as good to it as a cancellation.
            evicted = any(job.HasField("remove_from_cache") for job in act.jobs)
            if evicted:
                self._watch.look()
            token = _watching.set(self._watch)
            try:
                return activate(act)
            finally:
                _watching.reset(token)

        instance.activate = watched  # type: ignore[method-assign]
        return instance
