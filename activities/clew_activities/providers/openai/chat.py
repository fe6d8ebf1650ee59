"""OpenAI's Chat Completions, as OpenAI, Mistral, DeepSeek, Ollama, vLLM, llama.cpp and many others speak it.

`dialects` says how servers differ, and `models` how models do. This codec knows the format alone: it writes what
the dialect wants, and reads what a server of any dialect sends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.dialects import Dialect
from clew_activities.providers.endpoint import Server, describe_fitting, describe_options
from clew_activities.providers.fit_messages import (
    NO_OUTPUT,
    FittedMessages,
    choose_call_ids,
    fit_messages,
    get_own_data,
    list_own_calls,
)
from clew_activities.providers.fit_tools import FittedTools, declare_called_tools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.openai.chat_stream import REASONING_FIELDS, OpenAIDecoder, join_texts
from clew_activities.providers.openai.models import limits_calls, specialize
from clew_activities.providers.openai.schema import is_strict
from clew_activities.providers.options import choose_effort, describe_provider_tools, merge_provider_options
from clew_activities.providers.reply import get_member
from clew_activities.providers.request_media import (
    WAV,
    MediaForms,
    encode_base64,
    fit_media,
    get_media_type,
    get_url,
    make_data_url,
    name_file,
)
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.content import Part, find_sort, get_text
from clew_workflows.contract.messages import Message, ToolSpec

_OWNED = frozenset(("model", "messages", "stream", "n", "tools", "tool_choice", "response_format"))
"""Fields that `provider_options` cannot set."""
_ENCODER = "openai-chat/1"


@dataclass(frozen=True)
class OpenAI(Server):
    """A server of Chat Completions.

    Attributes:
        dialect: The server's dialect, which a model's family may change.
    """

    dialect: Dialect

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /chat/completions`."""
        dialect = specialize(self.dialect, request.model)
        tools = fit_tools(request.tools, dialect.tools)
        media = fit_media(request, dialect.media)
        messages, response_format = _choose_answer_form(media.messages, request, dialect)
        fitted = fit_messages(messages, dialect)
        body: dict[str, Any] = {
            "model": request.model,
            "messages": _encode_messages(fitted.messages, tools, dialect, self.name, request),
            "stream": True,
        }
        if dialect.asks_usage:
            body["stream_options"] = {"include_usage": True}
        body |= _choose_tools(request, fitted, tools, dialect)
        if dialect.parallel_choice and limits_calls(request.options, request.model) and "tools" in body:
            body["parallel_tool_calls"] = False
        body |= _encode_options(request.options, dialect, tools)
        if response_format is not None:
            body["response_format"] = response_format
        if dialect.cache_key and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        body = merge_provider_options(body, request, self.name, _OWNED)
        _, left_out = describe_provider_tools(request.provider_tools, (), self.name)
        described = _describe_options(request, body, dialect)
        fitting = describe_fitting(dialect.name, fitted, media, tools, described, left_out=left_out)
        return HttpRequest("/chat/completions", self.headers, body, fitting, _ENCODER, self.dialect.name)

    def get_media_forms(self, model: str) -> MediaForms:
        """Return what a model's requests may have of images, recordings and files."""
        return specialize(self.dialect, model).media

    def make_decoder(self, request: ModelRequest) -> OpenAIDecoder:
        """Make a decoder for the reply to a request."""
        dialect = specialize(self.dialect, request.model)
        return OpenAIDecoder(self.name, request.model, fit_tools(request.tools, dialect.tools))


def _choose_answer_form(
    context: Sequence[Message], request: ModelRequest, dialect: Dialect
) -> tuple[list[Message], dict[str, Any] | None]:
    """Choose how the schema of an answer is sent: the messages, with it described if need be, and the format."""
    messages, schema = list(context), request.output_schema
    if schema is None:
        return messages, None
    is_alone = dialect.answer_with_tools or not request.tools
    if dialect.answer == "json_schema" and is_alone:
        return messages, {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": is_strict(schema)},
        }
    start = next((index for index, message in enumerate(messages) if message["role"] != "system"), len(messages))
    messages.insert(start, {"role": "system", "content": describe_schema(schema)})
    return messages, {"type": "json_object"} if dialect.answer == "json_object" and is_alone else None


