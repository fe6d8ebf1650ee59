"""`clew schedule`: messages to sessions, and new sessions of agents, by cron or interval."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import Annotated, Any, TypedDict, Unpack, cast

import typer

from clew.cli import show as output
from clew.cli.command import Invocation, command
from clew.cli.shared_options import (
    MessageText,
    Model,
    Timeout,
    argument,
    complete_agent,
    complete_session,
    flag,
    option,
    read_text,
)
from clew.schedules import OVERLAPS, Overlap, ScheduleDetails, Schedules, ScheduleSummary, UpdateOptions
from clew_workflows.contract import SendMessageInput
from clew_workflows.contract.config import OnBusy

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_NEXT = 3
"""The next times that `show` prints, and the newest runs."""

ScheduleId = Annotated[str, argument("ID", "The schedule's id.")]
Note = Annotated[str | None, option("TEXT", "A note for people, which lists show.")]


def parse_duration(text: str) -> timedelta:
    """Parse a duration such as `90s`, `15m`, `24h`, `7d` or `2w`.

    Raises:
        typer.BadParameter: It is none.
    """
    match = re.fullmatch(r"([0-9]{1,8})([smhdw])", text)
    if match is None:
        raise typer.BadParameter(f"{text!r} is not a duration like 90s, 15m, 24h or 7d")
    return timedelta(**{_UNITS[match[2]]: int(match[1])})


def parse_time(text: str) -> datetime:
    """Parse a time in ISO 8601. One without a time zone is local.

    Raises:
        typer.BadParameter: It is none.
    """
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(f"{text!r} is not a time like 2026-11-01T06:00") from None


def read_overlap(name: str | None) -> str | None:
    """Read the name of a policy before anything is sent.

    Raises:
        typer.BadParameter: It is unknown.
    """
    policy = name and name.replace("-", "_")
    if policy is not None and policy not in OVERLAPS:
        raise typer.BadParameter(f"{name!r} is none of {_list_overlaps()}")
    return policy


def _list_overlaps() -> str:
    return ", ".join(name.replace("_", "-") for name in OVERLAPS)


def _complete_overlap(incomplete: str) -> list[str]:
    return [name for name in _list_overlaps().split(", ") if name.startswith(incomplete)]


class ScheduleOptions(TypedDict, total=False):
    """The options of `create` and `update`."""

    session_id: Annotated[
        str | None,
        option(
            "SESSION",
            "The session that gets the message. It is opened if it does not run.",
            "--session",
            complete=complete_session,
        ),
    ]
    session_prefix: Annotated[
        str | None, option("NAME", "Instead of --session: a new session each time, whose id is NAME and the time.")
    ]
    close: Annotated[
        bool | None,
        flag(
            "Whether the session is closed after the outcome. Default: one of a prefix is closed.",
            "--close/--keep-open",
        ),
    ]
    agent: Annotated[str | None, option("NAME", "The agent of a new session.", complete=complete_agent)]
    model: Model
    cron: Annotated[
        list[str] | None, option("TEXT", "A cron expression, as in '0 6 * * 1-5' or @daily; may be repeated.")
    ]
    every: Annotated[
        timedelta | None,
        option("TIME", "The time from one message to the next, as in 15m or 24h.", parser=parse_duration),
    ]
    offset: Annotated[
        timedelta | None, option("TIME", "What is added to the multiples of --every.", parser=parse_duration)
    ]
    time_zone: Annotated[str | None, option("NAME", "The time zone of --cron, as in Europe/Berlin. Default: UTC.")]
    jitter: Annotated[
        timedelta | None,
        option("TIME", "Each message is later by a random part of this time.", parser=parse_duration),
    ]
    start_at: Annotated[
        datetime | None,
        option("TIME", "No message before this time, as in 2026-11-01T06:00.", "--start", parser=parse_time),
    ]
    end_at: Annotated[datetime | None, option("TIME", "No message after this time.", "--end", parser=parse_time)]
    overlap: Annotated[
        str | None,
        option(
            "POLICY",
            f"What happens if the request before is not over: {_list_overlaps()}. Default: skip.",
            callback=read_overlap,
            complete=_complete_overlap,
        ),
    ]
    catch_up: Annotated[
        timedelta | None,
        option("TIME", "How late a missed time is still used. Default: a year.", parser=parse_duration),
    ]
    on_busy: Annotated[
        OnBusy | None,
        option(None, "What the session does with the message while it serves a request. Default: queue."),
    ]
    timeout: Timeout
    note: Note


@command()
def create(
    invocation: Invocation,
    schedule: ScheduleId,
    text: MessageText,
    *,
    paused: Annotated[bool, flag("Send nothing until it is resumed.", "--paused")] = False,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Send a message at times of a calendar or in intervals, to a session or to a new one each time."""
    content, fields = read_text(text), _make_fields(options)
    task_queue = invocation.target.task_queue

    async def make(schedules: Schedules) -> None:
        await schedules.create(
            schedule, content, **cast("Any", {**fields, "paused": paused, "task_queue": task_queue})
        )

    _change(invocation, schedule, "created", make)


@command(target=("address", "namespace"))
def update(
    invocation: Invocation,
    schedule: ScheduleId,
    *,
    text: Annotated[str | None, option("TEXT", "The message; `-` reads it from stdin.", "--text")] = None,
    **options: Unpack[ScheduleOptions],
) -> None:
    """Change a schedule. What is not named stays; requests that run go on."""
    fields = _make_fields(options)
    if text is not None:
        fields["content"] = read_text(text)
    _change(invocation, schedule, "updated", lambda schedules: schedules.update(schedule, **fields))


