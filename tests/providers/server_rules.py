"""What each server refuses: its rules, in its own words.

What a server's documentation does not say has the place where it was seen: `gh:owner/repository#number` is an issue
or a pull request at GitHub.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mistralai.client.models import ChatCompletionStreamRequest
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming

from tests.providers.chat_rules import (
    alternate,
    answer_calls,
    be_schemas,
    begin_with_user,
    choose_tools,
    demand_key,
    end_with,
    follow_order,
    follow_strict_mode,
    format_without_tools,
    get_own_ids,
    get_tools,
    have_a_user,
    have_content,
    have_content_or_calls,
    have_object_arguments,
    have_object_schemas,
    have_unique_ids,
    is_type,
    iterate_schemas,
    keep_names,
    know_fields,
    know_roles,
    limit_descriptions,
    limit_stops,
    limit_tools,
    make_one_call,
    match_ids,
    name_calls,
    name_tools,
    put_system_first,
    refuse_empty_tools,
    refuse_fields,
    refuse_when,
    repeat_no_role,
    return_thinking,
    return_unchanged,
    say_json,
    take_efforts,
    take_formats,
    toggle_thinking,
)
from tests.providers.official_types import Place, format_place, match_type, refuse_type
from tests.providers.strict_server import Exchange, Refusal, Rule

# Rules of more than one server

_THREE_EFFORTS = ("low", "medium", "high")
OPENAI_NAMES = r"[a-zA-Z0-9_-]{1,64}"
OPENAI_NAME_TEXT = (
    "Invalid 'tools[{index}].function.name': string does not match pattern. Expected a string that matches the "
    "pattern "
    "'^[a-zA-Z0-9_-]+$'."
)
CALL_NAMES = name_calls(
    OPENAI_NAMES,
    "Invalid 'messages[{index}].tool_calls[0].function.name': string does not match pattern. Expected a string that "
    "matches the pattern '^[a-zA-Z0-9_-]+$'.",
    code="invalid_value",
)
"""What OpenAI refuses of earlier calls, and DeepSeek in the same words."""
GROQ_FIELDS = {
    "body": {
        *("model", "messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls", "stop"),
        *("temperature", "top_p", "max_tokens", "max_completion_tokens", "seed", "n", "user", "response_format"),
        *("reasoning_effort", "reasoning_format", "include_reasoning", "service_tier"),
    },
    "message:system": {"role", "content", "name"},
    "message:user": {"role", "content", "name"},
    "message:assistant": {"role", "content", "name", "tool_calls", "reasoning"},
    "message:tool": {"role", "content", "tool_call_id", "name"},
    "call": {"id", "type", "function"},
    "call.function": {"name", "arguments"},
    "tool": {"type", "function"},
    "tool.function": {"name", "description", "parameters", "strict"},
}
"""The fields that Groq takes, and Cerebras with few differences: both refuse any other."""

ARGUMENTS_TEXT = "The arguments of the tool call {id} are not a valid JSON object"

KEPT: tuple[Rule, ...] = (have_unique_ids, get_own_ids, return_unchanged, keep_names)
"""What every server of Chat Completions takes although something is lost."""


def _refuse_schema(index: int, tool: Mapping[str, Any], problem: str) -> Refusal:
    return Refusal(
        f"Invalid schema for function '{tool['name']}': {problem}",
        param=f"tools[{index}].function.parameters",
        code="invalid_function_parameters",
    )


def _refuse_groq_field(kind: str, place: tuple[Any, ...], name: str) -> Refusal:
    if kind.startswith("message:"):
        role, index = kind.partition(":")[2], place[1]
        problem = f"'messages.{index}' : property '{name}' is unsupported"
        # gh:janhq/jan#8136
        return Refusal(f"'messages.{index}' : for 'role:{role}' the following must be satisfied[({problem})]")
    return Refusal(f"property '{'.'.join(map(str, (*place, name)))}' is unsupported")


def _refuse_cerebras_field(kind: str, place: tuple[Any, ...], name: str) -> Refusal:
    parts = [str(part) for part in place] or ["body"]
    if kind.startswith("message:"):
        parts.append(kind.partition(":")[2])
    path = ".".join([*parts, name])
    # gh:egoist/chatwise-releases#1442; the status is 400, and was 422: gh:anomalyco/opencode#45113
    return Refusal(f"{path}: property '{path}' is unsupported")


def _refuse_mistral_type(body: Mapping[str, Any], place: Place, kind: str, problem: str) -> Refusal:
    # The role stands behind the number of a message: gh:charmbracelet/crush#1590
    role = [body["messages"][place[1]]["role"]] if place[0] == "messages" and len(place) > 2 else []
    loc = ["body", *place[:2], *role, *(part for part in place[2:] if [part] != role)]
    return Refusal(f"{problem}: {loc}", status=422, type=kind, code=loc)


def _refuse_gemini_field(kind: str, place: tuple[Any, ...], name: str) -> Refusal:
    where = f" at '{format_place(place)}'" if place else ""
    # gh:liliMozi/openhanako#2494
    return Refusal(f'Invalid JSON payload received. Unknown name "{name}"{where}: Cannot find field.')


OPENAI_MESSAGES: tuple[Rule, ...] = (
    demand_key,
    # gh:aliasrobotics/cai#111, gh:microsoft/promptflow#3130, gh:agno-agi/agno#5116
    answer_calls(),
    # gh:run-llama/llama_index#17921
    have_content("Invalid value for 'content': expected a string, got null. (messages[{index}])"),
)

OPENAI_TOOLS: tuple[Rule, ...] = (
    # gh:0x4m4/hexstrike-ai#29
    limit_tools(
        128,
        "Invalid 'tools': array too long. Expected an array with maximum length {most}, but got an array with length "
        "{count} instead.",
        code="array_above_max_length",
    ),
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    # gh:nspady/google-calendar-mcp#39, gh:tailcallhq/forgecode#1359, gh:streamnative/streamnative-mcp-server#26
    have_object_schemas(_refuse_schema),
    follow_strict_mode,
    # gh:openai/swarm#30
    refuse_empty_tools("[] is too short - 'tools'"),
)

OPENAI_IDS = match_ids(
    r".{1,40}",
    # gh:agno-agi/agno#5382
    "Invalid 'messages[{index}].tool_calls[0].id': string too long. Expected a string with maximum length 40, "
    "but got a "
    "string with length {length} instead.",
    code="string_above_max_length",
)

OPENAI: tuple[Rule, ...] = (
    *OPENAI_MESSAGES,
    *OPENAI_TOOLS,
    OPENAI_IDS,
    CALL_NAMES,
    match_type(CompletionCreateParamsStreaming, "Unknown parameter: '{}'.", "name"),
    limit_stops(4, "Invalid 'stop': array too long. Expected an array with maximum length 4."),
)

OPENAI_REASONING: tuple[Rule, ...] = (
    # gh:promptfoo/promptfoo#3781
    refuse_fields(
        ("max_tokens",),
        "Unsupported parameter: '{}' is not supported with this model. Use 'max_completion_tokens' instead.",
        code="unsupported_parameter",
    ),
    # gh:griptape-ai/griptape#1915
    refuse_fields(
        ("stop", "presence_penalty", "frequency_penalty", "logit_bias", "top_p"),
        "Unsupported parameter: '{}' is not supported with this model.",
        code="unsupported_parameter",
    ),
    refuse_when(
        lambda body: body.get("temperature", 1) != 1,
        "Unsupported value: 'temperature' does not support this value with this model. Only the default (1) value is "
        "supported.",
        code="unsupported_value",
    ),
)


EFFORT_TEXT = "Unsupported value: '{}' is not supported with this model."
"""What OpenAI says of a level of reasoning: gh:openai/openai-agents-python#2089, gh:anomalyco/opencode#36141."""
VERBOSITY = refuse_when(
    lambda body: body.get("verbosity", "medium") != "medium",
    # gh:google-deepmind/concordia#164
    "Unsupported value: 'verbosity' does not support this value with this model. Supported values are: 'medium'.",
    code="unsupported_value",
)
"""What OpenAI says of models before GPT-5."""


