"""`clew schedule`: make, list, show, change and delete schedules."""

from __future__ import annotations

import uuid
from datetime import timedelta

import pytest
import typer

from clew.cli.schedule_commands import parse_duration, parse_time
from clew.schedules import ACTION_PREFIX
from tests.support.command_line import read_error, run_clew
from tests.support.stack import Stack
from tests.support.waiting import wait_until

LATER = ("--cron", "0 6 1 1 *", "--time-zone", "Europe/Berlin")


async def test_a_schedule_is_made_triggered_shown_and_deleted(stack: Stack) -> None:
    """Its message reaches the session; each command prints JSON for scripts, or a line."""
    session, address, name = await stack.open(), stack.server.address, f"schedule-{uuid.uuid4().hex[:12]}"
    target = ("--task-queue", stack.clew.task_queue)
    made = await run_clew(
        *("schedule", "create", name, "tick", "--session", session.id, *LATER, "--overlap", "buffer-one", "--paused"),
        *(*target, "--json"),
        address=address,
    )
    assert made.json == {"schedule_id": name, "status": "created"}
    again = await run_clew("schedule", "create", name, "tick", "--session", "a", *LATER, address=address)
    assert read_error(again) == (1, "invalid_input")
    changed = await run_clew("schedule", "update", name, "--text", "tock", "--note", "soon", address=address)
    assert (changed.code, name in changed.out) == (0, True)
    await run_clew("schedule", "trigger", name, address=address)

    async def has_heard() -> bool:
        return [entry.payload["status"] async for entry in session.read(kind="run")] == ["completed"]

    await wait_until(has_heard)
    shown = (await run_clew("schedule", "show", name, "--json", address=address)).json
    assert (shown["times"], shown["time_zone"], shown["overlap"], shown["note"], shown["paused"], shown["runs"]) == (
        *(["0 6 1 1 *"], "Europe/Berlin", "buffer_one", "soon", True, 1),
    )
    assert shown["message"] == {"session_id": session.id, "message": {"content": "tock", "on_busy": "queue"}}
    assert shown["recent"][0]["workflow_id"].startswith(f"{ACTION_PREFIX}{name}-")
    listed = await run_clew("schedule", "list", address=address)
    (line,) = [line for line in listed.out.splitlines() if line.startswith(f"{name}\t")]
    assert line.split("\t")[1:3] == ["paused", "0 6 1 1 *"]
    await run_clew("schedule", "delete", name, address=address)
    gone = await run_clew("schedule", "show", name, address=address)
    assert read_error(gone) == (1, "not_found")


@pytest.mark.parametrize("text", ["", "5", "m", "1.5h", "-1d", "5 m", "1y"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """A number and one of the letters s, m, h, d and w."""
    with pytest.raises(typer.BadParameter):
        parse_duration(text)


def test_durations_and_times_are_read() -> None:
    """A time without a time zone is local."""
    assert parse_duration("90s") == timedelta(seconds=90)
    assert parse_duration("2w") == timedelta(days=14)
    assert parse_time("2026-11-01T06:00").tzinfo is not None
    assert parse_time("2026-11-01T06:00+02:00").utcoffset() is not None
    with pytest.raises(typer.BadParameter):
        parse_time("tomorrow")
