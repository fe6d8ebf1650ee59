"""Schedules: a message to a session, or a new session of an agent, at the times that Temporal's Schedules keep.

    schedules = Schedules(await Clew.connect())
    await schedules.create(
        "daily-report",
        "Report on yesterday.",
        session_prefix="report",
        agent="reporter",
        cron="0 6 * * *",
        time_zone="Europe/Berlin",
    )

Each time the server starts the workflow `SendMessage`, which waits for the outcome of its request. So Temporal's own
policies say what happens if the request of the time before still runs, and the Temporal UI shows how each has ended.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Literal, Unpack, cast, get_args

from pydantic import PlainSerializer
from temporalio.client import (
    Schedule,
    ScheduleActionExecutionStartWorkflow,
    ScheduleActionResult,
    ScheduleActionStartWorkflow,
    ScheduleAlreadyRunningError,
    ScheduleDescription,
    ScheduleHandle,
    ScheduleInfo,
    ScheduleIntervalSpec,
    ScheduleListActionStartWorkflow,
    ScheduleListInfo,
    ScheduleListSchedule,
    ScheduleOverlapPolicy,
    SchedulePolicy,
    ScheduleSpec,
    ScheduleState,
    ScheduleUpdate,
    ScheduleUpdateInput,
)
from temporalio.common import Priority
from temporalio.service import RPCError, RPCStatusCode
from typing_extensions import TypedDict

from clew.agents import Agent
from clew.session.connection import Clew
from clew.session.handle import SERVICE_PREFIX
from clew.session.keywords import MessageOptions, SessionOptions
from clew.session.transport import drop_absent, dump_input, lacks_namespace, make_input, translate_error
from clew_workflows.contract import SEND_WORKFLOW, SendMessageInput
from clew_workflows.contract.config import make_fairness_key
from clew_workflows.contract.content import Content
from clew_workflows.contract.errors import ClewError, InvalidInput, NotFound
from clew_workflows.contract.outcomes import Output

Overlap = Literal["skip", "buffer_one", "buffer_all", "cancel_other", "terminate_other", "allow_all"]
"""What the server does at a time when the workflow of an earlier time still runs."""
OVERLAPS: Mapping[Overlap, ScheduleOverlapPolicy] = {
    name: ScheduleOverlapPolicy[name.upper()] for name in get_args(Overlap)
}
MAX_ID_CHARACTERS = 150
"""Longest id of a schedule: the ids of its requests add the time."""
ACTION_PREFIX = f"{SERVICE_PREFIX}scheduled-"
"""The beginning of the ids of the workflows that schedules start. The schedule's id and the time follow."""
READ_AT_ONCE = 16
"""Schedules that are read at the same time."""

_ID = re.compile(rf"[A-Za-z0-9._:-]{{1,{MAX_ID_CHARACTERS}}}")


class Times(TypedDict, total=False):
    """When a schedule starts its workflow, and what it does with times that overlap or were missed.

    Attributes:
        cron: One or several cron expressions with five, six or seven fields, or `@daily` and the like. The sixth of
            six fields is the year: a time with a year comes once. Of seven fields, the first is the second.
        every: The time from one start to the next. The times are multiples of it since 1970, plus `offset`.
        offset: The time that is added to the multiples of `every`.
        time_zone: The time zone of `cron`, as in `Europe/Berlin`; UTC by default.
        jitter: Each time is later by a random part of this.
        start_at: No time before this is used.
        end_at: No time after this is used.
        overlap: What happens at a time when the request of an earlier time is not over: the time is skipped (`skip`,
            the default), waits (`buffer_one`, `buffer_all`), ends the other (`cancel_other`, `terminate_other`), or
            both run (`allow_all`).
        catch_up: How late a time is still used that the server has missed. One year by default.
        pause_on_failure: Whether a request that does not complete pauses the schedule.
        note: A note for people.
    """

    cron: str | Sequence[str] | None
    every: timedelta | None
    offset: timedelta | None
    time_zone: str | None
    jitter: timedelta | None
    start_at: datetime | None
    end_at: datetime | None
    overlap: Overlap | None
    catch_up: timedelta | None
    pause_on_failure: bool | None
    note: str | None


