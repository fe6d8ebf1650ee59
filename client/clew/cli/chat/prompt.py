"""The line that is typed: keys, history, completion. `prompt_toolkit` draws it below what is printed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output
from prompt_toolkit.styles import Style

from clew.cli.chat.commands import Kind, complete

KEY_SECONDS = 0.1
"""Seconds after Esc within which another key makes a combination with it, as Alt does."""
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


class Keys:
    """What the keys do that the chat defines.

    Attributes:
        cancel: Called for Esc, and for Ctrl-C on an empty line.
        leave: Called for both before: leaves a question; False if there is none.
    """

    def __init__(self, cancel: Callable[[], None], leave: Callable[[], bool]) -> None:
        self.cancel = cancel
        self.leave = leave

    def make_bindings(self) -> KeyBindings:
        """Make the bindings."""
        bindings = KeyBindings()

        @bindings.add("escape")
        def escape(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if buffer.complete_state:
                buffer.cancel_completion()
            elif self.leave():
                buffer.reset()
            else:
                self.cancel()

        @bindings.add("c-c")
        @bindings.add("<sigint>")
        def interrupt(event: KeyPressEvent) -> None:
            buffer = event.current_buffer
            if self.leave() or buffer.text:
                buffer.reset()
            else:
                self.cancel()

        @bindings.add("escape", "enter")
        def break_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        return bindings


class NameCompleter(Completer):
    """Completes commands and the names that they take."""

    def __init__(self, list_names: Callable[[], dict[Kind, list[str]]]) -> None:
        self._list_names = list_names

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:  # noqa: ARG002
        """Complete the line before the cursor."""
        for text, replaced, meta in complete(document.text_before_cursor, self._list_names()):
            yield Completion(text, -replaced, display_meta=meta)


class LineHistory(FileHistory):
    """Lines in a file. A file that cannot be written ends no chat."""

    def store_string(self, string: str) -> None:
        """Store a line."""
        with suppress(OSError):
            super().store_string(string)


def open_history(env: Mapping[str, str] = os.environ) -> History:
    """Open the history in the user's folder for state; in memory, if there is none that can be written."""
    folder = Path(env.get("XDG_STATE_HOME") or Path("~/.local/state").expanduser(), "clew")
    path = folder / "history"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.touch(0o600)
    except (OSError, RuntimeError):
        return InMemoryHistory()
    return LineHistory(path)


def make_prompt(
    *,
    message: Callable[[], str],
    toolbar: Callable[[], str],
    keys: Keys,
    completer: Completer,
    history: History,
    input: Input | None = None,  # noqa: A002 - prompt_toolkit's name
    output: Output | None = None,
) -> PromptSession[str]:
    """Make the prompt. `message` is painted before the line, `toolbar` is the plain text of the status line."""
    prompt: PromptSession[str] = PromptSession(
        message=lambda: ANSI(message()),
        bottom_toolbar=toolbar,
        completer=completer,
        # The menu takes rows below the line: only while a command is typed.
        complete_while_typing=Condition(lambda: prompt.default_buffer.text.startswith("/")),
        reserve_space_for_menu=MENU_ROWS,
        history=history,
        key_bindings=keys.make_bindings(),
        style=_STYLE,
        erase_when_done=True,
        enable_suspend=True,
        include_default_pygments_style=False,
        input=input,
        output=output,
    )
    prompt.app.timeoutlen = prompt.app.ttimeoutlen = KEY_SECONDS
    return prompt
