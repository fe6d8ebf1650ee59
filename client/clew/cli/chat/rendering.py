"""Turn blocks, the live part and the status line into text with colours. Control characters never pass."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from clew.cli import show
from clew.cli.chat.blocks import (
    Block,
    Live,
    NoteBlock,
    ReplyBlock,
    RunningTool,
    ToolBlock,
    UserBlock,
    WaitingBlock,
)
from clew.cli.chat.markdown import MARKDOWN
from clew.cli.hints import complete_commands, write_command
from clew.contract.outputs import Context
from clew.model.messages import Message
from clew.model.tokens import ByteEstimate, Encoding

RESULT_LINES = 3
"""Lines of a tool's result that are shown."""
INPUT_CHARACTERS = 2000
"""Characters of a user's message that are shown; pasted text may be long."""
BAR_CELLS = 12
"""Width of a progress bar."""
_ESTIMATE = Encoding("estimate", 4, ByteEstimate())
"""Counts the tokens of one message. The session counts exactly, but only whole contexts."""
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TONES = {"dim": "dim", "warning": "yellow", "error": "bold red"}


_THEME = Theme({"markdown.code": "cyan", "markdown.item.bullet": "dim", "markdown.item.number": "dim"})


class _LeftHeading(Heading):
    """A heading at the left margin; rich centres them."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        self.text.justify = "left"
        self.text.stylize("bold underline" if self.tag in ("h1", "h2") else "bold")
        yield self.text


class ReplyMarkdown(Markdown):
    """Markdown of a model: headings at the left, lines end where the model ended them, links show their addresses."""

    elements: ClassVar[Any] = {**Markdown.elements, "heading_open": _LeftHeading}

    def __init__(self, source: str) -> None:
        super().__init__("", code_theme="ansi_dark", hyperlinks=False)
        self.parsed = MARKDOWN.parse(show.strip_controls(source))
        for token in self.parsed:
            for child in token.children or ():
                # A named or numbered character of HTML may be a control character.
                child.content = show.strip_controls(child.content)
                if child.type == "softbreak":
                    child.type = "hardbreak"


@dataclass(frozen=True, slots=True)
class Painter:
    """Paints for one width and one set of colours.

    Attributes:
        width: The columns of the terminal.
        colors: The colours of the terminal, as rich names them; None: none.
        watched: The session, if it is only watched: nothing can be typed, and a call that waits names the command of
            `clew` that decides it. Empty: the session of a chat.
    """

    width: int
    colors: str | None = None
    watched: str = ""

    def paint(self, shown: RenderableType) -> str:
        """Paint something of rich's, as text with escape sequences for colours."""
        is_line = isinstance(shown, Text) and shown.no_wrap is True
        return self.capture(lambda to: to.print(shown, crop=False, soft_wrap=is_line))

    def capture(self, write: Callable[[Console], None]) -> str:
        """Paint what a function writes to a console."""
        out = io.StringIO()
        console = Console(
            file=out,
            theme=_THEME,
            width=max(self.width, 10),
            force_terminal=True,
            color_system=self.colors,  # type: ignore[arg-type]
            no_color=self.colors is None,
            markup=False,
            emoji=False,
            highlight=False,
            legacy_windows=False,
        )
        write(console)
        return out.getvalue()

    def paint_block(self, block: Block) -> str:
        """Paint a block, with the line break after it; messages and replies have an empty line before them."""
        gap = "\n" if isinstance(block, UserBlock | ReplyBlock | WaitingBlock) else ""
        return gap + _trim(self.paint(_format_block(block, self.width, self.watched))) + "\n"

    def paint_live(self, live: Live, *, rows: int, tick: int, now: datetime) -> str:
        """Paint the live part in at most so many rows, the newest ones; `tick` turns the spinner."""
        lines: list[str] = []
        if live.markdown.strip():
            lines += ["", *_trim(self.paint(ReplyMarkdown(_clip_markdown(live.markdown, rows)))).split("\n")]
        status = _list_status_lines(live, _SPINNER[tick % len(_SPINNER)], now, asks=not self.watched)[-rows:]
        lines += [self.paint(_fit(line, self.width)).rstrip("\n") for line in status]
        return "\n".join(lines[-rows:])


