"""What the model behind a strict server does next: text, thinking, tool calls, an end, or a fault."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Ending = Literal["stop", "length"]


@dataclass(frozen=True)
class Call:
    """A tool call of the model.

    Attributes:
        name: The tool, by the name that the server received.
        arguments: An object, or the raw text of one that is cut or malformed.
    """

    name: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True)
class Fault:
    """A failure of the server.

    Attributes:
        when: `before`: an error response; `inside`: an error event in the middle of the reply; `cut`: the connection
            breaks in the middle of the reply; `after`: it breaks when the reply has said that it ends.
        status: The status of an error response.
    """

    when: Literal["before", "inside", "cut", "after"]
    status: int = 503


@dataclass(frozen=True)
class Turn:
    """One reply of the model.

    Attributes:
        text: Its text.
        calls: Its tool calls.
        thinks: Whether it thinks first; the server chooses a text that no other reply has.
        ending: Why it ends; `length`: at the token limit.
        fault: The failure that takes the reply's place, or breaks it.
    """

    text: str = ""
    calls: tuple[Call, ...] = ()
    thinks: bool = False
    ending: Ending = "stop"
    fault: Fault | None = None
