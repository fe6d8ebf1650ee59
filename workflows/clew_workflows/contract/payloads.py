"""The payloads of a thread's entries: one type for each kind of entry, and one for the recipe of a model call.

A session builds payloads from these types, and readers parse them. The JSON of an entry never changes once it is
committed. The types ignore fields that a later release wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, replace
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, NotRequired, Self, TypeVar, cast, dataclass_transform, get_args

from pydantic import AfterValidator, ConfigDict, Field, PlainSerializer, SkipValidation, TypeAdapter
from pydantic.dataclasses import dataclass
from pydantic_core import to_json

from clew_workflows.contract.config import ApprovalScope, OnBusy, SessionConfig
from clew_workflows.contract.content import Content, MediaSort, append_text, get_text, list_media, prefix_text
from clew_workflows.contract.limits import MAX_EDITED_CHARACTERS
from clew_workflows.contract.messages import (
    Citation,
    Message,
    ProviderCall,
    ProviderData,
    ToolCall,
    ToolSpec,
    canonicalize,
)
from clew_workflows.contract.names import BUILT_IN_TOOLS
from clew_workflows.contract.outcomes import OutcomeError, Output, Price
from clew_workflows.contract.outcomes import Usage as UsageOutput
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import Encoding, split

EntryKind = Literal[
    "config",
    "ai_message",
    "ai_context_operation",
    "summary",
    "error",
    "run",
    "input",
    "approval",
    "fork",
    "session",
]
KINDS: tuple[str, ...] = get_args(EntryKind)

StopReason = Literal["stop", "length", "tool_calls", "paused", "interrupted"]

T = TypeVar("T")

Usage = Annotated[UsageOutput, PlainSerializer(Output.as_dict)]
"""Tokens and their cost, as the providers reported them; what was not reported is absent."""
Json = SkipValidation[dict[str, Any]]
"""A JSON object that is stored unchanged."""
RunError = Annotated[OutcomeError, PlainSerializer(Output.as_dict)]
"""Why a request failed."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def stored(cls: type[T]) -> type[T]:
    """Make a class a type of stored values, which ignores fields that a later release wrote.

    The result is a slots dataclass rather than a pydantic model: a thread has tens of thousands of instances, which
    are parsed four times as fast and take a tenth of the memory.
    """
    decorated: Any = dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore"))(cls)
    return cast("type[T]", decorated)


@stored
class Stored:
    """A value within an entry. The JSON omits fields at their defaults."""

    def as_dict(self) -> dict[str, Any]:
        """The value as a JSON object."""
        cls: Any = type(self)
        value: dict[str, Any] = _adapter(cls).serializer.to_python(self, mode="json", exclude_defaults=True)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a value.

        Raises:
            ValueError: A field is missing or has the wrong type.
        """
        value_type: Any = cls
        parsed: Self = _adapter(value_type).validator.validate_python(value)
        return parsed


@stored
class Payload(Stored):
    """The payload of an entry."""

    entry_kind: ClassVar[EntryKind]

    def count(self, encoding: Encoding) -> tuple[Self, int]:  # noqa: ARG002 - for the kinds that contexts show
        """Count the entry's tokens in a context, without a message's media; returned beside the payload to commit.

        A payload whose parts are shown separately records the counts of its parts.
        """
        return self, 0

    def count_media(self, encoding: Encoding) -> tuple[Self, int]:  # noqa: ARG002 - for messages
        """Count the tokens of a message's images, recordings and files; the payload records those of each."""
        return self, 0


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)


# The recipe of a model call: how its context was made from the thread.


RefusedKind = Literal["media", "file_name", "own_data", "tool", "tool_schema", "tool_name", "text"]


@stored
class Refused(Stored):
    """Items of a context that a provider refuses for one reason, so that requests to its model do not have them.

    Attributes:
        kind: `media`: a marker stands for an image, a recording or a file; `file_name`: a file has no name;
            `own_data`: the provider's own data of a message does not go back; `tool`: a tool is not offered;
            `tool_schema`: its schema names its properties alone; `tool_name`: it has another name; `text`: a marker
            stands for what a message says.
        ids: What names the items: the first 16 digits of a blob's digest, of the SHA-256 of an address, of own
            data or of a message's content and calls; a tool's name, and behind a colon the first 16 digits of the
            digest of what was offered.
        reason: The provider's words, at most 200 characters.
    """

    kind: RefusedKind
    ids: tuple[str, ...]
    reason: str


