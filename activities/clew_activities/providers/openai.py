"""OpenAI's Chat Completions, as OpenAI, Mistral, DeepSeek, Ollama, vLLM, llama.cpp and many others speak it.

How a server's dialect differs stands in `dialects`. This codec knows the format alone: it writes what the dialect
wants, and reads whatever a server of any dialect sends.

`OPENAI_API_KEY` and `OPENAI_BASE_URL` are read as the official client reads them: the key or the URL is enough.
`CLEW_PROVIDER_<NAME>_BASE_URL` adds a compatible server under the name in lower case; `CLEW_PROVIDER_<NAME>_API_KEY`
sets its key, if it needs one, and `CLEW_PROVIDER_<NAME>_DIALECT` its dialect.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clew.contract import ModelOptions
from clew.contract.payloads import Fitting
from clew.model.messages import Message, ProviderData, ToolSpec
from clew_activities.providers.answer_object import describe_schema
from clew_activities.providers.dialects import Dialect, find_dialect, specialize
from clew_activities.providers.errors import (
    ErrorAnswer,
    ProviderError,
    TruncatedStream,
    classify_event,
    classify_response,
)
from clew_activities.providers.fit_messages import (
    choose_call_ids,
    fit_messages,
    get_own_data,
    list_own_calls,
)
from clew_activities.providers.fit_tools import FittedTools, fit_tools
from clew_activities.providers.interface import HttpRequest, ModelRequest
from clew_activities.providers.reply import (
    Call,
    DraftDecoder,
    OwnData,
    StopReason,
    find_best_usage,
    get_member,
    limit_name,
    parse_event,
    read_string,
)
from clew_activities.providers.rewrite_schema import rewrite_schema
from clew_activities.providers.variables import read_key, read_url
from clew_workflows.protocol import ModelReply

_OFFICIAL_URL = "https://api.openai.com/v1"
_VARIABLE = re.compile(r"CLEW_PROVIDER_([A-Z0-9_]+)_(BASE_URL|API_KEY|DIALECT)")

# Characters of a refusal that are kept.
_REFUSAL_LIMIT = 4000
# Keywords that strict mode refuses, and those of which a subschema needs one.
_REFUSED = frozenset(
    [
        "allOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "default",
        "minLength",
        "maxLength",
        "uniqueItems",
        "prefixItems",
        "contains",
        "minContains",
        "maxContains",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
        "dependentRequired",
        "dependentSchemas",
        "dependencies",
    ]
)
_TYPING = frozenset(("type", "anyOf", "enum", "const", "$ref"))
_STOP_REASONS: Mapping[str, StopReason] = {"length": "length", "model_length": "length", "tool_calls": "tool_calls"}
_ABORTED = frozenset(("abort", "error", "insufficient_system_resource", "network_error"))
"""Reasons with which a server says that it has not finished the reply."""

_FIELDS_BACK = ("reasoning_content", "reasoning", "reasoning_details", "thinking_blocks", "extra_content")
"""Fields of a message that some provider wants back."""
NO_OUTPUT = "(no output)"
"""The result of a tool that returned no text, where the dialect wants some."""
_OWN_MEMBERS = frozenset(("index", "type", "function", "id"))
"""Members of a tool call that the format itself defines."""


def make_providers(environ: Mapping[str, str]) -> Iterable[OpenAI]:
    """Make the provider `openai`, if it is configured, and one for each compatible server that a variable names.

    Raises:
        ValueError: A variable's value cannot be used.
    """
    key, url = read_key(environ, "OPENAI_API_KEY"), read_url(environ, "OPENAI_BASE_URL")
    configured = (name for name, value in environ.items() if value.strip())
    prefixes = sorted({match[1] for name in configured if (match := _VARIABLE.fullmatch(name))})
    if key or url:
        yield _make_server("openai", url or _OFFICIAL_URL, key, environ)
    for prefix in prefixes:
        name, variable = prefix.lower(), f"CLEW_PROVIDER_{prefix}"
        url = read_url(environ, f"{variable}_BASE_URL")
        if name in ("openai", "anthropic"):
            if url or read_key(environ, f"{variable}_API_KEY"):
                raise ValueError(
                    f"{variable}_BASE_URL: {name} is configured with {prefix}_BASE_URL and {prefix}_API_KEY"
                )
            if name == "openai" and (key or environ.get("OPENAI_BASE_URL", "").strip()):
                continue
            raise ValueError(
                f"{variable}_DIALECT has no effect: "
                + (
                    f"set {prefix}_API_KEY or {prefix}_BASE_URL too"
                    if name == "openai"
                    else "its API has one dialect"
                )
            )
        if url is None:
            other = "API_KEY" if read_key(environ, f"{variable}_API_KEY") else "DIALECT"
            raise ValueError(f"{variable}_{other} is set and {variable}_BASE_URL is not: set the URL too")
        yield _make_server(name, url, read_key(environ, f"{variable}_API_KEY"), environ)


def _make_server(name: str, url: str, key: str | None, environ: Mapping[str, str]) -> OpenAI:
    variable = f"CLEW_PROVIDER_{name.upper()}_DIALECT"
    try:
        dialect = find_dialect(name, url, environ.get(variable, "").strip() or None)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None
    return OpenAI(name, url, dialect, key)


@dataclass(frozen=True)
class OpenAI:
    """A server of Chat Completions.

    Attributes:
        name: The part of a session's model before the colon.
        base_url: The server's URL, without a slash at its end.
        dialect: The server's dialect, which a model's family may change.
        api_key: The key, sent as a bearer token; None: the server needs none.
    """

    name: str
    base_url: str
    dialect: Dialect
    api_key: str | None = field(default=None, repr=False)

    @property
    def secrets(self) -> tuple[str, ...]:
        """The key, if there is one."""
        return (self.api_key,) if self.api_key else ()

    @property
    def secret_headers(self) -> tuple[str, ...]:
        """The header that holds the key."""
        return ("authorization",)

    def encode(self, request: ModelRequest) -> HttpRequest:
        """Encode the request as the body of `POST /chat/completions`."""
        dialect = specialize(self.dialect, request.model)
        tools = fit_tools(request.tools, dialect.tools)
        messages, response_format = _choose_answer_form(request, dialect)
        fitted = fit_messages(messages, dialect)
        body: dict[str, Any] = {
            "model": request.model,
            "messages": _encode_messages(fitted.messages, tools, dialect, self.name, request.model),
            "stream": True,
        }
        if dialect.asks_usage:
            body["stream_options"] = {"include_usage": True}
        specs = tools.specs or (_declare_called(fitted.messages, tools, dialect) if not request.tools else [])
        if specs:
            body["tools"] = [_encode_tool(spec) for spec in specs]
        options, left_out = _encode_options(request.options, dialect, tools)
        body |= options
        if response_format is not None:
            body["response_format"] = response_format
        if dialect.cache_key and request.cache_key:
            body["prompt_cache_key"] = request.cache_key
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        fitting = Fitting(
            dialect=dialect.name,
            merged=fitted.merged,
            added=fitted.added,
            dropped=fitted.dropped,
            tools=dict(tools.changes),
            tools_left_out=dict(tools.left_out),
            options_left_out=left_out,
        )
        return HttpRequest("/chat/completions", headers, body, fitting)

    def make_decoder(self, request: ModelRequest) -> OpenAIDecoder:
        """Make a decoder for the reply to a request."""
        dialect = specialize(self.dialect, request.model)
        return OpenAIDecoder(self.name, request.model, fit_tools(request.tools, dialect.tools))

    def read_error(self, answer: ErrorAnswer) -> ProviderError:
        """Classify an error response by the tables in `errors`."""
        return classify_response(answer)


class OpenAIDecoder(DraftDecoder):
    """Folds `chat.completion.chunk` objects, or one complete `chat.completion`."""

    def __init__(self, provider: str = "openai", model: str = "", tools: FittedTools | None = None) -> None:
        super().__init__(tools or FittedTools())
        self._provider = provider
        self._model = model
        self._calls: dict[int | str, Call] = {}
        self._newest: Call | None = None
        self._refusal = ""
        self._own = OwnData()

    def feed(self, event: str, data: str) -> None:
        """Fold one event.

        Raises:
            ProviderError: The event is an error.
            TruncatedStream: The event cannot be parsed, or the server aborted the reply.
        """
        if data.strip() == "[DONE]":
            self._draft.ended = True
            return
        chunk = parse_event(data)
        if event == "error" or chunk.get("error") or chunk.get("object") == "error":
            raise classify_event(chunk)
        self._read_usage(chunk)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            # Requests ask for one choice; ignore further ones.
            if isinstance(choice, dict) and choice.get("index") in (0, None):
                self._read_usage(choice)
                self._add_delta(choice.get("delta") or choice.get("message"))
                self._set_stop_reason(choice.get("finish_reason"))

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self._refusal:
            self._draft.refusal = self._refusal
        return self._draft.finish(self._make_provider_data())

    def _make_provider_data(self) -> ProviderData | None:
        """Make what goes back to the provider with the tool calls; None: nothing, or too much."""
        calls = [({"id": call.id} if call.id else {}) | call.own for call in self._draft.calls]
        return self._own.make_provider_data(self._provider, self._model, calls) if calls else None

    def _add_delta(self, delta: object) -> None:
        if not isinstance(delta, dict):
            return
        if content := delta.get("content"):
            self._add_content(content)
        # Servers use either name; some send the same text under both.
        if thinking := delta.get("reasoning_content") or delta.get("reasoning"):
            self._draft.add_thinking(thinking)
        elif details := delta.get("reasoning_details"):
            self._draft.add_thinking(_join_texts(details))
        for name in _FIELDS_BACK:
            if value := delta.get(name):
                self._own.add(name, value)
        if len(self._refusal) < _REFUSAL_LIMIT and (refusal := read_string(delta.get("refusal"))):
            self._refusal = (self._refusal + refusal)[:_REFUSAL_LIMIT]
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else ():
            self._add_call(call)

    def _add_content(self, content: object) -> None:
        """Take a text, or a list of parts: Mistral's thinking is a part, and goes back in its place."""
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for part in parts if isinstance(parts, list) else ():
            text = read_string(get_member(part, "text"))
            if get_member(part, "type") == "thinking":
                if not self._own.has("content") and self._draft.text:
                    self._own.add("content", [{"type": "text", "text": self._draft.text}])
                self._draft.add_thinking(_join_texts(get_member(part, "thinking")))
                self._own.add("content", [part])
            elif text:
                self._draft.add_text(text)
                if self._own.has("content"):
                    self._own.add("content", [{"type": "text", "text": text}])

    def _add_call(self, delta: object) -> None:
        """Find the call that a delta belongs to, or start a new one, and add the delta to it.

        OpenAI numbers calls with `index`. Other servers omit it, write it as a text or number every call 0, repeat
        ids and names in every delta, make a new id for each delta, or use one id for two calls. A delta without an
        index and without a known id goes on with the newest call, unless it starts another.
        """
        index = _read_index(get_member(delta, "index"))
        function = get_member(delta, "function")
        call_id, name = read_string(get_member(delta, "id")), limit_name(read_string(get_member(function, "name")))
        arguments = get_member(function, "arguments")
        key = call_id if index is None else index
        call = self._calls.get(key, self._newest if index is None else None)
        if call is None or _starts_another_call(call, call_id, name, arguments, numbered=index is not None):
            call = self._draft.open_call(call_id, name or (call.name if call else ""))
        elif name and not call.name:
            call.rename(name)
        self._newest = call
        if call is None:
            return
        if key != "":
            self._calls[key] = call
        call.id = call.id or call_id
        if isinstance(delta, dict):
            call.own |= {member: value for member, value in delta.items() if member not in _OWN_MEMBERS and value}
        self._draft.add_arguments(call, arguments)

    def _set_stop_reason(self, reason: object) -> None:
        if not isinstance(reason, str) or not reason:
            return
        if reason in _ABORTED:
            raise TruncatedStream(f"the server aborted the reply ({reason[:40]})")
        if "MALFORMED_FUNCTION_CALL" in reason.upper():
            raise TruncatedStream("the model wrote a tool call that the server cannot read")
        if reason == "content_filter":
            self._draft.refusal = "the provider's content filter stopped the reply"
        self._draft.stop_reason = _STOP_REASONS.get(reason, "stop")

    def _read_usage(self, holder: Mapping[str, Any]) -> None:
        """Take the best figures: servers report usage at the end, in each chunk, within a choice, or beside it."""
        for usage in (holder.get("usage"), get_member(holder.get("x_groq"), "usage"), holder.get("timings")):
            if isinstance(usage, dict):
                self._draft.usage = find_best_usage(self._draft.usage, usage)


