"""A workflow task that takes two seconds fails as deadlocked: give it longer.

The SDK has two seconds, waits for a thread included, and no option. A burst of inputs to many sessions takes longer
than that, and a failed task begins again from its start. The SDK interrupts the thread, which may be anywhere: the
workflow often cannot be removed from the cache afterwards. Its slot is lost, and the process ends with an error.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#deadlock_timeout.
Can go: when a worker has a public option for it.
"""

from __future__ import annotations

from temporalio.worker import Worker

ACTIVATION_SECONDS = 60
"""Seconds within which a workflow task must go on, waits for a thread included.

The server takes a task back after 10, but an answer that comes late does no harm: the SDK drops it, and the workflow
from its cache. On a busy machine thousands of signals take longer than 10 seconds.
"""


def wait_for_activations(worker: Worker) -> None:
    """Have a worker's workflow tasks fail as deadlocked after `ACTIVATION_SECONDS`, not after the SDK's two."""
    workflows = worker._workflow_worker
    # The SDK has no limit in its debug mode.
    if workflows and workflows._deadlock_timeout_seconds is not None:
        workflows._deadlock_timeout_seconds = max(workflows._deadlock_timeout_seconds, ACTIVATION_SECONDS)
