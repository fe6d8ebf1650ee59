"""The terminal of a chat: the line that is typed, what is printed above it, the live part and the status line.

`prompt_toolkit` draws the line, with its keys, its history and its completion, below what is printed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prompt_toolkit import PromptSession
from prompt_toolkit.application import get_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style
from rich.text import Text
from temporalio.exceptions import TemporalError

from clew.cli import show
from clew.cli.attachments import find_files
from clew.cli.chat.painting import FRAME_SECONDS, Block, Live, NoteBlock, Painter, Tone, format_context
from clew.cli.chat.typed_lines import Answer, Kind, Transcript, Typed, complete, parse_line
from clew.cli.failures import find_error_type, format_message
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    ConfigureReceipt,
    Context,
    OperationReceipt,
    SessionStatus,
)
from clew_workflows.contract.payloads import AssistantMessage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import Entry

KEY_SECONDS = 0.1
"""Seconds after Esc within which another key makes a combination with it, as Alt does."""
ATTACH = "/attach "
"""The beginning of a line whose rest is a path."""
SHOWN_FILES = 3
"""Most files that a line names."""
MENU_ROWS = 6
"""Rows below the line for the menu of completions, while a command is typed."""
_STYLE = Style.from_dict(
    {
        "bottom-toolbar": "noreverse",
        "bottom-toolbar.text": "noreverse fg:ansibrightblack",
        "completion-menu": "bg:default fg:default",
        "completion-menu.completion.current": "reverse",
        "completion-menu.meta.completion": "bg:default fg:ansibrightblack",
        "completion-menu.meta.completion.current": "bg:default fg:default",
    }
)
ROWS_BELOW = 8
"""Rows of the terminal that the live part leaves to the line, the menu and the status line."""


class Display:
    """The terminal of a chat.

    Args:
        live: Returns the live part.
        status_line: Returns the plain text of the status line in so many columns.
        cancel: Called for Esc, and for Ctrl-C on an empty line.
        leave: Called for both before: leaves a question; False if there is none.
        attach: Attaches files whose path was pasted or typed.
        attached: Returns the titles of the files that the next message has.
        list_names: Returns the names that are known of each kind, for completion.
        history: The lines typed before; None: those of the user's file.
        input: Where keys come from; None: stdin.
        output: Where the text goes; None: stdout.

    Attributes:
        hint: A remark above the line, until the next line is typed.
        question: The text before the line, in place of `> `; empty: none.
    """

    def __init__(
        self,
        *,
        live: Callable[[], Live],
        status_line: Callable[[int], str],
        cancel: Callable[[], None],
        leave: Callable[[], bool],
        attach: Callable[[Sequence[Path]], None],
        attached: Callable[[], tuple[str, ...]],
        list_names: Callable[[], dict[Kind, list[str]]],
        history: History | None = None,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's name
        output: Output | None = None,
    ) -> None:
        self._live = live
        self._attached = attached
        self._offer = _Offer(attach, self._show_hint)
        self.hint = ""
        self.question = ""
        self._interrupt = cancel
        self._prompt: PromptSession[str] = PromptSession(
            message=lambda: ANSI(self._paint_message()),
            bottom_toolbar=lambda: status_line(self._output.get_size().columns - 1),
            completer=_NameCompleter(list_names),
            # The menu takes rows below the line: only while a command is typed.
            complete_while_typing=Condition(lambda: self._prompt.default_buffer.text.startswith("/")),
            reserve_space_for_menu=MENU_ROWS,
            history=history or open_history(),
            key_bindings=_make_bindings(cancel, leave, self._offer),
            style=_STYLE,
            erase_when_done=True,
            enable_suspend=True,
            include_default_pygments_style=False,
            input=input,
            output=output,
        )
        self._prompt.app.timeoutlen = self._prompt.app.ttimeoutlen = KEY_SECONDS
        self._output = self._prompt.app.output
        self._colors = show.make_console().color_system
        self._unprinted = ""
        self._printed = 0
        self._flushing: asyncio.Task[None] | None = None
        self._tick = 0
        self._frame: tuple[Any, ...] = ()
        self._message = ""

    async def read_line(self, draft: str = "") -> str | None:
        """Read a line, which begins with `draft`. None: the input has ended."""
        # Between two prompts Ctrl-C is a signal, which must not end the program.
        with suppress(NotImplementedError):
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            line = await self._prompt.prompt_async(default=draft, set_exception_handler=False)
        except EOFError:
            return None
        self.hint = ""
        self._offer.end()
        return line.strip()

    def refresh(self) -> None:
        """Paint the live part and the status line anew."""
        self._prompt.app.invalidate()

    async def turn(self, is_working: Callable[[], bool]) -> None:
        """Turn the spinner while the session works."""
        while True:
            await asyncio.sleep(FRAME_SECONDS)
            self._tick += 1
            if is_working():
                self.refresh()

    def print(self, block: Block) -> None:
        """Print a block above the line."""
        self._write(self._painter.paint_block(block))

    def print_picture(self, title: str, painted: str, printed: int) -> None:
        """Print a picture, with its title if it does not follow the line that names it.

        Args:
            title: Its description.
            painted: What the terminal draws; the cursor stands below it at the end.
            printed: What `printed` was after that line.
        """
        line = self._painter.paint(show.make_text((f"  {title}", "dim cyan"))) if printed != self._printed else ""
        self._write(line + painted)

    @property
    def printed(self) -> int:
        """The number of times that something was printed."""
        return self._printed

    def measure(self) -> tuple[int, int]:
        """Measure the terminal: its columns and rows."""
        size = self._output.get_size()
        return size.columns, size.rows

    def print_note(self, text: str, tone: Tone = "dim") -> None:
        """Print a remark."""
        self.print(NoteBlock(text, tone))

    def print_title(self, title: str, details: str) -> None:
        """Print the title of a session."""
        self._write("\n" + self._painter.paint(show.make_text((title, "bold"), details)))

    def print_command(self, line: str) -> None:
        """Print a command as it was typed."""
        self._write("\n" + self._painter.paint(show.make_text((line, "bold cyan"))))

    def print_error(self, error: ClewError | TemporalError) -> None:
        """Print why something failed."""
        text = show.make_line((f"{find_error_type(error)}: ", "bold red"), format_message(error))
        self._write(self._painter.paint(text))

    def print_answer(self, answer: Answer) -> None:
        """Print a session's answer to a command."""
        painter = self._painter
        match answer:
            case Context():
                self._write(painter.paint(format_context(answer)))
            case SessionStatus():
                self._write(painter.capture(lambda to: show.print_status(to, answer)))
            case Transcript():
                self._write(painter.capture(lambda to: show.print_messages(to, answer.messages)))
            case OperationReceipt(status="deferred") | ConfigureReceipt(status="deferred"):
                self.print_note("accepted: it is applied when the session has ended what it is doing")
            case OperationReceipt(status="applied") | ConfigureReceipt() | CancelReceipt() | ApprovalReceipt():
                pass  # the entry says it
            case _:
                self.print_note(show.format_receipt(answer))

    async def flush(self) -> None:
        """Write what is not written yet."""
        if self._flushing:
            await self._flushing
        if self._unprinted:
            await self._write_unprinted()

    @property
    def _painter(self) -> Painter:
        return Painter(self._output.get_size().columns, self._colors)

    def _paint_message(self) -> str:
        """Paint the live part, and the beginning of the line. The library asks several times for each frame."""
        now = datetime.now(UTC).replace(microsecond=0)
        attached = self._attached()
        frame = (self._live(), self.hint, self.question, attached, self._output.get_size(), self._tick, now)
        if frame != self._frame:
            self._frame, self._message = frame, self._paint_frame(now, attached)
        return self._message

    def _paint_frame(self, now: datetime, attached: tuple[str, ...]) -> str:
        if self.question:
            return f"{show.strip_controls(self.question)}> "
        rows = max(self._output.get_size().rows - ROWS_BELOW, 3)
        live = self._painter.paint_live(self._live(), rows=rows, tick=self._tick, now=now)
        hint = self._painter.paint(show.make_text((self.hint, "yellow"))).rstrip("\n") if self.hint else ""
        files = self._painter.paint(_format_titles(attached)).rstrip("\n") if attached else ""
        return "\n".join(part for part in (live, hint, files, "> ") if part)

    def _show_hint(self, hint: str) -> None:
        self.hint = hint
        self.refresh()

    def _write(self, painted: str) -> None:
        """Write text above the line. What is printed in one turn of the loop is written at once."""
        if not self._unprinted:
            self._flushing = asyncio.ensure_future(self._write_unprinted())
        self._unprinted += painted
        self._printed += 1

    async def _write_unprinted(self) -> None:
        """Write what is not written yet above the line.

        The library's `run_in_terminal` would let the terminal echo the keys that are typed meanwhile.
        """
        app = self._prompt.app
        await app.renderer.wait_for_cpr_responses()  # they say where the line was
        if app.is_running:
            app.renderer.erase()
        painted, self._unprinted = self._unprinted, ""
        self._output.write_raw(painted)
        self._output.flush()
        if app.is_running:
            app.renderer.request_absolute_cursor_position()
            app.invalidate()


