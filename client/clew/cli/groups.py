"""The groups of commands in `clew --help`."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

TALK = "Talk"
READ = "Read and watch"
CONTROL = "Control a run"
CONTEXTS = "Change what a model sees"
SESSIONS = "Copy, archive and delete sessions"
SERVE = "Serve"
OPERATE = "Operate"
GROUPS = (TALK, READ, CONTROL, CONTEXTS, SESSIONS, SERVE, OPERATE)
"""The headings, in the order of the help. A command names its group as `rich_help_panel`."""


class GroupedCommands(TyperGroup):
    """A command line whose help lists its commands by their groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write a section for each group. typer does so only with its markup, which would read the user's text."""
        commands = {name: self.commands[name] for name in self.list_commands(ctx)}
        width = max(map(len, commands))
        room = formatter.width - 6 - width
        for group in GROUPS:
            rows = [
                (f"{name:{width}}", command.get_short_help_str(room))
                for name, command in commands.items()
                if getattr(command, "rich_help_panel", None) == group
            ]
            if rows:
                with formatter.section(group):
                    formatter.write_dl(rows)
