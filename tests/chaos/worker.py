"""A worker with another cache of sessions and quicker webhooks, whose mechanisms may be broken."""

from __future__ import annotations

import os
from datetime import timedelta
from functools import partial
from unittest.mock import patch

from temporalio.common import RetryPolicy
from temporalio.worker import Worker

from clew_activities.worker import assembly, process
from clew_workflows.host.services import DeliverWebhook
from tests.chaos.breaks import break_mechanisms, read_breaks

CACHED_SESSIONS = "CHAOS_CACHED_SESSIONS"
"""The environment variable with the size of the cache; 0: each task replays its session."""
QUICK = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=20))
"""The waits between two attempts to send a webhook. Those of a worker may be longer than a round."""


def main() -> None:
    """Run the worker until a signal."""
    cached = int(os.environ[CACHED_SESSIONS])
    worker = partial(Worker, max_cached_workflows=cached)
    with (
        break_mechanisms(read_breaks()),
        patch.object(assembly, "Worker", worker),
        patch.object(DeliverWebhook, "retries", QUICK),
    ):
        process.main()


if __name__ == "__main__":
    main()
