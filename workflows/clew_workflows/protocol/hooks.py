"""Checks by a user's hooks: before a message is committed, before a tool runs, before an answer is returned."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from clew.hooks import HookPoint
from clew_workflows.protocol._value import Value

HOOK_SECONDS = 15
"""Seconds of one attempt of all hooks that check one message, round or answer."""


class CheckedItem(Value):
    """What hooks check: a message, a tool call, or an answer.

    Attributes:
        kind: Of a message: `message`, `steer` or `inject`.
        text: The text of a message.
        metadata: The metadata of a message.
        tool_call_id: The tool call.
        name: The tool.
        arguments: The arguments of the tool call.
        seq: The entry that has the answer, or the first of a run's messages that are committed already.
        run_id: The run of those messages.
    """

    kind: str = "message"
    text: str = ""
    metadata: dict[str, str] | None = None
    tool_call_id: str = ""
    name: str = ""
    arguments: dict[str, Any] = Field(default={})
    seq: int | None = None
    run_id: str = ""


class RunHooks(Value):
    """Let the hooks of one point check some items.

    Attributes:
        point: When it is: before a message is committed, before a tool runs, or before an answer is returned.
        request_id: The request.
        items: What is checked, each by all hooks of the point.
        hooks: The points for which the worker that prepared the session has hooks. A worker with hooks for others
            answers `Outdated`. None: it need not.
    """

    point: HookPoint
    request_id: str
    items: tuple[CheckedItem, ...]
    hooks: tuple[HookPoint, ...] | None = None


class HooksAnswered(Value):
    """The answer to `RunHooks`.

    Attributes:
        request_id: The request.
        refusals: For each item the reason why a hook refuses it; None: all accept it.
    """

    request_id: str
    refusals: tuple[str | None, ...]
