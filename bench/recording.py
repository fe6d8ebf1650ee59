"""What a bench has measured: printed, and with `--write` kept in `bench/results/NAME.json`.

`docs/reference/benches.md` is made from these files. A bench prints with the console that `record` gives:

    with record("fairness", options.write) as console:
        console.print(table)
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "bench" / "results"
PRODUCT = ("client", "workflows", "activities", "audit")
"""The folders whose changes make a measurement one of more than its commit."""


class Machine(BaseModel):
    """Where a bench ran.

    Attributes:
        system: The operating system and the processor's kind.
        cores: The number of processors.
        python: The version of Python; None: not noted.
        load: The processes that ran or waited for a processor, on average over the last 15 minutes; None: not noted.
    """

    system: str
    cores: int
    python: str | None = None
    load: float | None = None


class Measured(BaseModel):
    """One table of a bench.

    Attributes:
        title: Its title; empty: it has none.
        columns: The names of the columns.
        rows: The cells of each row, as printed.
    """

    title: str = ""
    columns: list[str]
    rows: list[list[str]]


class Record(BaseModel):
    """A file of results.

    Attributes:
        command: The command that was run.
        date: The day, as in `2026-11-29`.
        commit: The commit of the code; with `+`, its product code had changes.
        machine: Where it ran.
        seconds: How long it took; None: not noted.
        tables: What was measured.
        notes: What the bench printed beside them.
    """

    command: str
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    commit: str = Field(pattern=r"^[0-9a-f]{8}\+?$")
    machine: Machine
    seconds: float | None = None
    tables: list[Measured]
    notes: list[str] = []


class RecordingConsole(Console):
    """A console that keeps the tables and the lines that it prints."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.tables: list[Measured] = []
        self.notes: list[str] = []

    def print(self, *objects: Any, **options: Any) -> None:
        """Print tables and text."""
        for part in objects:
            if isinstance(part, Table):
                self.tables.append(read_table(part))
            elif isinstance(part, str):
                self.notes.append(part)
        super().print(*objects, **options)


def read_table(table: Table) -> Measured:
    """Read the texts of a table."""
    columns = [list(map(str, column.cells)) for column in table.columns]
    heads = [str(column.header) for column in table.columns]
    rows = [list(row) for row in zip(*columns, strict=True)]
    return Measured(title=str(table.title or ""), columns=heads, rows=rows)


def add_write_option(parser: argparse.ArgumentParser) -> None:
    """Add the option `--write` of every bench."""
    parser.add_argument(
        "--write",
        nargs="?",
        const="",
        metavar="NAME",
        help="keep the results in bench/results/NAME.json (the bench's own)",
    )


@contextmanager
def record(name: str, write: str | None, **options: Any) -> Iterator[RecordingConsole]:
    """Give a console; after it, write what was printed to `bench/results/NAME.json`.

    Args:
        name: The file's name, without its ending, unless `write` has another one.
        write: What `--write` was given; None: nothing is written.
        options: Of the console.
    """
    console, begun = RecordingConsole(**options), time.monotonic()
    yield console
    if write is not None:
        name = write or name
        made = Record(
            command=make_command(sys.argv),
            date=time.strftime("%Y-%m-%d", time.gmtime()),
            commit=find_commit(),
            machine=describe_machine(),
            seconds=round(time.monotonic() - begun),
            tables=console.tables,
            notes=console.notes,
        )
        write_record(name, made)
        print(f"written: bench/results/{name}.json")


def write_record(name: str, made: Record) -> None:
    """Write a file of results."""
    FOLDER.mkdir(exist_ok=True)
    text = json.dumps(made.model_dump(exclude_none=True), indent=1, ensure_ascii=False)
    (FOLDER / f"{name}.json").write_text(f"{text}\n", encoding="utf-8")


def read_records() -> dict[str, Record]:
    """Read all files of results, by their names."""
    return {path.stem: Record.model_validate_json(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}


def make_command(arguments: Sequence[str]) -> str:
    """Make the command that a person types, from the arguments of the process."""
    script = Path(arguments[0]).resolve()
    module = ".".join(script.relative_to(ROOT).with_suffix("").parts) if script.is_relative_to(ROOT) else script.stem
    words = " ".join(["python -m", module, *arguments[1:]])
    return re.sub(r" --write(?: [^-\s]\S*)?", "", words)


def find_commit() -> str:
    """Find the commit of the code, with `+` where the product's code has changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", *PRODUCT)
    return git("rev-parse", "--short=8", "HEAD")[:8] + ("+" if changed else "")


def describe_machine() -> Machine:
    """Describe this machine."""
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cores=os.cpu_count() or 1,
        python=platform.python_version(),
        load=round(os.getloadavg()[2], 1),
    )