def _list_status_lines(live: Live, spinner: str, now: datetime, *, asks: bool) -> list[Text]:
    """List the lines below the unfinished reply: tools that run, what is waited for, a question."""
    lines = [_format_running(tool, spinner) for tool in live.tools]
    if live.activity:
        seconds = _count_seconds(live.retry_at, now) if live.retry_at else 0
        wait = f" in {seconds} s" if seconds else ""
        lines.append(show.make_text((f"{spinner} {' '.join(live.activity.split())}{wait}", "dim")))
    lines += [
        show.make_text((f"… taken, not read yet: {show.shorten(text, 200)}", "cyan")) for text in live.inputs[-3:]
    ]
    return [*lines, _format_question(live.approvals)] if live.approvals and asks else lines


def _format_block(block: Block, width: int, watched: str) -> RenderableType:
    match block:
        case UserBlock():
            return _format_user(block)
        case ReplyBlock():
            return ReplyMarkdown(block.markdown)
        case ToolBlock():
            return _format_tool(block, width)
        case WaitingBlock():
            return _format_waiting(block, width, watched)
        case NoteBlock():
            # Errors of the workers name commands.
            text = complete_commands(block.text) if block.tone == "error" else block.text
            return (show.make_line if "`" in text else show.make_text)((text, _TONES[block.tone]))


def _trim(painted: str) -> str:
    """Remove the spaces with which rich fills lines, and empty lines around the text: they break when resized."""
    lines = ["" if not Text.from_ansi(line).plain.strip() else line.rstrip() for line in painted.split("\n")]
    return "\n".join(lines).strip("\n")


def _format_user(block: UserBlock) -> RenderableType:
    text = show.strip_controls(block.text)
    rest = len(text) - INPUT_CHARACTERS
    sender = f"{block.source}: " if block.source else ""
    made = show.make_text(("» " if block.is_steer else "> ", "bold cyan"), (sender, "cyan"))
    made.append(text[:INPUT_CHARACTERS].replace("\n", "\n  "), "bold" if not block.is_steer else "cyan")
    if rest > 0:
        made.append(f"\n  [{rest} more characters]", "dim")
    return made


def _format_tool(block: ToolBlock, width: int) -> RenderableType:
    call = (
        _fit(show.format_tool_call(block.name, block.arguments), 3 * width)
        if block.arguments is not None
        else show.make_text(("→ ", "yellow"), (block.name, "bold yellow"))
    )
    lines = show.strip_controls(block.result).strip().split("\n")
    style = "red" if block.is_error else "dim"
    result = Text()
    for number, line in enumerate(lines[:RESULT_LINES]):
        result.append("← " if number == 0 else "\n  ", "red" if block.is_error else "yellow")
        result.append_text(_fit(Text(line, style), width - 2))
    if len(lines) > RESULT_LINES:
        result.append(f"\n  [{len(lines) - RESULT_LINES} more lines]", "dim")
    return Group(call, result)


def _format_waiting(block: WaitingBlock, width: int, watched: str) -> RenderableType:
    call_id = f"{block.tool_call_id} of {block.session_id}" if block.session_id else block.tool_call_id
    title = show.make_line(
        ("? ", "bold magenta"), (block.name, "bold magenta"), (f"  {call_id} {_format_need(block, watched)}", "dim")
    )
    if not block.arguments:
        return title
    in_line = json.dumps(dict(block.arguments), ensure_ascii=False)
    # A person decides about them: complete, and easy to read.
    text = in_line if len(in_line) < width - 2 else json.dumps(dict(block.arguments), indent=2, ensure_ascii=False)
    return Group(title, Padding(show.make_text(text), (0, 0, 0, 2)))