class Message(TypedDict, total=False):
    """The session that a schedule sends its message to, and the message's options.

    Attributes:
        session_id: The session. It is opened if it does not run.
        session_prefix: Instead of `session_id`: a new session each time, whose id is this, a hyphen and the time.
        close: Whether the session is closed after the outcome. By default one of a `session_prefix` is.
        agent: The agent of a new session, or of `session_id` if there is no such session.
        config: The other fields of the configuration of a new session.
        options: The options of the message. To a `session_id` its `on_busy` is `queue` by default.
        task_queue: The sessions' task queue; by default that of the connection.
    """

    session_id: str | None
    session_prefix: str | None
    close: bool | None
    agent: str | Agent | None
    config: SessionOptions | None
    options: MessageOptions | None
    task_queue: str | None


class CreateOptions(Times, Message, total=False):
    """The options of `Schedules.create`.

    Attributes:
        paused: Whether the schedule starts nothing until it is resumed.
    """

    paused: bool | None


class UpdateOptions(Times, Message, total=False):
    """The options of `Schedules.update`: what is left out stays.

    Attributes:
        content: The message.
    """

    content: Content | None


def _format_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_Moment = Annotated[datetime, PlainSerializer(_format_time)]
_Seconds = PlainSerializer(timedelta.total_seconds)


class ScheduledRun(Output):
    """A time at which a schedule has started its workflow.

    Attributes:
        scheduled_at: The time that it was due.
        started_at: When the server has started it.
        workflow_id: The workflow, which is the id of the request, too.
    """

    scheduled_at: _Moment
    started_at: _Moment
    workflow_id: str


class ScheduleSummary(Output):
    """A schedule in a list.

    Attributes:
        schedule_id: Its id.
        paused: Whether it is paused.
        note: Its note.
        times: Its times in words: cron expressions and intervals.
        next_at: The next time; None: there is none.
        last: The newest run; None: there was none.
    """

    schedule_id: str
    paused: bool
    note: str | None
    times: tuple[str, ...]
    next_at: _Moment | None
    last: ScheduledRun | None


class ScheduleDetails(Output):
    """All of a schedule.

    Attributes:
        summary: What lists show of it.
        message: The message and its session.
        task_queue: The sessions' task queue.
        overlap: What happens with times that overlap.
        pause_on_failure: Whether a failure pauses it.
        time_zone: The time zone of its cron expressions; None: UTC.
        runs: The number of runs.
        skipped: The number of times that were skipped because of an overlap.
        missed: The number of times that were missed for longer than `catch_up`.
        catch_up: How late a missed time is still used.
        jitter: The most by which a time is later.
        start_at: The earliest time.
        end_at: The latest time.
        created_at: When it was made.
        updated_at: When it was changed; None: never.
        next: The next times.
        recent: The newest runs, the oldest first.
        running: The workflows that have not ended.
    """

    summary: ScheduleSummary
    message: Annotated[SendMessageInput, PlainSerializer(dump_input)]
    task_queue: str
    overlap: Overlap
    pause_on_failure: bool
    time_zone: str | None
    runs: int
    skipped: int
    missed: int
    catch_up: Annotated[timedelta, _Seconds]
    jitter: Annotated[timedelta, _Seconds] | None
    start_at: _Moment | None
    end_at: _Moment | None
    created_at: _Moment
    updated_at: _Moment | None
    next: tuple[_Moment, ...]
    recent: tuple[ScheduledRun, ...]
    running: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """The schedule as a JSON object, without absent fields. Durations are in seconds, and their names say so."""
        value = super().as_dict()
        durations = {f"{name}_seconds": value.pop(name) for name in ("catch_up", "jitter") if name in value}
        return {**value.pop("summary"), **value, **durations}


