"""The worker's command line, and its process from start to end."""

from __future__ import annotations

import argparse
import asyncio
import gc
import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import uvloop

from clew.session.connection import Clew, make_runtime
from clew_activities.providers import Redaction, make_http_client
from clew_activities.providers.redaction import find_suspected_secrets
from clew_activities.telemetry.interceptor import trace_with
from clew_activities.telemetry.metrics import BUCKETS
from clew_activities.tools.registry import AgentsUnusable, ToolsUnusable
from clew_activities.worker.assembly import SessionWorker, make_worker
from clew_activities.worker.environment import (
    ALL_WORK,
    MAX_RATE,
    MIN_RATE,
    Capacity,
    Work,
    WorkerSettings,
    parse_rate,
    read_settings,
    split_names,
)
from clew_activities.worker.health import check_server, check_store, serve_health
from clew_activities.worker.observability import (
    ObservabilitySettings,
    list_queues,
    log_without_secrets,
    read_observability_settings,
    read_spans,
    report_backlog,
)
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.encryption import PLAIN_VARIABLE, read_encryption

OPEN_FILES = 65_536
"""Limit of open files that the process requests from the system: each model call has a connection."""
LEAVE_SECONDS = 3.0
"""Seconds that running threads may delay the end of the process."""
END_SECONDS = 10.0
"""Seconds after the grace time at which the process ends, even if something still runs."""
GARBAGE = 10_000
"""New objects, less those that are gone, after which Python looks for cycles among them. The interpreter has 700."""

log = logging.getLogger("clew.worker")


def main(arguments: Sequence[str] | None = None, *, program: str | None = None) -> None:
    """Run the worker until a signal. If it cannot start, exit with one line that says why.

    Args:
        arguments: The command's arguments; None: those of the process.
        program: The command's name in the help; None: as the process was started.
    """
    args = make_parser(program).parse_args(arguments)
    # `clew worker` is a script elsewhere: find the modules of the current folder all the same.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    # Until the environment has been read, its secrets are only guessed by the names of the variables.
    redaction = Redaction(find_suspected_secrets(os.environ))
    try:
        settings = replace(
            read_settings({**os.environ, "CLEW_TOOLS": args.tools, "CLEW_AGENTS": args.agents}),
            task_queue=args.task_queue,
            serves=args.serve,
            max_calls_per_second=args.max_calls_per_second,
        )
        redaction = settings.providers.redaction
        observability = read_observability_settings(os.environ)
        encryption = read_encryption(os.environ)
        log_without_secrets(redaction, observability.log_format, hides_texts=encryption.is_on)
        if encryption.is_on and encryption.accepts_plain:
            log.warning(
                "%s is set: what is not encrypted is believed, whatever program has written it", PLAIN_VARIABLE
            )
        load_encodings()
        with trace_with(read_spans(os.environ)), asyncio.Runner(loop_factory=WorkerLoop) as runner:
            runner.run(serve(settings, observability))
    except (AgentsUnusable, ClewError, ToolsUnusable, ValueError) as error:
        sys.exit(redaction.redact_text(f"the worker cannot start: {error}"))


def make_parser(program: str | None = None) -> argparse.ArgumentParser:
    """Make the parser of the worker's arguments; their defaults are those of the environment."""
    parser = argparse.ArgumentParser(
        prog=program,
        description="Serve Clew's sessions on a task queue, until SIGTERM or Ctrl-C. The environment has the "
        "server's address (TEMPORAL_ADDRESS), the providers' keys and the archive's store (CLEW_STORE).",
    )
    parser.add_argument(
        "--task-queue",
        metavar="NAME",
        default=os.environ.get("CLEW_TASK_QUEUE") or TASK_QUEUE,
        help=f"the sessions' task queue (CLEW_TASK_QUEUE; default: {TASK_QUEUE})",
    )
    parser.add_argument(
        "--tools",
        metavar="MODULES",
        default=os.environ.get("CLEW_TOOLS", ""),
        help="modules that define tools, separated by commas; in the current folder or installed (CLEW_TOOLS)",
    )
    parser.add_argument(
        "--agents",
        metavar="MODULES",
        default=os.environ.get("CLEW_AGENTS", ""),
        help="modules that define agents, likewise; their tools are the worker's, too (CLEW_AGENTS)",
    )
    parser.add_argument(
        "--serve",
        metavar="WORK",
        type=_read_work,
        default=os.environ.get("CLEW_SERVE") or ",".join(ALL_WORK),
        help=f"what to serve, separated by commas (CLEW_SERVE; default: {','.join(ALL_WORK)}). Sessions need workers "
        "for all of it. A worker for tools alone also serves those with this task queue: tool(task_queue=NAME)",
    )
    parser.add_argument(
        "--max-calls-per-second",
        metavar="NUMBER",
        type=_read_rate,
        help="the most tool calls that all workers of the task queue together begin in a second",
    )
    return parser


def _read_rate(text: str) -> float:
    rate = parse_rate(text)
    if rate is None:
        raise argparse.ArgumentTypeError(f"a number from {MIN_RATE} to {MAX_RATE:.0f}, not {text[:50]!r}")
    return rate


