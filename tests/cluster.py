"""Run tests on the local cluster instead of the development server: `make test-cluster`.

    python -m tests.cluster [--others | --development] [OPTION of pytest ...]

`TESTS` say what callers, archives and operators rely on, and need of their server what any server has. With
`--others` the tests that are not among them run, on the development server: the gate runs each test once.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from clew.local import StartFailed
from deploy.local_cluster import local_cluster
from tests.support.cluster import DYNAMIC_CONFIG, write_environment

ROOT = Path(__file__).resolve().parents[1]
TESTS = (
    "tests/activities/archive",
    "tests/audit/test_exports.py",
    "tests/audit/test_recovery.py",
    "tests/clew/session/test_handle.py",
    "tests/clew/session/test_session_lists.py",
    "tests/clew/session/test_request.py",
    "tests/contract",
    "tests/deploy/test_local_cluster.py",
    "tests/workflows/host/test_hibernation.py",
    "tests/workflows/host/test_large_rounds.py",
    "tests/workflows/host/test_rollover.py",
    "tests/workflows/host/test_startup.py",
    "tests/workflows/test_archived_pins.py",
    "tests/workflows/test_blobs.py",
    "tests/workflows/test_checkpoints.py",
    "tests/workflows/test_control.py",
    "tests/workflows/test_encryption.py",
    "tests/workflows/test_fairness.py",
    "tests/workflows/test_forking.py",
    "tests/workflows/test_history_size.py",
    "tests/workflows/test_request_failures.py",
    "tests/workflows/test_session.py",
    "tests/workflows/test_subagents.py",
    "tests/workflows/test_takeover.py",
    "tests/workflows/test_uploads.py",
    "tests/workflows/test_version_routes.py",
    "tests/workflows/test_versions.py",
    "tests/workflows/test_visibility.py",
)
"""Files and folders with the contract, the archive, encryption, rollover, hibernation, forks, deletion, versions of
workers, limits, lists and fairness."""
EXCEPT = (
    "tests/activities/archive/test_backends.py",
    "tests/activities/archive/test_formats.py",
    "tests/activities/archive/test_hibernation.py",
    "tests/contract/test_hostile_parts.py",
    "tests/contract/test_ten_thousand.py",
)
"""Files of these folders that need no server, and the last one, which takes minutes on any."""
LOG_CHARACTERS = 20_000
"""Most characters of a log that a failure shows."""


def list_files() -> list[str]:
    """List the files with the tests of the cluster."""
    files = [
        file
        for name in TESTS
        for path in sorted(ROOT.glob(name))
        for file in (sorted(path.rglob("test_*.py")) if path.is_dir() else [path])
    ]
    names = [str(file.relative_to(ROOT)) for file in files]
    return [name for name in names if name not in EXCEPT]


async def main(arguments: list[str]) -> int:
    """Run the tests, on a cluster without workers or on the development server, and return pytest's exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", allow_abbrev=False)
    parser.add_argument("--others", action="store_true", help="run all other tests, on the development server")
    parser.add_argument("--development", action="store_true", help="run the tests on the development server")
    options, arguments = parser.parse_known_args(arguments)
    files = list_files()
    if options.others:
        return await run_pytest([*(f"--deselect={name}" for name in files), *arguments], {})
    names = [] if any(argument.startswith("tests/") for argument in arguments) else files
    if options.development:
        return await run_pytest([*names, *arguments], {})
    async with local_cluster(dynamic_config=DYNAMIC_CONFIG, parts=()) as cluster:
        status = await run_pytest([*names, *arguments], write_environment(cluster))
        if status:
            for name, log in cluster.logs.items():
                sys.stderr.write(f"The end of the log of {name}:\n{log.read_text()[-LOG_CHARACTERS:]}\n")
        return status


async def run_pytest(arguments: list[str], env: dict[str, str]) -> int:
    """Run pytest in a process of its own, and return its exit status."""
    command = (sys.executable, "-m", "pytest", *arguments)
    return await (await asyncio.create_subprocess_exec(*command, env={**os.environ, **env})).wait()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main(sys.argv[1:])))
    except StartFailed as error:
        sys.exit(str(error))
