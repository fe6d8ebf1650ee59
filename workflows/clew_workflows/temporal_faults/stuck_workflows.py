"""A workflow that a worker never serves again keeps its slot for ever, and no public part says so: count them.

A task of a workflow that ignores its cancellation keeps the SDK from removing the workflow from the cache, which it
tries again without end.

While the cache is full, several tasks of one workflow may wait for a place in it. When there is one, the SDK begins
with the last, and drops the activation of another if the last needs the history from the server: it waits for ever
for the workflow to answer. If such workflows fill the cache, the worker asks for no further task. The log alone
tells.

The slots of these workflows' tasks stay taken until the process ends, and `Worker.is_running` stays true.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#stuck_workflows.
Can go: when a worker says publicly that it is stuck, or gives up such a workflow, and loses no activation.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from temporalio.worker import Worker

CORE_LOGGER = logging.getLogger("temporalio")
"""What the SDK's core logs comes here: `Clew.connect` says so."""
LOST = "Extra buffered run should not have produced an activation"
"""The words by which the core says that it has lost an activation."""


class StuckWorkflows(logging.Handler):
    """Counts the workflows that are stuck in this process, from the begin of `watch` on."""

    def __init__(self, workers: Iterable[Worker]) -> None:
        super().__init__(logging.ERROR)
        self._workers = tuple(workers)
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Note an activation that was lost."""
        self._lost += LOST in record.getMessage()

    def watch(self) -> None:
        """Begin to watch the log."""
        CORE_LOGGER.addHandler(self)

    def end(self) -> None:
        """End it."""
        CORE_LOGGER.removeHandler(self)

    def count(self) -> int:
        """Count those that the SDK has failed to remove from the cache, and those of which it lost an activation."""
        workflows = (worker._workflow_worker for worker in self._workers)
        return self._lost + sum(worker._could_not_evict_count for worker in workflows if worker)