def _read_index(index: object) -> int | None:
    """Read the number of a call, which some servers write as a text; None: it has none."""
    if isinstance(index, str) and index.strip().isdecimal():
        return int(index.strip()[:9])
    return index if isinstance(index, int) and not isinstance(index, bool) else None


def _starts_another_call(call: Call, call_id: str, name: str, arguments: object, *, numbered: bool) -> bool:
    """Whether a delta starts another call than the one that its number, its id or its place names."""
    if arguments and call.has_all_arguments and (name or _begins_object(arguments)):
        return True
    if name and call.name and name != call.name:
        return True
    if not call_id or not call.id or call_id == call.id:
        return False
    # A server that makes a new id for each delta of one call repeats no name.
    return bool(name) or not (numbered or arguments)


def _begins_object(arguments: object) -> bool:
    return not isinstance(arguments, str) or arguments.lstrip().startswith("{")


def _join_texts(parts: object) -> str:
    """Join the texts of a list of parts, such as `reasoning_details` and Mistral's thinking."""
    items = parts if isinstance(parts, list) else ()
    texts = [get_member(part, "text") or get_member(part, "summary") for part in items]
    return "".join(map(read_string, texts))


def _choose_answer_form(request: ModelRequest, dialect: Dialect) -> tuple[list[Message], dict[str, Any] | None]:
    """Choose how the schema of an answer is sent: the messages, with it described if need be, and the format."""
    messages, schema = list(request.messages), request.output_schema
    if schema is None:
        return messages, None
    is_alone = dialect.answer_with_tools or not request.tools
    if dialect.answer == "json_schema" and is_alone:
        return messages, {
            "type": "json_schema",
            "json_schema": {"name": "reply", "schema": schema, "strict": _is_strict(schema)},
        }
    start = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    messages.insert(start, {"role": "system", "content": describe_schema(schema)})
    return messages, {"type": "json_object"} if dialect.answer == "json_object" and is_alone else None


