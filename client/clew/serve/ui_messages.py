"""Convert between a session and the messages of the AI SDK's user interfaces (`useChat`). Pure.

A request is one message of the assistant, each of its model calls a step of it. `ReplyChunks` makes the chunks of
such a message from the events of the request. A message that a client has already, and continues, gets what it lacks.

Source: https://ai-sdk.dev/docs/ai-sdk-ui/stream-protocol, version 1 of the UI message stream
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from ag_ui.core import AudioPart, ContentPart, DocumentPart, ImagePart, TextPart, UrlSource
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import from_json

from clew.ag_ui.ag_ui_parts import FILE_NAME, BlobUrl, read_content
from clew.content import AnyContent
from clew.serve.problems import name_field
from clew.session.events import (
    ApprovalRequired,
    Change,
    EntryCommitted,
    LiveTurn,
    Retrying,
    SessionEvent,
    SubagentWaiting,
    TextAdded,
    ThinkingAdded,
    ToolProgressed,
    Voided,
)
from clew_workflows.contract import payloads
from clew_workflows.contract.content import Content, Part
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.messages import list_cited_pages
from clew_workflows.contract.names import Id
from clew_workflows.contract.outputs import PendingCall
from clew_workflows.thread.entries import Entry

Chunk: TypeAlias = dict[str, Any]
"""A chunk of the stream (`UIMessageChunk`)."""
_REPLY = "-reply"
_ANSWERED = ("output-available", "output-error", "output-denied")
"""The states of a tool call that has its result."""
_DECIDED = ("approval-responded", *_ANSWERED)
"""The states of a tool call that waits for no decision."""


_UNSENT = ("data-", "tool-", "dynamic-tool", "reasoning", "source-", "step-start", "custom")
"""What the types of the parts of a user's message begin with that no model reads."""
_FINISH_REASONS: Mapping[str, str] = {
    "final_answer": "stop",
    "length": "length",
    "max_output_tokens": "length",
    "refusal": "content-filter",
    "content_filter": "content-filter",
    "content_refused": "content-filter",
}
"""The AI SDK's words for how a reply, or a request, has ended. Others are `other`."""


# Messages that a client sends.


class UiMessage(BaseModel):
    """A message of a chat (`UIMessage`).

    Attributes:
        id: The id of the message.
        role: Whose message it is.
        parts: The parts.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: Id
    role: Literal["system", "user", "assistant"]
    parts: list[dict[str, Any]] = Field(max_length=10_000)

    @property
    def is_past_its_calls(self) -> bool:
        """Whether a model call follows the newest tool calls: their results are known, and nothing is left to do."""
        newest = "step-start"
        for part in self.parts:
            if "toolCallId" in part or part.get("type") == "step-start":
                newest = "call" if "toolCallId" in part else "step-start"
        return newest == "step-start"

    def list_calls(self) -> list[UiCall]:
        """List the tool calls of the message, without those that a provider ran itself.

        Raises:
            InvalidInput: A call is not valid.
        """
        called = [part for part in self.parts if "toolCallId" in part and not part.get("providerExecuted")]
        try:
            return _calls.validate_python(called)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            raise InvalidInput(
                f"parts: {name_field(first['loc'][1:])} of a tool call: {first['msg'][:200]}"
            ) from None


class UiApproval(BaseModel):
    """A person's decision about a tool call.

    Attributes:
        approved: Whether the tool may run; None: it is not decided.
        reason: The reason.
    """

    approved: bool | None = None
    reason: str | None = None


class UiCall(BaseModel):
    """A tool call of a message.

    Attributes:
        tool_call_id: The call.
        state: What has happened to it.
        output: The result that a tool of the client has returned.
        error: Why a tool of the client has failed.
        approval: The person's decision.
    """

    tool_call_id: Id = Field(alias="toolCallId")
    state: str = ""
    output: Any = None
    error: str | None = Field(default=None, alias="errorText")
    approval: UiApproval | None = None


_calls: TypeAdapter[list[UiCall]] = TypeAdapter(list[UiCall])


def read_message(message: UiMessage) -> AnyContent:
    """Read the content of a user's message. Bytes in it are stored when it is sent to the session.

    A page's own data, and what only an assistant's message means, is not sent to the model: the AI SDK does the same.

    Raises:
        InvalidInput: A text or a file is not valid, its bytes are damaged, or there is no such part.
        TooLarge: A file has more bytes than a blob may have.
        UnsupportedContent: A file that is no image is at an address, from where nothing is fetched.
    """
    parts = ((number, _read_part(number, part)) for number, part in enumerate(message.parts))
    sent = [(number, part) for number, part in parts if part is not None]
    return read_content([part for _, part in sent], "parts", [number for number, _ in sent])


def _read_part(number: int, part: Mapping[str, Any]) -> ContentPart | None:
    match part:
        case {"type": "text", "text": str(text)}:
            return TextPart(text=text)
        case {"type": "file", "url": str(url), "mediaType": str(media_type)}:
            source = UrlSource(value=url, mime_type=media_type)
            metadata = {FILE_NAME: part.get("filename")}
            match media_type.partition("/")[0]:
                case "image":
                    return ImagePart(source=source, metadata=metadata)
                case "audio":
                    return AudioPart(source=source, metadata=metadata)
            return DocumentPart(source=source, metadata=metadata)
        case {"type": str(kind)} if kind.startswith(_UNSENT):
            return None
    raise InvalidInput(
        f"parts.{number}: a user's message has texts, files with `url` and `mediaType`, and parts `data-…`"
    )


# Chunks: the events of a request as the AI SDK reads them.


def name_reply(request_id: str) -> str:
    """Name the assistant's message of a request."""
    return f"{request_id}{_REPLY}"