# The line that is typed: keys, history, completion.


class _Offer:
    """The offer to attach the files whose paths stand in the line. Tab accepts it.

    Args:
        attach: Attaches the files.
        hint: Shows a remark above the line; empty: none.
    """

    def __init__(self, attach: Callable[[Sequence[Path]], None], hint: Callable[[str], None]) -> None:
        self._attach = attach
        self._hint = hint
        self._pasted = ""

    def take_pasted(self, text: str) -> None:
        """Make the offer, if a terminal has pasted the paths of files."""
        if files := find_files(text, absolute=True):
            self._pasted = text
            names = ", ".join(show.shorten(path.name, 80) for path in files[:SHOWN_FILES])
            more = f" and {len(files) - SHOWN_FILES} more" if len(files) > SHOWN_FILES else ""
            self._hint(f"Tab attaches {names}{more} to the message")

    def end(self) -> None:
        """Withdraw the offer."""
        self._pasted = ""

    def find(self, line: str) -> str:
        """Find the text of the line that Tab replaces by the files; empty: there is none."""
        if self._pasted and self._pasted in line:
            return self._pasted
        # A terminal that does not mark pasted text types it.
        typed = line.strip().startswith(("/", "~", "'", '"', "file://")) and not isinstance(parse_line(line), Typed)
        return line if typed and find_files(line, absolute=True) else ""

    def accept(self, buffer: Buffer) -> None:
        """Attach the files, and take their paths out of the line."""
        text = self.find(buffer.text)
        self._hint("")
        self._attach(find_files(text, absolute=True))
        rest = buffer.text.replace(text, " ", 1).strip()
        buffer.document = Document(rest, len(rest))
        self.end()