class Schedules:
    """The schedules of a namespace that send messages to sessions."""

    def __init__(self, clew: Clew) -> None:
        self._clew = clew
        self._client = clew.temporal

    async def create(self, schedule_id: str, content: Content, **options: Unpack[CreateOptions]) -> None:
        """Make a schedule.

        Args:
            schedule_id: Its id: 1 to 150 characters of letters, digits, `.`, `_`, `:` and `-`.
            content: The message: a text, or a list of parts that name blobs of the session.
            options: Its times, its session and the options of the message (`CreateOptions`).

        Raises:
            InvalidInput: An option is not valid, there are no times, or there is a schedule with this id.
        """
        if not _ID.fullmatch(schedule_id):
            raise InvalidInput(
                f"a schedule's id has 1 to {MAX_ID_CHARACTERS} characters of letters, digits, '.', '_', ':' and '-'"
            )
        message = _change_message({}, {**options, "content": content})
        spec = _change_spec(ScheduleSpec(), options)
        if not (spec.cron_expressions or spec.intervals):
            raise InvalidInput("a schedule needs times: cron, or every")
        schedule = Schedule(
            action=self._make_action(schedule_id, message, options.get("task_queue") or self._clew.task_queue),
            spec=spec,
            policy=_change_policy(SchedulePolicy(), options),
            state=ScheduleState(note=options.get("note"), paused=bool(options.get("paused"))),
        )
        async with _translate(schedule_id):
            try:
                await self._client.create_schedule(schedule_id, schedule)
            except ScheduleAlreadyRunningError:
                raise InvalidInput(f"there is a schedule {schedule_id!r} already") from None

    async def list(self) -> AsyncIterator[ScheduleSummary]:
        """List the schedules of sessions. The list is a second or so late."""
        async with _translate(""):
            async for listed in await self._client.list_schedules():
                schedule = listed.schedule
                action = schedule.action if schedule else None
                if (
                    schedule
                    and isinstance(action, ScheduleListActionStartWorkflow)
                    and action.workflow == SEND_WORKFLOW
                ):
                    yield _summarize(listed.id, schedule, listed.info)

    async def show(self, schedule_id: str) -> ScheduleDetails:
        """Read a schedule.

        Raises:
            NotFound: There is no such schedule of sessions.
            UnknownKey: Its message is encrypted with a key that this process does not have.
        """
        async with _translate(schedule_id):
            description = await self._client.get_schedule_handle(schedule_id).describe()
            return await self._read(description)

    async def update(self, schedule_id: str, **changes: Unpack[UpdateOptions]) -> None:
        """Change a schedule. What is left out stays; workflows that run go on as they were started.

        `cron` and `every` replace all times. `session_id` and `session_prefix` replace each other; `agent`, `config`
        and `options` replace what they name.

        Raises:
            InvalidInput: An option is not valid.
            NotFound: There is no such schedule of sessions.
        """

        async def change(update: ScheduleUpdateInput) -> ScheduleUpdate:
            before, schedule = await self._read(update.description), update.description.schedule
            message = _change_message(dump_input(before.message), changes)
            task_queue = changes.get("task_queue") or before.task_queue
            note = changes.get("note")
            return ScheduleUpdate(
                Schedule(
                    action=self._make_action(schedule_id, message, task_queue),
                    spec=_change_spec(schedule.spec, changes),
                    policy=_change_policy(schedule.policy, changes),
                    state=schedule.state if note is None else replace(schedule.state, note=note),
                )
            )

        async with _translate(schedule_id):
            await self._client.get_schedule_handle(schedule_id).update(change)

    async def pause(self, schedule_id: str, *, note: str | None = None) -> None:
        """Let a schedule start nothing until it is resumed. What runs goes on.

        Raises:
            NotFound: There is no such schedule of sessions.
        """
        await self._command(schedule_id, lambda handle: handle.pause(note=note))

    async def resume(self, schedule_id: str, *, note: str | None = None) -> None:
        """Let a paused schedule go on.

        Raises:
            NotFound: There is no such schedule of sessions.
        """
        await self._command(schedule_id, lambda handle: handle.unpause(note=note))

    async def trigger(self, schedule_id: str, *, overlap: Overlap | None = None) -> None:
        """Start the workflow of a schedule now, also if the schedule is paused.

        Args:
            schedule_id: The schedule.
            overlap: What happens if another one runs; None: as the schedule says.

        Raises:
            NotFound: There is no such schedule of sessions.
        """
        policy = _find_overlap(overlap) if overlap else None
        await self._command(schedule_id, lambda handle: handle.trigger(overlap=policy))

    async def delete(self, schedule_id: str) -> None:
        """Delete a schedule. What runs goes on, and the sessions stay.

        Raises:
            NotFound: There is no such schedule of sessions.
        """
        await self._command(schedule_id, lambda handle: handle.delete())

    async def find_targets(self) -> dict[str, set[str]]:
        """Find the schedules of each session: their ids, by the id of the session.

        It reads each schedule of the namespace. One that makes a new session each time, and one that this process
        cannot decrypt, is not among them.
        """
        found: dict[str, set[str]] = {}
        gate = asyncio.Semaphore(READ_AT_ONCE)

        async def read(schedule_id: str) -> None:
            # It may have been deleted meanwhile.
            with suppress(ClewError):
                async with gate:
                    session_id = (await self.show(schedule_id)).message.session_id
                if session_id is not None:
                    found.setdefault(session_id, set()).add(schedule_id)

        await asyncio.gather(*[read(each.schedule_id) async for each in self.list()])
        return found

    async def _command(self, schedule_id: str, send: Callable[[ScheduleHandle], Any]) -> None:
        handle = self._client.get_schedule_handle(schedule_id)
        async with _translate(schedule_id):
            _require_own(await handle.describe())
            await send(handle)

    async def _read(self, description: ScheduleDescription) -> ScheduleDetails:
        action = _require_own(description)
        schedule, info = description.schedule, description.info
        converter = self._client.data_converter
        (value,) = await converter.decode(action.args, [dict])
        return ScheduleDetails(
            summary=_summarize(description.id, schedule, info),
            message=make_input(SendMessageInput, value),
            task_queue=action.task_queue,
            overlap=_name_overlap(schedule.policy.overlap),
            catch_up=schedule.policy.catchup_window or timedelta(),
            pause_on_failure=schedule.policy.pause_on_failure,
            time_zone=schedule.spec.time_zone_name or None,
            jitter=schedule.spec.jitter or None,
            start_at=schedule.spec.start_at,
            end_at=schedule.spec.end_at,
            next=tuple(info.next_action_times),
            recent=tuple(map(_read_run, info.recent_actions)),
            running=tuple(
                each.workflow_id
                for each in info.running_actions
                if isinstance(each, ScheduleActionExecutionStartWorkflow)
            ),
            runs=info.num_actions,
            skipped=info.num_actions_skipped_overlap,
            missed=info.num_actions_missed_catchup_window,
            created_at=info.created_at,
            updated_at=info.last_updated_at,
        )

    def _make_action(
        self, schedule_id: str, message: SendMessageInput, task_queue: str
    ) -> ScheduleActionStartWorkflow:
        about = message.session_id or f"{message.session_prefix}-…"
        return ScheduleActionStartWorkflow(
            SEND_WORKFLOW,
            dump_input(message),
            # The server adds the time: the workflow's id, and so the request's, is of the schedule and the time.
            id=f"{ACTION_PREFIX}{schedule_id}",
            task_queue=task_queue,
            static_summary=f"scheduled · {schedule_id} · {about}"[:200],
            static_details=f"A service workflow of Clew, {SEND_WORKFLOW}: no session.",
            priority=Priority(fairness_key=make_fairness_key(message.session_id or schedule_id)),
        )


