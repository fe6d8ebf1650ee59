"""Messages and tool schemas in Clew's own form; providers convert them to theirs.

They are plain JSON objects: the same objects are stored, projected, hashed and sent.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, Required

from typing_extensions import TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(TypedDict):
    """A tool call by a model.

    Attributes:
        id: Made by Clew: unique in its thread, at most 40 letters, digits, `_` or `-`.
        name: The tool.
        arguments: The arguments, always an object: an empty one if the model sent something else, which the tool's
            result then quotes.
    """

    id: str
    name: str
    arguments: dict[str, Any]


class ProviderData(TypedDict):
    """The part of a reply that goes back to its provider as it came; no other provider gets it.

    Attributes:
        provider: The provider.
        blocks: The content blocks, or the fields of the message, as the provider sent them.
        calls: What the provider sent with each tool call of the message, in order: its `id`, and signatures.
        model: The model that sent it, without its provider. Absent: any model of the provider takes it back.
    """

    provider: str
    blocks: list[dict[str, Any]]
    calls: NotRequired[list[dict[str, Any]]]
    model: NotRequired[str]


class Message(TypedDict, total=False):
    """One message of a context.

    Attributes:
        role: The speaker.
        content: The text.
        tool_calls: The tool calls of an assistant message.
        tool_call_id: The call that a tool message answers.
        name: The tool of a tool message.
        provider_data: Blocks that go back to the provider with the message.
    """

    role: Required[Role]
    content: Required[str]
    tool_calls: NotRequired[list[ToolCall]]
    tool_call_id: NotRequired[str]
    name: NotRequired[str]
    provider_data: NotRequired[ProviderData]


class ToolSpec(TypedDict):
    """A tool as a model knows it.

    Attributes:
        name: The tool.
        description: The purpose of the tool.
        parameters: The JSON Schema of its arguments.
    """

    name: str
    description: str
    parameters: dict[str, Any]


def list_call_ids(message: Message) -> list[str]:
    """List the ids of a message's tool calls, in order."""
    return [call["id"] for call in message.get("tool_calls", [])]