# Gemini


GEMINI_DUMMIES = ("skip_thought_signature_validator", "context_engineering_is_the_way_to_go")
"""The signatures that Gemini takes for calls that it has not made."""


def return_signatures(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse the first call of each step without its signature, in the run that is going on.

    https://ai.google.dev/gemini-api/docs/thought-signatures, gh:securo-finance/securo#884
    """
    messages = exchange.body["messages"]
    users = [index for index, one in enumerate(messages) if one["role"] == "user"]
    own = {call_id: extra for sent in exchange.sent for call_id, extra in sent.calls.items()}
    for index, one in enumerate(messages):
        for place, call in enumerate(one.get("tool_calls") or ()):
            google = (call.get("extra_content") or {}).get("google") or {}
            signature = google.get("thought_signature")
            kept = own.get(call["id"], {}).get("extra_content", {}).get("google", {}).get("thought_signature")
            if signature not in (None, kept, *GEMINI_DUMMIES):
                # gh:massgen/MassGen#665
                yield Refusal("Corrupted thought signature.")
            if signature is None and place == 0 and index > (users[-1] if users else -1):
                yield Refusal(
                    "Function call is missing a thought_signature in functionCall parts. This is required for "
                    "tools to "
                    "work correctly, and missing thought_signature may lead to degraded model performance. "
                    "Additional "
                    f"data, function call `default_api:{call['function']['name']}` , position {index}."
                )


def order_gemini_turns(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse calls after the model's own text, and results that do not answer the calls before them."""
    contents: list[str] = []
    for one in exchange.body["messages"]:
        match one["role"]:
            case "system" | "developer":
                continue
            case "assistant":
                kind = "call" if one.get("tool_calls") else "model"
            case "tool":
                kind = "response"
            case _:
                kind = "user"
        if kind == "call" and (not contents or contents[-1] in ("model", "call")):
            # gh:google-gemini/gemini-cli#11814
            yield Refusal(
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn."
            )
        if kind == "response" and (not contents or contents[-1] not in ("call", "response")):
            # gh:lobehub/lobehub#7298
            yield Refusal("Please ensure that function response turn comes immediately after a function call turn.")
        contents.append(kind)
    if not contents:
        yield Refusal("* GenerateContentRequest.contents: contents is not specified")


def take_gemini_schemas(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse schemas that Gemini's declarations cannot hold."""
    for index, tool in enumerate(get_tools(exchange)):
        for place, part in iterate_schemas(tool.get("parameters") or {}):
            path = "".join(f".{word}" if word in ("properties", "items") else f"[{word}]" for word in place)
            where = f"* GenerateContentRequest.tools[0].function_declarations[{index}].parameters{path}"
            kind = part.get("type")
            if isinstance(kind, list):
                # gh:zed-industries/zed#53919
                yield Refusal(
                    f'Invalid JSON payload received. Unknown name "type" at {where}: Proto field is not repeating, '
                    "cannot start list."
                )
            if is_type(part, "array") and "items" not in part:
                yield Refusal(f"{where}.items: missing field.")
            if "enum" in part:
                # gh:microsoft/azure-devops-mcp#145, gh:decolua/9router#380, gh:Bobsilvio/ha-claude#32
                if any(not isinstance(value, str) for value in part["enum"]):
                    yield Refusal(f"Invalid value at '{where}.enum[0]' (TYPE_STRING), {part['enum'][0]}")
                elif kind != "string":
                    yield Refusal(f"{where}.enum: only allowed for STRING type")
                elif "" in part["enum"]:
                    yield Refusal(f"{where}.enum[{part['enum'].index('')}]: cannot be empty")
                elif not part["enum"]:
                    yield Refusal(f"{where}.enum: should be non-empty for STRING type with enum format")
            if "const" in part:
                # Seen where declarations go through as they are: gh:zed-industries/zed#44875
                yield Refusal(f'Invalid JSON payload received. Unknown name "const" at {where}: Cannot find field.')
            if "properties" in part and kind != "object":
                # gh:anomalyco/opencode#43495
                yield Refusal(f"{where}.properties: only allowed for OBJECT type")
            if "anyOf" in part and part.keys() - {"anyOf", "description", "title", "$defs", "nullable"}:
                # gh:vercel/ai#19000
                yield Refusal(f"{where}: When using any_of, it must be the only field set.")


GEMINI: tuple[Rule, ...] = (
    demand_key,
    # gh:egoist/chatwise-releases#1206
    take_efforts(
        ("low", "high"), "Thinking level {} is not supported for this model. Please retry with other level."
    ),
    know_fields(
        {
            "body": {
                *(
                    "model",
                    "messages",
                    "stream",
                    "stream_options",
                    "tools",
                    "tool_choice",
                    "parallel_tool_calls",
                    "n",
                ),
                *("max_tokens", "max_completion_tokens", "temperature", "top_p", "stop", "response_format"),
                *("reasoning_effort", "extra_body", "user"),
            },
            "message:system": {"role", "content", "name"},
            "message:user": {"role", "content", "name"},
            "message:assistant": {"role", "content", "name", "tool_calls", "extra_content"},
            "message:tool": {"role", "content", "tool_call_id", "name"},
            "call": {"id", "type", "function", "extra_content"},
            "call.function": {"name", "arguments"},
            "tool": {"type", "function"},
            "tool.function": {"name", "description", "parameters", "strict"},
        },
        _refuse_gemini_field,
    ),
    order_gemini_turns,
    # gh:microsoft/vscode#299295
    answer_calls(
        missing="Please ensure that the number of function response parts is equal to the number of function "
        "call parts "
        "of the function call turn. ({})",
        orphan="Please ensure that function response turn comes immediately after a function call turn.",
    ),
    # gh:egoist/chatwise-releases#250
    have_content(
        "* GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty.",
        empty=False,
    ),
    have_object_arguments("Invalid JSON in the arguments of {id}"),
    return_signatures,
    # gh:google-gemini/gemini-cli#9535
    name_tools(
        r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}",
        "* GenerateContentRequest.tools[0].function_declarations[{index}].name: Invalid function name. Must "
        "start with a "
        "letter or an underscore. Must be alphameric (a-z, A-Z, 0-9), underscores (_), dots (.), colons (:), or "
        "dashes "
        "(-), with a maximum length of 64.",
    ),
    take_gemini_schemas,
    # gh:openai/openai-agents-python#656
    format_without_tools("Function calling with a response mime type: 'application/json' is unsupported"),
)


# Mistral

MISTRAL_ORDER = follow_order(
    {
        "system": ("user", "assistant", "system"),
        "user": ("user", "assistant", "system"),
        "assistant": ("assistant", "user", "tool"),
        "tool": ("assistant", "tool"),
    },
    # gh:avante-corp/avante.nvim#2695, gh:swarmauri/swarmauri-sdk#162; mistral-common's validator
    "Unexpected role '{role}' after role '{before}'",
    type="invalid_request_message_order",
    code="3230",
)

MISTRAL: tuple[Rule, ...] = (
    demand_key,
    # It has `prompt_cache_key`, which was refused in gh:sipeed/picoclaw#1353 and is documented by
    # gh:anomalyco/opencode#50748.
    refuse_type(ChatCompletionStreamRequest, _refuse_mistral_type),
    MISTRAL_ORDER,
    # gh:diegosouzapw/OmniRoute#3396
    end_with(
        ("user", "tool"),
        "Expected last role User or Tool (or Assistant with prefix True) for serving but got {role}",
        type="invalid_request_message_order",
        code="3230",
    ),
    # gh:mistralai/client-ts#106
    answer_calls(
        missing="Not the same number of function calls and responses ({})",
        orphan="Not the same number of function calls and responses",
        type="invalid_request_message_order",
        code="3230",
    ),
    have_content_or_calls("Assistant message must have either content or tool_calls, but not none.", code="3240"),
    have_content("content of messages[{index}] should be a valid string", status=422, type="string_type"),
    # gh:langchain-ai/langchain#24668, gh:openclaw/openclaw#57672
    match_ids(
        r"[a-zA-Z0-9]{9}",
        "Tool call id was {id} but must be a-z, A-Z, 0-9, with a length of 9.",
        type="invalid_function_call",
        code="3280",
    ),
    name_tools(
        OPENAI_NAMES,
        "Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum "
        "length of "
        "64.",
        type="invalid_request_invalid_args",
        code="3051",
    ),
    # mistral-common's validator checks calls as it does tools.
    name_calls(
        OPENAI_NAMES,
        "Function name was {name} but must be a-z, A-Z, 0-9, or contain underscores and dashes, with a maximum "
        "length "
        "of 64.",
        code="3051",
    ),
    be_schemas("Invalid tool schema: {}", code="3250"),
    # gh:devoxx/DevoxxGenieIDEAPlugin#338
    refuse_when(
        lambda body: body.get("temperature") == 0 and body.get("top_p", 1) != 1,
        "top_p must be 1 when using greedy sampling.",
    ),
    choose_tools(("auto", "none", "any", "required"), "Input should be 'auto', 'none', 'any' or 'required': {}"),
)


MISTRAL_EFFORTS = take_efforts(
    ("none", "high"),
    # gh:architects-toolkit/SmartHopper#647
    "reasoning_effort='{}' is not supported for this model. Must be one of (none, high)",
    type="invalid_request_invalid_args",
    code="3051",
)


# DeepSeek

DEEPSEEK_THINKING = "The `reasoning_content` in the thinking mode must be passed back to the API. (messages[{index}])"

DEEPSEEK: tuple[Rule, ...] = (
    demand_key,
    # gh:OpenCoworkAI/open-codesign#316
    know_roles(
        ("system", "user", "assistant", "tool", "latest_reminder"),
        "Failed to deserialize the JSON body into the target type: messages[{index}].role: unknown variant `{role}`, "
        "expected one of `system`, `user`, `assistant`, `tool`, `latest_reminder` at line 1 column 1",
    ),
    # gh:agno-agi/agno#3105
    answer_calls(
        missing="An assistant message with 'tool_calls' must be followed by tool messages responding to each "
        "'tool_call_id'. (insufficient tool messages following tool_calls message) ({})",
        orphan="Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    ),
    # Of assistants that a tool loop made, in all later requests; empty where it is unknown.
    # gh:continuedev/continue#10193,
    # gh:JohnnyZ93/oai-compatible-copilot#215, gh:vectorize-io/hindsight#1253
    # Of its other messages, too.
    return_thinking("reasoning_content", DEEPSEEK_THINKING, without_calls=True),
    CALL_NAMES,
    have_content_or_calls("Invalid assistant message: content or tool_calls must be set (messages[{index}])"),
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    limit_tools(128, "Invalid 'tools': array too long. Expected at most {most}, got {count}."),
    # gh:end-4/dots-hyprland#3640
    have_object_schemas(_refuse_schema, combinators=(), properties=False, items=False),
    # gh:deepseek-ai/DeepSeek-R1#836, gh:pydantic/pydantic-ai#3644
    choose_tools(("auto", "none"), "Thinking mode does not support this tool_choice", by_name=False),
    # gh:llm-exe/llm-exe#662
    take_formats(("text", "json_object"), "This response_format type is unavailable now"),
    # gh:Canner/WrenAI#1581
    say_json("Prompt must contain the word 'json' in some form to use 'response_format' of type 'json_object'."),
    refuse_fields(("logprobs", "top_logprobs"), "`{}` is not supported in the thinking mode"),
    # gh:JetBrains/koog#2234
    take_efforts(("low", "high", "max"), "reasoning_effort: unknown variant `{}`"),
    toggle_thinking(("enabled", "disabled"), "thinking.type: unknown variant `{}`"),
)

DEEPSEEK_R1: tuple[Rule, ...] = (
    *DEEPSEEK,
    # gh:deepseek-ai/DeepSeek-R1#21, gh:lobehub/lobehub#5601
    repeat_no_role(
        "deepseek-reasoner does not support successive user or assistant messages (messages[{before}] and "
        "messages[{index}] in your input). You should interleave the user/assistant messages in the message sequence."
    ),
    begin_with_user(
        "The first message (except the system message) of deepseek-reasoner must be a user message, but an assistant "
        "message detected."
    ),
)


# xAI

XAI: tuple[Rule, ...] = (
    demand_key,
    # gh:yym68686/uni-api#105, gh:can1357/oh-my-pi#7454, gh:NousResearch/hermes-agent#23435
    refuse_fields(("presence_penalty",), "Argument not supported on this model: presencePenalty"),
    refuse_fields(("frequency_penalty",), "Argument not supported on this model: frequencyPenalty"),
    refuse_fields(("stop",), "Argument not supported on this model: stop"),
    # gh:AstrBotDevs/AstrBot#6447
    have_content("Invalid request content: Each message must have at least one content element.", empty=False),
    # gh:spiceai/spiceai#4734
    have_object_arguments(
        "The arguments to a tool_call with ID '{id}' are not a valid JSON string. Parsing error: Error(\"EOF "
        "while parsing "
        'a value", line: 1, column: 0)'
    ),
    # gh:router-for-me/CLIProxyAPI#5214
    limit_tools(200, "invalid-argument"),
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    answer_calls(),
)


XAI_NO_EFFORT = refuse_fields(("reasoning_effort",), "Model grok-4 does not support parameter reasoningEffort.")


# OpenRouter, with Gemini behind it


def return_reasoning_details(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse a call of this server without the details that came with it. gh:Chevey339/kelivo#205"""
    for index, one in enumerate(exchange.body["messages"]):
        ids = [call["id"] for call in one.get("tool_calls") or ()]
        sent = exchange.find_sent(ids)
        if sent and sent.returns and not one.get("reasoning_details"):
            yield Refusal(
                "Gemini models require OpenRouter reasoning details to be preserved in each request. Please "
                "refer to our "
                "docs: https://openrouter.ai/docs/guides/best-practices/reasoning-tokens#preserving-reasoning. "
                "Upstream "
                f"error: Function call is missing a thought_signature in functionCall parts (messages[{index}])"
            )


OPENROUTER: tuple[Rule, ...] = (
    demand_key,
    return_reasoning_details,
    order_gemini_turns,
    answer_calls(),
    take_gemini_schemas,
    name_tools(
        r"[a-zA-Z_][a-zA-Z0-9_.:-]{0,63}", "Invalid function name {name}. Must start with a letter or an underscore."
    ),
    have_object_arguments(ARGUMENTS_TEXT),
)

# OpenRouter, with DeepSeek behind it, whose thinking it sends as `reasoning`


def return_reasoning(exchange: Exchange) -> Iterator[Refusal]:
    """Say that the thinking which came as `reasoning` went back as another `reasoning_content`."""
    for index, one in enumerate(exchange.body["messages"]):
        sent = exchange.find_sent(call["id"] for call in one.get("tool_calls") or ())
        if sent and sent.thinking and one.get("reasoning_content") != sent.thinking:
            yield Refusal(f"messages[{index}].reasoning_content is not {sent.thinking!r}")


OPENROUTER_DEEPSEEK: tuple[Rule, ...] = (
    demand_key,
    return_thinking("reasoning_content", DEEPSEEK_THINKING, without_calls=True),
    answer_calls(),
    CALL_NAMES,
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    have_object_arguments(ARGUMENTS_TEXT),
)


# Kimi


def take_kimi_schemas(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse what is no "Moonshot flavored JSON Schema"."""
    for tool in get_tools(exchange):
        schema = tool.get("parameters") or {}
        if schema.get("type") != "object":
            # gh:14790897/MiqroForge-Desktop#1165
            yield Refusal('tools.function.parameters.type is required and must be "object"')
        for place, part in iterate_schemas(schema):
            path, problem = ".".join(map(str, place)) or "root", None
            if ("anyOf" in part or "oneOf" in part) and "type" in part:
                # gh:MoonshotAI/kimi-cli#2531, gh:FTShare-Lab/FTShare-MCP#7
                problem = "when using anyOf, type should be defined in anyOf items instead of the parent schema"
            elif "$ref" in part and len(part) > 1:
                # gh:MoonshotAI/kimi-cli#2061
                problem = f"conflicting keywords found after $ref expansion: {', '.join(part.keys() - {'$ref'})}"
            if "$ref" in part and not part["$ref"].startswith("#/$defs/"):
                # gh:NousResearch/hermes-agent#14804
                problem = "references must start with #/$defs/"
            if not part.keys() & {"type", "anyOf", "oneOf", "$ref"}:
                # gh:MoonshotAI/kimi-code#830
                problem = "type is not defined"
            if "items" in part and not isinstance(part["items"], dict):
                # gh:MoonshotAI/kimi-code#2216
                problem = "items must be an object"
            for name, value in (part.get("properties") or {}).items():
                if not isinstance(value, dict):
                    # gh:can1357/oh-my-pi#5952
                    problem = f"property schema for '{name}' must be an object"
            if problem:
                yield Refusal(
                    "tools.function.parameters is not a valid moonshot flavored json schema, details: <At path "
                    f"'{path}': {problem}>"
                )


KIMI: tuple[Rule, ...] = (
    demand_key,
    # gh:mastra-ai/mastra#12592; an empty one is taken in gh:openclaw/openclaw#74846, refused in
    # gh:earendil-works/pi#4178
    return_thinking(
        "reasoning_content",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}",
        empty=False,
    ),
    answer_calls(missing="tool_call_ids did not have response messages: {}", orphan="tool_call_id  is not found"),
    take_kimi_schemas,
    # gh:MoonshotAI/kimi-cli#2531: no digit at the beginning
    name_tools(
        r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}",
        "Invalid request: function name is invalid, must start with a letter and can contain letters, numbers, "
        "underscores, and dashes",
    ),
    limit_tools(128, "Invalid request: tools length must be less than or equal to {most}"),
    have_content("Invalid request: the message at position {index} with role 'user' must not be empty", empty=False),
    # Moonshot's own client leaves the content out.
    refuse_when(
        lambda body: any(one["role"] == "assistant" and one.get("content") == "" for one in body["messages"]),
        "Invalid request: text content is empty",
    ),
    # gh:can1357/oh-my-pi#1078
    choose_tools(("auto", "none"), "tool_choice '{}' is incompatible with thinking enabled", by_name=False),
    # gh:HKUDS/nanobot#3939
    refuse_when(
        lambda body: "thinking" in body and "reasoning_effort" in body,
        "cannot specify both 'thinking' and 'reasoning_effort'",
    ),
    refuse_when(
        lambda body: body.get("temperature", 1) != 1, "invalid temperature: only 1 is allowed for this model"
    ),
    limit_stops(5, "Invalid request: stop has at most 5 words"),
)


OPENROUTER_KIMI: tuple[Rule, ...] = (
    demand_key,
    return_thinking(
        "reasoning_content",
        "thinking is enabled but reasoning_content is missing in assistant tool call message at index {index}",
        empty=False,
    ),
    answer_calls(),
    take_kimi_schemas,
    name_tools(
        r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", "Invalid request: function name is invalid, must start with a letter"
    ),
)
"""OpenRouter, with Kimi behind it."""

KIMI_IDS = match_ids(
    r"functions\.[a-zA-Z0-9_.-]+:\d+",
    # gh:vybestack/llxprt-code#712, gh:vllm-project/vllm#46344, gh:thinking-machines-lab/tinker-cookbook#248
    "the id {id} has no tool's name, and the template shows the model nothing else of the tool",
)
"""Kimi K2 reads the tool of a call and of a result from its id."""
KIMI_K3: tuple[Rule, ...] = (
    refuse_fields(("thinking",), "{} is not supported: remove it when migrating from K2.x"),
    take_efforts(("low", "high", "max"), "reasoning_effort must be one of low, high, max: {}"),
    refuse_when(lambda body: body.get("top_p", 0.95) != 0.95, "invalid top_p: only 0.95 is allowed for this model"),
)


# GLM, MiniMax, Qwen

GLM: tuple[Rule, ...] = (
    demand_key,
    # gh:anomalyco/opencode#2557
    have_a_user("The messages parameter is illegal. Please check the documentation.", code="1214"),
    answer_calls(code="1214"),
    choose_tools(("auto",), "Invalid API parameter, please check the documentation. tool_choice: {}", by_name=False),
    refuse_when(
        lambda body: not 0 <= body.get("temperature", 1) <= 1, "temperature 参数非法。请检查文档。", code="1214"
    ),
    limit_stops(1, "stop 参数非法。请检查文档。", code="1214"),
    take_formats(("text", "json_object"), "response_format 参数非法。请检查文档。", code="1214"),
    know_roles(("system", "user", "assistant", "tool"), "messages 参数非法。请检查文档。", code="1214"),
    toggle_thinking(("enabled", "disabled"), "thinking 参数非法。请检查文档。", code="1214"),
)
ALWAYS_THINKING = "This model always engages in thinking and cannot be disabled; please use low, high, or max"
GLM_5_3: tuple[Rule, ...] = (
    # gh:NousResearch/hermes-agent#85890, gh:earendil-works/pi#8706
    toggle_thinking(("enabled",), ALWAYS_THINKING, code="1210"),
    take_efforts(("low", "high", "max"), ALWAYS_THINKING, code="1210"),
)

MINIMAX: tuple[Rule, ...] = (
    demand_key,
    # gh:can1357/oh-my-pi#954, gh:MiniMax-AI/MiniMax-M2#51
    put_system_first("invalid chat setting"),
    # gh:MiniMax-AI/MiniMax-M2#76
    answer_calls(missing="tool call result does not follow tool call ({})", orphan="tool result's tool id not found"),
    # gh:earendil-works/pi#5468
    have_object_arguments("invalid function arguments json string, tool_call_id: {id}"),
    refuse_when(lambda body: not 0 < body.get("temperature", 1) <= 1, "temperature must be in (0, 1]"),
    know_roles(("system", "user", "assistant", "tool"), "chat content has invalid message role: {role}"),
    have_content("chat content is empty", empty=False),
    # gh:CherryHQ/cherry-studio#16624
    toggle_thinking(("adaptive", "disabled"), 'invalid thinking.type: "{}" (allowed: adaptive, disabled)'),
)

QWEN: tuple[Rule, ...] = (
    demand_key,
    answer_calls(
        missing='An assistant message with "tool_calls" must be followed by tool messages responding to each '
        '"tool_call_id". The following tool_call_ids did not have response messages: {}',
        orphan='messages with role "tool" must be a response to a preceeding message with "tool_calls".',
    ),
    have_object_arguments('The "function.arguments" parameter of the code model must be in JSON format. ({id})'),
    have_content("The content field is a required field. (messages[{index}])", null_with_calls=False),
    say_json("'messages' must contain the word 'json' in some form, to use 'response_format' of type 'json_object'."),
    choose_tools(
        ("auto", "none"),
        "The tool_choice parameter does not support being set to required or object in thinking mode",
        by_name=False,
    ),
    refuse_when(lambda body: not 0 <= body.get("temperature", 1) < 2, "Range of temperature should be [0.0, 2.0)"),
    name_tools(OPENAI_NAMES, "tools.function.name: {name} does not match pattern"),
)


# Groq and Cerebras

GROQ_EFFORTS = take_efforts(_THREE_EFFORTS, "`reasoning_effort` must be one of `low`, `medium`, or `high`: {}")
# gh:earendil-works/pi#1745
GROQ_QWEN_EFFORTS = take_efforts(("none", "default"), "reasoning_effort must be one of `none` or `default`: {}")

GROQ: tuple[Rule, ...] = (
    demand_key,
    know_fields(GROQ_FIELDS, _refuse_groq_field),
    answer_calls(),
    limit_tools(128, "tools : maximum number of items is {most}"),
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    have_object_schemas(_refuse_schema, combinators=(), items=False),
    format_without_tools("json mode cannot be combined with tool/function calling"),
    have_object_arguments(ARGUMENTS_TEXT),
    limit_stops(4, "'stop' : maximum number of items is 4"),
)

CEREBRAS: tuple[Rule, ...] = (
    demand_key,
    know_fields(
        GROQ_FIELDS | {"body": {*GROQ_FIELDS["body"], "clear_thinking", "logprobs", "top_logprobs", "prediction"}},
        _refuse_cerebras_field,
    ),
    answer_calls(),
    name_tools(OPENAI_NAMES, OPENAI_NAME_TEXT),
    format_without_tools('"tools" is incompatible with "response_format"'),
    # gh:mpfaffenberger/code_puppy#368
    refuse_when(
        lambda body: len({bool(tool["function"].get("strict")) for tool in body.get("tools") or ()}) > 1,
        "Tools with mixed values for 'strict' are not allowed. Please set all tools to 'strict: true' or "
        "'strict: false'",
    ),
    have_object_arguments(ARGUMENTS_TEXT),
    limit_stops(4, "stop: at most 4 items"),
)


# Servers at home, and the templates of model families

VLLM: tuple[Rule, ...] = (
    demand_key,
    # The arguments of earlier calls are parsed for the template.
    have_object_arguments("Expecting value: line 1 column 1 (char 0) ({id})"),
    refuse_when(
        lambda body: body.get("tool_choice") not in (None, "none") and not body.get("tools"),
        "When using `tool_choice`, `tools` must be set.",
    ),
    limit_stops(4, "stop has too many items"),
)
VLLM_EFFORTS = take_efforts(
    ("none", *_THREE_EFFORTS),
    # gh:router-for-me/CLIProxyAPI#1572 has it of SGLang.
    "reasoning_effort: Input should be 'none', 'low', 'medium' or 'high': {}",
)
HARMONY_EFFORTS = take_efforts(_THREE_EFFORTS, "Harmony does not support reasoning_effort='{}'")
# gh:noonghunna/club-3090#1029: the template raises it.
QWEN_3_8_EFFORTS = take_efforts(
    ("none", "low", "medium", "xhigh"),
    "Unexpected reasoning effort {}. Supported types are xhigh (default), medium, and low.",
)
NO_TEMPLATE_FIELDS = refuse_fields(
    ("chat_template_kwargs",), "chat_template is not supported for Mistral tokenizers. ({})"
)
"""vLLM says it of models whose tokenizer is mistral-common's."""


def take_grammars(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse schemas of which llama.cpp makes no grammar. All tools of a request are one grammar."""
    for tool in get_tools(exchange):
        for _, part in iterate_schemas(tool.get("parameters") or {}):
            pattern = part.get("pattern", "^$")
            if not (pattern.startswith("^") and pattern.endswith("$")):
                # gh:containers/kubernetes-mcp-server#758
                yield Refusal("JSON schema conversion failed:\nPattern must start with '^' and end with '$'")
            elif re.search(r"\\[dwsbDWSB]|\(\?", pattern):
                # gh:NousResearch/hermes-agent#18530
                yield Refusal(f"parse: error parsing grammar: unknown escape at {pattern}")
            if max(part.get("maxLength", 0), part.get("maxItems", 0), part.get("minLength", 0)) > 2000:
                # gh:firecrawl/firecrawl#4512
                yield Refusal(
                    "number of rules that are going to be repeated multiplied by the new repetition exceeds sane "
                    "defaults, please reduce the number of repetitions or rule complexity"
                )


LLAMACPP: tuple[Rule, ...] = (
    demand_key,
    have_content_or_calls("Assistant message must contain either 'content' or 'tool_calls'!"),
    have_content("All non-assistant messages must contain 'content'"),
    refuse_when(
        lambda body: [one["role"] for one in body["messages"][-2:]] == ["assistant", "assistant"],
        "Cannot have 2 or more assistant messages at the end of the list.",
    ),
    have_object_arguments("parse error at line 1, column 1: attempting to parse an empty input ({id})", status=500),
    take_grammars,
)

GPT_OSS = refuse_when(
    lambda body: any(
        one.get("tool_calls") and one.get("content") and (one.get("reasoning_content") or one.get("thinking"))
        for one in body["messages"]
    ),
    # gh:ggml-org/llama.cpp#17040
    "Cannot pass both content and thinking in an assistant message with tool calls! Put the analysis message in "
    "one or "
    "the other, but not both.",
    status=500,
)
"""The template of gpt-oss has it."""

OLLAMA: tuple[Rule, ...] = (
    # ollama's openai/openai.go has all of them.
    refuse_when(
        lambda body: body.get("reasoning_effort", "low") not in ("high", "medium", "low", "none"),
        'invalid reasoning value (must be "high", "medium", "low", or "none")',
    ),
    have_object_arguments("invalid tool call arguments"),
    have_content("invalid message content type: <nil>"),
    refuse_when(
        lambda body: any(
            not isinstance(value, dict)
            for tool in body.get("tools") or ()
            for value in (tool["function"]["parameters"].get("properties") or {}).values()
        ),
        "json: cannot unmarshal bool into Go struct field ToolFunction.tools.function.parameters.properties of type "
        "api.ToolProperty",
    ),
    refuse_when(
        lambda body: any(
            not isinstance(tool["function"]["parameters"].get("type", ""), str) for tool in body.get("tools") or ()
        ),
        "json: cannot unmarshal array into Go struct field .tools.function.parameters.type of type string",
    ),
)


def _jinja(message: str) -> str:
    """Make llama.cpp's text of a template's exception."""
    return (
        "\n------------\nWhile executing CallExpression at line 189, column 32 in source:\n...== 0) %}↵            "
        f"{{{{- raise_exception('{message[:40]}...\n                                           ^\nError: Jinja "
        f"Exception: {message}"
    )


MISTRAL_ROLES = (
    "After the optional system message, conversation roles must alternate user and assistant roles except for tool "
    "calls and results."
)
GEMMA_ROLES = "Conversation roles must alternate user/assistant/user/assistant/..."
QWEN_SYSTEM = "System message must be at the beginning."
ONLY_ROLES = "Only user, assistant and tool roles are supported, got system."


def make_template_rules(family: str, **fields: Any) -> tuple[Rule, ...]:
    """Make what the chat template of a model family refuses. With the status 500 the texts are llama.cpp's."""
    say = _jinja if fields.get("status") == 500 else str
    match family:
        case "mistral":
            # gh:mistralai/mistral-vibe#1006, gh:anomalyco/opencode#5034
            return (
                put_system_first(say(ONLY_ROLES), **fields),
                alternate(say(MISTRAL_ROLES), tools=False, **fields),
            )
        case "gemma":
            return (
                put_system_first(say(GEMMA_ROLES), **fields),
                alternate(say(GEMMA_ROLES), tools=fields.get("status") == 500, **fields),
            )
        case "llama":
            # vLLM's templates of Llama 3.1 to 3.3 have it.
            return (make_one_call(say("This model only supports single tool-calls at once!"), **fields),)
        case _:
            # gh:vllm-project/vllm#41114, gh:nathaninline/ajean#26
            return (
                put_system_first(say(QWEN_SYSTEM), **fields),
                have_a_user(say("No user query found in messages."), **fields),
                # gh:ogx-ai/ogx#6069
                know_roles(("system", "user", "assistant", "tool"), say("Unexpected message role."), **fields),
            )


VLLM_MISTRAL_IDS = match_ids(r".{9,}", "Tool call IDs should be alphanumeric strings with length >= 9! (1){id}")
"""The template `tool_chat_template_mistral3` of vLLM has it."""


# LiteLLM, with Anthropic behind it


def return_thinking_blocks(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse calls of this server without the blocks of thinking that came with them."""
    for index, one in enumerate(exchange.body["messages"]):
        sent = exchange.find_sent(call["id"] for call in one.get("tool_calls") or ())
        if sent and sent.returns and not one.get("thinking_blocks"):
            yield Refusal(
                f"messages.{index}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
                f"`tool_use`. When "
                "`thinking` is enabled, a final `assistant` message must start with a thinking block."
            )


LITELLM: tuple[Rule, ...] = (
    demand_key,
    # gh:jekalmin/extended_openai_conversation#428
    refuse_when(
        lambda body: "temperature" in body and "top_p" in body,
        "litellm.BadRequestError: AnthropicException - temperature and top_p cannot both be specified for this "
        "model. Please use only one.",
    ),
    return_thinking_blocks,
    refuse_fields(
        ("seed", "logit_bias", "presence_penalty", "frequency_penalty", "n"),
        "litellm.UnsupportedParamsError: anthropic does not support parameters: ['{}'], for "
        "model=claude-sonnet-4-5. To "
        "drop these, set `litellm.drop_params=True`",
    ),
    refuse_when(
        lambda body: not body.get("tools") and any(one["role"] == "tool" for one in body["messages"]),
        # gh:earendil-works/pi#149, gh:anomalyco/opencode#9912
        "litellm.UnsupportedParamsError: Anthropic doesn't support tool calling without tools= param specified",
    ),
    match_ids(
        r"[a-zA-Z0-9_-]+", "messages.{index}.content.0.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"
    ),
    refuse_when(
        lambda body: any(
            tool["function"]["parameters"].keys() & {"anyOf", "oneOf", "allOf"} for tool in body.get("tools") or ()
        ),
        "tools.0.custom.input_schema: input_schema does not support oneOf, allOf, or anyOf at the top level",
    ),
    answer_calls(),
    have_object_arguments(ARGUMENTS_TEXT),
)


# A stranger: what any of them refuses


def _take_stranger_ids(exchange: Exchange) -> Iterable[Refusal]:
    own = {call_id for sent in exchange.sent for call_id in sent.calls}
    for one in exchange.body["messages"]:
        ids = [call["id"] for call in one.get("tool_calls") or ()]
        ids += [one["tool_call_id"]] if one["role"] == "tool" else []
        for call_id in ids:
            if call_id not in own and not (call_id.isalnum() and call_id.isascii() and len(call_id) == 9):
                yield Refusal(f"Tool call id was {call_id} but must be a-z, A-Z, 0-9, with a length of 9.")


def return_stranger_thinking(exchange: Exchange) -> Iterable[Refusal]:
    """Say that the thinking before a call is missing, although its message is there. Ids do not tell: they repeat."""
    messages = exchange.body["messages"]
    kept = [one.get("reasoning_content") for one in messages if one.get("tool_calls")]
    sent = [one.thinking for one in exchange.sent if one.calls and one.thinking]
    if len(kept) >= len(sent):
        for thinking in sent:
            if thinking not in kept:
                yield Refusal(f"reasoning_content {thinking!r} did not come back")


def _take_stranger_keys(exchange: Exchange) -> Iterable[Refusal]:
    for index, tool in enumerate(get_tools(exchange)):
        for name in (tool.get("parameters") or {}).get("properties") or ():
            if not (len(name) <= 64 and name.replace("_", "").replace("-", "").replace(".", "").isalnum()):
                yield Refusal(f"tools.{index}: Property keys should match pattern '^[a-zA-Z0-9_.-]{{1,64}}$': {name}")


STRANGER: tuple[Rule, ...] = (
    demand_key,
    know_fields(
        {
            "body": {
                *(
                    "model",
                    "messages",
                    "stream",
                    "stream_options",
                    "tools",
                    "tool_choice",
                    "max_tokens",
                    "temperature",
                ),
                *("top_p", "stop"),
            },
            "message:system": {"role", "content"},
            "message:user": {"role", "content"},
            # What it sent itself it takes back, and an empty text where it sent nothing.
            "message:assistant": {"role", "content", "tool_calls", "reasoning_content"},
            "message:tool": {"role", "content", "tool_call_id"},
            "call": {"id", "type", "function"},
            "call.function": {"name", "arguments"},
            "tool": {"type", "function"},
            "tool.function": {"name", "description", "parameters"},
        },
        lambda _kind, place, name: Refusal(
            f"Extra inputs are not permitted: {format_place((*place, name))}", status=422
        ),
    ),
    put_system_first("System message must be at the beginning."),
    alternate(GEMMA_ROLES, tools=True),
    MISTRAL_ORDER,
    end_with(("user", "tool"), "The last message must be a user's or a tool's, not {role}"),
    have_a_user("No user query found in messages."),
    # Null is refused by Cloudflare and old SGLang: gh:sgl-project/sglang#4236
    have_content(
        "Each message must have at least one content element: messages[{index}]", null_with_calls=False, empty=False
    ),
    answer_calls(),
    have_object_arguments(ARGUMENTS_TEXT),
    _take_stranger_ids,
    CALL_NAMES,
    *OPENAI_TOOLS,
    limit_descriptions(
        1024, "Invalid 'tools[{index}].function.description': string too long, {length}, at most {most}"
    ),
    name_tools(r"[a-zA-Z_][a-zA-Z0-9_-]{0,63}", "Invalid function name {name}. Must start with a letter."),
    _take_stranger_keys,
    take_grammars,
    take_gemini_schemas,
    take_kimi_schemas,
    be_schemas("Invalid tool schema: {}"),
    choose_tools(("auto", "none"), "tool_choice {} is not supported", by_name=False),
    limit_stops(4, "stop: at most four"),
    refuse_when(lambda body: not 0 <= body.get("temperature", 1) <= 1, "temperature must be in [0, 1]"),
)