@stored
class Fitting(Stored):
    """The differences of a request from its context, because the provider refuses the context as it is.

    Attributes:
        dialect: The dialect that the request follows; `docs/reference/providers.md` lists them.
        merged: Messages that were joined to another one: system messages, and neighbours of one role.
        added: Messages that stand in the request alone, where the provider wants one.
        dropped: Messages without any text, which are not in the request.
        tools: Tools whose name, description or schema was changed, and how.
        tools_left_out: Tools that are not in the request, and why.
        options: Options that were changed or left out, and how; `output_schema` where the prompt describes it.
        media: Images, recordings and files that are shown as markers or stand in another message, and why: by the
            first 12 digits of the digest, or by the address. `others`: the number of further ones.
        own_data: Messages without the provider's own data, because the provider has refused it.
        texts: Messages for which a marker stands, because the provider has refused what they say.
    """

    dialect: str
    merged: int = 0
    added: int = 0
    dropped: int = 0
    tools: dict[str, str] = Field(default_factory=dict)
    tools_left_out: dict[str, str] = Field(default_factory=dict)
    options: dict[str, str] = Field(default_factory=dict)
    media: dict[str, str] = Field(default_factory=dict)
    own_data: int = 0
    texts: int = 0


MARKED = "shown as a marker: "
"""The beginning of what `Fitting.media` says of a part that the model did not get; the reason follows."""


@stored
class SentRequest(Stored):
    """What a provider received: enough to encode it again and compare.

    Attributes:
        digest: SHA-256 of the body as it was sent.
        encoder: The encoder and its version, such as `openai-chat/1`: another one may write other bytes.
        dialect: The dialect, where the encoder has several.
        takes: What the worker knew the model to take of images, recordings and files, where the context has some.
        refused: The items of the context that the request is without, because the provider has refused them.
    """

    digest: str
    encoder: str
    dialect: str | None = None
    takes: tuple[MediaSort, ...] = ()
    refused: tuple[Refused, ...] = ()


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
        earlier_usage: The usage of earlier attempts of the call, whose replies were lost or not usable.
        attempt: The number of the attempt that returned the reply, from 1 on.
        stop_reason: `stop`: the reply is complete; `length`: it reached its limit; `tool_calls`: it calls tools;
            `paused`: the provider's own tools take long, and the run's next call goes on with it; `interrupted`: the
            call was cancelled, or failed.
        epoch: The seqs at which the window of an epoch was truncated; absent for sliding windows.
        shared_prefix_tokens: Tokens that the context shares with the beginning of the lane's call before it; absent
            for sliding windows.
        cleared_tool_results: Tool results that a marker replaces; absent where the policy clears none.
        cleared_media: Images, recordings and files that markers replace; absent where the policy clears none.
        truncated_tool_results: Tool results that were truncated, by the id of the tool call: the bytes that are left
            of the beginning and of the end.
        context_policy: The fields that the call's own context policy set; absent: the session's was in force.
        prices: The list prices that the cost was computed from, by rising `above`; absent where the worker knew none.
        token_ratio: The ratio of the provider's tokens to those counted here, if it is larger than 1.
        tools: The names of the call's tools, if its request named some of the session's.
        settings_seq: The seq of the entry whose settings have the `output_schema` that the answer was to follow, or
            the `external_tools` of the call; absent: the request had neither.
        provider_tools: The tools that the provider may run itself.
        fitting: The differences of the request from the context; absent: there are none.
        request: What the provider received; absent: the call had ended before it was sent.
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
    stop_reason: StopReason
    epoch: tuple[int, ...] | None = None
    shared_prefix_tokens: int | None = None
    cleared_tool_results: int | None = None
    cleared_media: int | None = None
    truncated_tool_results: dict[str, tuple[int, int]] | None = None
    context_policy: Json | None = None
    prices: tuple[Price, ...] = ()
    token_ratio: float | None = None
    tools: tuple[str, ...] | None = None
    settings_seq: int | None = None
    earlier_usage: Usage | None = None
    provider_tools: tuple[str, ...] = ()
    fitting: Fitting | None = None
    request: SentRequest | None = None

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


# The payloads of `ai_message` entries: one type for each role of a message.


EDITED = "[a person changed this call before it ran; its arguments were {}]\n"
"""Precedes the result of a call that was approved with other arguments than the model's."""
INTERRUPTED = "\n[interrupted: this reply ends here]"
"""Follows the text of an interrupted reply in contexts."""


