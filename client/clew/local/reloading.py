"""A worker that is replaced when the user's code changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Self

from clew.local.child import StartFailed
from clew.local.worker import Worker

_RESTART_SECONDS = 1.0
_DEBOUNCE_MILLISECONDS = 200
_IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}

StartWorker = Callable[[], AbstractAsyncContextManager[Worker]]


class ReloadingWorker:
    """A worker process and its successors. Leaving the context stops all of them.

    A successor starts while its predecessor still serves. When the successor polls, the predecessor finishes its
    calls and ends. If the successor cannot start, the predecessor keeps serving.

    Attributes:
        serving: Whether a worker serves at this moment.
    """

    def __init__(self, start: StartWorker, report: Callable[[str], None]) -> None:
        self._start = start
        self._report = report
        self._retire = asyncio.Event()
        self._hosts: set[asyncio.Task[None]] = set()
        self.serving = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for host in self._hosts:
            host.cancel()
        await asyncio.gather(*self._hosts, return_exceptions=True)

    async def replace(self) -> bool:
        """Start a worker with the code of this moment. Returns whether it serves; otherwise it has said why not."""
        ready = asyncio.get_running_loop().create_future()
        retire = asyncio.Event()
        host = asyncio.create_task(self._host(ready, retire))
        self._hosts.add(host)
        host.add_done_callback(self._hosts.discard)
        try:
            await ready
        except StartFailed:
            return False
        self._retire.set()
        self._retire = retire
        self.serving = True
        return True

    async def _host(self, ready: asyncio.Future[None], retire: asyncio.Event) -> None:
        """Run one worker until it retires."""
        try:
            async with self._start() as worker:
                ready.set_result(None)
                ended, retired = asyncio.ensure_future(worker.wait_for_end()), asyncio.ensure_future(retire.wait())
                try:
                    await asyncio.wait([ended, retired], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    ended.cancel()
                    retired.cancel()
                if retire.is_set():
                    await worker.stop()
                    return
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)
            return
        self.serving = False
        self._report("the worker has ended unexpectedly: starting another")
        await asyncio.sleep(_RESTART_SECONDS)
        if not retire.is_set() and not await self.replace():
            self._report("the worker cannot start: save a file to try again")


async def watch_code(folder: Path, named: Sequence[str] = ()) -> AsyncIterator[list[str]]:
    """Watch the `*.py` files below a folder, and the files `named`; yields the paths that have changed, sorted.

    Folders whose names begin with a dot and installed packages are left out.

    Raises:
        StartFailed: The library that watches is not installed.
    """
    try:
        from watchfiles import Change, awatch  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError:
        raise StartFailed("no watchfiles: pip install 'clew[local]'") from None
    root = Path(os.getcwd(), folder)

    def is_code(_change: Change, file: str) -> bool:
        path = Path(file).relative_to(root)
        hidden = any(part.startswith(".") or part in _IGNORED_FOLDERS for part in path.parts)
        return not hidden and (path.suffix == ".py" or str(path) in named)

    async for changes in awatch(root, watch_filter=is_code, debounce=_DEBOUNCE_MILLISECONDS):
        yield sorted({str(Path(file).relative_to(root)) for _change, file in changes})
