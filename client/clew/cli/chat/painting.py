"""Turn blocks, the live part and the status line into text with colours. Control characters never pass."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.markdown import Heading, Markdown
from rich.padding import Padding
from rich.text import Text
from rich.theme import Theme

from clew.cli import show
from clew.cli.hints import complete_commands, describe_need
from clew_workflows.contract.content import Part, describe_part, get_text
from clew_workflows.contract.messages import Citation, Message, ProviderCall
from clew_workflows.contract.outputs import Context
from clew_workflows.contract.tokens import ByteEstimate, Encoding

# What a session shows on a terminal: finished blocks, which are printed once, and the live part below them.


Tone = Literal["dim", "warning", "error"]
"""How a note looks."""


@dataclass(frozen=True, slots=True)
class UserBlock:
    """A user's message.

    Attributes:
        text: The message.
        source: Its sender, where the session knows it.
        is_steer: It corrects the active run.
    """

    text: str
    source: str | None = None
    is_steer: bool = False


@dataclass(frozen=True, slots=True)
class ReplyBlock:
    """A finished block of a reply: a paragraph, a list, code.

    Attributes:
        markdown: Its source.
    """

    markdown: str


@dataclass(frozen=True, slots=True)
class SourcesBlock:
    """What a reply is founded on.

    Attributes:
        calls: The calls of tools that the provider ran itself.
        citations: The sources that the reply names.
    """

    calls: tuple[ProviderCall, ...]
    citations: tuple[Citation, ...]


@dataclass(frozen=True, slots=True)
class ToolBlock:
    """A tool call that has ended.

    Attributes:
        name: The tool.
        arguments: The arguments; None: not known.
        result: The text of the result, as the model reads it; may be empty.
        is_error: The result describes a failure.
    """

    name: str
    arguments: Mapping[str, Any] | None
    result: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class WaitingBlock:
    """A tool call that waits for a person's decision or for its result.

    Attributes:
        tool_call_id: The call.
        name: The tool.
        arguments: The model's arguments.
        needs: What it waits for.
        session_id: The subagent's session that it waits in; empty: the session of the chat.
    """

    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]
    needs: Literal["approval", "result"]
    session_id: str = ""


@dataclass(frozen=True, slots=True)
class NoteBlock:
    """A remark about the session or the chat.

    Attributes:
        text: The remark.
        tone: How it looks.
    """

    text: str
    tone: Tone = "dim"


@dataclass(frozen=True, slots=True)
class MediaBlock:
    """The images, recordings and files of the message before it.

    Attributes:
        parts: Their parts.
    """

    parts: tuple[Part, ...]


Block = UserBlock | ReplyBlock | SourcesBlock | ToolBlock | WaitingBlock | NoteBlock | MediaBlock


@dataclass(frozen=True, slots=True)
class RunningTool:
    """A tool call that runs.

    Attributes:
        name: The tool.
        arguments: The arguments.
        report: Its newest report of progress.
        fraction: The part of the work that is done, from 0 to 1.
    """

    name: str
    arguments: Mapping[str, Any]
    report: str = ""
    fraction: float | None = None


@dataclass(frozen=True, slots=True)
class Live:
    """The part of the screen that changes.

    Attributes:
        markdown: The unfinished end of the reply.
        tools: The tool calls that run.
        activity: What the session is doing; empty: nothing.
        retry_at: When the next attempt starts at the earliest: ISO 8601 in UTC; None: no attempt is awaited.
        inputs: Inputs that the session has taken and the run has not read.
        approvals: The tool calls that wait for a decision, the oldest first.
    """

    markdown: str = ""
    tools: tuple[RunningTool, ...] = ()
    activity: str = ""
    retry_at: str | None = None
    inputs: tuple[str, ...] = ()
    approvals: tuple[WaitingBlock, ...] = ()


# Split growing Markdown into blocks that later text cannot change. Pure.


MAX_PENDING_CHARACTERS = 8192
"""Longest unfinished block. A longer one is cut at the end of a line."""
MAX_CODE_CHARACTERS = 65_536
"""The same of a fenced block of code, whose parts look different once it is cut."""

MARKDOWN = MarkdownIt().enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
"""The parser of replies. HTML is text, which a terminal shows as it is."""
_ENDED_BY_BLANK_LINE = {"paragraph_open", "heading_open", "hr", "table_open", "blockquote_open"}
"""Blocks that end at the latest with an empty line. A list and code by indentation may go on after it."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)]) ")