def _encode_messages(
    messages: Sequence[Message], tools: FittedTools, dialect: Dialect, provider: str, model: str
) -> list[dict[str, Any]]:
    ids = choose_call_ids(messages, provider, dialect)
    encoded: list[dict[str, Any]] = []
    for message, call_ids in zip(messages, ids, strict=True):
        content = message["content"]
        body: dict[str, Any] = {"role": message["role"], "content": content}
        if message["role"] == "tool":
            body["tool_call_id"] = call_ids[0]
            if dialect.fills_results and not content.strip():
                body["content"] = NO_OUTPUT
            if dialect.names_results and (name := message.get("name")):
                body["name"] = tools.encode_call(name, {}, dialect.tools)[0]
        elif calls := message.get("tool_calls"):
            own = _select_own_fields(message, dialect, provider, model)
            body["tool_calls"] = [
                _encode_call(call["name"], call["arguments"], call_id, tools, dialect) | fields
                for call, call_id, fields in zip(calls, call_ids, own.calls, strict=True)
            ]
            body |= own.fields
        encoded.append(body)
    return encoded


@dataclass(frozen=True)
class _OwnFields:
    """What goes back to a provider with a message that has tool calls.

    Attributes:
        fields: Fields of the message.
        calls: Fields of each call.
    """

    fields: dict[str, Any]
    calls: list[dict[str, Any]]