def _encode_messages(
    messages: Sequence[Message], tools: FittedTools, dialect: Dialect, provider: str, request: ModelRequest
) -> list[dict[str, Any]]:
    model = request.model
    ids = choose_call_ids(messages, provider, model, dialect)
    encoded: list[dict[str, Any]] = []
    for message, call_ids in zip(messages, ids, strict=True):
        content = get_text(message["content"])
        body: dict[str, Any] = {"role": message["role"], "content": content}
        if message["role"] == "tool":
            body["tool_call_id"] = call_ids[0]
            if dialect.fills_results and not content.strip():
                body["content"] = NO_OUTPUT
            if dialect.names_results and (name := message.get("name")):
                body["name"] = tools.encode_call(name, {}, dialect.tools)[0]
        elif calls := message.get("tool_calls"):
            if not content.strip():
                # Anthropic's and Bedrock's models behind a gateway refuse white space alone.
                body["content"] = ""
                if dialect.omits_empty:
                    del body["content"]
            own_fields, fields_of_calls = _select_own_fields(message, dialect, provider, model)
            body["tool_calls"] = [
                _encode_call(call["name"], call["arguments"], call_id, tools, dialect) | fields
                for call, call_id, fields in zip(calls, call_ids, fields_of_calls, strict=True)
            ]
            body |= own_fields
        elif message["role"] == "assistant" and dialect.required and dialect.required_of_all:
            body[dialect.required] = dialect.filler
        elif not isinstance(message["content"], str):
            body["content"] = [_encode_part(part, request.blobs) for part in message["content"]]
        encoded.append(body)
    return encoded


def _encode_part(part: Part, blobs: Mapping[str, bytes]) -> dict[str, Any]:
    """Encode a part that the dialect takes."""
    if part["type"] == "text":
        return {"type": "text", "text": part["text"]}
    match find_sort(part):
        case "image":
            detail = {"detail": part["detail"]} if part["type"] == "image" and "detail" in part else {}
            return {"type": "image_url", "image_url": {"url": get_url(part) or make_data_url(part, blobs)} | detail}
        case "audio":
            kind = "wav" if get_media_type(part) == WAV else "mp3"
            return {"type": "input_audio", "input_audio": {"data": encode_base64(part, blobs), "format": kind}}
    return {"type": "file", "file": {"filename": name_file(part, ".pdf"), "file_data": make_data_url(part, blobs)}}


