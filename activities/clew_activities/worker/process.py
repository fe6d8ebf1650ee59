"""The worker's command line, and its process from start to end."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence

from clew.contract import TASK_QUEUE
from clew.errors import ClewError
from clew.model.tokens import load_encodings
from clew.session.connection import Clew
from clew_activities.providers import Redaction, make_http_client
from clew_activities.providers.redaction import find_suspected_secrets
from clew_activities.registry import AgentsUnusable
from clew_activities.tools import ToolsUnusable
from clew_activities.worker.assembly import GRACE, make_tool_worker, make_worker
from clew_activities.worker.capacity import make_room
from clew_activities.worker.environment import WorkerEnvironment, read_environment
from clew_activities.worker.logs import log_without_secrets

LEAVE_SECONDS = 3.0
"""Seconds that running threads may delay the end of the process."""

MIN_RATE = 0.001
MAX_RATE = 100_000.0
"""Least and largest value of `--max-calls-per-second`."""

log = logging.getLogger("clew.worker")


def main(arguments: Sequence[str] | None = None, *, program: str | None = None) -> None:
    """Run the worker until a signal. If it cannot start, exit with one line that says why.

    Args:
        arguments: The command's arguments; None: those of the process.
        program: The command's name in the help; None: as the process was started.
    """
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
        "--only-tools",
        action="store_true",
        help="serve no sessions, only calls of tools with this task queue: tool(task_queue=NAME)",
    )
    parser.add_argument(
        "--max-calls-per-second",
        metavar="NUMBER",
        type=_read_rate,
        help="the most tool calls that all workers of the task queue together begin in a second",
    )
    args = parser.parse_args(arguments)
    # `clew worker` is a script elsewhere: find the modules of the current folder all the same.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    # Until the environment has been read, its secrets are only guessed by the names of the variables.
    redaction = Redaction(find_suspected_secrets(os.environ))
    try:
        environment = read_environment(os.environ, args.tools, args.agents)
        redaction = environment.providers.redaction
        log_without_secrets(redaction)
        load_encodings()
        serving = serve(
            args.task_queue, environment, only_tools=args.only_tools, max_calls_per_second=args.max_calls_per_second
        )
        asyncio.run(serving)
    except (AgentsUnusable, ClewError, ToolsUnusable, ValueError) as error:
        sys.exit(redaction.redact_text(f"the worker cannot start: {error}"))


def _read_rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = 0
    # Temporal takes 0 for no limit.
    if not MIN_RATE <= rate <= MAX_RATE:
        raise argparse.ArgumentTypeError(f"a number from {MIN_RATE} to {MAX_RATE:.0f}, not {text[:50]!r}")
    return rate


async def serve(
    task_queue: str,
    environment: WorkerEnvironment,
    *,
    only_tools: bool = False,
    max_calls_per_second: float | None = None,
) -> None:
    """Connect to Temporal as the `TEMPORAL_…` variables say, and serve until SIGTERM or SIGINT.

    Args:
        task_queue: The task queue.
        environment: The worker's configuration.
        only_tools: Serve no sessions, only calls of tools.
        max_calls_per_second: The most tool calls that all workers of the task queue together begin in a second.

    Raises:
        ServerUnreachable: No Temporal server answers.
    """
    loop = asyncio.get_running_loop()
    make_room(loop, environment.capacity)
    clew = await Clew.connect(task_queue=task_queue)
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopped.set)
    async with make_http_client() as http:
        if only_tools:
            worker = make_tool_worker(
                clew.temporal,
                task_queue=task_queue,
                tools=environment.tools,
                agents=environment.agents,
                store=environment.store,
                capacity=environment.capacity,
                max_calls_per_second=max_calls_per_second,
            )
        else:
            worker = make_worker(
                clew.temporal,
                task_queue=task_queue,
                providers=environment.providers,
                tools=environment.tools,
                agents=environment.agents,
                http=http,
                store=environment.store,
                keys=environment.keys,
                thresholds=environment.thresholds,
                capacity=environment.capacity,
                mcp=environment.mcp,
                max_calls_per_second=max_calls_per_second,
            )
        async with worker:
            registered: dict[str, Iterable[str]] = {"models": environment.providers.names} if not only_tools else {}
            registered |= {"tools": worker.registry.tools, "agents": worker.registry.agents}
            log.info("%s", "; ".join(f"{kind}: {', '.join(names) or 'none'}" for kind, names in registered.items()))
            log.info("worker ready: task queue %r%s", task_queue, ", only tools" if only_tools else "")
            await stopped.wait()
            log.info("stopping: running calls have %d seconds to finish", GRACE.total_seconds())
    exit_soon()


def exit_soon() -> None:
    """End the process within `LEAVE_SECONDS`, even if threads of tools and lookups still run.

    Python would wait for every thread that is not a daemon, and for every thread of an executor.
    """
    threading.Thread(target=_leave, name="clew-leave", daemon=True).start()


def _leave() -> None:
    time.sleep(LEAVE_SECONDS)
    names = sorted({thread.name for thread in threading.enumerate() if not thread.daemon})
    log.warning("the process ends although threads still run: %s", ", ".join(names))
    logging.shutdown()
    os._exit(0)
