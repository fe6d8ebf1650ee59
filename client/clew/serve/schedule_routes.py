"""The routes `/v1/schedules`: messages to sessions by cron or in intervals, as `clew.schedules` sends them.

A tenant's schedule `ID` is Temporal's schedule `TENANT:ID`, as its sessions are workflows.
"""

from __future__ import annotations

from contextlib import aclosing
from datetime import timedelta
from typing import Annotated, Any, cast

from fastapi import APIRouter, Depends, Path
from fastapi.responses import JSONResponse
from pydantic import AwareDatetime, Field

from clew.json_schemas import StandsFor
from clew.schedules import Overlap, ScheduledRun, Schedules, ScheduleSummary
from clew.serve.access import CALLER_ID, Authorized, Caller
from clew.serve.answers import ErrorBody, answer
from clew.serve.bodies import read_body
from clew.serve.error_words import ALL_TENANTS
from clew.serve.problems import Forbidden, InvalidParameter
from clew_workflows.contract import MessageInput, SessionConfig
from clew_workflows.contract.outcomes import Output
from clew_workflows.contract.validation import Input

MAX_LISTED = 1000
"""Most schedules of a list."""
_DURATIONS = {
    "every_seconds": "every",
    "offset_seconds": "offset",
    "jitter_seconds": "jitter",
    "catch_up_seconds": "catch_up",
}
"""The options of `clew.schedules` that are durations, by the names of their fields in seconds."""

router = APIRouter(prefix="/v1/schedules", tags=["schedules"], responses={"default": {"model": ErrorBody}})

Seconds = Annotated[float, Field(ge=0, le=10 * 366 * 86_400)]
Note = Annotated[str, Field(max_length=2000)]


class ScheduleFields(Input):
    """What a schedule has beside its message.

    Attributes:
        session_id: The session that the message goes to. It is opened if it does not run.
        session_prefix: Instead of `session_id`: a new session each time, whose id is this, a hyphen and the time.
        config: The configuration of a session that does not exist yet.
        close: Whether the session is closed after the outcome. Absent: a session of a `session_prefix` is.
        cron: One or several cron expressions with five, six or seven fields, or `@daily` and the like.
        every_seconds: The time from one start to the next. The times are multiples of it since 1970, plus the offset.
        offset_seconds: What is added to the multiples of `every_seconds`.
        time_zone: The time zone of `cron`, such as `Europe/Berlin`; absent: UTC.
        jitter_seconds: Each time is later by a random part of this.
        start_at: No time before this is used.
        end_at: No time after this is used.
        overlap: What happens at a time when the request of an earlier time is not over; absent: `skip`.
        catch_up_seconds: How late a time is still used that the server has missed; absent: a year.
        pause_on_failure: Whether a request that does not complete pauses the schedule.
        note: A note for people.
    """

    session_id: Annotated[str, CALLER_ID] | None = None
    session_prefix: Annotated[str, CALLER_ID] | None = None
    config: SessionConfig | None = None
    close: bool | None = None
    cron: str | Annotated[tuple[str, ...], Field(min_length=1, max_length=100)] | None = None
    every_seconds: Seconds | None = None
    offset_seconds: Seconds | None = None
    time_zone: Annotated[str, Field(max_length=100)] | None = None
    jitter_seconds: Seconds | None = None
    start_at: AwareDatetime | None = None
    end_at: AwareDatetime | None = None
    overlap: Overlap | None = None
    catch_up_seconds: Seconds | None = None
    pause_on_failure: bool | None = None
    note: Note | None = None


class ScheduleChange(ScheduleFields):
    """What changes of a schedule: what is left out stays.

    Attributes:
        message: The message, with its options.
    """

    message: MessageInput | None = None


class ScheduleInput(ScheduleFields):
    """A new schedule. It needs `cron` or `every_seconds`, and `session_id` or `session_prefix`.

    Attributes:
        schedule_id: Its id.
        message: The message, with its options.
        paused: Whether it starts nothing until it is resumed.
    """

    schedule_id: Annotated[str, CALLER_ID]
    message: MessageInput
    paused: bool = False


class TriggerInput(Input):
    """A start of a schedule at once.

    Attributes:
        overlap: What happens if the request of an earlier time is not over; absent: as the schedule says.
    """

    overlap: Overlap | None = None


class PauseInput(Input):
    """A pause of a schedule, or its end.

    Attributes:
        note: A note for people.
    """

    note: Note | None = None


class ScheduledRequest(Output):
    """A time at which a schedule has sent its message.

    Attributes:
        scheduled_at: The time that it was due: ISO 8601 in UTC.
        started_at: When the server has started it.
        request_id: The request.
    """

    scheduled_at: str
    started_at: str
    request_id: str