def _select_own_fields(message: Message, dialect: Dialect, provider: str, model: str) -> _OwnFields:
    """Select what the dialect takes back of a message: as it came, and to the model that sent it.

    What a provider requires and what never came, since another provider made the call, is filled in.
    """
    data = get_own_data(message, provider)
    is_same = data is not None and data.get("model", model) == model
    sent = data["blocks"][0] if data is not None and data["blocks"] else {}
    fields = {name: sent[name] for name in dialect.returned if name in sent and (is_same or name == dialect.required)}
    if "content" in fields and _join_content(fields["content"]) != message["content"]:
        del fields["content"]
    if dialect.required:
        fields.setdefault(dialect.required, "")
    calls = [
        {name: value for name, value in own.items() if _goes_back(name, dialect)} if is_same else {}
        for own in list_own_calls(message, provider)
    ]
    if dialect.signature and not any(calls):
        calls[0] |= dialect.signature
    return _OwnFields(fields, calls)


def _goes_back(name: str, dialect: Dialect) -> bool:
    return name != "id" and (dialect.call_fields is None or name in dialect.call_fields)


def _join_content(parts: object) -> str:
    return "".join(read_string(get_member(part, "text")) for part in (parts if isinstance(parts, list) else ()))


def _encode_call(
    name: str, arguments: dict[str, Any], call_id: str, tools: FittedTools, dialect: Dialect
) -> dict[str, Any]:
    sent_name, sent_arguments = tools.encode_call(name, arguments, dialect.tools)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": sent_name, "arguments": json.dumps(sent_arguments, ensure_ascii=False)},
    }


