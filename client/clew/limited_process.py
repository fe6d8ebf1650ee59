"""The beginning of a child process that reads what came from outside: it sets its limits, and then runs a file.

Its arguments are those of `Limits` and the file. It imports little, since each file from outside starts one.
"""

from __future__ import annotations

import resource
import runpy
import signal
import sys
from contextlib import suppress


def main() -> None:
    """Set the limits, which the system enforces also after the parent has died, and run the file."""
    memory_bytes, cpu_seconds, seconds = map(int, sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds))
    signal.alarm(seconds)
    # macOS has this limit and refuses to set it.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    runpy.run_path(sys.argv[4], run_name="__main__")


if __name__ == "__main__":
    main()