@dataclass(slots=True)
class BlockSplitter:
    """Takes a text in pieces and yields its finished blocks. The result does not depend on the pieces.

    Attributes:
        taken: Characters of the text that finished blocks have.
        pending: The characters after them.
    """

    taken: int = 0
    pending: str = ""
    _checked: int = field(default=0, repr=False)
    _after_blank: bool = field(default=False, repr=False)

    def add(self, text: str) -> list[str]:
        """Add text; return the blocks that it finishes."""
        self.pending += text
        blocks: list[str] = []
        # Line by line: an incomplete line does not say yet which block it belongs to.
        while (end := self.pending.find("\n", self._checked) + 1) > 0:
            line, self._checked = self.pending[self._checked : end], end
            if length := self._find_finished(line):
                blocks.append(self._take(length))
            else:
                self._after_blank = not line.strip()
        return [block for block in blocks if block.strip()]

    def cut(self, length: int) -> bool:
        """Shorten the text to so many characters; False: finished blocks have more than that."""
        if length < self.taken:
            return False
        self.pending = self.pending[: length - self.taken]
        self._checked = min(self._checked, len(self.pending))
        return True

    def finish(self) -> list[str]:
        """End the text; return the last block, if there is one."""
        block = self._take(len(self.pending))
        return [block] if block.strip() else []

    def _take(self, length: int) -> str:
        block, self.pending = self.pending[:length], self.pending[length:]
        self.taken += length
        self._checked, self._after_blank = 0, False
        return block

    def _find_finished(self, line: str) -> int:
        """Find how many characters are finished, after the line `line` has become complete; 0: none."""
        end = self._checked
        if opening := _FENCE.match(self.pending):
            # The parser would read all of the code again for each of its lines.
            is_closed = end > len(line) and _closes(line, opening[1])
            return end if is_closed or end > MAX_CODE_CHARACTERS else 0
        limit = end if end > MAX_PENDING_CHARACTERS else 0
        # Other lines go on with the block, or the next empty line will show that they did not.
        is_blank = not line.strip()
        if _ITEM.match(self.pending):
            may_end = self._after_blank and not (is_blank or _ITEM.match(line) or line.startswith("  "))
        else:
            may_end = self._after_blank or is_blank or bool(line.startswith("#") or _FENCE.match(line))
        return (_count_finished(self.pending[:end], line) if may_end else 0) or limit


def _closes(line: str, opening: str) -> bool:
    """Whether a line closes a fenced block."""
    closing = _FENCE.match(line)
    return bool(closing and closing[1].startswith(opening) and not line.strip().strip(opening[0]))


def _count_finished(text: str, last_line: str) -> int:
    """Count the characters of complete lines that are finished blocks."""
    blocks = [token for token in MARKDOWN.parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    if not blocks:
        return 0
    if len(blocks) > 1 and blocks[-1].map:
        return _measure_lines(text, blocks[-1].map[0])
    if blocks[0].type == "heading_open" and last_line.startswith("#"):
        return len(text)
    return len(text) if not last_line.strip() and blocks[0].type in _ENDED_BY_BLANK_LINE else 0


def _measure_lines(text: str, count: int) -> int:
    """Count the characters of the first lines."""
    end = 0
    for _ in range(count):
        end = text.find("\n", end) + 1
    return end


FRAME_SECONDS = 0.125
"""Seconds between two frames of the spinner."""
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
        case SourcesBlock():
            return Group(*show.list_source_lines(block.calls, block.citations))
        case ToolBlock():
            return _format_tool(block, width)
        case WaitingBlock():
            return _format_waiting(block, width, watched)
        case MediaBlock():
            return Group(*(show.make_text((f"  {describe_part(part)}", "dim cyan")) for part in block.parts))
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
    text = show.strip_controls(block.result).strip()
    if not text:  # a result of images and files alone: their lines follow
        return call
    lines = text.split("\n")
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
    if watched or (block.needs == "result" and block.session_id):
        # `/submit` gives results of the chat's own session.
        return describe_need(block.needs, block.session_id or watched, block.tool_call_id)
    return (
        f"waits for its result: /submit {block.tool_call_id} TEXT"
        if block.needs == "result"
        else "waits for approval"
    )


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
    remarks += [f"{meta.cleared_media} images, recordings and files are cleared"] if meta.cleared_media else []
    return Group(*rows, show.make_text((" · ".join(remarks), "dim")))


def _format_message(message: Message, tokens: int) -> Text:
    name = f" {message['name']}" if "name" in message else ""
    calls = " ".join(
        show.format_tool_call(call["name"], call["arguments"]).plain for call in message.get("tool_calls", [])
    )
    return _format_row(f"{message['role']}{name}", tokens, f"{get_text(message['content'])} {calls}")


def _format_row(title: str, tokens: int, content: str) -> Text:
    style = show.STYLES.get(title.partition(" ")[0], "")
    row = show.make_text((f"{show.shorten(title, 20):20}", style), (f" ~{show.format_number(tokens):>6}  ", "dim"))
    row.append(show.shorten(content, 500))
    row.no_wrap, row.overflow = True, "ellipsis"
    return row