@stored
class MessagePayload(Payload):
    """A message of a lane.

    Attributes:
        context_ref: The lane.
        role: The speaker.
        content: The text, or the parts.
        request_id: The request that the message belongs to.
        run_id: The run that the message belongs to.
        media_tokens: Tokens of each image, recording and file of `content`; absent where it has none.
    """

    entry_kind: ClassVar[EntryKind] = "ai_message"

    context_ref: str
    role: Literal["user", "assistant", "tool"]
    content: Content
    request_id: str | None = None
    run_id: str | None = None
    media_tokens: tuple[int, ...] | None = None

    @property
    def text(self) -> str:
        """The content as a text, with a marker for each image, recording and file."""
        return get_text(self.content)

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
        """Count the tokens of the message's text."""
        return self, encoding.count_text(self.message)

    def count_media(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the images, recordings and files; the payload records those of each."""
        media = encoding.count_media(self.content)
        return (replace(self, media_tokens=media), sum(media)) if media else (self, 0)


@stored
class UserMessage(MessagePayload):
    """A user's message: it opened a run, or was steered in or injected while one was active.

    Attributes:
        input_id: The id of the input; absent for the message that opened the run.
        source: The sender of the input, or its kind; absent for the message that opened the run.
        metadata: The metadata of the message.
        output_schema: The JSON Schema that the answer must follow.
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


def _check_object(value: Any) -> Any:
    """Check that a value is an object. What it has is the provider's."""
    if not isinstance(value, dict):
        raise ValueError("it is no object")
    return value


def _check_objects(values: Any) -> Any:
    """Check that a value is a list of objects."""
    if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
        raise ValueError("it is no list of objects")
    return values


def _check_calls(calls: Any) -> Any:
    """Check that tool calls have the fields that readers rely on. A full validation would take four times as long."""
    for call in _check_objects(calls):
        if not (
            isinstance(call.get("id"), str)
            and isinstance(call.get("name"), str)
            and isinstance(call.get("arguments"), dict)
        ):
            raise ValueError("a tool call has an id, a name and arguments")
    return calls


def make_reply_message(
    content: Content, tool_calls: list[ToolCall] | None, provider_data: ProviderData | None, *, is_paused: bool
) -> Message:
    """Make the message of a reply as a context shows it.

    It has `provider_data` only beside tool calls, whose results the provider reads together with it, beside images
    and recordings, which it takes back signed, and of a paused reply, which goes on after it.
    """
    message: Message = {"role": "assistant", "content": content}
    if tool_calls:
        message["tool_calls"] = tool_calls
    if provider_data and (tool_calls or is_paused or list_media(content)):
        message["provider_data"] = provider_data
    return message


@stored
class AssistantMessage(MessagePayload):
    """A model's reply.

    The reply of a call that is cancelled, or that fails and is not repeated, is `interrupted`: its text so far,
    without tool calls and reasoning. Contexts show it with a note at its end, and it is never the answer of its
    request. If the worker was lost, it has the newest 32 768 characters of the last heartbeat. Its usage is an
    estimate where the provider has reported none. The text of a reply that the provider refused (`content_refused`)
    is not kept.

    Attributes:
        tool_calls: The tool calls, with ids that are unique in the thread.
        thinking: The text of the model's reasoning; no context shows it.
        provider_data: Blocks that go back to the provider verbatim.
        provider_calls: The calls of tools that the provider ran itself, in order.
        citations: The sources that the reply names.
        interrupted: The call was cancelled, or failed, before the reply was complete: `content` is what had arrived.
        recipe: The recipe of the model call.
    """

    role: Literal["assistant"]
    tool_calls: Annotated[SkipValidation[list[ToolCall]], AfterValidator(_check_calls)] | None = None
    thinking: str | None = None
    provider_data: Annotated[SkipValidation[ProviderData], AfterValidator(_check_object)] | None = None
    provider_calls: Annotated[SkipValidation[list[ProviderCall]], AfterValidator(_check_objects)] | None = None
    citations: Annotated[SkipValidation[list[Citation]], AfterValidator(_check_objects)] | None = None
    interrupted: bool = False
    recipe: Recipe | None = None

    @property
    def message(self) -> Message:
        """The message as a context shows it."""
        content = append_text(self.content, INTERRUPTED) if self.interrupted else self.content
        return make_reply_message(content, self.tool_calls, self.provider_data, is_paused=self.is_paused)

    @property
    def is_paused(self) -> bool:
        """Whether the provider has paused the reply, so that the next call goes on with it."""
        return self.recipe is not None and self.recipe.stop_reason == "paused"

    @property
    def call_ids(self) -> list[str]:
        """The ids of the message's tool calls, in order."""
        return [call["id"] for call in self.tool_calls or ()]


@stored
class StoredResult(Stored):
    """A large tool result, which the archive has in full under its digest.

    The archive keeps the first 16 777 216 bytes of a result.

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

    Results are committed in the order in which they arrive; contexts show them in the order of the calls. A result
    that arrives after the end of its run is marked `late`, and contexts show it from then on instead of the one in
    doubt. If the session has rolled over meanwhile, Clew's worker sends it by the signal `late_result`; that of a
    remote tool is lost, and its call stays in doubt.

    Attributes:
        tool_call_id: The call that it answers.
        name: The tool.
        edited_arguments: The arguments with which a person replaced the model's.
        result: The full result, if `content` has a part of it.
        is_error: Whether the result describes a failure.
        in_doubt: Whether it is unknown if the tool has run.
        subagent: The subagent that was called.
        by: The person or program that submitted the result of an external call, as the caller said.
        late: Whether the result arrived after the end of its run; it replaces the result in doubt.
        problem: What was wrong with the operator's setup. Neither models nor tenants read it.
        settings: The settings of the run from here on (`RunSettings`); absent: it went on with those that it had.
        note_tokens: Tokens of the note about the changed arguments.
        pieces: Tokens of each piece of the text, if it is long enough to be truncated, or has other parts.
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
    problem: str | None = None
    settings: Json | None = None
    note_tokens: int | None = None
    pieces: tuple[int, ...] | None = None

    @property
    def message(self) -> Message:
        """The message as a context shows it."""
        message: Message = {
            "role": "tool",
            "content": prefix_text(self.edit_note, self.content),
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
        return self.result.bytes if self.result else len(self.text.encode())

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the message's text; the payload records those of the parts that may be truncated.

        Of a result with images, recordings or files the text that may be truncated has their markers.
        """
        counted, tokens = self, encoding.count_text(self.message)
        if note := self.edit_note:
            counted = replace(counted, note_tokens=encoding.count(note))
        if len(pieces := split(self.text)) > 1 or list_media(self.content):
            counted = replace(counted, pieces=tuple(map(encoding.count, pieces)))
        return counted, tokens


AnyMessage = Annotated[UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


# The payload of `summary` entries.


_SUMMARY_HEAD = "Summary of earlier conversation:\n"


@stored
class SummaryRecipe(Stored):
    """How a summary was written: with the entry's range, enough to make the requests for it again from the thread.

    A conversation that is too long for one call is summarized in pieces. Each call then reads what the call before it
    has written, and the next piece. The text of the last call is the summary.

    Attributes:
        instructions: The instructions and the form of the conversation in the prompt, as a name with a version.
        max_output_tokens: The most tokens that a call may write.
        request: What the provider received in the last call.
        builds_on: The seq of the summary or the snapshot that the first call has read; absent: there was none.
        withdrawn: Pairs of seqs between which messages were withdrawn or corrected, which no call has read.
        calls: The number of calls.
        earlier_calls: The SHA-256 of the object in the archive that has, for each call before the last, what it has
            written, where its piece ends, and what the provider received; absent where there is none, or the store
            has failed.
    """

    instructions: str
    max_output_tokens: int
    request: SentRequest
    builds_on: int | None = None
    withdrawn: tuple[tuple[int, int], ...] = ()
    calls: int = 1
    earlier_calls: str | None = None


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
        usage: The usage of the model calls that wrote the summary.
        recipe: The requests that were sent for it.
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
    recipe: SummaryRecipe | None = None

    def make_message(self, role: Literal["system", "user"]) -> Message:
        """Make the message of the summary in a context."""
        return {"role": role, "content": f"{_SUMMARY_HEAD}{self.content}"}

    @property
    def provenance(self) -> dict[str, Any]:
        """The fields that describe how the summary was made, for a compaction's `meta`."""
        value = self.as_dict()
        return {name: value[name] for name in value if name not in _NOT_PROVENANCE}

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the summary's message."""
        return self, encoding.count_message(self.make_message("system"))


_NOT_PROVENANCE = ("context_ref", "content", "format", "recipe")


# The payloads of `ai_context_operation` entries: one type for each operation that was applied.


Reason = Literal["manual", "restore", "compaction", "system"]
_ROLES = ("system", "user", "assistant", "tool")


_content: TypeAdapter[Content] = TypeAdapter(Content)


def _check_messages(messages: Any) -> Any:
    """Check that messages have the fields that readers rely on, as `_check_calls` does."""
    for message in _check_objects(messages):
        if message.get("role") not in _ROLES:
            raise ValueError("a message has a role")
        _content.validate_python(message.get("content"))
        if message.get("tool_calls") is not None:
            _check_calls(message["tool_calls"])
        if not isinstance(message.get("tool_call_id", ""), str) or not isinstance(message.get("name", ""), str):
            raise ValueError("a message names a call and a tool")
        if message.get("provider_data") is not None:
            _check_object(message["provider_data"])
    return messages


class StoredMessage(Message, total=False):
    """A message of a stored context.

    Attributes:
        refs: The caller's own refs of the message; no model reads them.
    """

    refs: NotRequired[dict[str, str]]


@stored
class StoredSnapshot(Stored):
    """A context that was put under a lane.

    Attributes:
        messages: The messages, with ids of tool calls that are unique in the thread.
        system_prompt: The lane's system prompt; absent: the session's is in force.
        tokens: Tokens of each message.
        system_prompt_tokens: Tokens of the system prompt.
        media_tokens: Tokens of the images, recordings and files of each message; absent where no message has any.
    """

    messages: Annotated[SkipValidation[list[StoredMessage]], AfterValidator(_check_messages)]
    system_prompt: str | None = None
    tokens: list[int] | None = None
    system_prompt_tokens: int | None = None
    media_tokens: list[tuple[int, ...]] | None = None

    @property
    def shown_messages(self) -> list[Message]:
        """The messages as a context shows them."""
        return list(map(_select_shown_fields, self.messages))

    def count(self, encoding: Encoding) -> Self:
        """Count the tokens of each message and of the system prompt."""
        media = [encoding.count_media(message["content"]) for message in self.messages]
        return replace(
            self,
            tokens=[
                encoding.count_text(message) + sum(counts)
                for message, counts in zip(self.messages, media, strict=True)
            ],
            system_prompt_tokens=encoding.count_system_prompt(self.system_prompt),
            media_tokens=media if any(media) else None,
        )


@stored
class AppliedOperation(Stored):
    """A context operation that was applied.

    Attributes:
        type: Names the operation.
        reason: `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted;
            `system`: Clew itself applied it.
        meta: The JSON that the caller sent with it.
    """

    activates_lane: ClassVar[bool] = False
    """Whether the operation makes its lane the active one."""
    by_session: ClassVar[bool] = False
    """Whether sessions alone apply the operation. Its id is no caller's, so nobody sends it again."""

    type: Literal["replace", "switch", "pin", "unpin", "expand", "withdraw", "corrected"]
    reason: Reason
    meta: Json | None = None


@stored
class AppliedReplace(AppliedOperation):
    """A snapshot was put under the lane.

    Attributes:
        result_context: The snapshot.
        base_seq: The lane's messages after this seq follow the snapshot; absent: those after the operation.
        recipe: The requests that were sent for the summary of a compaction; absent: a caller has sent the context.
    """

    type: Literal["replace"]
    result_context: StoredSnapshot
    base_seq: int | None = None
    recipe: SummaryRecipe | None = None

    @property
    def is_compaction(self) -> bool:
        """Whether the snapshot replaces what it was made of, so that an `expand` can restore that."""
        return self.reason == "compaction"


@stored
class AppliedSwitch(AppliedOperation):
    """The lane was made the active one."""

    activates_lane: ClassVar[bool] = True

    type: Literal["switch"]


@stored
class AppliedPin(AppliedOperation):
    """Messages of the lane were pinned.

    Attributes:
        seqs: The seqs of the messages.
    """

    type: Literal["pin"]
    seqs: list[int]


@stored
class AppliedUnpin(AppliedOperation):
    """Messages of the lane were unpinned.

    Attributes:
        seqs: The seqs of the messages.
    """

    type: Literal["unpin"]
    seqs: list[int]


@stored
class AppliedExpand(AppliedOperation):
    """The lane's latest compaction was undone."""

    type: Literal["expand"]


@stored
class AppliedWithdraw(AppliedOperation):
    """A request's messages were withdrawn that no hook had accepted: no context shows them, and no summary has them.

    Only sessions apply it.

    Attributes:
        from_seq: The user's messages of the lane from this seq up to the operation are withdrawn.
    """

    by_session: ClassVar[bool] = True

    type: Literal["withdraw"]
    from_seq: int


@stored
class AppliedCorrected(AppliedOperation):
    """A run has ended that corrected an answer: later contexts show neither the answer nor the correction.

    Only sessions apply it.

    Attributes:
        from_seq: The seq of the answer, or of its first part.
        to_seq: The seq of the correction.
    """

    by_session: ClassVar[bool] = True

    type: Literal["corrected"]
    from_seq: int
    to_seq: int


@stored
class OperationPayload(Payload):
    """A context operation was applied.

    Attributes:
        op_id: The id of the operation.
        context_ref: The lane.
        operation: The operation.
    """

    entry_kind: ClassVar[EntryKind] = "ai_context_operation"

    op_id: str
    context_ref: str
    operation: Annotated[
        AppliedReplace
        | AppliedSwitch
        | AppliedPin
        | AppliedUnpin
        | AppliedExpand
        | AppliedWithdraw
        | AppliedCorrected,
        Field(discriminator="type"),
    ]

    @property
    def activated_lane(self) -> str | None:
        """The lane that the operation made the active one; None: the active lane stayed."""
        return self.context_ref if self.operation.activates_lane else None

    @property
    def snapshot(self) -> StoredSnapshot | None:
        """The snapshot that the operation put; None for other operations than `replace`."""
        return self.operation.result_context if isinstance(self.operation, AppliedReplace) else None

    @property
    def summary(self) -> SummaryPayload | None:
        """The summary that a model has written for a compaction; None: the operation has no recipe of one.

        Raises:
            ValueError: Its `meta` does not have the range and the model.
        """
        operation = self.operation
        if not isinstance(operation, AppliedReplace) or operation.recipe is None:
            return None
        text = "\n".join(get_text(message["content"]) for message in operation.result_context.messages)
        known: Json = {"context_ref": self.context_ref, "content": text.removeprefix(_SUMMARY_HEAD), "format": "text"}
        return replace(SummaryPayload.from_json({**(operation.meta or {}), **known}), recipe=operation.recipe)

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the snapshot's messages; the payload records those of each part."""
        if not isinstance(self.operation, AppliedReplace):
            return self, 0
        snapshot = self.operation.result_context.count(encoding)
        operation = replace(self.operation, result_context=snapshot)
        return replace(self, operation=operation), sum(snapshot.tokens or ())


def _select_shown_fields(stored: Message) -> Message:
    message: Message = {"role": stored["role"], "content": stored["content"]}
    if calls := stored.get("tool_calls"):
        message["tool_calls"] = calls
        # The provider reads it together with the results of the tool calls.
        if data := stored.get("provider_data"):
            message["provider_data"] = data
    if stored["role"] == "tool" and "tool_call_id" in stored:
        message["tool_call_id"] = stored["tool_call_id"]
        if name := stored.get("name"):
            message["name"] = name
    return message


# The payload of `config` entries: the configuration in force.


_NOT_COMPARED = ("own", "changes", "tokens")
"""Fields of a configuration that are derived from others."""


def list_configured_names(tools: Iterable[ToolSpec]) -> list[str]:
    """List the names that a configuration has for these tools, if it names each of them."""
    return [tool["name"] for tool in tools if tool["name"] not in BUILT_IN_TOOLS]


@stored
class ConfigTokens(Stored):
    """Tokens that every context has beside its messages.

    Attributes:
        system_prompt: Tokens of the system prompt.
        tools: Tokens of the tool schemas.
    """

    system_prompt: int
    tools: int


@stored
class AgentVersion(Stored):
    """An agent as a worker has resolved it.

    Attributes:
        name: The name of the agent.
        version: The digest of the agent's configuration, its tools and its label.
        label: The label that the agent's author gave the version.
    """

    name: str
    version: str
    label: str | None = None


@stored
class ConfigPayload(Payload):
    """The configuration in force from this entry on, complete, so that no later default can change it.

    Attributes:
        agent: The agent whose configuration it is; absent: the session has none, or no worker has resolved it yet.
        pin: Whether the session keeps this version of the agent and these schemas.
        model: The model, as `provider:model`; empty: it is the agent's, and no worker has resolved the agent yet.
        fallbacks: The models that a run tries while its model has an outage.
        strategy: The loop of a run: `react`.
        system_prompt: The system prompt.
        tools: The schemas of the tools, as the worker resolved them, and of those that callers have defined.
        tool_names: The names of the tools as the configuration has them; absent: those of the schemas, without
            `read_result`, `view_blob` and `external_tools`.
        external_tools: The tools that callers have defined (`ExternalToolSpec`); absent: none.
        provider_tools: The tools that the model's provider runs itself.
        require_approval: The tools whose calls wait for a person's decision.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            until the last decision (`round`).
        context_policy: The context policy (`ContextPolicy`), with every field.
        model_options: The options of model calls (`ModelOptions`) that are set.
        max_iterations: The most model calls of a run.
        request_timeout_seconds: The longest time of a request, in seconds.
        on_busy: How the session treats a message while it serves a request.
        steering: When inputs enter a run: with its answer, or before its next model call.
        encoding: The encoding that tokens are counted under.
        limits: The limits (`Limits`) that are set.
        idle_timeout_seconds: The session hibernates after this many seconds without work.
        metadata: The session's metadata.
        priority: Which calls the workers take first: 1 the first, 5 the last.
        webhooks: The URLs that are told of events of the session (`Webhook`).
        own: What callers have set over the agent's configuration (`SessionConfig`), where the session has an agent;
            without `external_tools`, which all are theirs.
        changes: The fields that differ from the `config` entry before, without `own`; absent in the first one.
        tokens: The tokens of the system prompt and of the tool schemas.
    """

    entry_kind: ClassVar[EntryKind] = "config"

    agent: AgentVersion | None = None
    pin: bool = False
    model: str
    strategy: str
    system_prompt: str | None
    tools: SkipValidation[list[ToolSpec]]
    require_approval: list[str]
    context_policy: Json
    model_options: Json
    max_iterations: int
    request_timeout_seconds: int
    on_busy: OnBusy
    steering: Literal["terminal", "step"]
    encoding: str
    limits: Json
    idle_timeout_seconds: int | None
    metadata: dict[str, str]
    fallbacks: tuple[str, ...] = ()
    provider_tools: tuple[str, ...] = ()
    priority: int = 3
    approval_scope: ApprovalScope = "call"
    webhooks: tuple[Json, ...] = ()
    tool_names: list[str] | None = None
    external_tools: SkipValidation[list[Json]] | None = None
    own: Json | None = None
    changes: list[str] | None = None
    tokens: ConfigTokens | None = None

    @property
    def policy(self) -> ContextPolicy:
        """The context policy in force, complete.

        Raises:
            ValueError: The policy has fields of a later release.
        """
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def prompt(self) -> str | None:
        """The system prompt in force: the policy's if it has one, else the session's."""
        return self.context_policy.get("system_prompt") or self.system_prompt

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def configured_tools(self) -> list[str]:
        """The names of the tools as the configuration has them. One of them may stand for several tools, or none."""
        if self.tool_names is not None:
            return self.tool_names
        external = {tool["name"] for tool in self.external_tools or ()}
        return list_configured_names(tool for tool in self.tools if tool["name"] not in external)

    @property
    def config(self) -> SessionConfig:
        """The configuration as a session is started with it, without the policy."""
        value = {name: value for name, value in self.as_dict().items() if name in SessionConfig.model_fields}
        value |= {"tools": self.configured_tools, "model": self.model or None}
        # An agent's metadata and the session's own may be more together than a caller may send.
        del value["context_policy"], value["metadata"]
        if self.own:
            value["agent"] = self.own["agent"]
        config = SessionConfig.model_validate_json(to_json(value))
        return config.model_copy(update={"metadata": self.metadata})

    def compare(self, before: Self) -> Self:
        """Compare the configuration with the one before; the payload records the fields that differ."""
        names = (field.name for field in fields(self) if field.name not in _NOT_COMPARED)
        return replace(self, changes=[name for name in names if getattr(self, name) != getattr(before, name)])

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the system prompt and of the tool schemas; the payload records both.

        If `tokens` has those of the schemas already, they are not counted again.
        """
        tokens = ConfigTokens(
            system_prompt=encoding.count_system_prompt(self.prompt),
            tools=self.tokens.tools if self.tokens else encoding.count_tools(self.tools),
        )
        return replace(self, tokens=tokens), tokens.system_prompt + tokens.tools


# The payloads that no context shows: errors, outcomes, refused inputs, approvals, forks, session events.


@stored
class Retried(Stored):
    """A model call that follows one that failed: with a shorter context, of a fallback, or without what was refused.

    Attributes:
        call_id: The new call; the same call, if it was made without what its provider has refused.
        model: The model, as `provider:model`.
        budget: The largest context of the model from now on, in tokens; absent: it is as before.
    """

    call_id: str
    model: str
    budget: int | None = None


@stored
class ErrorPayload(Payload):
    """An error.

    `details` may hold `status`, the HTTP status of the provider; `limit`, `actual` and `counted`, the tokens of a
    context that is too long, by the provider and by the session; `op_id`, the context operation that failed;
    `refused`, what the call was made without; and `retried`.

    Attributes:
        type: The type of the error, a word of the contract's list.
        message: A description for people.
        details: More about the error: the attempts, the failed operation, the call that follows, the text so far of
            a refused reply.
    """

    entry_kind: ClassVar[EntryKind] = "error"

    type: str
    message: str
    details: Json

    @property
    def op_id(self) -> str | None:
        """The id of the failed context operation; None where no operation failed."""
        return self.details.get("op_id")

    @property
    def refused(self) -> Refused | None:
        """What a provider has refused, so that this call or later ones are made without it; None: nothing."""
        value = self.details.get("refused")
        return Refused.from_json(value) if value else None

    @property
    def refused_by(self) -> str | None:
        """The model whose provider has `refused` something, as `provider:model`; None: nothing."""
        return self.retried.model if self.retried else self.details.get("model")

    @property
    def refused_text(self) -> str | None:
        """The text of a reply that its provider has refused to complete; None where there is none."""
        text = self.details.get("text") if self.type == "content_refused" else None
        return text if isinstance(text, str) else None

    @property
    def retried(self) -> Retried | None:
        """The call that follows the failed one; None where there is none."""
        value = self.details.get("retried")
        return Retried.from_json(value) if value else None


@stored
class RunPayload(Payload):
    """The outcome of a request.

    Attributes:
        event: `finished`.
        status: The status of the request.
        termination_reason: Why the request ended: `final_answer`, another word of the contract's list, or the error's
            type.
        usage: The usage of the run. Of requests that shared a run, one has the numbers and the others name it.
        subagent_usage: The usage of the subagents that the run has started, and of theirs.
        iterations: Model calls of the run.
        fallback: The fallback that the run ended with, as `provider:model`; absent: its model had no outage.
        answer_seq: The seq of the answer; absent where there is none.
        error: Why the request failed.
        reason: The reason that the caller gave for a cancellation.
        unread: The images, recordings and files of the run's messages that a model did not get, and why: by the first
            12 digits of the digest, or by the address.
    """

    entry_kind: ClassVar[EntryKind] = "run"

    event: Literal["finished"]
    status: Literal["completed", "failed", "cancelled"]
    termination_reason: str
    usage: Usage
    subagent_usage: Usage | None = None
    iterations: int
    fallback: str | None = None
    answer_seq: int | None = None
    error: RunError | None = None
    reason: str | None = None
    unread: dict[str, str] | None = None


@stored
class InputPayload(Payload):
    """An input that did not enter the thread as a message.

    Attributes:
        event: The input was refused, never read, superseded by a later one, or merged with a later one.
        kind: The kind of input: `message`, `steer`, `inject`, `modify_context`, `configure`, or a signal's name.
        reason: The reason for the event.
        content: The first 200 characters; of a signal that is malformed, its ids alone.
        input_id: The id of the input.
        op_id: The id of the context operation.
        request_id: The request that it belonged to.
    """

    entry_kind: ClassVar[EntryKind] = "input"

    event: Literal["rejected", "dropped", "superseded", "merged"]
    kind: str
    reason: str
    content: str
    input_id: str | None = None
    op_id: str | None = None
    request_id: str | None = None


@stored
class ApprovalPayload(Payload):
    """A person's decision about a tool call.

    Attributes:
        tool_call_id: The call.
        decision: Whether the tool may run.
        reason: The reason that the person gave.
        by: The person that decided, as the caller said.
        arguments: The arguments that replace the model's.
        settings: The settings of the run from here on (`RunSettings`); absent: it went on with those that it had.
    """

    entry_kind: ClassVar[EntryKind] = "approval"

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str | None = None
    by: str | None = None
    arguments: Json | None = None
    settings: Json | None = None


@stored
class ForkPayload(Payload):
    """A fork: the session was forked, or is a fork.

    Attributes:
        event: `forked_from`: the session is a fork of the other one; `forked_to`: the other one is a fork of it.
        session_id: The other session.
        fork_seq: The last entry that both have.
        metadata: The metadata of the fork.
    """

    entry_kind: ClassVar[EntryKind] = "fork"

    event: Literal["forked_from", "forked_to"]
    session_id: str
    fork_seq: int
    metadata: dict[str, str] | None = None


@stored
class SessionPayload(Payload):
    """The session hibernated, woke, was recovered or was closed.

    Attributes:
        event: The event.
        workflow: The status in which the workflow had ended before a recovery.
        reason: The reason that the caller gave.
    """

    entry_kind: ClassVar[EntryKind] = "session"

    event: Literal["hibernated", "woken", "recovered", "closed"]
    workflow: str | None = None
    reason: str | None = None


# Reading.


_TYPES: dict[EntryKind, Any] = {
    "config": ConfigPayload,
    "ai_message": AnyMessage,
    "ai_context_operation": OperationPayload,
    "summary": SummaryPayload,
    "error": ErrorPayload,
    "run": RunPayload,
    "input": InputPayload,
    "approval": ApprovalPayload,
    "fork": ForkPayload,
    "session": SessionPayload,
}
_READERS: dict[EntryKind, Callable[[Any], Payload]] = {
    kind: TypeAdapter(payload_type).validator.validate_python for kind, payload_type in _TYPES.items()
}


def read_payload(kind: EntryKind, payload: Mapping[str, Any]) -> Payload:
    """Parse the payload of an entry.

    Raises:
        ValueError: The payload does not have the type of the kind.
    """
    return _READERS[kind](payload)


def read_lane(payload: Mapping[str, Any]) -> str | None:
    """Return the lane that an entry belongs to, if any, without parsing the payload."""
    lane: str | None = payload.get("context_ref")
    return lane


__all__ = [
    "KINDS",
    "AgentVersion",
    "AppliedCorrected",
    "AppliedExpand",
    "AppliedOperation",
    "AppliedPin",
    "AppliedReplace",
    "AppliedSwitch",
    "AppliedUnpin",
    "AppliedWithdraw",
    "ApprovalPayload",
    "AssistantMessage",
    "ConfigPayload",
    "ConfigTokens",
    "EntryKind",
    "ErrorPayload",
    "Fitting",
    "ForkPayload",
    "InputPayload",
    "MessagePayload",
    "OperationPayload",
    "Payload",
    "Recipe",
    "Refused",
    "Retried",
    "RunPayload",
    "SessionPayload",
    "Stored",
    "StoredMessage",
    "StoredResult",
    "StoredSnapshot",
    "Subagent",
    "SummaryPayload",
    "SummaryRecipe",
    "ToolMessage",
    "UserMessage",
    "read_lane",
    "read_payload",
]
