"""What a session shows on a terminal: finished blocks, which are printed once, and the live part below them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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
class ToolBlock:
    """A tool call that has ended.

    Attributes:
        name: The tool.
        arguments: The arguments; None: not known.
        result: The result, as the model reads it.
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


Block = UserBlock | ReplyBlock | ToolBlock | WaitingBlock | NoteBlock


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
