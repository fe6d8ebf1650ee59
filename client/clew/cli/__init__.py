"""The command `clew`: sessions from a terminal or a script.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | a request failed, or the session refused it |
| 2 | the command line or Temporal's configuration is not valid |
| 3 | no server or no worker answers |
| 130 | Ctrl-C |

typer, rich and prompt_toolkit come with the extra `cli`: they are imported only when the command runs.

| module | content |
|---|---|
| `app` | `COMMANDS`: all commands by their groups |
| `talk`, `chat` | `ask` and `chat` as lines of text; the chat on a terminal |
| `attachments` | files that are sent with a message |
| `reading`, `control` | the commands that read a session, and those that change one |
| `listing`, `report` | lists of sessions; `report` and `compare` |
| `blob_commands`, `schedule_commands` | the commands of `clew blob` and of `clew schedule` |
| `serve`, `serve_commands` | the service over HTTP and its keys; `worker`, `dev` and the codec server |
| `offline` | the operators' commands |
| `command`, `shared_options` | the two decorators of commands; options, and those that several commands have |
| `reach`, `failures` | the connection, the session or the worker; exit codes and messages of errors |
| `show`, `hints` | the output; commands that are printed for a person to type |

A new command is a function in one of the modules of commands, and a name in `COMMANDS`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from clew_workflows.contract.extras import name_install
from clew_workflows.temporal_faults.exit_crash import exit_at_once


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line with `arguments`, by default those of the process, and exit."""
    try:
        from clew.cli.app import app  # noqa: PLC0415 - the extra may be missing
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("typer", "rich", "prompt_toolkit"):
            raise
        sys.exit(f"the command line needs typer, rich and prompt_toolkit: {name_install('cli')}")
    except KeyboardInterrupt:
        sys.exit(130)
    try:
        app(args=None if arguments is None else list(arguments), prog_name="clew")
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
        if isinstance(ended.code, str):
            sys.stderr.write(f"{ended.code}\n")
    else:
        code = 0
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 1  # the reader of the output has exited
    exit_at_once(code)
