"""OpenAI's Responses: the API of its reasoning models, and of servers that speak it too.

A request is complete in itself: nothing is stored at the server, and the reasoning of a tool loop comes back
encrypted. `models` says what each model takes. Options that the API does not have are omitted: `seed` and `stop`
always.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew_activities.providers.dialects import RESPONSES
from clew_activities.providers.endpoint import Server, describe_fitting, describe_options
from clew_activities.providers.fit_messages import choose_call_ids, fit_messages, get_own_data
from clew_activities.providers.fit_tools import FittedTools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.openai.models import OpenAIModel, find_model, limits_calls
from clew_activities.providers.openai.responses_stream import SEPARATOR, ResponsesDecoder
from clew_activities.providers.openai.schema import is_strict
from clew_activities.providers.options import (
    choose_effort,
    describe_provider_tools,
    merge_provider_options,
)
from clew_activities.providers.reply import get_member, read_string
from clew_activities.providers.request_media import MediaForms, fit_media, get_url, make_data_url, name_file
from clew_workflows.contract.content import Content, Part, find_sort, get_text
from clew_workflows.contract.messages import Message, ToolSpec

_ENCODER = "openai-responses/1"
_OWNED = frozenset(
    (
        "background",
        "conversation",
        "include",
        "input",
        "model",
        "previous_response_id",
        "prompt",
        "store",
        "stream",
        "tool_choice",
        "tools",
    )
)
"""Fields that `provider_options` cannot set."""
_PROVIDER_TOOLS: Mapping[str, dict[str, Any]] = {
    "web_search": {"type": "web_search"},
    "code_execution": {"type": "code_interpreter", "container": {"type": "auto"}},
    "image_generation": {"type": "image_generation"},
}
_INCLUDED: Mapping[str, str] = {
    "web_search": "web_search_call.action.sources",
    "code_execution": "code_interpreter_call.outputs",
}
"""What a request asks for of the results of the provider's tools."""
_FEWEST_TOKENS = 16
"""The smallest `max_output_tokens` that the API takes."""