class ReplyChunks:
    """Makes the chunks of the assistant's message of one request.

    Args:
        request_id: The request.
        known: The message as the client has it, which it continues; None: it has none.
        blob_url: Makes the address of a blob; None: blobs have none, and are left out.

    Attributes:
        turn: Folds the events of the request to the changes.
    """

    def __init__(self, request_id: str, known: UiMessage | None = None, blob_url: BlobUrl | None = None) -> None:
        self.turn = LiveTurn()
        self._request_id = request_id
        self._name = known.id if known else name_reply(request_id)
        self._blob_url = blob_url
        calls = known.list_calls() if known else []
        self._answered = {call.tool_call_id for call in calls if call.state in _ANSWERED}
        self._requested = {call.tool_call_id for call in calls if call.approval is not None}
        self._decided = {call.tool_call_id for call in calls if call.state in _DECIDED}
        self._denied: set[str] = set()
        self._wanted: set[str] = set()
        # The client has everything up to the reply with its last call.
        self._last_known = calls[-1].tool_call_id if calls else None
        # The model call whose step is open, and its parts that have begun.
        self._step: str | None = None
        self._parts: list[str] = []

    def start(self) -> Chunk:
        """Make the first chunk."""
        return {"type": "start", "messageId": self._name}

    def take(self, change: Change) -> Iterator[Chunk]:
        """Make the chunks that a change of the request leads to."""
        if self._last_known is not None:
            if isinstance(change, EntryCommitted) and self._last_known in self.turn.calls:
                self._last_known = None
            return
        match change:
            case TextAdded() if not self.turn.text.has_gap:
                yield from self._enter(change.call_id)
                yield from self._show("text", change.text)
            case ThinkingAdded() if not self.turn.thinking.has_gap:
                yield from self._enter(change.call_id)
                yield from self._show("reasoning", change.text)
            case Voided(call_id) if call_id == self._step and self._parts:
                # The step begins anew with what stays.
                self._parts = []
                yield {"type": "reset-step"}
                yield from self._show("reasoning", change.thinking)
                yield from self._show("text", change.text)
            case ToolProgressed():
                data = {"toolCallId": change.tool_call_id, "text": change.text, "fraction": change.fraction}
                yield {"type": "data-tool-progress", "id": change.tool_call_id, "data": data, "transient": True}
            case Retrying():
                data = {"attempt": change.attempt, "error": change.error}
                yield {"type": "data-retrying", "data": data, "transient": True}
            case SubagentWaiting():
                call: dict[str, Any] = {
                    "sessionId": change.session_id,
                    "needs": change.needs,
                    "toolCallId": change.tool_call_id,
                    "toolName": change.name,
                    "input": change.arguments,
                }
                yield {"type": "data-subagent-waiting", "data": call, "transient": True}
            case ApprovalRequired():
                yield from self._request_approval(change.tool_call_id)
            case EntryCommitted():
                yield from self._take_entry(change)

    def _take_entry(self, committed: EntryCommitted) -> Iterator[Chunk]:
        match committed:
            case EntryCommitted(body=payloads.UserMessage() as sent, entry=entry):
                if sent.input_id or entry.refs.get("request_id") != self._request_id:
                    name = sent.input_id or entry.refs.get("request_id") or entry.id
                    yield {"type": "steering-message", "id": name, "parts": self._convert(sent.content)}
            case EntryCommitted(body=payloads.AssistantMessage() as reply):
                yield from self._take_reply(committed.call_id, reply)
            case EntryCommitted(body=payloads.ToolMessage(late=False) as result):
                if result.tool_call_id not in self._answered:
                    yield from self._take_result(result)
            case EntryCommitted(body=payloads.ApprovalPayload() as decision):
                yield from self._take_decision(decision)
            case EntryCommitted(body=payloads.RunPayload() as outcome):
                yield from self._end(outcome)

    def finish(self, reason: str = "tool-calls", usage: Mapping[str, Any] | None = None) -> Iterator[Chunk]:
        """Make the last chunks of a message that is complete, or waits for its client."""
        yield from self._end_step()
        metadata = {"requestId": self._request_id, **({"usage": usage} if usage else {})}
        yield {"type": "finish", "finishReason": reason, "messageMetadata": metadata}

    def _take_decision(self, decision: payloads.ApprovalPayload) -> Iterator[Chunk]:
        name, approved = decision.tool_call_id, decision.decision == "approve"
        if not approved:
            self._denied.add(name)
        if name not in self._decided:
            self._decided.add(name)
            yield from self._request_approval(name)
            reason = {"reason": decision.reason} if decision.reason else {}
            yield {"type": "tool-approval-response", "approvalId": name, "approved": approved, **reason}

    def _request_approval(self, tool_call_id: str) -> Iterator[Chunk]:
        if tool_call_id in self.turn.calls and tool_call_id not in self._requested:
            self._requested.add(tool_call_id)
            yield {"type": "tool-approval-request", "approvalId": tool_call_id, "toolCallId": tool_call_id}
        # The event may come before the entry with the call.
        self._wanted.add(tool_call_id)

    def _take_reply(self, call_id: str, reply: payloads.AssistantMessage) -> Iterator[Chunk]:
        yield from self._enter(call_id)
        yield from self._end_parts()
        yield from (part for part in self._convert(reply.content) if part["type"] == "file")
        for number, page in enumerate(list_cited_pages(reply.citations or ()), 1):
            title = {"title": page["title"]} if "title" in page else {}
            yield {"type": "source-url", "sourceId": f"{call_id}-source-{number}", "url": page["url"], **title}
        for number, provided in enumerate(reply.provider_calls or (), 1):
            name = f"{call_id}-provider-{number}"
            own = {"toolCallId": name, "providerExecuted": True}
            sent = {"input": provided["input"]} if "input" in provided else {}
            yield {"type": "tool-input-available", "toolName": provided["tool"], "input": sent, **own}
            if error := provided.get("error"):
                yield {"type": "tool-output-error", "errorText": error, **own}
            else:
                output = {key: value for key, value in provided.items() if key in ("output", "sources")}
                yield {"type": "tool-output-available", "output": output, **own}
        for call in reply.tool_calls or ():
            shown = {"toolCallId": call["id"], "toolName": call["name"], "input": call["arguments"]}
            yield {"type": "tool-input-available", **shown}
            if call["id"] in self._wanted:
                yield from self._request_approval(call["id"])

    def _take_result(self, result: payloads.ToolMessage) -> Iterator[Chunk]:
        name = result.tool_call_id
        self._answered.add(name)
        if name in self._denied:
            yield {"type": "tool-output-denied", "toolCallId": name}
        elif result.is_error:
            yield {"type": "tool-output-error", "toolCallId": name, "errorText": result.text}
        else:
            yield {"type": "tool-output-available", "toolCallId": name, "output": self._read_output(result.content)}

    def _read_output(self, content: Content) -> Any:
        """Read the output of a tool: a JSON object or list, any other text, or parts."""
        if not isinstance(content, str):
            return self._convert(content)
        try:
            value = from_json(content) if content[:1] in ("{", "[") else content
        except ValueError:
            return content
        return value

    def _end(self, outcome: payloads.RunPayload) -> Iterator[Chunk]:
        usage = {
            "inputTokens": outcome.usage.input_tokens,
            "outputTokens": outcome.usage.output_tokens,
            "totalTokens": outcome.usage.input_tokens + outcome.usage.output_tokens,
        }
        reason = _FINISH_REASONS.get(outcome.termination_reason, "other")
        if outcome.status == "completed":
            # A reply that ends with the request may be cut all the same.
            reason = _FINISH_REASONS.get(self.turn.stop_reason or "", reason)
        elif outcome.status == "failed":
            reason = "content-filter" if outcome.termination_reason == "content_refused" else "error"
            text = outcome.error.message if outcome.error else outcome.termination_reason
            yield {"type": "error", "errorText": text}
        if outcome.status == "cancelled":
            yield {"type": "abort", "reason": outcome.termination_reason}
        yield from self.finish(reason, usage)

    def _enter(self, call_id: str) -> Iterator[Chunk]:
        """Begin the step of a model call, unless it has begun."""
        if self._step != call_id:
            yield from self._end_step()
            self._step = call_id
            yield {"type": "start-step"}

    def _end_step(self) -> Iterator[Chunk]:
        if self._step is not None:
            yield from self._end_parts()
            yield {"type": "finish-step"}

    def _show(self, part: str, text: str) -> Iterator[Chunk]:
        """Send more of a part of the step."""
        if text:
            name = f"{self._step}-{part}"
            if part not in self._parts:
                self._parts.append(part)
                yield {"type": f"{part}-start", "id": name}
            yield {"type": f"{part}-delta", "id": name, "delta": text}

    def _end_parts(self) -> Iterator[Chunk]:
        for part in self._parts:
            yield {"type": f"{part}-end", "id": f"{self._step}-{part}"}
        self._parts = []

    def _convert(self, content: Content) -> list[Chunk]:
        return convert_content(content, self._blob_url)


