"""The worker: wiring only. It serves sessions on a task queue, with the models and the tools of its environment.

python worker.py --tools my_package.tools
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import httpx
from temporalio.client import Client
from temporalio.worker import Worker, WorkerTuner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from clew.contract.inputs import TASK_QUEUE
from clew.errors import ClewError
from clew.model.tokens import ENCODINGS, encoding
from clew.session.connection import Clew
from clew_activities.archive import Archive, Store, store_from_env
from clew_activities.archiving import ArchiveActivities
from clew_activities.call_model import ModelActivities
from clew_activities.checkpoint_tokens import Keys, keys_from_env
from clew_activities.checkpointing import CheckpointActivities
from clew_activities.delete_session import DeletionActivities
from clew_activities.fork_session import ForkingActivities
from clew_activities.heartbeat import INTERVAL_SECONDS
from clew_activities.prepare import PrepareActivities
from clew_activities.providers import Providers, Redaction, http_client, providers_from_env
from clew_activities.read_context import ContextActivities
from clew_activities.read_thread import ReadingActivities, Threads
from clew_activities.run_tool import ToolActivities, Tools, ToolsUnusable, load_tools
from clew_activities.serving import Capacity, SessionWorker, capacity_from_env, leave_soon, make_room
from clew_activities.stored_results import Results
from clew_activities.summarize import SummaryActivities
from clew_workflows.protocol.effects import Thresholds
from clew_workflows.protocol.queues import model_queue, tool_queue
from clew_workflows.restoring import RestoreSession
from clew_workflows.services import ERRANDS
from clew_workflows.session import AgentSession
from clew_workflows.shell.payload_converter import tolerant

GRACE = timedelta(seconds=20)
"""What runs at a stop has this long to finish; then another worker takes it over."""

DEFAULT_THRESHOLDS = Thresholds()
DEFAULT_CAPACITY = Capacity()

# Pure and deterministic, and loaded once instead of once a session.
_PASSED_THROUGH = ("annotated_types", "clew", "clew_workflows", "pydantic", "pydantic_core", "rfc8785", "tiktoken")

log = logging.getLogger("clew.worker")


class RedactingFormatter(logging.Formatter):
    """Log lines without secrets: messages, arguments, exceptions with all their causes, stacks."""

    def __init__(self, redaction: Redaction) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._redaction = redaction

    def format(self, record: logging.LogRecord) -> str:
        """The whole record as text, without secrets."""
        return self._redaction.text(super().format(record))


def make_worker(
    client: Client,
    *,
    task_queue: str,
    providers: Providers,
    tools: Tools,
    http: httpx.AsyncClient,
    store: Store,
    keys: Keys | None = None,
    thresholds: Thresholds = DEFAULT_THRESHOLDS,
    capacity: Capacity = DEFAULT_CAPACITY,
) -> SessionWorker:
    """A worker for sessions.

    Raises:
        EncodingUnavailable: a vocabulary cannot be loaded; a worker that counted otherwise would do harm.
    """
    load_encodings()
    config = client.config()
    config["data_converter"] = tolerant(client.data_converter)
    archive = Archive(store, client.namespace)
    archiving = ArchiveActivities(archive)
    checkpointing = CheckpointActivities(keys or Keys(), tools, archive, client.namespace)
    config = client.config()
    config["data_converter"] = tolerant(client.data_converter)
    serving = Client(**config)
    running = ToolActivities(tools, Results(archive))

    def worker(
        queue: str, slots: int, activities: Sequence[Callable[..., Any]], workflows: Sequence[type] = ()
    ) -> Worker:
        return Worker(
            serving,
            task_queue=queue,
            workflows=workflows,
            activities=activities,
            tuner=WorkerTuner.create_fixed(activity_slots=slots),
            workflow_runner=sandbox(),
            graceful_shutdown_timeout=GRACE,
            # A killed worker's calls are taken over within seconds: its queries must not wait long for it either.
            sticky_queue_schedule_to_start_timeout=timedelta(seconds=2),
            max_heartbeat_throttle_interval=timedelta(seconds=INTERVAL_SECONDS),
            default_heartbeat_throttle_interval=timedelta(seconds=INTERVAL_SECONDS),
        )

    models: list[Callable[..., Any]] = [
        ModelActivities(providers, http).call_model,
        SummaryActivities(providers, http, Threads(archive)).summarize,
    ]
    others: list[Callable[..., Any]] = [
        PrepareActivities(providers, tools, archive, thresholds).prepare,
        archiving.archive,
        archiving.thaw,
        archiving.recall,
        checkpointing.sign_checkpoint,
        checkpointing.open_checkpoint,
        checkpointing.put_context,
        ReadingActivities(archive).read_thread,
        ContextActivities(archive).read_context,
        ForkingActivities(archive).fork_session,
        DeletionActivities(archive).delete_session,
    ]
    return SessionWorker(
        [
            worker(model_queue(task_queue), capacity.model_calls, models),
            worker(tool_queue(task_queue), capacity.tool_calls, [running.run_tool]),
            worker(task_queue, capacity.store_calls, others, [AgentSession, RestoreSession, *ERRANDS]),
        ],
        running,
    )


def thresholds_from_env(env: Mapping[str, str]) -> Thresholds:
    """When a session goes on in a new run of its workflow: `CLEW_ROLLOVER_EVENTS`, `_BYTES`, `_UPDATES`, `_SIGNALS`.

    Raises:
        ValueError: one of them is no number, or none that the server's limits allow.
    """
    given = {
        name: env[variable]
        for name in Thresholds.model_fields
        if (variable := f"CLEW_ROLLOVER_{name.upper()}") in env
    }
    return Thresholds.model_validate(given)


def load_encodings() -> None:
    """Load every vocabulary before there is work: within a workflow's task it would take too long.

    Raises:
        EncodingUnavailable: one cannot be had.
    """
    for name in ENCODINGS:
        encoding(name)


def sandbox() -> SandboxedWorkflowRunner:
    """Where workflow code runs, here and wherever histories are replayed."""
    restrictions = SandboxRestrictions.default.with_passthrough_modules(*_PASSED_THROUGH)
    return SandboxedWorkflowRunner(restrictions=restrictions)


async def serve(task_queue: str, providers: Providers, tools: Tools, store: Store) -> None:
    """Connect as the environment says and serve until SIGTERM or SIGINT.

    Raises:
        ServerUnreachable: no server answers.
    """
    capacity = capacity_from_env(os.environ)
    make_room(asyncio.get_running_loop(), capacity)
    clew = await Clew.connect(task_queue=task_queue)
    stopped = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(name, stopped.set)
    async with http_client() as http:
        worker = make_worker(
            clew.temporal,
            task_queue=task_queue,
            providers=providers,
            tools=tools,
            http=http,
            store=store,
            keys=keys_from_env(os.environ),
            thresholds=thresholds_from_env(os.environ),
            capacity=capacity,
        )
        async with worker:
            log.info("models: %s; tools: %s", ", ".join(providers.names) or "none", ", ".join(tools) or "none")
            log.info("worker ready: task queue %r", task_queue)
            await stopped.wait()
            log.info("stopping: running calls have %d seconds to finish", GRACE.total_seconds())
    leave_soon()


def log_without_secrets(redaction: Redaction) -> None:
    """Log to standard error, and no secret with it."""
    handler = logging.StreamHandler()
    handler.setFormatter(RedactingFormatter(redaction))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("httpx").setLevel(logging.WARNING)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--task-queue", default=os.environ.get("CLEW_TASK_QUEUE") or TASK_QUEUE)
    parser.add_argument(
        "--tools",
        default=os.environ.get("CLEW_TOOLS", ""),
        help="modules that define tools, separated by commas (CLEW_TOOLS)",
    )
    args = parser.parse_args()
    redaction = Redaction()
    try:
        providers = providers_from_env(os.environ)
        redaction = providers.redaction
        log_without_secrets(redaction)
        load_encodings()
        tools = load_tools(name.strip() for name in args.tools.split(",") if name.strip())
        asyncio.run(serve(args.task_queue, providers, tools, store_from_env(os.environ)))
    except (ClewError, ToolsUnusable, ValueError) as error:
        sys.exit(redaction.text(f"the worker cannot start: {error}"))


if __name__ == "__main__":
    main()