@dataclass(frozen=True)
class Responses(Server):
    """A server of Responses."""

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /responses`."""
        family = find_model(request.model)
        tools = fit_tools(request.tools, RESPONSES.tools)
        media = fit_media(request, RESPONSES.media)
        fitted = fit_messages(media.messages, RESPONSES)
        offered, left_out = describe_provider_tools(request.provider_tools, _PROVIDER_TOOLS, self.name)
        body: dict[str, Any] = {
            "model": request.model,
            "input": _encode_messages(fitted.messages, tools, family, self.name, request),
            "stream": True,
            "store": False,
        }
        included = [_INCLUDED[name] for name in offered if name in _INCLUDED]
        if _returns_reasoning(request, family):
            included.insert(0, "reasoning.encrypted_content")
        if included:
            body["include"] = included
        body |= _encode_tools(request, tools, offered)
        if limits_calls(request.options, request.model) and "tools" in body:
            body["parallel_tool_calls"] = False
        body |= _encode_options(request, family)
        body = merge_provider_options(body, request, self.name, _OWNED)
        described = _describe_options(request, body)
        fitting = describe_fitting(RESPONSES.name, fitted, media, tools, described, left_out=left_out)
        return HttpRequest("/responses", self.headers, body, fitting, _ENCODER)

    def get_media_forms(self, model: str) -> MediaForms:  # noqa: ARG002 - all models take the same forms
        """Return what requests may have of images and files."""
        return RESPONSES.media

    def make_decoder(self, request: ModelRequest) -> ResponsesDecoder:
        """Make a decoder for the reply to a request."""
        return ResponsesDecoder(self.name, request.model, fit_tools(request.tools, RESPONSES.tools))


def _returns_reasoning(request: ModelRequest, family: OpenAIModel) -> bool:
    if family.reasons is None:
        return request.options.reasoning_effort not in (None, "none")
    return family.reasons


# Items


def _encode_messages(
    messages: Sequence[Message], tools: FittedTools, family: OpenAIModel, provider: str, request: ModelRequest
) -> list[dict[str, Any]]:
    model = request.model
    ids = choose_call_ids(messages, provider, model, RESPONSES)
    items: list[dict[str, Any]] = []
    for message, call_ids in zip(messages, ids, strict=True):
        content = _encode_content(message["content"], request.blobs)
        if message["role"] == "assistant":
            own = _find_own_items(message, provider, model)
            items += _encode_assistant(message, _encode_calls(message, call_ids, tools), own, family)
        elif message["role"] == "tool":
            items.append({"type": "function_call_output", "call_id": call_ids[0], "output": content})
        else:
            # A reasoning model reads a system message as a developer's, and other servers have no developers.
            items.append({"type": "message", "role": message["role"], "content": content})
    return items


def _encode_content(content: Content, blobs: Mapping[str, bytes]) -> str | list[dict[str, Any]]:
    return content if isinstance(content, str) else [_encode_part(part, blobs) for part in content]


def _encode_part(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    if part["type"] == "text":
        return {"type": "input_text", "text": part["text"]}
    if find_sort(part) == "image":
        detail = part.get("detail", "auto") if part["type"] == "image" else "auto"
        return {"type": "input_image", "image_url": get_url(part) or make_data_url(part, blobs), "detail": detail}
    return {"type": "input_file", "filename": name_file(part, ".pdf"), "file_data": make_data_url(part, blobs)}


def _encode_calls(message: Message, call_ids: Sequence[str], tools: FittedTools) -> list[dict[str, Any]]:
    calls = []
    for call, call_id in zip(message.get("tool_calls", []), call_ids, strict=True):
        name, arguments = tools.encode_call(call["name"], call["arguments"], RESPONSES.tools)
        text = json.dumps(arguments, ensure_ascii=False)
        calls.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": text})
    return calls


def _encode_assistant(
    message: Message, calls: list[dict[str, Any]], own: list[dict[str, Any]], family: OpenAIModel
) -> list[dict[str, Any]]:
    """Encode an assistant's message: as the items that the model sent, or as plain ones without their ids."""
    if own:
        rest = iter(calls)
        items = [item | next(rest) if item["type"] == "function_call" else item for item in own]
        # "Item 'rs_…' of type 'reasoning' was provided without its required following item."
        while items and items[-1]["type"] == "reasoning":
            items.pop()
        return items
    text = get_text(message["content"])
    if not text.strip():
        return calls
    item: dict[str, Any] = {"type": "message", "role": "assistant", "content": text}
    if family.phase:
        item["phase"] = "commentary" if calls else "final_answer"
    return [item, *calls]


def _find_own_items(message: Message, provider: str, model: str) -> list[dict[str, Any]]:
    """Find the items of a message that go back as they came; none if another model sent them, or they do not fit.

    They hold the message's text and its calls. The API refuses some of them without the others.
    """
    data = get_own_data(message, provider)
    if data is None or data.get("model") != model:
        return []
    items = data["blocks"]
    count = sum(item.get("type") == "function_call" for item in items)
    is_whole = all(isinstance(item.get("type"), str) for item in items) and count == len(
        message.get("tool_calls", [])
    )
    return items if is_whole and _join_texts(items) == message["content"] else []


def _join_texts(items: Iterable[Mapping[str, Any]]) -> str:
    texts = [
        "".join(read_string(get_member(part, "text")) for part in item.get("content") or ())
        for item in items
        if item.get("type") == "message"
    ]
    return SEPARATOR.join(filter(None, texts))


# Tools and options


def _encode_tools(request: ModelRequest, tools: FittedTools, offered: Sequence[str]) -> dict[str, Any]:
    encoded = [*map(_encode_tool, tools.specs), *(dict(_PROVIDER_TOOLS[name]) for name in offered)]
    if not encoded:
        return {}
    choice = request.options.tool_choice
    if choice in ("auto", "none", "required"):
        return {"tools": encoded, "tool_choice": choice}
    if (tool := tools.by_name.get(choice or "")) is not None:
        return {"tools": encoded, "tool_choice": {"type": "function", "name": tool.spec["name"]}}
    return {"tools": encoded}


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    # Without `strict` the API makes the schema a strict one.
    return {
        "type": "function",
        "name": spec["name"],
        "description": spec["description"],
        "parameters": spec["parameters"],
        "strict": False,
    }


def _encode_options(request: ModelRequest, family: OpenAIModel) -> dict[str, Any]:
    """Encode the options. Those that are not set are left to the server."""
    options = request.options
    effort = choose_effort(options.reasoning_effort, family.efforts)
    takes_temperature = family.temperature or effort == "none"
    limit = options.max_output_tokens
    text: dict[str, Any] = {}
    if (schema := request.output_schema) is not None:
        text["format"] = {"type": "json_schema", "name": "reply", "schema": schema, "strict": is_strict(schema)}
    if options.verbosity and family.verbosity:
        text["verbosity"] = options.verbosity
    values = {
        "max_output_tokens": None if limit is None else max(limit, _FEWEST_TOKENS),
        "temperature": options.temperature if takes_temperature else None,
        "top_p": options.top_p if takes_temperature else None,
        "reasoning": _encode_effort(effort),
        "text": text or None,
        "service_tier": options.service_tier,
        "prompt_cache_key": request.cache_key,
    }
    return {name: value for name, value in values.items() if value is not None}


def _encode_effort(effort: str | None) -> dict[str, Any] | None:
    if effort is None:
        return None
    return {"effort": effort} if effort == "none" else {"effort": effort, "summary": "auto"}


def _describe_options(request: ModelRequest, body: Mapping[str, Any]) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    sent = {
        "temperature": body.get("temperature"),
        "top_p": body.get("top_p"),
        "max_output_tokens": body.get("max_output_tokens"),
        "reasoning_effort": get_member(body.get("reasoning"), "effort"),
        "verbosity": get_member(body.get("text"), "verbosity"),
        "service_tier": body.get("service_tier"),
        "stop": None,
        "seed": None,
    }
    return describe_options(request.options, sent, lacks_choice="tools" in body and "tool_choice" not in body)