class ScheduleRow(Output):
    """A schedule in a list.

    Attributes:
        schedule_id: Its id.
        paused: Whether it is paused.
        note: Its note.
        times: Its times in words: cron expressions and intervals.
        next_at: The next time: ISO 8601 in UTC; absent: there is none.
        last: The newest request; absent: there was none.
    """

    schedule_id: str
    paused: bool
    note: str | None = None
    times: tuple[str, ...]
    next_at: str | None = None
    last: ScheduledRequest | None = None


class SchedulesList(Output):
    """The schedules of a tenant.

    Attributes:
        schedules: The schedules. The list is a second or so late.
    """

    schedules: tuple[ScheduleRow, ...]


class ScheduleState(ScheduleRow):
    """All of a schedule.

    Attributes:
        message: The message, with its options.
        session_id: The session.
        session_prefix: The beginning of the ids of its new sessions.
        config: The configuration of a session that does not exist yet.
        close: Whether the session is closed after the outcome.
        overlap: What happens with times that overlap.
        pause_on_failure: Whether a failure pauses it.
        time_zone: The time zone of its cron expressions; absent: UTC.
        runs: The number of requests.
        skipped: The number of times that were skipped because of an overlap.
        missed: The number of times that were missed for longer than `catch_up_seconds`.
        catch_up_seconds: How late a missed time is still used.
        jitter_seconds: The most by which a time is later.
        start_at: The earliest time.
        end_at: The latest time.
        created_at: When it was made.
        updated_at: When it was changed; absent: never.
        next: The next times.
        recent: The newest requests, the oldest first.
        running: The requests that have no outcome.
    """

    message: Annotated[dict[str, Any], StandsFor(lambda: MessageInput)]
    session_id: str | None = None
    session_prefix: str | None = None
    config: dict[str, Any] | None = None
    close: bool | None = None
    overlap: Overlap
    pause_on_failure: bool
    time_zone: str | None = None
    runs: int
    skipped: int
    missed: int
    catch_up_seconds: float
    jitter_seconds: float | None = None
    start_at: str | None = None
    end_at: str | None = None
    created_at: str
    updated_at: str | None = None
    next: tuple[str, ...]
    recent: tuple[ScheduledRequest, ...]
    running: tuple[str, ...]


def _scope_schedule(caller: Authorized, schedule_id: Annotated[str, Path(description="The schedule.")]) -> str:
    if caller.tenant != ALL_TENANTS and not CALLER_ID.matches(schedule_id):
        raise InvalidParameter("schedule_id: it has 1 to 128 letters, digits, '_', '.' and '-'", param="schedule_id")
    return caller.prefix + schedule_id


Known = Annotated[str, Depends(_scope_schedule)]
"""The id of Temporal's schedule. It may not exist."""


@router.post("", response_model=ScheduleState)
async def create_schedule(
    caller: Authorized, body: Annotated[ScheduleInput, read_body(ScheduleInput)]
) -> JSONResponse:
    """Make a schedule, which sends a message to a session by cron or in intervals."""
    scoped = caller.prefix + body.schedule_id
    options = _read_options(caller, body)
    _check_config(caller, options.get("config"), session_id=body.session_id)
    await Schedules(caller.clew).create(scoped, paused=body.paused, **cast("Any", options))
    return await _show(caller, scoped)


@router.get("", response_model=SchedulesList)
async def list_schedules(caller: Authorized) -> JSONResponse:
    """List the tenant's schedules."""
    rows: list[ScheduleRow] = []
    async with aclosing(cast("Any", Schedules(caller.clew).list())) as listed:
        async for each in listed:
            if each.schedule_id.startswith(caller.prefix):
                rows.append(ScheduleRow.model_validate(_read_row(caller, each)))
            if len(rows) == MAX_LISTED:
                break
    return answer(caller, SchedulesList(schedules=tuple(rows)))


@router.get("/{schedule_id}", response_model=ScheduleState)
async def read_schedule(caller: Authorized, scoped: Known) -> JSONResponse:
    """Read a schedule: its times, its message, and the newest requests."""
    return await _show(caller, scoped)


@router.patch("/{schedule_id}", response_model=ScheduleState)
async def change_schedule(
    caller: Authorized, scoped: Known, body: Annotated[ScheduleChange, read_body(ScheduleChange)]
) -> JSONResponse:
    """Change a schedule. `cron` and `every_seconds` replace all times; requests that run go on."""
    schedules = Schedules(caller.clew)
    options = _read_options(caller, body)
    if body.config is not None or body.session_id is not None or body.session_prefix is not None:
        before = (await schedules.show(scoped)).message
        known = before.config.model_dump(mode="json", exclude_unset=True) if before.config else {}
        config = {**known, **options.get("config", {})} or None
        same = caller.unscope(before.session_id) if before.session_id and body.session_prefix is None else None
        _check_config(caller, config, session_id=body.session_id or same)
    await schedules.update(scoped, **cast("Any", options))
    return await _show(caller, scoped)


