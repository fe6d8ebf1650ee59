"""Gemini's own API: its streams, its errors, and what it refuses.

The types are those of the package `google-genai`. Where the documentation does not say a rule, the comment names who
has seen it (`gh:owner/repository#number`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jsonschema_rs
from google.genai import types
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.alias_generators import to_camel

from tests.providers.chat_completions import make_id, make_signature
from tests.providers.chat_rules import iterate_schemas
from tests.providers.official_types import format_place
from tests.providers.strict_server import DROP, Billing, Exchange, Refusal, Rule, Sent, ServerSentEvents, Turn

Part = dict[str, Any]

DUMMIES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
"""The signatures that Gemini takes for calls that it has not made."""
KEY = "key-of-the-tests"
DATA = (
    "text",
    "inlineData",
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
"""The fields of a part of which it has one."""
_STATUS = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 404: "NOT_FOUND"}


@dataclass(frozen=True)
class GeminiApi(ServerSentEvents):
    """Gemini's API with one model.

    Attributes:
        path: The path of a request.
        signs: What has a signature in a reply: the first call, else the last part; or the first part after thinking.
        has_ids: Whether calls have ids.
        cut_reason: The finish reason of a reply with calls that the token limit cuts.
    """

    path: str
    signs: str = "calls"
    has_ids: bool = True
    cut_reason: str = "MALFORMED_FUNCTION_CALL"

    def encode_refusal(self, refusal: Refusal) -> Any:
        """Make the JSON of an error response."""
        details = [{"@type": "type.googleapis.com/google.rpc.DebugInfo", "detail": "[ORIGINAL ERROR]"}]
        status = _STATUS.get(refusal.status, "UNAVAILABLE")
        return {"error": {"code": refusal.status, "message": refusal.message, "status": status, "details": details}}

    def encode(self, turn: Turn, exchange: Exchange, thinking: str, billing: Billing) -> tuple[list[Any], Sent]:
        """Encode a reply. Thoughts come only if the request wants them."""
        number = sum(max(len(sent.calls), 1) for sent in exchange.sent)
        config = exchange.body["generationConfig"].get("thinkingConfig") or {}
        has_thought = bool(thinking)
        # The official client writes the name of the protocol buffer.
        thinking = thinking if config.get("includeThoughts", config.get("include_thoughts")) else ""
        parts = list(self._make_parts(turn, thinking, number, has_thought=has_thought))
        is_broken = any(isinstance(call.arguments, str) for call in turn.calls)
        reason = "MAX_TOKENS" if turn.ending == "length" else "STOP"
        thoughts = min(len(thinking) // 4, billing.output_tokens)
        usage = {
            "promptTokenCount": billing.input_tokens,
            "cachedContentTokenCount": billing.input_tokens // 2,
            "thoughtsTokenCount": thoughts,
            "totalTokenCount": billing.input_tokens + billing.output_tokens,
        }
        chunks: list[Any] = [
            self._make_chunk({"content": {"role": "model", "parts": [part]}, "index": 0}, usage) for part in parts
        ]
        middle = max(len(chunks) // 2, 1)
        # `candidatesTokenCount` comes with the last chunk alone.
        usage = usage | {"candidatesTokenCount": billing.output_tokens - thoughts}
        last: dict[str, Any] = {"content": {"role": "model", "parts": []}, "finishReason": reason, "index": 0}
        if is_broken:
            last |= {"finishReason": self.cut_reason, "finishMessage": "Malformed function call: call:default_api"}
        elif turn.searches:
            last["groundingMetadata"] = _make_grounding(turn)
        chunks.append(self._make_chunk(last, usage))
        match turn.fault.when if turn.fault else None:
            case "inside":
                error = {"code": 503, "message": "The model is overloaded. Please try again later."}
                chunks = [*chunks[:middle], {"error": {**error, "status": "UNAVAILABLE"}}]
            case "cut":
                chunks = [*chunks[:-1], DROP]
            case "after":
                chunks.append(DROP)
        calls = {
            part["functionCall"].get("id") or make_key(part["functionCall"]): part
            for part in parts
            if "functionCall" in part
        }
        signed = [part for part in parts if part.get("thoughtSignature")]
        return chunks, Sent(thinking, {"signed": signed}, calls, turn.text)

    def _make_parts(self, turn: Turn, thinking: str, number: int, *, has_thought: bool) -> Iterator[Part]:
        half = len(thinking) // 2
        yield from ({"text": part, "thought": True} for part in (thinking[:half], thinking[half:]) if part)
        signature = {"thoughtSignature": make_signature(number)}
        is_first_signed = self.signs == "first" and has_thought
        whole = [call for call in turn.calls if not isinstance(call.arguments, str)]
        half = len(turn.text) // 2
        for position, text in enumerate(filter(None, (turn.text[:half], turn.text[half:]))):
            yield {"text": text} | (signature if is_first_signed and not position else {})
        for position, call in enumerate(whole):
            function: dict[str, Any] = {"name": call.name, "args": call.arguments}
            if self.has_ids:
                function["id"] = make_id("", 8)(number + position, call.name)
            signs = self.signs == "calls" or (is_first_signed and not turn.text)
            yield {"functionCall": function} | (signature if signs and not position else {})
        if self.signs == "calls" and not turn.calls and turn.text:
            # In a stream it comes with an empty text: ai.google.dev/gemini-api/docs/thought-signatures
            yield {"text": "", **signature}

    @staticmethod
    def _make_chunk(candidate: Mapping[str, Any], usage: Mapping[str, Any]) -> dict[str, Any]:
        chunk = {
            "candidates": [candidate],
            "usageMetadata": usage,
            "modelVersion": "gemini",
            "responseId": "r_1",
        }
        types.GenerateContentResponse.model_validate_json(json.dumps(chunk))
        return chunk


def _make_grounding(turn: Turn) -> dict[str, Any]:
    """Make what a reply with searches says of them: a source for each, and the whole text comes from the first."""
    sources = [
        {"web": {"uri": f"https://example.com/{n}", "title": f"Example {n}"}}
        for n in range(1, len(turn.searches) + 1)
    ]
    segment = {"startIndex": 0, "endIndex": len(turn.text.encode()), "text": turn.text}
    return {
        "webSearchQueries": list(turn.searches),
        "groundingChunks": sources,
        "groundingSupports": [{"segment": segment, "groundingChunkIndices": [0]}],
        "searchEntryPoint": {"renderedContent": "<div></div>"},
    }


def make_key(call: Mapping[str, Any]) -> str:
    """Make the key of a call without an id."""
    return f"{call['name']} {json.dumps(call.get('args'), sort_keys=True)}"


def _get_contents(exchange: Exchange) -> list[dict[str, Any]]:
    contents = exchange.body.get("contents")
    return contents if isinstance(contents, list) else []


def _list_parts(content: Mapping[str, Any], name: str) -> list[Part]:
    return [part for part in content.get("parts") or () if name in part]


def _get_declarations(exchange: Exchange) -> list[dict[str, Any]]:
    return [one for tool in exchange.body.get("tools") or () for one in tool.get("functionDeclarations") or ()]


def _get_own_tools(exchange: Exchange) -> list[str]:
    return [name for tool in exchange.body.get("tools") or () for name in tool if name != "functionDeclarations"]


# Rules


def demand_key(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse requests without the key."""
    key = exchange.headers.get("x-goog-api-key")
    if key is None:
        yield Refusal(
            "Method doesn't allow unregistered callers (callers without established identity). Please use API Key or "
            "other form of API consumer identity to call this API.",
            status=403,
        )
    elif key != KEY:
        yield Refusal("API key not valid. Please pass a valid API key.")