def _change_message(known: Mapping[str, Any], changes: Mapping[str, Any]) -> SendMessageInput:
    """Make the argument of the workflow from the known one and the options, and check it as the workflow does."""
    names = ("session_id", "session_prefix", "close")
    fields = {name: known.get(name) if changes.get(name) is None else changes[name] for name in names}
    if changes.get("session_id") is not None or changes.get("session_prefix") is not None:
        fields |= {"session_id": changes.get("session_id"), "session_prefix": changes.get("session_prefix")}
    config = {**(known.get("config") or {}), **(changes.get("config") or {})}
    if changes.get("agent"):
        config["agent"] = changes["agent"]
    message = drop_absent({**known.get("message", {}), **(changes.get("options") or {})})
    if changes.get("content") is not None:
        message["content"] = changes["content"]
    if fields["session_id"] is not None:
        # Without it, a message of a time at which somebody talks to the session would be lost.
        message.setdefault("on_busy", "queue")
    return make_input(SendMessageInput, {**fields, "config": drop_absent(config) or None, "message": message})


def _change_spec(spec: ScheduleSpec, times: Mapping[str, Any]) -> ScheduleSpec:
    cron, every, offset = times.get("cron"), times.get("every"), times.get("offset")
    changed: dict[str, Any] = {"time_zone_name": times.get("time_zone"), "jitter": times.get("jitter")}
    for name in ("start_at", "end_at"):
        # A time without a time zone is local.
        changed[name] = at.astimezone(UTC) if (at := times.get(name)) else None
    if cron is not None or every is not None:
        expressions = [cron] if isinstance(cron, str) else list(cron or ())
        changed |= {
            "calendars": [],
            # The server keeps a comment and not the expression: so that lists show it, it is its own comment.
            "cron_expressions": [each if "#" in each else f"{each} # {each}" for each in expressions],
            "intervals": [_make_interval(every, offset)] if every is not None else [],
        }
    elif offset is not None:
        raise InvalidInput("offset: it needs every")
    return replace(spec, **drop_absent(changed))


