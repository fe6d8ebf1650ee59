"""A worker whose cache of sessions has the size that the environment says, and whose mechanisms may be broken."""

from __future__ import annotations

import os
from functools import partial
from unittest.mock import patch

from temporalio.worker import Worker

from clew_activities.worker import assembly, process
from tests.chaos.breaks import break_mechanisms, read_breaks

CACHED_SESSIONS = "CHAOS_CACHED_SESSIONS"
"""The environment variable with the size of the cache; 0: each task replays its session."""


def main() -> None:
    """Run the worker until a signal."""
    cached = int(os.environ[CACHED_SESSIONS])
    worker = partial(Worker, max_cached_workflows=cached)
    with break_mechanisms(read_breaks()), patch.object(assembly, "Worker", worker):
        process.main()


if __name__ == "__main__":
    main()
