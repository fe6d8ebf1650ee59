"""A worker whose cache of sessions has the size that the environment says."""

from __future__ import annotations

import os
from functools import partial
from unittest.mock import patch

from temporalio.worker import Worker

from clew_activities.worker import assembly, process

CACHED_SESSIONS = "CHAOS_CACHED_SESSIONS"
"""The environment variable with the size of the cache; 0: each task replays its session."""


def main() -> None:
    """Run the worker until a signal."""
    cached = int(os.environ[CACHED_SESSIONS])
    with patch.object(assembly, "Worker", partial(Worker, max_cached_workflows=cached)):
        process.main()


if __name__ == "__main__":
    main()
