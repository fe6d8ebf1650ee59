"""A context as the turns that `generateContent` accepts. Pure.

A part with a signature goes back as it came, in its place, to the model that sent it. Gemini 3 refuses the first call
of a step without one; a call that another model has made gets the text that
ai.google.dev/gemini-api/docs/thought-signatures names for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from clew_activities.providers.dialects import ToolLimits
from clew_activities.providers.fit_messages import EncodedMessage, Turns, get_own_data, group_turns, list_own_calls
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.google.models import Generation
from clew_activities.providers.interface import ModelRequest
from clew_activities.providers.request_media import MP3, encode_base64, get_media_type
from clew_workflows.contract.content import Content, Part, get_text, list_media
from clew_workflows.contract.messages import Message

_FOREIGN_SIGNATURE = "skip_thought_signature_validator"
_SIGNATURE = "thoughtSignature"
_MIME_TYPES = {MP3: "audio/mp3"}
"""The API's own names of media types."""


def encode_messages(
    request: ModelRequest,
    tools: FittedTools,
    limits: ToolLimits,
    provider: str,
    generation: Generation,
    *,
    combines: bool,
) -> Turns:
    """Encode messages as turns."""
    messages = [message for message in request.messages if message["role"] != "system"]
    called = _Called(messages, tools, limits, provider)
    encoded: list[EncodedMessage] = []
    for message in messages:
        if message["role"] == "tool":
            parts = [called.encode_result(message, request.blobs)]
        elif message["role"] == "user":
            parts = _encode_content(message["content"], request.blobs)
        else:
            parts = _encode_reply(message, request, called, provider, generation, combines=combines)
        encoded.append(EncodedMessage(message["role"], parts, called.find_place(message)))
    # "Requests ending with a model turn are not supported."
    return group_turns(encoded, _make_text)


def _make_text(text: str) -> dict[str, Any]:
    return {"text": text}


def _encode_content(content: Content, blobs: Mapping[str, bytes]) -> list[dict[str, Any]]:
    if isinstance(content, str):
        return [{"text": content}] if content.strip() else []
    return [_encode_part(part, blobs) for part in content]


def _encode_part(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"text": part["text"]}
    media_type = get_media_type(part)
    return {"inlineData": {"mimeType": _MIME_TYPES.get(media_type, media_type), "data": encode_base64(part, blobs)}}


class _Called:
    """The calls of a context, which their results name again."""

    def __init__(self, messages: Sequence[Message], tools: FittedTools, limits: ToolLimits, provider: str) -> None:
        self._tools = tools
        self._limits = limits
        self._functions: dict[str, dict[str, Any]] = {}
        self._order: dict[str, int] = {}
        for message in messages:
            own = list_own_calls(message, provider) if message.get("tool_calls") else []
            for call, data in zip(message.get("tool_calls", ()), own, strict=True):
                name, arguments = tools.encode_call(call["name"], call["arguments"], limits)
                function: dict[str, Any] = {"name": name, "args": arguments}
                if call_id := data.get("id"):
                    function["id"] = call_id
                self._functions[call["id"]] = function
                self._order[call["id"]] = len(self._order)

    def encode_call(self, call_id: str) -> dict[str, Any]:
        """Encode a call."""
        return {"functionCall": self._functions[call_id]}

    def encode_result(self, message: Message, blobs: Mapping[str, bytes]) -> dict[str, Any]:
        """Encode a result as that of its call: results without ids answer the calls in their order."""
        call_id = message.get("tool_call_id", "")
        function = self._functions.get(call_id)
        if function is None:
            name = self._tools.encode_call(message.get("name", "unnamed"), {}, self._limits)[0]
            function = {"name": name}
        response: dict[str, Any] = {name: function[name] for name in ("id", "name") if name in function}
        response["response"] = {"result": get_text(message["content"])}
        if media := list_media(message["content"]):
            response["parts"] = [_encode_part(part, blobs) for part in media]
        return {"functionResponse": response}

    def find_place(self, message: Message) -> int:
        """Find the place of a result in its turn: results stand in the order of their calls."""
        return self._order.get(message.get("tool_call_id", ""), len(self._order))


def _encode_reply(
    message: Message,
    request: ModelRequest,
    called: _Called,
    provider: str,
    generation: Generation,
    *,
    combines: bool,
) -> list[dict[str, Any]]:
    """Encode a reply: as its model sent it, or its text and its calls."""
    calls = [called.encode_call(call["id"]) for call in message.get("tool_calls", ())]
    data = get_own_data(message, provider)
    is_same = data is not None and data.get("model", request.model) == request.model
    if is_same:
        for part, own in zip(calls, list_own_calls(message, provider), strict=True):
            if signature := own.get(_SIGNATURE):
                part[_SIGNATURE] = signature
    # Of parallel calls the first one has the signature.
    if generation.signs and calls and not any(_SIGNATURE in part for part in calls):
        calls[0][_SIGNATURE] = _FOREIGN_SIGNATURE
    blocks = data["blocks"] if data is not None and is_same else []
    return list(_place_parts(blocks, get_text(message["content"]), calls, combines=combines))


def _place_parts(
    blocks: Sequence[dict[str, Any]], content: str, calls: Sequence[dict[str, Any]], *, combines: bool
) -> Iterator[dict[str, Any]]:
    """Put a message's text and calls into the places that they had in the reply, between the parts that go back."""
    texts = [block["text"] for block in blocks if "text" in block and not block.get("thought")]
    has_text = content.startswith("".join(texts))
    rest, waiting = content, list(calls)
    if not has_text and content.strip():
        yield {"text": content}
        rest = ""
    for block in blocks:
        if "functionCall" in block:
            if waiting:
                yield waiting.pop(0)
        elif "inlineData" in block:
            # The text has a marker for it.
            continue
        elif "text" in block and not block.get("thought"):
            if has_text:
                rest = rest[len(block["text"]) :]
                if _SIGNATURE in block or block["text"].strip():
                    yield block
        elif combines or not {"toolCall", "toolResponse"} & block.keys():
            yield block
    if rest.strip():
        yield {"text": rest}
    yield from waiting