@command(target=("address", "namespace"))
def list_(invocation: Invocation) -> None:
    """List the schedules that send messages to sessions."""

    async def read(schedules: Schedules) -> list[ScheduleSummary]:
        return [summary async for summary in schedules.list()]

    summaries = invocation.run(lambda clew: read(Schedules(clew)))
    document = {"schedules": [summary.as_dict() for summary in summaries]}
    titles = ("schedule", "status", "times", "next", "last", "note")
    rows = list(map(_make_cells, summaries))
    invocation.print(document, lambda to: output.print_table(to, titles, rows, wrapped=("times", "note")))


@command(target=("address", "namespace"))
def show(invocation: Invocation, schedule: ScheduleId) -> None:
    """Show a schedule: its message, its times, and how its newest runs are called."""
    details = invocation.run(lambda clew: Schedules(clew).show(schedule))
    invocation.print_lines(details.as_dict(), *_describe(details))


@command(target=("address", "namespace"))
def pause(invocation: Invocation, schedule: ScheduleId, *, note: Note = None) -> None:
    """Send nothing until the schedule is resumed. A request that runs goes on."""
    _change(invocation, schedule, "paused", lambda schedules: schedules.pause(schedule, note=note))


@command(target=("address", "namespace"))
def resume(invocation: Invocation, schedule: ScheduleId, *, note: Note = None) -> None:
    """Let a paused schedule go on."""
    _change(invocation, schedule, "resumed", lambda schedules: schedules.resume(schedule, note=note))


@command(target=("address", "namespace"))
def trigger(
    invocation: Invocation,
    schedule: ScheduleId,
    *,
    overlap: Annotated[
        str | None,
        option(
            "POLICY",
            f"What happens if a request is not over: {_list_overlaps()}. Default: as the schedule says.",
            callback=read_overlap,
            complete=_complete_overlap,
        ),
    ] = None,
) -> None:
    """Send the message of a schedule now."""
    policy = cast("Overlap | None", overlap)
    _change(invocation, schedule, "triggered", lambda schedules: schedules.trigger(schedule, overlap=policy))


@command(target=("address", "namespace"))
def delete(invocation: Invocation, schedule: ScheduleId) -> None:
    """Delete a schedule. Its sessions stay, and a request that runs goes on."""
    _change(invocation, schedule, "deleted", lambda schedules: schedules.delete(schedule))


def _change(invocation: Invocation, schedule: str, done: str, change: Any) -> None:
    async def work(schedules: Schedules) -> None:
        pending: Coroutine[Any, Any, None] = change(schedules)
        await pending

    invocation.run(lambda clew: work(Schedules(clew)))
    invocation.print_lines({"schedule_id": schedule, "status": done}, f"schedule {schedule} is {done}")


def _make_fields(options: ScheduleOptions) -> UpdateOptions:
    """Make the arguments of the Python client of the options of a command."""
    fields: dict[str, Any] = {name: value for name, value in options.items() if value not in (None, [])}
    message = {"on_busy": fields.pop("on_busy", None), "timeout_seconds": fields.pop("timeout", None)}
    if any(message.values()):
        fields["options"] = {name: value for name, value in message.items() if value is not None}
    if model := fields.pop("model", None):
        fields["config"] = {"model": model}
    return cast("UpdateOptions", fields)


def _make_cells(summary: ScheduleSummary) -> tuple[str, ...]:
    return (
        summary.schedule_id,
        "paused" if summary.paused else "active",
        ", ".join(summary.times),
        _format_local(summary.next_at),
        _format_local(summary.last.started_at if summary.last else None),
        output.shorten(summary.note or "", 100),
    )


def _describe(details: ScheduleDetails) -> list[str]:
    summary, message = details.summary, details.message
    config = message.config
    about = [f"agent {config.agent}"] if config and config.agent else []
    about += [f"model {config.model}"] if config and config.model else []
    content = message.message.content
    rows = {
        "schedule": f"{summary.schedule_id}, {'paused' if summary.paused else 'active'}",
        "note": summary.note or "",
        "session": _describe_session(message),
        "configuration": ", ".join(about),
        "message": output.shorten(content if isinstance(content, str) else "a list of parts", 300),
        "times": ", ".join(summary.times) + (f" in {details.time_zone}" if details.time_zone else ""),
        "overlap": details.overlap.replace("_", " "),
        "next": ", ".join(map(_format_local, details.next[:_NEXT])),
        "runs": f"{details.runs}, {details.skipped} skipped, {details.missed} missed",
        "running": ", ".join(details.running),
        "newest": ", ".join(run.workflow_id for run in details.recent[-_NEXT:]),
    }
    width = max(map(len, rows))
    return [f"{name:{width}}  {value}" for name, value in rows.items() if value]


def _describe_session(message: SendMessageInput) -> str:
    name = message.session_id or f"a new one each time: {message.session_prefix}-TIME"
    closes = message.session_prefix is not None if message.close is None else message.close
    return f"{name}, {'closed after the outcome' if closes else 'stays open'}"


def _format_local(at: datetime | None) -> str:
    return f"{at.astimezone():%Y-%m-%d %H:%M:%S}" if at else ""