def _format_need(block: WaitingBlock, watched: str) -> str:
    """Say what a call waits for, and how it is given where no key does it."""
    session_id, call_id = block.session_id or watched, block.tool_call_id
    if block.needs == "approval":
        command = f": `{write_command('approve', session_id, call_id)}`, or deny" if watched else ""
        return f"waits for approval{command}"
    command = f"`{write_command('submit', session_id, call_id, 'TEXT')}`" if watched else f"/submit {call_id} TEXT"
    return f"waits for its result: {command}"


def _format_question(waiting: tuple[WaitingBlock, ...]) -> Text:
    first = waiting[0]
    others = f"  ({len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return show.make_text(
        ("? ", "bold magenta"),
        (f"run {first.name}?", "bold"),
        ("  y yes · n [REASON] no · e edit the arguments", "dim"),
        (others, "dim"),
    )


def _format_running(tool: RunningTool, spinner: str) -> Text:
    call = show.format_tool_call(tool.name, tool.arguments).plain.removeprefix("→ ")
    made = show.make_text((f"{spinner} ", "yellow"))
    if tool.fraction is not None:
        done = round(min(max(tool.fraction, 0), 1) * BAR_CELLS)
        made.append("█" * done + "░" * (BAR_CELLS - done) + f" {tool.fraction:.0%} ", "yellow")
    if tool.report:
        return made.append(show.shorten(f"{tool.name}: {tool.report}", 500), "yellow")
    return made.append(show.shorten(call, 500), "yellow")


def _clip_markdown(source: str, rows: int) -> str:
    """Keep the last lines of Markdown that grows; code stays code."""
    lines = source.split("\n")
    if len(lines) <= rows:
        return source[-200 * rows :]
    opening = lines[0].strip()
    kept = "\n".join(lines[-rows:])[-200 * rows :]
    return f"{opening}\n{kept}" if opening.startswith(("```", "~~~")) else kept


def _fit(text: Text, width: int) -> Text:
    """Cut a text to one line of the terminal."""
    text.truncate(max(width - 1, 10), overflow="ellipsis")
    text.no_wrap = True
    return text


def _count_seconds(moment: str, now: datetime) -> int:
    return max(round((datetime.fromisoformat(moment) - now).total_seconds()), 0)


def format_context(context: Context) -> RenderableType:
    """Format a context as one line for each message, with an estimate of its tokens."""
    rows = [_format_message(message, _ESTIMATE.count_message(message)) for message in context.messages]
    if context.tool_spec:
        names = ", ".join(tool["name"] for tool in context.tool_spec)
        rows.append(_format_row("tools", _ESTIMATE.count_tools(context.tool_spec), names))
    meta = context.meta
    remarks = [f"{show.format_number(meta.estimated_tokens)} tokens in all"]
    remarks.append(f"{meta.entries_included} of {meta.entries_total} entries")
    remarks += ["earlier messages are left out"] if meta.truncated else []
    remarks += ["a summary stands for earlier messages"] if meta.summary_used else []
    remarks += [f"{meta.cleared_tool_results} tool results are cleared"] if meta.cleared_tool_results else []
    return Group(*rows, show.make_text((" · ".join(remarks), "dim")))


def _format_message(message: Message, tokens: int) -> Text:
    name = f" {message['name']}" if "name" in message else ""
    calls = " ".join(
        show.format_tool_call(call["name"], call["arguments"]).plain for call in message.get("tool_calls", [])
    )
    return _format_row(f"{message['role']}{name}", tokens, f"{message['content']} {calls}")


def _format_row(title: str, tokens: int, content: str) -> Text:
    style = show.STYLES.get(title.partition(" ")[0], "")
    row = show.make_text((f"{show.shorten(title, 20):20}", style), (f" ~{show.format_number(tokens):>6}  ", "dim"))
    row.append(show.shorten(content, 500))
    row.no_wrap, row.overflow = True, "ellipsis"
    return row
