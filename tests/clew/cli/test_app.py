"""The whole command line: the headings of its help, and `--json` on every command."""

from __future__ import annotations

import asyncio
import platform
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup
from typer.main import get_command

from clew.cli.app import COMMANDS, app
from clew.local.child import free_ports
from tests.support.command_line import run_clew


async def test_every_command_stands_under_one_heading() -> None:
    """The help has all headings, each with commands, and every command once."""
    shown = await run_clew("--help")
    assert (shown.code, shown.err) == (0, "")
    listed: Counter[str] = Counter()
    for section in shown.out.split("\n\n"):
        heading, _, rows = section.strip("\n").partition(":\n")
        if heading in COMMANDS:
            names = [row.split()[0] for row in rows.splitlines()]
            assert names
            listed.update(names)
    assert "\nCommands:" not in shown.out
    assert all(f"\n{heading}:\n" in shown.out for heading in COMMANDS)
    assert listed == Counter(dict.fromkeys(get_command(app).commands, 1))  # type: ignore[attr-defined]


async def test_the_version_names_what_it_runs_on() -> None:
    """One line has the versions of Clew, of Temporal's SDK and of Python."""
    shown = await run_clew("--version")
    assert (shown.code, shown.err) == (0, "")
    sdk, python = version("temporalio"), platform.python_version()
    assert shown.out == f"clew {version('clew')} (temporalio {sdk}, Python {python})\n"


SERVING = {("worker",), ("dev",), ("serve",), ("codec-server",)}
"""The commands that serve until they are stopped. `dev` prints an object a line, the others a log."""
OF_NO_SESSION = {("skill",)}
"""The command that prints a file of the package, as it is."""
ARGUMENTS: dict[tuple[str, ...], tuple[str, ...]] = {
    ("serve-key",): ("a:b", "--tenant", "t"),
    ("setup-namespace",): (),
    ("sessions",): (),
    ("top",): (),
    ("rekey",): (),
    ("ask",): ("s", "text", "--model", "a:b"),
    ("steer",): ("s", "text"),
    ("inject",): ("s", "text"),
    ("schedule", "create"): ("s", "text", "--session", "t", "--every", "1d"),
    ("schedule", "list"): (),
    ("blob", "put"): ("s", "-"),
    ("blob", "get"): ("s", "0" * 64, "--output", "x"),
    ("configure",): ("s", "--model", "a:b"),
    ("approve",): ("s", "tool00001"),
    ("deny",): ("s", "tool00001"),
    ("submit",): ("s", "tool00001", "text"),
    ("replace",): ("s", "-", "--op-id", "x"),
    ("switch",): ("s", "lane", "--op-id", "x"),
    ("reset",): ("s", "--op-id", "x"),
    ("compact",): ("s", "--op-id", "x"),
    ("expand",): ("s", "--op-id", "x"),
    ("pin",): ("s", "1", "--op-id", "x"),
    ("unpin",): ("s", "1", "--op-id", "x"),
    ("delete",): ("s", "--yes"),
    ("restore",): ("token",),
    ("compare",): ("s", "--policy", "policy.json"),
    ("evaluate",): ("no-such-file", "--agents", "json"),
    ("export",): ("s", "file"),
    ("import",): ("no-such-file",),
    ("import-history",): ("no-such-file", "--session", "s", "--model", "a:b"),
}
"""The arguments of the commands that need other ones than a session."""


def list_commands(group: TyperGroup, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """List the commands of a group and of the groups in it."""
    return [
        inner
        for name, command in group.commands.items()
        for inner in (list_commands(command, (*path, name)) if isinstance(command, TyperGroup) else [(*path, name)])
    ]


async def test_every_command_prints_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json each prints one document on stdout and nothing on stderr, also if it fails."""
    group = typer.main.get_command(app)
    assert isinstance(group, TyperGroup)
    commands = [command for command in list_commands(group) if command not in SERVING | OF_NO_SESSION]
    assert ARGUMENTS.keys() <= set(commands)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.json").write_text("{}")
    (port,) = free_ports(1)
    results = await asyncio.gather(
        *(
            run_clew(*command, *ARGUMENTS.get(command, ("s",)), "--json", address=f"127.0.0.1:{port}", stdin="[]")
            for command in commands
        )
    )
    for command, ended in zip(commands, results, strict=True):
        assert (ended.code != 0, ended.err, bool(ended.out)) == (True, "", True), (command, ended)
        assert ended.json["error"].keys() == {"type", "message"}, command
