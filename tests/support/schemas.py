"""Schemas that are slow to validate, and the process that validates answers against them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from clew_activities import validation_process

Schema = dict[str, Any]

SLOW: Schema = {"items": {"allOf": [{"pattern": f"(?!z)[ab]*a[ab]{{{n}}}c"} for n in range(800, 850)]}}
"""A schema within the bounds whose regular expressions take long."""
SLOW_ANSWER = json.dumps(["ab" * 50_000])
"""An answer that takes longer to be validated against `SLOW` than a validation may."""


def chained(definitions: int, link: Callable[[Schema], Schema]) -> Schema:
    """Definitions that each refer to the next one, in a way that `link` makes of the reference."""
    chain = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(definitions)}
    return {"$ref": "#/$defs/d0", "$defs": chain | {f"d{definitions}": {"type": "string"}}}


def validations(worker: int) -> list[str]:
    """The process ids of a worker's validations, zombies included."""
    threads = Path(f"/proc/{worker}/task").iterdir()
    children = [child for thread in threads for child in (thread / "children").read_text().split()]
    return [child for child in children if is_zombie(child) or validation_process.__file__ in command(child)]


def is_running(process: str) -> bool:
    """Whether a process is there, and is no zombie."""
    return bool(command(process)) and not is_zombie(process)


def is_zombie(process: str) -> bool:
    """Whether a process has ended, and its parent has yet to collect it."""
    return _read(process, "stat").rpartition(")")[2].split()[:1] == ["Z"]


def command(process: str) -> str:
    """The command line of a process; nothing of one that has ended."""
    return _read(process, "cmdline")


def _read(process: str, file: str) -> str:
    try:
        return Path(f"/proc/{process}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
