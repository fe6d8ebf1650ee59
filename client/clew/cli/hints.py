"""Commands that are printed for a person to type: they run as they stand, from the same folder.

The library and the workers name commands in their messages as `clew VERB …`. They know neither how `clew` is started
here nor which server the person has named, so the command line completes them before it prints them.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import sysconfig
from collections.abc import Iterable
from contextvars import ContextVar
from pathlib import Path
from typing import Literal

from clew.cli.reach import Target
from clew_workflows.contract import TASK_QUEUE

_NO_TARGET = Target(None, None, TASK_QUEUE)
_target: ContextVar[Target] = ContextVar("target", default=_NO_TARGET)
_COMMAND = re.compile(r"`clew ([^`\n]+)`")
_TARGET_OPTIONS = {"address": "--address", "namespace": "--namespace", "task_queue": "--task-queue"}
_taken: dict[str, set[str]] = {}


def remember_options(command: str, parameters: Iterable[str]) -> None:
    """Remember which options a command has of those that name a server, a namespace and a task queue."""
    _taken[command] = set(_TARGET_OPTIONS) & set(parameters)


def remember_target(target: Target) -> None:
    """Remember the server, the namespace and the task queue of the running command."""
    _target.set(target)


def complete_commands(text: str) -> str:
    """Complete the commands in a text, which are in backticks and begin with `clew`."""
    return _COMMAND.sub(lambda match: f"`{_complete(match[1])}`", text)


def write_command(*words: str) -> str:
    """Write a command of `clew` as it is typed."""
    return _complete(shlex.join(words))


def describe_need(needs: Literal["approval", "result"], session_id: str, tool_call_id: str) -> str:
    """Say what a tool call waits for, and which command gives it."""
    if needs == "approval":
        return f"waits for approval: `{write_command('approve', session_id, tool_call_id)}`, or deny"
    return f"waits for its result: `{write_command('submit', session_id, tool_call_id, 'TEXT')}`"


def _complete(command: str) -> str:
    """Complete a command, given without its program: with the program, and the options that it lacks."""
    target = _target.get()
    verb, *others = command.split(" ", 2)
    taken = _taken.get(f"{verb} {''.join(others[:1])}", _taken.get(verb, set(_TARGET_OPTIONS)))
    missing = [
        word
        for name, option in _TARGET_OPTIONS.items()
        if name in taken and (value := getattr(target, name)) and f" {option} " not in command
        for word in (option, value)
        if value != TASK_QUEUE or name != "task_queue"
    ]
    # A worker reads the server and the namespace from its environment.
    variables = {"TEMPORAL_ADDRESS": target.address, "TEMPORAL_NAMESPACE": target.namespace}
    settings = [f"{name}={shlex.quote(value)}" for name, value in variables.items() if value and verb == "worker"]
    return " ".join([*settings, find_program(), command, *([shlex.join(missing)] if missing else [])])


def find_program() -> str:
    """Find how `clew` is started from the current folder: by its name only if the shell finds this installation."""
    script = Path(sysconfig.get_path("scripts"), "clew")
    if not script.exists():
        return shlex.join([sys.executable, "-m", "clew.cli"])
    on_path = shutil.which("clew")
    if on_path and os.path.samefile(on_path, script):
        return "clew"
    folder = Path.cwd()
    return shlex.quote(str(script.relative_to(folder) if script.is_relative_to(folder) else script))