def _make_bindings(cancel: Callable[[], None], leave: Callable[[], bool], offer: _Offer) -> KeyBindings:
    """Make the bindings of the keys that the chat defines."""
    bindings = KeyBindings()

    @bindings.add("escape")
    def escape(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state:
            buffer.cancel_completion()
        elif leave():
            buffer.reset()
        else:
            cancel()

    @bindings.add("c-c")
    @bindings.add("<sigint>")
    def interrupt(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if leave() or buffer.text:
            buffer.reset()
        else:
            cancel()

    @bindings.add(Keys.BracketedPaste)
    def paste(event: KeyPressEvent) -> None:
        text = event.data.replace("\r\n", "\n").replace("\r", "\n")
        is_argument = event.current_buffer.text.startswith(ATTACH)
        event.current_buffer.insert_text(text)
        if not is_argument:
            offer.take_pasted(text)

    @bindings.add("tab", filter=Condition(lambda: bool(offer.find(get_app().current_buffer.text))))
    def attach(event: KeyPressEvent) -> None:
        offer.accept(event.current_buffer)

    @bindings.add("escape", "enter")
    def break_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return bindings


class _NameCompleter(Completer):
    """Completes commands and the names that they take, and the path of `/attach`."""

    def __init__(self, list_names: Callable[[], dict[Kind, list[str]]]) -> None:
        self._list_names = list_names
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """Complete the line before the cursor."""
        if document.text_before_cursor.startswith(ATTACH):
            path = document.text_before_cursor.removeprefix(ATTACH)
            yield from self._paths.get_completions(Document(path, len(path)), complete_event)
            return
        for text, replaced, meta in complete(document.text_before_cursor, self._list_names()):
            yield Completion(text, -replaced, display_meta=meta)


class LineHistory(FileHistory):
    """Lines in a file. A file that cannot be written ends no chat."""

    def store_string(self, string: str) -> None:
        """Store a line."""
        with suppress(OSError):
            super().store_string(string)


def open_history() -> History:
    """Open the history in the user's folder for state; in memory, if there is none that can be written."""
    folder = Path(os.environ.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(), "clew")
    path = folder / "history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return LineHistory(path)


def _format_titles(titles: tuple[str, ...]) -> Text:
    """Format the line with the files that the next message has."""
    more = f" and {len(titles) - SHOWN_FILES} more" if len(titles) > SHOWN_FILES else ""
    shown = " · ".join(show.shorten(title, 60) for title in titles[:SHOWN_FILES])
    return show.make_text((f"+ {shown}{more}", "cyan"))


# The status line: model, lane, context used, tokens and cost. Pure.


class Meter:
    """The numbers of a session's status line.

    Attributes:
        status: The session's status as it was read last; None: not yet.
        context_tokens: Tokens of the active lane's last context; None: not known.
    """

    def __init__(self) -> None:
        self.status: SessionStatus | None = None
        self.context_tokens: int | None = None
        self._call_policy: Mapping[str, Any] | None = None
        self._later_usage: Usage = Usage()

    def take_status(self, status: SessionStatus) -> None:
        """Take the session's status, which counts all entries before `status.rev`."""
        if self.status and self.status.active_context_ref != status.active_context_ref:
            self.context_tokens = self._call_policy = None
        self.status, self._later_usage = status, Usage()

    def take_entry(self, entry: Entry) -> None:
        """Take an entry: a reply's recipe has the tokens of its context."""
        if entry.kind != "ai_message" or self.status is None:
            return
        message = entry.body
        if not isinstance(message, AssistantMessage) or message.recipe is None:
            return
        if message.recipe.context_ref == self.status.active_context_ref:
            self.context_tokens, self._call_policy = message.recipe.input_tokens, message.recipe.context_policy
        if entry.seq >= self.status.rev:
            self._later_usage = self._later_usage.plus(message.recipe.call_usage)

    @property
    def usage(self) -> Usage:
        """The session's usage, with that of the replies since the status was read."""
        return self.status.usage.plus(self._later_usage) if self.status else Usage()

    @property
    def budget(self) -> int | None:
        """The most tokens of a context: those of the newest call, else of the policy in force; None: not known."""
        policy = self.status.config.get("context_policy") if self.status else None
        if not policy:
            return None
        try:
            return ContextPolicy.model_validate({**policy, **(self._call_policy or {})}, strict=False).budget
        except ValueError:  # of a later release
            return None

    def format_line(self, activity: str, columns: int) -> str:
        """Format the line in so many columns; `activity` is the session's status in words."""
        if self.status is None:
            return activity[:columns]
        lane, usage = self.status.active_context_ref, self.usage
        tokens = f"{format_count(usage.input_tokens)} → {format_count(usage.output_tokens)} tokens"
        agent = self.status.agent.name if self.status.agent else ""
        parts = [
            self.status.session_id,
            "" if lane == "default" else f"lane {lane}",
            self.status.model or agent,
            activity,
            self._format_context(),
            tokens if usage.model_calls else "",
            show.format_dollars(usage.cost_usd),
        ]
        # The first parts are those that can be looked up with /status.
        while len(line := " · ".join(show.shorten(part, 60) for part in parts if part)) > columns and len(parts) > 1:
            parts.pop(0)
        return line[:columns]

    def _format_context(self) -> str:
        if self.context_tokens is None:
            return ""
        if not (budget := self.budget):
            return f"context {format_count(self.context_tokens)}"
        return (
            f"context {format_count(self.context_tokens)}/{format_count(budget)} ({self.context_tokens / budget:.0%})"
        )


def format_count(number: int) -> str:
    """Format a number of tokens in few characters."""
    if number < 10_000:
        return show.format_number(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
    return f"{number / 1_000_000:.1f}M"