class _Request(BaseModel):
    """The body of `generateContent`: ai.google.dev/api/generate-content."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)

    contents: list[types.Content]
    system_instruction: types.Content | None = None
    tools: list[types.Tool] | None = None
    tool_config: types.ToolConfig | None = None
    safety_settings: list[types.SafetySetting] | None = None
    generation_config: types.GenerationConfig | None = None
    cached_content: str | None = None
    service_tier: types.ServiceTier | None = None
    labels: dict[str, str] | None = None


def know_fields(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse fields that the API does not know, and values of another type."""
    try:
        _Request.model_validate(exchange.body)
    except ValidationError as error:
        for problem in error.errors():
            *place, name = problem["loc"]
            where = f" at '{format_place(place)}'" if place else ""
            if problem["type"] == "extra_forbidden":
                # gh:gera2ld/ai.nvim#13
                yield Refusal(f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.')
            else:
                yield Refusal(f"Invalid value at '{format_place(problem['loc'])}': {problem['msg']}")


def have_parts(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse contents and parts without anything."""
    contents = _get_contents(exchange)
    if not contents:
        yield Refusal("* GenerateContentRequest.contents: contents is not specified")
    system = exchange.body.get("systemInstruction")
    for where, content in (
        *((f"contents[{index}]", content) for index, content in enumerate(contents)),
        *([("system_instruction", system)] if system else []),
    ):
        path = f"* GenerateContentRequest.{where}"
        if not content.get("parts"):
            # gh:egoist/chatwise-releases#250
            yield Refusal(f"{path}.parts: contents.parts must not be empty.")
        for place, part in enumerate(content.get("parts") or ()):
            fields = part.keys() & set(DATA)
            if len(fields) > 1:
                yield Refusal(f"{path}.parts[{place}]: oneof field 'data' is already set. Cannot set '{fields}'")
            if not fields or (part.get("text") == "" and "thoughtSignature" not in part):
                # gh:router-for-me/CLIProxyAPI#1292
                yield Refusal(
                    f"{path}.parts[{place}].data: required oneof field 'data' must have one initialized field"
                )
    for content in contents:
        if content.get("role", "user") not in ("user", "model"):
            yield Refusal("Please use a valid role: user, model.")


def order_turns(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse turns in a wrong order, and results that do not answer the calls before them."""
    before: tuple[str, int] = ("", 0)
    contents = _get_contents(exchange)
    for content in contents:
        calls, results = _list_parts(content, "functionCall"), _list_parts(content, "functionResponse")
        role = content.get("role", "user")
        if calls and (role != "model" or before[0] not in ("user", "response")):
            # gh:google-gemini/gemini-cli#11814
            yield Refusal(
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if results and before[0] != "call":
            # gh:lobehub/lobehub#7298
            yield Refusal("Please ensure that function response turn comes immediately after a function call turn.")
        elif (results or before[0] == "call") and len(results) != before[1]:
            # gh:google-gemini/gemini-cli#4504
            yield Refusal(
                "Please ensure that the number of function response parts is equal to the number of function call "
                "parts of the function call turn."
            )
        for part in results:
            if not part["functionResponse"].get("name"):
                yield Refusal("* GenerateContentRequest.contents.parts.function_response.name: Name cannot be empty.")
        before = ("call", len(calls)) if calls else ("response", 0) if results else (role, 0)
    if contents and contents[-1].get("role") == "model":
        # gh:anomalyco/opencode#45359
        yield Refusal("Requests ending with a model turn are not supported.")


def return_signatures(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse the first call of each step without its signature, in the turn that is going on.

    https://ai.google.dev/gemini-api/docs/thought-signatures, gh:securo-finance/securo#884
    """
    contents = _get_contents(exchange)
    begins = [
        index
        for index, content in enumerate(contents)
        if content.get("role", "user") == "user" and _list_parts(content, "text")
    ]
    for index, content in enumerate(contents):
        for place, part in enumerate(_list_parts(content, "functionCall")):
            if "thoughtSignature" not in part and not place and index > (begins[-1] if begins else -1):
                yield Refusal(
                    "Function call is missing a thought_signature in functionCall parts. This is required for tools "
                    "to work correctly, and missing thought_signature may lead to degraded model performance. "
                    f"Additional data, function call `default_api:{part['functionCall']['name']}` , position {index}."
                )


def know_signatures(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse signatures that the model has not made, or that stand at another part."""
    own = {part["thoughtSignature"]: part for sent in exchange.sent for part in sent.returns["signed"]}
    for content in _get_contents(exchange):
        for part in content.get("parts") or ():
            signature = part.get("thoughtSignature")
            if signature is None or ("functionCall" in part and signature in DUMMIES):
                continue
            made = own.get(signature, {})
            if made.keys() != part.keys() or made.get("text") != part.get("text"):
                # gh:massgen/MassGen#665
                yield Refusal("Corrupted thought signature.")


def take_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse declarations that the API does not take."""
    declarations = _get_declarations(exchange)
    if len(declarations) > 512:
        yield Refusal(f"The number of function declarations, {len(declarations)}, is over 512")
    names = [one.get("name", "") for one in declarations]
    for name in {name for name in names if names.count(name) > 1}:
        yield Refusal(f"Duplicate function declaration found: {name}")
    for index, tool in enumerate(declarations):
        where = f"* GenerateContentRequest.tools[0].function_declarations[{index}]"
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", names[index]):
            # gh:google-gemini/gemini-cli#9535
            yield Refusal(
                f"{where}.name: Invalid function name. Must start with a letter or an underscore. Must be alphameric "
                "(a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or dashes (-), with a maximum length of 64."
            )
        if "parameters" in tool and "parametersJsonSchema" in tool:
            yield Refusal(f"{where}: parameters and parameters_json_schema are mutually exclusive")
        schema = tool.get("parametersJsonSchema")
        if schema is not None:
            yield from _check_schema(schema, f"{where}.parameters_json_schema")
    for tool in exchange.body.get("tools") or ():
        if len(tool) != 1:
            # gh:langchain-ai/langchain-google#1116
            yield Refusal("* tools[0].tool_type: one_of 'tool_type' has more than one initialized field")
    calling = (exchange.body.get("toolConfig") or {}).get("functionCallingConfig") or {}
    if calling and not declarations:
        yield Refusal("Function calling config is set without function_declarations.")
    allowed = calling.get("allowedFunctionNames") or ()
    if allowed and calling.get("mode") != "ANY":
        yield Refusal("Only set allowed function names when function calling mode is ANY.")
    if missing := set(allowed) - set(names):
        yield Refusal(f"allowed_function_names contains {sorted(missing)}, which is not declared")


def _check_schema(schema: dict[str, Any], where: str) -> Iterator[Refusal]:
    try:
        jsonschema_rs.Draft202012Validator(schema)
    except (jsonschema_rs.ValidationError, ValueError) as error:
        yield Refusal(f"{where}: {error}")
        return
    if schema.get("type") != "object":
        yield Refusal(f"{where}: schema must be of type OBJECT")
    for _, part in iterate_schemas(schema):
        beside = part.keys() - {"$ref", "description", "default"}
        if "$ref" in part and {key for key in beside if not key.startswith("$")}:
            # gh:anomalyco/opencode#12295
            name = part["$ref"].rpartition("/")[2]
            yield Refusal(
                f"$ref '{name}' was set alongside unsupported fields. If a schema node has $ref set, then only "
                "description and default can be set alongside it"
            )
        if "$ref" in part and part["$ref"].rpartition("/")[2] not in schema.get("$defs", {}):
            # gh:google-gemini/gemini-cli#13326
            yield Refusal(f"reference to undefined schema at {where}")


ANSWER_KEYWORDS = frozenset(
    (
        *("$id", "$defs", "$ref", "$anchor", "type", "format", "title", "description", "enum", "items"),
        *("prefixItems", "minItems", "maxItems", "minimum", "maximum", "anyOf", "oneOf", "properties"),
        *("additionalProperties", "required", "propertyOrdering"),
    )
)
"""The keywords of `responseJsonSchema`: ai.google.dev/api/generate-content#generationconfig."""


def take_answers(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse schemas of answers that the API does not take."""
    config = exchange.body.get("generationConfig") or {}
    schema = config.get("responseJsonSchema")
    if schema is None:
        return
    if config.get("responseMimeType") != "application/json":
        yield Refusal("Response schema is only supported with response mime type: 'application/json'")
    yield from _check_schema(schema, "* GenerateContentRequest.generation_config.response_json_schema")
    for place, part in iterate_schemas(schema):
        if unknown := part.keys() - ANSWER_KEYWORDS:
            yield Refusal(f"response_json_schema at {format_place(place)}: {sorted(unknown)} is not supported")


def take_options(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse options that the API does not take."""
    config = exchange.body.get("generationConfig") or {}
    if not 0 <= config.get("temperature", 1) <= 2:
        yield Refusal("* GenerateContentRequest.generation_config.temperature: temperature must be in [0.0, 2.0]")
    if len(config.get("stopSequences") or ()) > 5:
        yield Refusal("* GenerateContentRequest.generation_config.stop_sequences: at most 5 stop sequences")
    if not -(2**31) <= config.get("seed", 0) < 2**31:
        yield Refusal(f"Invalid value at 'generation_config.seed' (TYPE_INT32), {config['seed']}")
    thinking = config.get("thinkingConfig") or {}
    if "thinkingLevel" in thinking and "thinkingBudget" in thinking:
        yield Refusal("You can only set only one of thinking budget and thinking level.")


def take_levels(*levels: str) -> Rule:
    """Make the rule for the levels of thinking of a model; none: it takes a budget."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        thinking = (exchange.body.get("generationConfig") or {}).get("thinkingConfig") or {}
        level = thinking.get("thinkingLevel")
        if level is not None and not levels:
            # gh:RooCodeInc/Roo-Code#10700
            yield Refusal("Thinking level is not supported for this model.")
        elif level is not None and level not in levels:
            # gh:earendil-works/pi#9455
            yield Refusal(
                f"Thinking level {level} is not supported for this model. Please retry with other thinking level."
            )

    return rule


def limit_budget(least: int, most: int) -> Rule:
    """Make the rule for the budget of thinking of a model that can also stop thinking."""

    def rule(exchange: Exchange) -> Iterator[Refusal]:
        thinking = (exchange.body.get("generationConfig") or {}).get("thinkingConfig") or {}
        budget = thinking.get("thinkingBudget", 0)
        if budget not in (0, -1) and not least <= budget <= most:
            yield Refusal(
                f"The thinking budget {budget} is invalid. Please choose a value between {least} and {most}."
            )

    return rule


def combine_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse both kinds of tools without the flag that Gemini 3 wants."""
    config = exchange.body.get("toolConfig") or {}
    if not (_get_declarations(exchange) and _get_own_tools(exchange)):
        return
    if not config.get("includeServerSideToolInvocations"):
        # gh:cloudwego/eino-ext#761
        yield Refusal(
            "Please enable tool_config.include_server_side_tool_invocations to use Built-in tools with Function "
            "calling."
        )
    if (config.get("functionCallingConfig") or {}).get("mode") == "AUTO":
        # ai.google.dev/gemini-api/docs/tool-combination
        yield Refusal("Function calling mode AUTO is not supported with include_server_side_tool_invocations.")


def separate_tools(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse both kinds of tools, and either of them beside an answer's form."""
    declarations, own = _get_declarations(exchange), _get_own_tools(exchange)
    form = (exchange.body.get("generationConfig") or {}).get("responseMimeType")
    if declarations and own:
        # gh:symfony/ai#803
        yield Refusal("Tool use with function calling is unsupported")
    if form == "application/json" and (declarations or own):
        # gh:googleapis/python-genai#867, gh:snailyp/gemini-balance#286
        what = "Function calling" if declarations else "Tool use"
        yield Refusal(f"{what} with a response mime type: 'application/json' is unsupported")


RULES: tuple[Rule, ...] = (
    demand_key,
    know_fields,
    have_parts,
    order_turns,
    know_signatures,
    take_tools,
    take_answers,
    take_options,
)
"""What the API refuses for all models."""
GEMINI_3: tuple[Rule, ...] = (*RULES, return_signatures, take_levels("LOW", "HIGH"), combine_tools)
"""What it refuses with Gemini 3 Pro."""
GEMINI_2_5: tuple[Rule, ...] = (*RULES, take_levels(), limit_budget(1, 24_576), separate_tools)
"""What it refuses with Gemini 2.5 Flash."""


# Losses


def keep_signatures(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a signature of an earlier reply with calls is missing, or that a dummy stands for it."""
    contents = [content for content in _get_contents(exchange) if content.get("role") == "model"]
    for sent in exchange.sent:
        for content in contents:
            calls = (part["functionCall"] for part in _list_parts(content, "functionCall"))
            if not {call.get("id") or make_key(call) for call in calls} & set(sent.calls):
                continue
            received = {part.get("thoughtSignature") for part in content["parts"]}
            if lost := [part for part in sent.returns["signed"] if part["thoughtSignature"] not in received]:
                yield Refusal(f"the signatures of {lost} did not come back")


def keep_ids(exchange: Exchange) -> Iterator[Refusal]:
    """Say that a call of this server has another id than the server gave it, or its result has another."""
    given = {
        make_key(part["functionCall"]): call_id
        for sent in exchange.sent
        for call_id, part in sent.calls.items()
        if "id" in part["functionCall"]
    }
    ids: list[str | None] = []
    for content in _get_contents(exchange):
        calls = [part["functionCall"] for part in _list_parts(content, "functionCall")]
        results = [part["functionResponse"] for part in _list_parts(content, "functionResponse")]
        for call in calls:
            if "id" in call and call["id"] not in given.values():
                yield Refusal(f"the call {call} has an id that this server has not made")
        if results and [result.get("id") for result in results] != ids:
            yield Refusal(f"the calls have the ids {ids}, and the results {results}")
        ids = [call.get("id") for call in calls]
    sent_ids = set(given.values())
    received = {
        part["functionCall"].get("id")
        for content in _get_contents(exchange)
        for part in _list_parts(content, "functionCall")
    }
    history = sum(bool(_list_parts(content, "functionCall")) for content in _get_contents(exchange))
    if history >= sum(bool(sent.calls) for sent in exchange.sent) and (lost := sent_ids - received):
        yield Refusal(f"the ids {sorted(lost)} did not come back")


LOSSES: tuple[Rule, ...] = (keep_signatures, keep_ids)
"""What the API takes although something is lost."""
