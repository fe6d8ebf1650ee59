"""The SDK's threads crash an interpreter that exits right after a call: wait a moment, or exit without its shutdown.

The threads of the SDK's core go on when Python shuts down, and may use what is gone (temporalio/sdk-python#300). The
exit code of a program that has done its work is then that of a crash.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/exit_crash.md.
Can go: when none of the reproduction's programs crashes.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
from typing import NoReturn

EXIT_SECONDS = 0.02


@functools.cache
def delay_exit() -> None:
    """Give the SDK's threads time to stop before this interpreter exits."""
    atexit.register(time.sleep, EXIT_SECONDS)


def exit_at_once(code: int) -> NoReturn:
    """End the process without Python's shutdown. Nothing is flushed, and no function of `atexit` is called."""
    os._exit(code)
