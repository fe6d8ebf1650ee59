"""An interpreter that exits waits for the SDK's threads, or skips its own shutdown."""

from __future__ import annotations

import subprocess
import sys

from clew_workflows.temporal_faults.exit_crash import EXIT_SECONDS


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end."""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)


def test_an_exit_is_delayed() -> None:
    """The SDK's threads have `EXIT_SECONDS` between the end of the program and the end of the interpreter."""
    done = run_program(
        "import atexit, time\n"
        "atexit.register(lambda: print(time.monotonic() - ended))\n"
        "from clew_workflows.temporal_faults.exit_crash import delay_exit\n"
        "delay_exit()\n"
        "ended = time.monotonic()\n"
    )
    assert done.returncode == 0
    assert float(done.stdout) >= EXIT_SECONDS


def test_an_exit_at_once_runs_no_shutdown() -> None:
    """The exit code is the program's own, and no function of `atexit` is called."""
    done = run_program(
        "import atexit\n"
        "atexit.register(lambda: print('shutdown', flush=True))\n"
        "from clew_workflows.temporal_faults.exit_crash import exit_at_once\n"
        "exit_at_once(3)\n"
    )
    assert (done.returncode, done.stdout) == (3, "")