def _read_work(text: str) -> tuple[Work, ...]:
    names = set(split_names(text))
    if not names or not names <= set(ALL_WORK):
        raise argparse.ArgumentTypeError(f"one or more of {','.join(ALL_WORK)}, not {text[:50]!r}")
    return tuple(work for work in ALL_WORK if work in names)


async def serve(settings: WorkerSettings, observability: ObservabilitySettings) -> None:
    """Connect to Temporal as the `TEMPORAL_…` variables say, and serve until SIGTERM or SIGINT.

    Raises:
        ServerUnreachable: No Temporal server answers.
        ValueError: A port cannot be opened.
    """
    loop = asyncio.get_running_loop()
    raise_limits(loop, settings.capacity)
    runtime = make_runtime(observability.metrics_address, BUCKETS)
    clew = await Clew.connect(task_queue=settings.task_queue, runtime=runtime)
    stopped = asyncio.Event()
    deadline = settings.grace.total_seconds() + END_SECONDS

    def stop(*_args: object) -> None:
        end_by(deadline)
        loop.call_soon_threadsafe(stopped.set)

    # Not the event loop's handlers: an activation that runs on its thread for ever would hold them up.
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
    async with make_http_client() as http:
        worker = make_worker(clew.temporal, settings, http)
        checks = {
            "server": check_server(clew.temporal),
            "store": check_store(settings.store),
            "pollers": worker.check,
        }
        queues = list_queues(settings) if observability.metrics_address else []
        async with (
            serve_health(observability.health_address, checks),
            worker,
            report_backlog(clew.temporal, runtime.metric_meter, queues),
        ):
            registered: dict[str, Iterable[str]] = {
                "models": settings.providers.names,
                "tools": worker.registry.tools,
                "agents": worker.registry.agents,
            }
            log.info("%s", "; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in registered.items()))
            part = "" if set(settings.serves) == set(ALL_WORK) else f", only {' and '.join(settings.serves)}"
            version = settings.deployment and settings.deployment.version.to_canonical_string()
            part += f", version {version}" if version else ""
            _spare_collector()
            log.info("worker ready: task queue %r%s", settings.task_queue, part)
            stuck = await _wait_for_end(stopped, worker)
            if stuck:
                log.error("%d sessions are stuck in the cache: the process ends, start another one", stuck)
                end_by(deadline)
            worker.stop_serving()
            log.info("stopping: running calls have %d seconds to finish", settings.grace.total_seconds())
    exit_soon(code=1 if stuck else 0)


class WorkerLoop(uvloop.Loop):
    """uvloop's event loop, which takes less CPU than asyncio's, with asyncio's way to look host names up.

    uvloop looks them up in four threads: a few lookups that hang would block those of all other calls. HTTP clients
    look a name up before they connect.
    """

    async def getaddrinfo(
        self,
        host: str | bytes | None,
        port: str | bytes | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002 - asyncio's name
        proto: int = 0,
        flags: int = 0,
    ) -> list[Any]:
        """Look a host name up in a thread of the default executor, which `raise_limits` makes large enough."""
        return await self.run_in_executor(None, socket.getaddrinfo, host, port, family, type, proto, flags)


def raise_limits(loop: asyncio.AbstractEventLoop, capacity: Capacity) -> None:
    """Raise the process limits for so many calls: threads for host name lookups, and open files.

    asyncio looks host names up in a few threads: a few lookups that hang would block those of all other calls.
    """
    loop.set_default_executor(ThreadPoolExecutor(capacity.model_calls, thread_name_prefix="clew-lookup"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _wait_for_end(stopped: asyncio.Event, worker: SessionWorker) -> int:
    """Wait for a signal, or until the worker is stuck; returns how many of its sessions are."""
    waiting = asyncio.create_task(stopped.wait())
    watching = asyncio.create_task(worker.wait_for_stuck())
    try:
        await asyncio.wait([waiting, watching], return_when=asyncio.FIRST_COMPLETED)
        return watching.result() if watching.done() else 0
    finally:
        waiting.cancel()
        watching.cancel()


def end_by(seconds: float) -> None:
    """End the process with an error after some seconds, if it still runs then.

    The SDK waits without end for workflows that it cannot remove from its cache.
    """
    threading.Thread(target=_end, args=(seconds,), name="clew-end", daemon=True).start()


def _end(seconds: float) -> None:
    time.sleep(seconds)
    log.error("the process ends although it has not stopped within %g seconds", seconds)
    logging.shutdown()
    os._exit(1)


def _spare_collector() -> None:
    """Have Python's collector look at what sessions make, seldom, and no more at what the process keeps for ever.

    A session that leaves the cache leaves 80 KB in cycles. With these numbers, some 300 of them make the collector
    look at everything.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, 5, 1)


def exit_soon(code: int = 0) -> None:
    """End the process within `LEAVE_SECONDS`, even if threads of tools and lookups still run.

    Python would wait for every thread that is not a daemon, and for every thread of an executor.
    """
    threading.Thread(target=_leave, args=(code,), name="clew-leave", daemon=True).start()
    if code:
        sys.exit(code)


def _leave(code: int) -> None:
    time.sleep(LEAVE_SECONDS)
    names = sorted({thread.name for thread in threading.enumerate() if not thread.daemon})
    log.warning("the process ends although threads still run: %s", ", ".join(names))
    logging.shutdown()
    os._exit(code)