def convert_content(content: Content, blob_url: BlobUrl | None = None) -> list[Chunk]:
    """Convert a content to the parts of a message. A blob without an address is left out."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return [part for part in (_convert_part(part, blob_url) for part in content) if part]


def _convert_part(part: Part, blob_url: BlobUrl | None) -> Chunk | None:
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    blob: Any = part.get("blob")
    if blob is None:
        return {"type": "file", "mediaType": "image", "url": str(part.get("url"))}
    url = blob_url(blob) if blob_url else None
    name = {"filename": blob["name"]} if blob.get("name") else {}
    return {"type": "file", "mediaType": blob["media_type"], "url": url, **name} if url else None


# The messages of a thread, for a client that opens a chat.


async def convert_thread(
    entries: AsyncIterable[Entry], pending: Sequence[PendingCall] = (), blob_url: BlobUrl | None = None
) -> list[dict[str, Any]]:
    """Convert a thread to the messages of a chat (`UIMessage`).

    Args:
        entries: The entries of the thread.
        pending: The calls that wait for approval.
        blob_url: Makes the address of a blob; None: blobs are left out.
    """
    converted: list[dict[str, Any]] = []
    chunks: ReplyChunks | None = None

    def apply(event: SessionEvent) -> None:
        for change in chunks.turn.take(event) if chunks else ():
            apply_chunks(converted[-1], chunks.take(change) if chunks else ())

    async for entry in entries:
        sent = entry.body if entry.kind == "ai_message" else None
        if chunks is None and isinstance(sent, payloads.UserMessage):
            request_id = entry.refs.get("request_id") or entry.id
            name = sent.input_id or request_id
            converted.append({"id": name, "role": "user", "parts": convert_content(sent.content, blob_url)})
            converted.append({"id": name_reply(request_id), "role": "assistant", "parts": []})
            chunks = ReplyChunks(request_id, blob_url=blob_url)
            continue
        apply(EntryCommitted(seq=entry.seq, entry=entry))
        if entry.kind == "run":
            chunks = None
    for call in pending:
        apply(ApprovalRequired(tool_call_id=call.tool_call_id, name=call.name, arguments=call.arguments))
    return [message for message in converted if message["parts"]]


def apply_chunks(message: dict[str, Any], chunks: Iterable[Chunk]) -> None:
    """Apply the chunks of a thread's entries to a message, as `useChat` does.

    The thread may begin within a run: what belongs to an earlier call is left out.
    """
    parts: list[dict[str, Any]] = message["parts"]
    calls = {part["toolCallId"]: part for part in parts if "toolCallId" in part}
    for chunk in chunks:
        match chunk:
            case {"type": "start-step"}:
                parts.append({"type": "step-start"})
            case {"type": "text-delta" | "reasoning-delta" as kind, "delta": text}:
                parts.append({"type": kind.removesuffix("-delta"), "text": text, "state": "done"})
            case {"type": "tool-input-available", "toolName": name}:
                kept = {key: value for key, value in chunk.items() if key not in ("type", "toolName")}
                parts.append({"type": f"tool-{name}", "state": "input-available", **kept})
                calls[chunk["toolCallId"]] = parts[-1]
            case {"type": "tool-approval-request", "toolCallId": name, "approvalId": approval} if name in calls:
                calls[name] |= {"state": "approval-requested", "approval": {"id": approval}}
            case {"type": "tool-approval-response", "approvalId": name} if name in calls:
                decided = {key: value for key, value in chunk.items() if key in ("approved", "reason")}
                approval = calls[name].get("approval", {"id": name})
                calls[name] |= {"state": "approval-responded", "approval": approval | decided}
            case {"type": "tool-output-available", "toolCallId": name, "output": output} if name in calls:
                calls[name] |= {"state": "output-available", "output": output}
            case {"type": "tool-output-error", "toolCallId": name, "errorText": text} if name in calls:
                calls[name] |= {"state": "output-error", "errorText": text}
            case {"type": "tool-output-denied", "toolCallId": name} if name in calls:
                calls[name] |= {"state": "output-denied"}
            case {"type": "source-url" | "file" | "steering-message"}:
                parts.append(chunk)
            case {"type": "finish", "messageMetadata": metadata}:
                message["metadata"] = metadata
