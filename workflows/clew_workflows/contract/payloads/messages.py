"""What `ai_message` and `summary` entries hold."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SkipValidation

from clew_workflows.contract.messages import Message, ProviderData, ToolCall, canonicalize
from clew_workflows.contract.outcomes import Price
from clew_workflows.contract.outcomes import Usage as UsageOutput
from clew_workflows.contract.payloads.base import EntryKind, Json, Payload, Stored, Usage, stored
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import Encoding, split

# The recipe of a model call: how its context was made from the thread.


@stored
class Fitting(Stored):
    """What a request has otherwise than its context, because the provider refuses the context as it is.

    Attributes:
        dialect: The dialect that the request follows; `docs/models.md` lists them.
        merged: Messages that were joined to another one: system messages, and neighbours of one role.
        added: Messages that stand in the request alone, where the provider wants one.
        dropped: Messages without any text, which are not in the request.
        tools: Tools whose name, description or schema was changed, and how.
        tools_left_out: Tools that are not in the request, and why.
        options: Options that were changed or left out, and how; `output_schema` where the prompt describes it.
    """

    dialect: str
    merged: int = 0
    added: int = 0
    dropped: int = 0
    tools: dict[str, str] = Field(default_factory=dict)
    tools_left_out: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)


@stored
class Recipe(Stored):
    """How the context of a model call was made: enough to make it again from the thread alone.

    Attributes:
        context_ref: The lane that was projected.
        basis_seq: The newest entry that the context could include.
        model: The model that was called, as `provider:model`.
        model_options: The options of the call (`ModelOptions`) that were set.
        policy_hash: The hash of the context policy in force.
        digest: SHA-256 over the RFC 8785 form of `{messages, tool_spec, output_schema}`.
        input_tokens: Tokens of the context under the session's encoding.
        usage: The usage that the provider reported; an estimate (`estimated_calls`) of an interrupted reply, and
            where the provider reported none.
        earlier_usage: The usage of earlier attempts of the call, whose replies were lost or of no use.
        attempt: The number of the attempt that returned the reply, from 1 on.
        stop_reason: `stop`: the reply is complete; `length`: it reached its limit; `tool_calls`: it calls tools;
            `interrupted`: the call was cancelled, or failed.
        epoch: The seqs at which the window of an epoch was truncated; absent for sliding windows.
        shared_prefix_tokens: Tokens that the context shares with the beginning of the lane's call before it; absent
            for sliding windows.
        cleared_tool_results: Tool results that a marker replaces; absent where the policy clears none.
        truncated_tool_results: Tool results that were truncated, by the id of the tool call: the bytes that are left
            of the beginning and of the end.
        context_policy: The fields that the call's own context policy set; absent: the session's was in force.
        prices: The list prices that the cost was computed from, by rising `above`; absent where the worker knew none.
        token_ratio: The ratio of the provider's tokens to those counted here, if it is larger than 1.
        tools: The names of the call's tools, if its request named some of the session's.
        output_schema_seq: The seq of the user message whose `output_schema` the answer was to follow.
        fitting: What the request had otherwise than the context; absent: nothing.
    """

    context_ref: str
    basis_seq: int
    model: str
    model_options: Json
    policy_hash: str
    digest: str
    input_tokens: int
    usage: Usage
    attempt: int
    stop_reason: Literal["stop", "length", "tool_calls", "interrupted"]
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
    context_policy: Json | None = None
    prices: tuple[Price, ...] = ()
    token_ratio: float | None = None
    tools: tuple[str, ...] | None = None
    output_schema_seq: int | None = None
    earlier_usage: Usage | None = None
    fitting: Fitting | None = None

    @property
    def policy(self) -> ContextPolicy | None:
        """The call's own context policy, with only its own fields set; None where it had none.

        Raises:
            ValueError: The policy has fields of a later release.
        """
        if not self.context_policy:
            return None
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def call_usage(self) -> UsageOutput:
        """The usage of the call with all its attempts, counted as one model call."""
        usage = self.usage.plus(self.earlier_usage) if self.earlier_usage else self.usage
        return usage.model_copy(update={"model_calls": 1})


# What `ai_message` entries hold: one type for each role of a message.


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


# What `summary` entries hold.


@stored
class SummaryPayload(Payload):
    """A summary of a lane up to a seq.

    Attributes:
        context_ref: The lane.
        content: The summary's text.
        format: The format of the text: `text`.
        from_seq: The first entry that the model read; the summary before covers earlier ones.
        to_seq: The last entry that the summary covers; it covers everything before, too.
        model: The model that wrote it, as `provider:model`.
        source_digest: SHA-256 over the seqs and ids of the entries that the model read.
        source_tokens: The tokens of those entries.
        pinned: The seqs of the entries that were pinned then; contexts still have them verbatim.
        usage: The usage of the model call that wrote the summary.
    """

    entry_kind: ClassVar[EntryKind] = "summary"

    context_ref: str
    content: str
    format: str
    from_seq: int
    to_seq: int
    model: str
    source_digest: str | None = None
    source_tokens: int | None = None
    pinned: tuple[int, ...] | None = None
    usage: Usage | None = None

    def make_message(self, role: Literal["system", "user"]) -> Message:
        """Make the message of the summary in a context."""
        return {"role": role, "content": f"Summary of earlier conversation:\n{self.content}"}

    @property
    def provenance(self) -> dict[str, Any]:
        """The fields that describe how the summary was made, for a compaction's `meta`."""
        value = self.as_dict()
        return {name: value[name] for name in value if name not in ("context_ref", "content", "format")}

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the summary's message."""
        return self, encoding.count_message(self.make_message("system"))