def _make_interval(every: timedelta, offset: timedelta | None) -> ScheduleIntervalSpec:
    if every < timedelta(seconds=1):
        raise InvalidInput("every: it is at least a second")
    if offset is not None and not timedelta() <= offset < every:
        raise InvalidInput("offset: it is less than every")
    return ScheduleIntervalSpec(every=every, offset=offset)


def _change_policy(policy: SchedulePolicy, times: Mapping[str, Any]) -> SchedulePolicy:
    overlap = times.get("overlap")
    changed = {
        "overlap": None if overlap is None else _find_overlap(overlap),
        "catchup_window": times.get("catch_up"),
        "pause_on_failure": times.get("pause_on_failure"),
    }
    return replace(policy, **drop_absent(changed))


def _find_overlap(name: Overlap) -> ScheduleOverlapPolicy:
    if name not in OVERLAPS:
        raise InvalidInput(f"overlap: it is one of {', '.join(OVERLAPS)}")
    return OVERLAPS[name]


def _name_overlap(policy: ScheduleOverlapPolicy) -> Overlap:
    return cast("Overlap", policy.name.lower())


def _require_own(description: ScheduleDescription) -> ScheduleActionStartWorkflow:
    """Return the action of a schedule.

    Raises:
        NotFound: The schedule starts another workflow: it is none of Clew's.
    """
    action = description.schedule.action
    if not isinstance(action, ScheduleActionStartWorkflow) or action.workflow != SEND_WORKFLOW:
        raise NotFound(f"the schedule {description.id!r} sends no message to a session")
    return action


def _summarize(
    schedule_id: str, schedule: Schedule | ScheduleListSchedule, info: ScheduleInfo | ScheduleListInfo | None
) -> ScheduleSummary:
    return ScheduleSummary(
        schedule_id=schedule_id,
        paused=schedule.state.paused,
        note=schedule.state.note or None,
        times=_describe_times(schedule.spec),
        next_at=next(iter(info.next_action_times), None) if info else None,
        last=_read_run(info.recent_actions[-1]) if info and info.recent_actions else None,
    )


def _read_run(result: ScheduleActionResult) -> ScheduledRun:
    action = result.action
    workflow_id = action.workflow_id if isinstance(action, ScheduleActionExecutionStartWorkflow) else ""
    return ScheduledRun(scheduled_at=result.scheduled_at, started_at=result.started_at, workflow_id=workflow_id)


def _describe_times(spec: ScheduleSpec) -> tuple[str, ...]:
    """Describe times in words. The server keeps a cron expression as a calendar with a comment."""
    calendars = [calendar.comment or "a calendar" for calendar in spec.calendars]
    intervals = [f"every {each.every}" + (f" at {each.offset}" if each.offset else "") for each in spec.intervals]
    return (*calendars, *spec.cron_expressions, *intervals)


@asynccontextmanager
async def _translate(schedule_id: str) -> AsyncIterator[None]:
    """Raise the server's errors as Clew's."""
    try:
        yield
    except RPCError as error:
        raise _translate_error(error, schedule_id) from error


def _translate_error(error: RPCError, schedule_id: str) -> ClewError:
    if error.status == RPCStatusCode.INVALID_ARGUMENT:
        return InvalidInput(f"the server refused the schedule: {error.message}")
    if error.status == RPCStatusCode.NOT_FOUND and not lacks_namespace(error):
        return NotFound(f"there is no schedule {schedule_id!r}")
    return translate_error(error, schedule_id)
