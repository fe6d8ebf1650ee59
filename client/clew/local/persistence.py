"""A Temporal server whose sessions survive it, in a folder that one process uses at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from clew.local.child import StartFailed
from clew.local.temporal import TemporalServer, temporal_server


@asynccontextmanager
async def persistent_server(
    folder: Path, *, port: int | None = None, ui_port: int | None = None
) -> AsyncIterator[TemporalServer]:
    """Run a Temporal server with its database and the sessions' archives in `folder`.

    Raises:
        StartFailed: Another process uses the folder, or the server did not start (see `temporal_server`).
    """
    with lock_folder(folder):
        database = Path(os.getcwd(), folder, "temporal.db")
        async with temporal_server(port=port, ui_port=ui_port, db_filename=database) as server:
            yield server


@contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Lock the folder while the context lasts, so that no second server uses its database. Makes it if it is missing.

    Raises:
        StartFailed: Another process has locked it, or it cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ".gitignore").write_text("*\n")
        file = (folder / "lock").open("w")
    except OSError as error:
        raise StartFailed(f"cannot write to the folder {folder}: {error.strerror}") from error
    with file as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartFailed(f"another process serves the sessions in {folder}: stop it first") from None
        yield
