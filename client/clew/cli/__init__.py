"""The command `clew`: sessions from a terminal or a script.

| exit code | |
|---|---|
| 0 | done |
| 1 | a request failed or was refused |
| 2 | the command line or Temporal's configuration cannot be used |
| 3 | no server answers, or no worker |
| 130 | Ctrl-C |

typer and rich come with the extra `cli`, so they are imported here only when the command runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

_MISSING = "the command line needs typer and rich: pip install 'clew[cli]'"


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, or with the process's own, and end the process."""
    try:
        from clew.cli.app import app  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
            raise
        sys.exit(_MISSING)
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="clew")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    else:
        code = 0
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1  # whoever read the output has gone
    # The SDK's threads call into Python while the interpreter is taken down, which crashes about every third
    # process that ends so soon after its last call (temporalio/sdk-python#300). Nothing here waits for that.
    os._exit(code)
