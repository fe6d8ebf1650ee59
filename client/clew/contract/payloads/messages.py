"""What `ai_message` entries hold: one type for each role of a message."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SkipValidation

from clew.contract.payloads.base import EntryKind, Json, Payload, Stored, Usage, stored
from clew.contract.payloads.recipe import Recipe
from clew.model.canonical import canonicalize
from clew.model.messages import Message, ProviderData, ToolCall
from clew.model.pieces import split
from clew.model.tokens import Encoding

EDITED = "[a person changed this call before it ran; its arguments were {}]\n"
"""Precedes the result of a call that was approved with other arguments than the model's."""
INTERRUPTED = "\n[interrupted: this reply ends here]"
"""Follows the text of an interrupted reply in contexts."""
MAX_EDITED_CHARACTERS = 1000
"""Characters of the changed arguments in that note; the entry has all of them."""


@stored
class MessagePayload(Payload):
    """A message of a lane.

    Attributes:
        context_ref: The lane.
        role: The speaker: a user, the assistant, or a tool.
        content: The text.
        request_id: The request that the message belongs to.
        run_id: The run that the message belongs to.
    """

    entry_kind: ClassVar[EntryKind] = "ai_message"

    context_ref: str
    role: Literal["user", "assistant", "tool"]
    content: str
    request_id: str | None = None
    run_id: str | None = None

    @property
    def message(self) -> Message:
        """The message as a context shows it."""
        return {"role": self.role, "content": self.content}

    @property
    def call_ids(self) -> list[str]:
        """The ids of the message's tool calls, in order."""
        return []

    @property
    def is_late(self) -> bool:
        """Whether it is a result that replaces one in doubt."""
        return False

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the message."""
        return self, encoding.count_message(self.message)


@stored
class UserMessage(MessagePayload):
    """A user's message: it opened a run, or was steered in or injected while one was active.

    Attributes:
        role: The speaker.
        input_id: The id of the input; absent for the message that opened the run.
        source: The sender of the input, or its kind; absent for the message that opened the run.
        metadata: The metadata of the message.
        output_schema: The JSON Schema that the answer is to follow.
        settings: The other fields of `MessageInput` that the caller set.
        refs: The caller's own refs; no context shows them.
    """

    role: Literal["user"]
    input_id: str | None = None
    source: str | None = None
    metadata: dict[str, str] | None = None
    output_schema: Json | None = None
    settings: Json | None = None
    refs: dict[str, str] | None = None


@stored
class AssistantMessage(MessagePayload):
    """A model's reply.

    Attributes:
        role: The speaker.
        tool_calls: The tool calls, with ids that are unique in the thread.
        thinking: The text of the model's reasoning; no context shows it.
        provider_data: Blocks that go back to the provider verbatim.
        interrupted: The call was cancelled, or failed, before the reply was complete: `content` is what had arrived.
        recipe: The recipe of the model call.
    """

    role: Literal["assistant"]
    tool_calls: SkipValidation[list[ToolCall]] | None = None
    thinking: str | None = None
    provider_data: SkipValidation[ProviderData] | None = None
    interrupted: bool = False
    recipe: Recipe | None = None

    @property
    def message(self) -> Message:
        """The message as a context shows it.

        It has `provider_data` only beside tool calls: the provider reads it together with their results.
        """
        note = INTERRUPTED if self.interrupted else ""
        message: Message = {"role": "assistant", "content": self.content + note}
        if self.tool_calls:
            message["tool_calls"] = self.tool_calls
            if self.provider_data:
                message["provider_data"] = self.provider_data
        return message

    @property
    def call_ids(self) -> list[str]:
        """The ids of the message's tool calls, in order."""
        return [call["id"] for call in self.tool_calls or ()]


@stored
class StoredResult(Stored):
    """A large tool result, which the archive has in full under its digest.

    Attributes:
        digest: SHA-256 of the full text.
        bytes: The size of the full text, in bytes of UTF-8.
        shown: The size of the part in `content`, in bytes of UTF-8.
    """

    digest: str
    bytes: int
    shown: int


@stored
class Subagent(Stored):
    """The session that has worked on a tool call as a subagent.

    Attributes:
        session_id: The session.
        agent: Its agent.
        usage: Its usage, that of its own subagents included; absent if it had not reported.
    """

    session_id: str
    agent: str
    usage: Usage | None = None


@stored
class ToolMessage(MessagePayload):
    """The result of a tool call.

    Attributes:
        role: The speaker.
        tool_call_id: The call that it answers.
        name: The tool.
        edited_arguments: The arguments with which a person replaced the model's.
        result: The full result, if `content` has a part of it.
        is_error: Whether the result describes a failure.
        in_doubt: Whether it is unknown if the tool has run.
        subagent: The subagent that was called.
        by: Who submitted the result of an external call, as the caller said.
        late: Whether the result arrived after the end of its run; it replaces the result in doubt.
        note_tokens: Tokens of the note that says how the call was changed.
        pieces: Tokens of each piece of `content`, if it is long enough to be truncated.
    """

    role: Literal["tool"]
    tool_call_id: str
    name: str | None = None
    edited_arguments: Json | None = None
    result: StoredResult | None = None
    is_error: bool = False
    in_doubt: bool = False
    subagent: Subagent | None = None
    by: str | None = None
    late: bool = False
    note_tokens: int | None = None
    pieces: tuple[int, ...] | None = None

    @property
    def message(self) -> Message:
        """The message as a context shows it."""
        message: Message = {
            "role": "tool",
            "content": self.edit_note + self.content,
            "tool_call_id": self.tool_call_id,
        }
        if self.name:
            message["name"] = self.name
        return message

    @property
    def is_late(self) -> bool:
        """Whether it is a result that replaces one in doubt."""
        return self.late

    @property
    def edit_note(self) -> str:
        """The note before the result that says how a person changed the call; empty if the call is unchanged."""
        if self.edited_arguments is None:
            return ""
        text = canonicalize(self.edited_arguments).decode()
        if len(text) > MAX_EDITED_CHARACTERS:
            text = f"{text[:MAX_EDITED_CHARACTERS]}…"
        return EDITED.format(text)

    @property
    def size(self) -> int:
        """The size of the full result, in bytes of UTF-8."""
        return self.result.bytes if self.result else len(self.content.encode())

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the message; the payload records those of the parts that may be truncated."""
        counted, tokens = self, encoding.count_message(self.message)
        if note := self.edit_note:
            counted = replace(counted, note_tokens=encoding.count(note))
        if len(pieces := split(self.content)) > 1:
            counted = replace(counted, pieces=tuple(map(encoding.count, pieces)))
        return counted, tokens


AnyMessage = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]
