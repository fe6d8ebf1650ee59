"""Schemas that are slow to validate, and the process that validates answers against them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew_activities.model import validation_process

Schema = dict[str, Any]

SLOW: Schema = {"items": {"allOf": [{"pattern": f"(?!z)[ab]*a[ab]{{{n}}}c"} for n in range(800, 850)]}}
"""A schema within the size limits whose regular expressions are slow."""
SLOW_ANSWER = json.dumps(["ab" * 50_000])
"""An answer whose validation against `SLOW` exceeds the time limit."""


def make_chain(definitions: int, link: Callable[[Schema], Schema]) -> Schema:
    """Make definitions that each refer to the next one; `link` wraps the reference."""
    chain = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(definitions)}
    return {"$ref": "#/$defs/d0", "$defs": chain | {f"d{definitions}": {"type": "string"}}}


def list_validations(worker: int) -> list[str]:
    """List the process ids of a worker's validations, zombies included."""
    threads = Path(f"/proc/{worker}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    return [child for child in children if is_zombie(child) or validation_process.__file__ in read_command(child)]


def is_running(process: str) -> bool:
    """Whether a process exists and is no zombie."""
    return bool(read_command(process)) and not is_zombie(process)


def is_zombie(process: str) -> bool:
    """Whether a process has ended but its parent has not collected it yet."""
    return _read(process, "stat").rpartition(")")[2].split()[:1] == ["Z"]


def read_command(process: str) -> str:
    """Read the command line of a process; it is empty once the process has ended."""
    return _read(process, "cmdline")


def _read(process: str, file: str) -> str:
    try:
        return Path(f"/proc/{process}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