def _encode_tool(spec: ToolSpec) -> dict[str, Any]:
    return {
        "type": "function",
        "function": {
            "name": spec["name"],
            "description": spec["description"],
            "parameters": spec["parameters"],
        },
    }


def _declare_called(messages: Sequence[Message], tools: FittedTools, dialect: Dialect) -> list[ToolSpec]:
    """Declare the tools that were called earlier, for a request without tools, where the dialect wants that."""
    if not dialect.declares_called_tools:
        return []
    names = {call["name"]: None for message in messages for call in message.get("tool_calls", ())}
    return [
        {
            "name": tools.encode_call(name, {}, dialect.tools)[0],
            "description": "no longer available: do not call it",
            "parameters": {"type": "object", "properties": {}},
        }
        for name in names
    ]


def _encode_options(
    options: ModelOptions, dialect: Dialect, tools: FittedTools
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Encode the options under the dialect's names. Second: those that the dialect does not take.

    Options that are not set are left to the server. `tool_choice` without tools is refused everywhere.
    """
    values = {
        "temperature": options.temperature,
        "reasoning_effort": _encode_effort(options.reasoning_effort, dialect, has_tools=bool(tools.by_name)),
        "stop": list(options.stop) if options.stop else None,
        "seed": options.seed,
        "tool_choice": _encode_tool_choice(options.tool_choice, dialect, tools) if tools.by_name else None,
    }
    taken = {name: value for name, value in values.items() if name not in dialect.options_left_out}
    left_out = tuple(
        name
        for name in values
        if getattr(options, name) and taken.get(name) is None and (name != "tool_choice" or tools.by_name)
    )
    if (seed := taken.pop("seed", None)) is not None:
        taken[dialect.seed] = seed
    body = {dialect.token_limit: options.max_output_tokens, **taken}
    return {name: value for name, value in body.items() if value is not None}, left_out


def _encode_effort(effort: str | None, dialect: Dialect, *, has_tools: bool) -> str | None:
    if has_tools and dialect.tools_effort != "keep":
        return "none" if dialect.tools_effort == "none" else None
    return effort if effort is None or dialect.efforts is None else dialect.efforts.get(effort)


def _encode_tool_choice(choice: str | None, dialect: Dialect, tools: FittedTools) -> str | dict[str, Any] | None:
    if choice in (None, "auto", "none"):
        return choice
    if not dialect.forces_tools:
        return None
    if choice == "required":
        return dialect.any_tool
    if (tool := tools.by_name.get(choice)) is None:
        return None
    return {"type": "function", "function": {"name": tool.spec["name"]}}


def _is_strict(schema: dict[str, Any]) -> bool:
    """Whether OpenAI's strict mode accepts the schema; it refuses `strict` with any other.

    Every object is closed, every property required, every value has a type, and no keyword is refused.
    """
    is_strict = True

    def check(subschema: dict[str, Any]) -> dict[str, Any]:
        nonlocal is_strict
        is_strict = is_strict and _is_strict_part(subschema)
        return subschema

    rewrite_schema(schema, check)
    return is_strict


def _is_strict_part(subschema: dict[str, Any]) -> bool:
    if _REFUSED & subschema.keys() or not _TYPING & subschema.keys():
        return False
    if "$ref" in subschema:
        return len(subschema) == 1
    properties = subschema.get("properties")
    if subschema.get("type") != "object" and properties is None:
        return True
    required = subschema.get("required", [])
    return subschema.get("additionalProperties") is False and set(properties or ()) == set(required)
