"""`clew --help` lists the commands by what they are for."""

from __future__ import annotations

from collections import Counter

from typer.main import get_command

from clew.cli.app import COMMANDS, app
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
