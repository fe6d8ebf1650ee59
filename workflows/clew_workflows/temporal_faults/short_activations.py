"""The SDK hands each workflow task to another thread, though most take a millisecond: run short ones on the loop's.

What a cached session does next takes a millisecond, and all threads share one processor. Without the hand-over to a
thread and back, a turn takes 7 % less of the worker's CPU.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#short_activations.
Can go: when the SDK runs short activations without a hand-over. To leave it out, make the worker with a
`ThreadPoolExecutor(THREADS)`: nothing else depends on it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import Context
from typing import ParamSpec, TypeVar

from clew_workflows.temporal_faults.private_parts import WorkflowActivation

THREADS = 2
"""Threads for all other activations. Twenty at once would each take twenty times as long: all share a processor."""
SHORT_BYTES = 16_384
"""Largest activation that is short, in bytes: its texts are tokenized in 3 ms."""

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


class WorkflowExecutor(ThreadPoolExecutor):
    """Runs workflow activations for Temporal's SDK.

    Long ones wait for one of `THREADS` threads, while short ones of other sessions come between.

    A replay, a query and a large input may take longer: they run on threads, so that the event loop goes on with
    streams and heartbeats meanwhile. What remains takes a tenth of a second at most: a rollover of a session with
    megabytes of live text, or the tokens of queued texts. The SDK can interrupt a deadlock on a thread alone.
    """

    def submit(
        self, fn: Callable[_Parameters, _Result], /, *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> Future[_Result]:
        """Run an activation. The SDK calls this on the event loop's thread."""
        if not _is_short(*args):
            return super().submit(fn, *args, **kwargs)
        loop, future = asyncio.get_running_loop(), Future[_Result]()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(fn(*args, **kwargs))
            except BaseException as error:
                future.set_exception(error)
            finally:
                # A workflow has an event loop of its own, after which the SDK leaves the thread without one.
                asyncio._set_running_loop(loop)

        # Outside the SDK's task, and without its context variables: as on a thread.
        loop.call_soon(run, context=Context())
        return future


def _is_short(*args: object) -> bool:
    match args:
        case [WorkflowActivation() as activation]:
            queries = any(job.HasField("query_workflow") for job in activation.jobs)
            return not (activation.is_replaying or queries) and activation.ByteSize() <= SHORT_BYTES
        case _:
            return False
