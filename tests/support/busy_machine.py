"""What keeps this process's workers apart from the load of the machine."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from temporalio.worker import _workflow

TASK_SECONDS = 2
"""Most seconds of computing in a workflow task: the SDK's own limit of a task's time."""
_STALLED_SECONDS = 8
"""Seconds after which a task fails that waits. The server's limit is 10."""


def stop_collecting_garbage() -> None:
    """Look for no garbage while pytest collects the tests.

    There is nearly none, and the search took a third of the time.
    """
    gc.disable()


def freeze_collected() -> None:
    """Take all objects that exist out of the garbage collection, and begin it again.

    Eight thousand collected tests are over a million objects. Each full collection would go through them, and stop
    every thread of the process for a second.
    """
    gc.freeze()
    gc.enable()


@contextmanager
def count_computing() -> Iterator[None]:
    """Limit what workflow tasks compute, instead of the time that passes.

    The SDK fails a workflow task that does not end within two seconds. On a busy machine so do threads that compute
    nothing.
    """
    worker: Any = _workflow._WorkflowWorker
    running: Any = _workflow._RunningWorkflow
    make, activate = worker.__init__, running.activate

    def make_patient(self: Any, **options: Any) -> None:
        make(self, **options)
        # None: the SDK's debug mode has no limit.
        if self._deadlock_timeout_seconds is not None:
            self._deadlock_timeout_seconds = _STALLED_SECONDS

    def activate_and_measure(self: Any, activation: Any) -> Any:
        begun = time.thread_time()
        completion = activate(self, activation)
        if (seconds := time.thread_time() - begun) > TASK_SECONDS:
            raise RuntimeError(f"the workflow task has computed for {seconds:.1f} s")
        return completion

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "__init__", make_patient)
        patch.setattr(running, "activate", activate_and_measure)
        yield
