"""Everything that sessions with a user's own tools need, on one machine: the work of `clew dev`."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from clew.local.child import StartFailed
from clew.local.model import model_server
from clew.local.temporal import TemporalServer, persistent_server, temporal_server
from clew.local.worker_process import Worker, worker_process
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.extras import name_install

LOCAL_MODEL = "local:smollm2"
"""The embedded model."""
PORT = 7233
UI_PORT = 8233
STUDIO_PORT = 8240
FOLDER = Path(".clew")
"""Where `clew dev` keeps its sessions."""
_RESTART_SECONDS = 1.0
_DEBOUNCE_MILLISECONDS = 200
_IGNORED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}

StartWorker = Callable[[], AbstractAsyncContextManager[Worker]]
StartStudio = Callable[[TemporalServer], AbstractAsyncContextManager[str]]
"""Starts the studio for a server; yields its address."""


@dataclass(frozen=True, kw_only=True)
class Development:
    """What `clew dev` runs.

    Attributes:
        tools: Modules that define tools, importable in the current folder or installed.
        agents: Modules that define agents, separated by commas.
        task_queue: The worker's task queue.
        model: The model that the printed commands name, as `provider:name`; None: the embedded one, which is started.
        port: The port of the Temporal server.
        ui_port: The port of its web UI.
        studio: Starts the studio.
        studio_port: Its port.
        folder: Holds the sessions, so that they survive a restart; None: they are lost at the end.
        logs_to_stderr: Whether the worker's output goes to stderr, apart from the reports.
        program: How `clew` is started in the user's shell.
    """

    tools: Sequence[str]
    task_queue: str
    agents: str = ""
    model: str | None = None
    port: int = PORT
    ui_port: int = UI_PORT
    studio: StartStudio
    studio_port: int = STUDIO_PORT
    folder: Path | None = None
    logs_to_stderr: bool = False
    program: str = "clew"

    def write_command(self, model: str) -> str:
        """Write the command that runs the same with another model."""
        folder = ["--folder", str(self.folder)] if self.folder else ["--ephemeral"]
        options = {
            "--tools": ",".join(self.tools),
            "--agents": self.agents,
            "--task-queue": "" if self.task_queue == TASK_QUEUE else self.task_queue,
            "--port": "" if self.port == PORT else str(self.port),
            "--ui-port": "" if self.ui_port == UI_PORT else str(self.ui_port),
            "--studio-port": "" if self.studio_port == STUDIO_PORT else str(self.studio_port),
        }
        words = [word for option, value in options.items() if value for word in (option, value)]
        folder = [] if self.folder == FOLDER else folder
        return f"{self.program} {shlex.join(['dev', '--model', model, *words, *folder])}"


async def run_until_interrupted(development: Development, report: Callable[[str], None]) -> None:
    """Start all parts, restart the worker when code changes, and stop all parts at SIGINT, SIGTERM or SIGHUP.

    Args:
        development: What to run.
        report: Prints one line.

    Raises:
        StartFailed: The Temporal server, the embedded model or the studio did not start.
    """
    loop = asyncio.get_running_loop()
    working = asyncio.ensure_future(_run(development, report))
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    for name in signals:
        loop.add_signal_handler(name, working.cancel)
    try:
        with suppress(asyncio.CancelledError):
            await working
    finally:
        for name in signals:
            loop.remove_signal_handler(name)


async def _run(development: Development, report: Callable[[str], None]) -> None:
    async with AsyncExitStack() as stack:
        report("starting the Temporal server" + ("" if development.model else " and the embedded model") + " …")
        server = await stack.enter_async_context(_make_server(development))
        settings = {"CLEW_STORE": os.environ.get("CLEW_STORE") or server.store, "CLEW_AGENTS": development.agents}
        if development.model is None:
            settings["CLEW_PROVIDER_LOCAL_BASE_URL"] = await _start_model(stack, development)

        def start() -> AbstractAsyncContextManager[Worker]:
            return worker_process(
                server.address,
                env=settings,
                tools=development.tools,
                namespace=server.namespace,
                task_queue=development.task_queue,
                on_output=partial(_print_output, sys.stderr if development.logs_to_stderr else sys.stdout),
            )

        changed: asyncio.Queue[list[str]] = asyncio.Queue()
        worker = await stack.enter_async_context(ReloadingWorker(start, report))
        watching = asyncio.create_task(_watch(development, changed))
        stack.callback(watching.cancel)
        studio = await stack.enter_async_context(development.studio(server))
        for line in _describe(development, server, settings["CLEW_STORE"], studio):
            report(line)
        report("ready" if await worker.replace() else "the worker cannot start: save a file to try again")
        while True:
            paths = await _await_change(changed, watching)
            report(f"changed: {', '.join(paths)}: starting a worker with the new code")
            if await worker.replace():
                report("ready with the new code")
            else:
                serving = "the worker before it still serves" if worker.serving else "no worker serves"
                report(f"the new worker cannot start, {serving}: save a file to try again")


def _make_server(development: Development) -> AbstractAsyncContextManager[TemporalServer]:
    port, ui_port = development.port, development.ui_port
    if development.folder is None:
        return temporal_server(port=port, ui_port=ui_port)
    return persistent_server(development.folder, port=port, ui_port=ui_port)


async def _start_model(stack: AsyncExitStack, development: Development) -> str:
    try:
        return await stack.enter_async_context(model_server())
    except StartFailed as error:
        raise StartFailed(f"{error}\nor name a model: {development.write_command('openai:gpt-4o')}") from None


async def _watch(development: Development, changed: asyncio.Queue[list[str]]) -> None:
    async for paths in watch_code(Path.cwd(), development.tools):
        changed.put_nowait(paths)


async def _await_change(changed: asyncio.Queue[list[str]], watching: asyncio.Task[None]) -> list[str]:
    """Wait for the next change, and take all changes that have been noticed by then.

    Raises:
        StartFailed: The library that watches is not installed.
    """
    getting = asyncio.ensure_future(changed.get())
    try:
        await asyncio.wait([getting, watching], return_when=asyncio.FIRST_COMPLETED)
        if not getting.done():
            watching.result()
        paths = set(await getting)
    finally:
        getting.cancel()
    while not changed.empty():
        paths |= set(changed.get_nowait())
    return sorted(paths)


def _describe(development: Development, server: TemporalServer, store: str, studio: str) -> list[str]:
    kept = f"sessions are kept in {development.folder}" if development.folder else "sessions are lost at the end"
    queue = "" if development.task_queue == TASK_QUEUE else f" --task-queue {shlex.quote(development.task_queue)}"
    tool = " --tool NAME" if development.tools else ""
    return [
        f"Temporal server at {server.address}; {kept}",
        f"UI at {server.ui_address}",
        f"studio at {studio}",
        "in another terminal:",
        f"  export TEMPORAL_ADDRESS={server.address} CLEW_STORE={shlex.quote(store)}",
        f"  {development.program} chat my-session --model {development.model or LOCAL_MODEL}{tool}{queue}",
        "Ctrl-C stops everything",
    ]


def _print_output(stream: TextIO, data: bytes) -> None:
    with suppress(BrokenPipeError):
        stream.buffer.write(data)
        stream.buffer.flush()


# A worker that is replaced when the user's code changes.


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
        raise StartFailed(f"no watchfiles: {name_install('local')}") from None
    root = Path(os.getcwd(), folder)

    def is_code(_change: Change, file: str) -> bool:
        path = Path(file).relative_to(root)
        hidden = any(part.startswith(".") or part in _IGNORED_FOLDERS for part in path.parts)
        return not hidden and (path.suffix == ".py" or str(path) in named)

    async for changes in awatch(root, watch_filter=is_code, debounce=_DEBOUNCE_MILLISECONDS):
        yield sorted({str(Path(file).relative_to(root)) for _change, file in changes})


__all__ = [
    "FOLDER",
    "LOCAL_MODEL",
    "PORT",
    "STUDIO_PORT",
    "UI_PORT",
    "Development",
    "StartFailed",
    "run_until_interrupted",
]
