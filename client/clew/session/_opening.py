"""Comparing the configuration of `Clew.open` with that of a session that exists already."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from clew.contract import ConfigureInput
from clew.errors import Closed, Interrupted, NotFound, ServerUnreachable, Starting, WorkerUnavailable
from clew.session._reader import read_status
from clew.session.handle import STARTING_SECONDS, SessionHandle

COMPARISON_SECONDS = 2.0
"""Seconds within which an existing session must answer what its configuration is."""

log = logging.getLogger("clew")


async def read_ignored(handle: SessionHandle, requested: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields that a session which exists already has other values of.

    Best effort: a session that does not answer in time is not compared.

    Raises:
        Refusal: The session could not be started.
    """
    if not requested:
        return {}
    give_up_at = time.monotonic() + COMPARISON_SECONDS
    try:
        status = await read_status(handle, seconds=COMPARISON_SECONDS)
        # Until it is prepared, or thawed, a session shows the configuration of its start.
        while status.rev == 0 and time.monotonic() < give_up_at:
            await asyncio.sleep(STARTING_SECONDS)
            status = await read_status(handle, seconds=COMPARISON_SECONDS)
    except Interrupted:
        raise
    except (Closed, NotFound, ServerUnreachable, Starting, WorkerUnavailable):
        return {}
    return find_ignored(handle.session_id, requested, status.config) if status.rev else {}


def find_ignored(session_id: str, requested: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Find the requested fields that a configuration has other values of, with these values. They are logged."""
    ignored = {name: config.get(name) for name, value in requested.items() if not _agrees(value, config.get(name))}
    if ignored:
        changeable = [f"{name}=…" for name in ignored if name in ConfigureInput.model_fields]
        log.warning(
            "session %r exists already, so these fields are ignored: %s%s",
            session_id,
            ", ".join(ignored),
            f". Change them: session.configure({', '.join(changeable)})" if changeable else "",
        )
    return ignored


def _agrees(value: Any, actual: Any) -> bool:
    """Whether a value in force has all that was requested. What was not requested does not matter."""
    if isinstance(value, Mapping) and isinstance(actual, Mapping):
        return all(_agrees(part, actual.get(name)) for name, part in value.items())
    return bool(value == actual)