def _select_own_fields(
    message: Message, dialect: Dialect, provider: str, model: str
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Select what the dialect takes back of a message with tool calls: fields of the message, and of each call.

    They go back as they came, to the model that sent them. A required field that never came, because another provider
    made the call, is filled in.
    """
    data = get_own_data(message, provider)
    is_same = data is not None and data.get("model", model) == model
    sent = data["blocks"][0] if data is not None and data["blocks"] else {}
    if "type" in sent:
        # They are items of Responses: the provider has changed its dialect.
        sent = {}
    fields = {name: sent[name] for name in dialect.returned if name in sent and (is_same or name == dialect.required)}
    if "content" in fields and not _holds_text(fields["content"], get_text(message["content"])):
        del fields["content"]
    if dialect.lone_reasoning and get_text(message["content"]).strip():
        fields = {}
    if dialect.required:
        reasoning = (sent.get(name) for name in REASONING_FIELDS)
        fields.setdefault(dialect.required, next(filter(None, reasoning), dialect.filler))
    calls = [
        {name: value for name, value in own.items() if _goes_back(name, dialect)} if is_same else {}
        for own in list_own_calls(message, provider)
    ]
    if dialect.signature and not any(calls):
        calls[0] |= dialect.signature
    return fields, calls


def _goes_back(name: str, dialect: Dialect) -> bool:
    return name != "id" and (dialect.call_fields is None or name in dialect.call_fields)


def _holds_text(content: object, text: str) -> bool:
    """Whether content as it came, with the thinking in it, has the text that the thread has."""
    if isinstance(content, list):
        content = join_texts([part for part in content if get_member(part, "type") == "text"])
        return bool(content == text)
    return isinstance(content, str) and content.endswith(text)


def _encode_call(
    name: str, arguments: dict[str, Any], call_id: str, tools: FittedTools, dialect: Dialect
) -> dict[str, Any]:
    sent_name, sent_arguments = tools.encode_call(name, arguments, dialect.tools)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": sent_name, "arguments": json.dumps(sent_arguments, ensure_ascii=False)},
    }


def _encode_tool(spec: ToolSpec, dialect: Dialect) -> dict[str, Any]:
    function: dict[str, Any] = {"name": spec["name"], "description": spec["description"]}
    if dialect.tools.empty_parameters or spec["parameters"].get("properties"):
        function["parameters"] = spec["parameters"]
    return {"type": "function", "function": function}


def _encode_options(options: ModelOptions, dialect: Dialect, tools: FittedTools) -> dict[str, Any]:
    """Encode the options under the dialect's names. Options that are not set are left to the server."""
    values = {
        "temperature": _fit_temperature(options.temperature, dialect),
        "top_p": _fit_top_p(options, dialect),
        "verbosity": options.verbosity if dialect.verbosity else None,
        "service_tier": options.service_tier if dialect.service_tier else None,
        "reasoning_effort": _encode_effort(options.reasoning_effort, dialect, has_tools=bool(tools.by_name)),
        "stop": list(options.stop) if options.stop else None,
        "seed": options.seed,
    }
    taken = {name: value for name, value in values.items() if name not in dialect.options_left_out}
    if "seed" in taken:
        taken[dialect.seed] = taken.pop("seed")
    body = {dialect.token_limit: options.max_output_tokens, **taken}
    encoded = {name: value for name, value in body.items() if value is not None}
    return encoded | _turn_reasoning_off(options, dialect, encoded)


def _turn_reasoning_off(options: ModelOptions, dialect: Dialect, encoded: Mapping[str, Any]) -> dict[str, Any]:
    """List the dialect's own fields that turn reasoning off, where no effort says it."""
    is_said = "reasoning_effort" in encoded
    return dict(dialect.no_reasoning) if options.reasoning_effort == "none" and not is_said else {}


def _fit_temperature(temperature: float | None, dialect: Dialect) -> float | None:
    least, highest = dialect.temperatures
    return None if temperature is None else min(max(temperature, least), highest)


def _fit_top_p(options: ModelOptions, dialect: Dialect) -> float | None:
    temperature = None if "temperature" in dialect.options_left_out else options.temperature
    is_greedy = dialect.top_p == "sampling" and temperature == 0
    is_second = dialect.top_p == "alone" and temperature is not None
    return None if is_greedy or is_second else options.top_p


def _describe_options(request: ModelRequest, body: Mapping[str, Any], dialect: Dialect) -> dict[str, str]:
    """Describe the options that the request has otherwise than the session, or not at all."""
    options = request.options
    names = ("temperature", "top_p", "reasoning_effort", "verbosity", "service_tier", "stop", "seed")
    sent = {name: body.get(dialect.seed if name == "seed" else name) for name in names}
    described = describe_options(options, sent, lacks_choice="tools" in body and "tool_choice" not in body)
    if off := _turn_reasoning_off(options, dialect, body):
        described["reasoning_effort"] = json.dumps(off)
    if options.tool_choice == "none" and request.tools and "tools" not in body:
        described["tool_choice"] = "no tools"
    if request.output_schema is not None and body.get("response_format", {}).get("type") != "json_schema":
        described["output_schema"] = "in the prompt"
    return described


def _encode_effort(effort: str | None, dialect: Dialect, *, has_tools: bool) -> str | None:
    if has_tools and dialect.tools_effort != "keep":
        return "none" if dialect.tools_effort == "none" else None
    return choose_effort(effort, dialect.efforts)


def _choose_tools(
    request: ModelRequest, fitted: FittedMessages, tools: FittedTools, dialect: Dialect
) -> dict[str, Any]:
    """Choose the tools of the request and how the model may call them."""
    specs, choice = tools.specs, request.options.tool_choice
    if not specs:
        called = declare_called_tools(fitted.messages, dialect)
        return {"tools": [_encode_tool(spec, dialect) for spec in called], "tool_choice": "none"} if called else {}
    body: dict[str, Any] = {"tools": [_encode_tool(spec, dialect) for spec in specs]}
    if choice == "none" and not dialect.forbids_tools:
        return {}
    if choice in ("auto", "none"):
        return body | {"tool_choice": choice}
    tool = tools.by_name.get(choice or "")
    if tool is not None and dialect.names_forced_tool:
        return body | {"tool_choice": {"type": "function", "function": {"name": tool.spec["name"]}}}
    if tool is not None:
        body = {"tools": [_encode_tool(tool.spec, dialect)]}
    is_forced = dialect.forces_tools and (tool is not None or choice == "required")
    return body | ({"tool_choice": dialect.any_tool} if is_forced else {})