@router.delete("/{schedule_id}", response_model=ScheduleRow)
async def delete_schedule(caller: Authorized, scoped: Known) -> JSONResponse:
    """Delete a schedule. Requests that run go on, and the sessions stay. Answers what it was."""
    schedules = Schedules(caller.clew)
    row = _read_row(caller, (await schedules.show(scoped)).summary)
    await schedules.delete(scoped)
    return answer(caller, ScheduleRow.model_validate(row))


@router.post("/{schedule_id}/pause", response_model=ScheduleState)
async def pause_schedule(
    caller: Authorized, scoped: Known, body: Annotated[PauseInput, read_body(PauseInput)]
) -> JSONResponse:
    """Let a schedule start nothing until it is resumed."""
    await Schedules(caller.clew).pause(scoped, note=body.note)
    return await _show(caller, scoped)


@router.post("/{schedule_id}/resume", response_model=ScheduleState)
async def resume_schedule(
    caller: Authorized, scoped: Known, body: Annotated[PauseInput, read_body(PauseInput)]
) -> JSONResponse:
    """Let a paused schedule go on."""
    await Schedules(caller.clew).resume(scoped, note=body.note)
    return await _show(caller, scoped)


@router.post("/{schedule_id}/trigger", response_model=ScheduleState)
async def trigger_schedule(
    caller: Authorized, scoped: Known, body: Annotated[TriggerInput, read_body(TriggerInput)]
) -> JSONResponse:
    """Send the message of a schedule now, also if the schedule is paused."""
    await Schedules(caller.clew).trigger(scoped, overlap=body.overlap)
    return await _show(caller, scoped)


def _read_options(caller: Caller, body: ScheduleInput | ScheduleChange) -> dict[str, Any]:
    """Read the options of `clew.schedules` from a body: with the ids that Temporal knows.

    Raises:
        Forbidden: The key does not permit an option of the message.
        InvalidInput: An id is not one that a caller may choose.
    """
    plain = ("close", "time_zone", "overlap", "pause_on_failure", "note", "cron", "start_at", "end_at")
    options: dict[str, Any] = {name: getattr(body, name) for name in plain}
    options |= {
        name: None if (seconds := getattr(body, field)) is None else timedelta(seconds=seconds)
        for field, name in _DURATIONS.items()
    }
    for name in ("session_id", "session_prefix"):
        given = getattr(body, name)
        options[name] = None if given is None else caller.scope_new(given)
    if body.message is not None:
        message = body.message.model_dump(mode="json", exclude_unset=True)
        options["content"] = message.pop("content")
        options["options"] = caller.check_message(message)
        caller.check_messages(body.message.replies or ())
    if body.config is not None:
        config = body.config.model_dump(mode="json", exclude_unset=True)
        options["config"] = {**config, "metadata": caller.add_tenant(config.get("metadata"))}
    return {name: value for name, value in options.items() if value is not None}


def _check_config(caller: Caller, config: dict[str, Any] | None, *, session_id: str | None) -> None:
    """Check that the key permits the configuration of the sessions that a schedule opens.

    Raises:
        Forbidden: It does not, or the number of the tenant's sessions is limited, and each time would open one more.
    """
    if config is not None:
        caller.check_config(config)
    if session_id is None and caller.key.max_open_sessions is not None and not caller.key.operator:
        raise Forbidden(
            f"the key {caller.key.name!r} limits the open sessions: a schedule sends to one session, named by "
            "session_id",
            param="session_prefix",
        )


async def _show(caller: Caller, scoped: str) -> JSONResponse:
    details = await Schedules(caller.clew).show(scoped)
    made = details.as_dict()
    sent = made.pop("message")
    for name in ("session_id", "session_prefix"):
        if name in sent:
            sent[name] = caller.unscope(sent[name])
    state = {**made, **sent, **_read_row(caller, details.summary), "recent": [*map(_read_request, details.recent)]}
    return answer(caller, ScheduleState.model_validate(state))


def _read_row(caller: Caller, summary: ScheduleSummary) -> dict[str, Any]:
    row = summary.as_dict()
    row["schedule_id"] = caller.unscope(summary.schedule_id)
    if summary.last is not None:
        row["last"] = _read_request(summary.last)
    return row


def _read_request(run: ScheduledRun) -> dict[str, Any]:
    made = run.as_dict()
    return {**made, "request_id": made.pop("workflow_id")}
