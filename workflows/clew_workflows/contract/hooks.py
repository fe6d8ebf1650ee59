"""Hooks: a team's own checks of messages, tool calls and answers. A worker has those of the modules in `CLEW_HOOKS`.

A hook is a function, sync or async, of one argument. It accepts the argument by returning None, and refuses it by
raising `Refuse`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from clew_workflows.contract.content import BlobReader, Part, ReadsBlobs

HookPoint = Literal["request", "tool", "answer"]


class Refuse(Exception):
    """A hook refuses what it has checked. The message is the reason, which is in the thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedMessage(ReadsBlobs):
    """A message before it is committed.

    Attributes:
        session_id: The session.
        request_id: The request that it belongs to.
        kind: `message`, or `steer` or `inject` for an input to an active run.
        text: The text, with a marker for each image, recording and file.
        metadata: The metadata of the message.
        media: The images, recordings and files, as parts; `read_blob` reads one.
    """

    session_id: str
    request_id: str
    kind: str
    text: str
    metadata: Mapping[str, str]
    media: Sequence[Part] = ()
    _blobs: BlobReader | None = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedToolCall:
    """A tool call before it is run.

    Attributes:
        session_id: The session.
        request_id: The request that the run serves.
        tool_call_id: The call.
        name: The tool.
        arguments: The arguments, as a person may have edited them. Those of a function are not validated yet.
    """

    session_id: str
    request_id: str
    tool_call_id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedAnswer(ReadsBlobs):
    """An answer before it is returned.

    Attributes:
        session_id: The session.
        request_id: The request.
        text: The text, with a marker for each image and recording; JSON if the request has an `output_schema`.
        media: The images and recordings, as parts; `read_blob` reads one.
    """

    session_id: str
    request_id: str
    text: str
    media: Sequence[Part] = ()
    _blobs: BlobReader | None = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Hook:
    """A function that a worker calls at one point.

    Attributes:
        point: When it is called: before a message is committed, a tool runs, or an answer is returned.
        function: The function.
    """

    point: HookPoint
    function: Callable[[Any], object]

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.function.__name__

    @property
    def is_async(self) -> bool:
        """Whether the function is a coroutine function."""
        return inspect.iscoroutinefunction(self.function)

    def __call__(self, checked: Any) -> object:
        """Call the function."""
        return self.function(checked)


def check_message(function: Callable[[CheckedMessage], object]) -> Hook:
    """Make a function the hook of messages: it is called before one is committed."""
    return Hook("request", function)


def check_tool_call(function: Callable[[CheckedToolCall], object]) -> Hook:
    """Make a function the hook of tool calls: it is called before one is run."""
    return Hook("tool", function)


def check_answer(function: Callable[[CheckedAnswer], object]) -> Hook:
    """Make a function the hook of answers: it is called before one is returned."""
    return Hook("answer", function)
