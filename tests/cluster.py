"""Run tests on the local cluster instead of the development server: `make test-cluster`.

    python -m tests.cluster [OPTION of pytest ...]

Those in `TESTS` need of their server what any server has. They say what callers, archives and operators rely on.
"""

from __future__ import annotations

import asyncio
import os
import sys

from clew.local import StartFailed
from deploy.local_cluster import local_cluster
from tests.support.cluster import DYNAMIC_CONFIG, write_environment

TESTS = (
    "tests/activities/archive/test_store.py",
    "tests/clew/session/test_listing.py",
    "tests/workflows/test_fairness.py",
    "tests/workflows/test_forking.py",
    "tests/workflows/test_session.py",
    "tests/workflows/test_versions.py",
    "tests/workflows/test_visibility.py",
)

LOG_CHARACTERS = 20_000
"""Most characters of a log that a failure shows."""


async def main(arguments: list[str]) -> int:
    """Start the cluster without workers, run the tests, and return pytest's exit status."""
    async with local_cluster(dynamic_config=DYNAMIC_CONFIG, parts=()) as cluster:
        env = {**os.environ, **write_environment(cluster)}
        names = [] if any(argument.startswith("tests/") for argument in arguments) else TESTS
        process = await asyncio.create_subprocess_exec(*(sys.executable, "-m", "pytest", *names, *arguments), env=env)
        status = await process.wait()
        if status:
            for name, log in cluster.logs.items():
                sys.stderr.write(f"The end of the log of {name}:\n{log.read_text()[-LOG_CHARACTERS:]}\n")
        return status


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:])))
    except StartFailed as error:
        sys.exit(str(error))
