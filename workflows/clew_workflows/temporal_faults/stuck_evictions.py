"""A workflow that cannot be removed from the cache keeps its slot for ever, and no public part says so: count them.

A task of a workflow that ignores its cancellation keeps the SDK from removing the workflow, which it tries again
without end. The slots of these workflows' tasks stay taken until the process ends, and `Worker.is_running` stays
true.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#stuck_evictions.
Can go: when a worker says publicly that it is stuck, or gives up such a workflow.
"""

from __future__ import annotations

from collections.abc import Iterable

from temporalio.worker import Worker


def count_stuck(workers: Iterable[Worker]) -> int:
    """Count the workflows that the SDK has failed to remove from the workers' caches, and still tries to remove."""
    workflows = (worker._workflow_worker for worker in workers)
    return sum(worker._could_not_evict_count for worker in workflows if worker)
