"""The neutral shapes that a model sees: messages and tool schemas, never a provider's own types.

They are plain JSON objects, so that what is stored, projected, hashed and sent is one and the same thing.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(TypedDict):
    """A call that a model asked for.

    Attributes:
        id: Minted by Clew: unique in its thread, at most 40 letters, digits, `_` or `-`.
        name: The tool.
        arguments: Always an object; where a model sent something else it is empty, and the tool's result says what
            came.
    """

    id: str
    name: str
    arguments: dict[str, Any]


class ProviderData(TypedDict):
    """What a provider wants back verbatim with the message it came with; no other provider gets it.

    Attributes:
        provider: The provider.
        blocks: What it sent.
    """

    provider: str
    blocks: list[dict[str, Any]]


class Message(TypedDict, total=False):
    """One message of a context.

    Attributes:
        role: Who speaks.
        content: The text.
        tool_calls: The calls that an assistant's message asks for.
        tool_call_id: The call that a tool's message answers.
        name: The tool that a tool's message is from.
        provider_data: What the provider wants back with the message.
    """

    role: Required[Role]
    content: Required[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    provider_data: NotRequired[ProviderData]


class ToolSpec(TypedDict):
    """A tool as a model sees it.

    Attributes:
        name: The tool.
        description: What it is for.
        parameters: The JSON Schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


def list_call_ids(message: Message) -> list[str]:
    """The ids of the tool calls that a message asks for, in order."""
    return [call["id"] for call in message.get("tool_calls", [])]
