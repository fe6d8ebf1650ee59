"""The table of dialects: a row for each server, which names its rules and its quirks.

A row says what the real server does. Where its documentation does not say it, the comment names who has seen it
(`gh:owner/repository#number`). To add a row, add it to `DIALECTS`; to add an API, write its wire format and its rules
beside `chat_completions`, `anthropic_messages` and `bedrock_api`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anthropic.types.message_create_params import MessageCreateParamsStreaming
from mistralai.client.models import CompletionChunk
from openai.types.chat import ChatCompletionChunk

from tests.providers import anthropic_messages as messages_api
from tests.providers import bedrock_api, gemini_api, messages_rules, responses_api
from tests.providers.anthropic_messages import AnthropicMessages
from tests.providers.chat_completions import ChatCompletions, make_id, make_signature
from tests.providers.chat_rules import (
    choose_tools,
    have_content,
    have_object_arguments,
    have_unique_ids,
    limit_descriptions,
    refuse_fields,
    refuse_when,
    take_efforts,
    take_formats,
)
from tests.providers.gemini_api import GeminiApi
from tests.providers.media_rules import take_media
from tests.providers.messages_rules import ForeignMessages, GatewayMessages
from tests.providers.official_types import match_type
from tests.providers.responses_api import ResponsesApi
from tests.providers.server_rules import (
    ARGUMENTS_TEXT,
    CEREBRAS,
    DEEPSEEK,
    DEEPSEEK_R1,
    EFFORT_TEXT,
    GEMINI,
    GLM,
    GLM_5_3,
    GPT_OSS,
    GROQ,
    GROQ_EFFORTS,
    GROQ_QWEN_EFFORTS,
    HARMONY_EFFORTS,
    KEPT,
    KIMI,
    KIMI_IDS,
    KIMI_K3,
    LITELLM,
    LLAMACPP,
    MINIMAX,
    MISTRAL,
    MISTRAL_EFFORTS,
    NO_TEMPLATE_FIELDS,
    OLLAMA,
    OPENAI,
    OPENAI_REASONING,
    OPENROUTER,
    OPENROUTER_DEEPSEEK,
    OPENROUTER_KIMI,
    QWEN,
    QWEN_3_8_EFFORTS,
    STRANGER,
    VERBOSITY,
    VLLM,
    VLLM_EFFORTS,
    VLLM_MISTRAL_IDS,
    XAI,
    XAI_NO_EFFORT,
    make_template_rules,
    return_reasoning,
    return_stranger_thinking,
)
from tests.providers.strict_server import Call, Dialect, Refusal, Rule, find_foreign_thoughts

# Images, recordings and files

PLAIN_IMAGES = frozenset({"image/png", "image/jpeg"})
IMAGES = PLAIN_IMAGES | {"image/gif", "image/webp"}
DOCUMENTS = IMAGES | {"application/pdf"}
RECORDINGS = frozenset({"audio/wav", "audio/mp3"})

# Forms of errors


def _make_gemini_error(refusal: Refusal) -> Any:
    # It is a list: gh:leookun/cursor-byok#112
    return [{"error": {"code": refusal.status, "message": refusal.message, "status": "INVALID_ARGUMENT"}}]


def _make_mistral_error(refusal: Refusal) -> Any:
    if refusal.status == 422:
        detail = [{"type": refusal.type, "loc": refusal.code, "msg": refusal.message, "input": None}]
        return {"object": "error", "message": {"detail": detail}, "type": "invalid_request_error", "code": None}
    return {
        "object": "error",
        "message": refusal.message,
        "type": refusal.type,
        "param": None,
        "code": refusal.code,
    }


def _make_xai_error(refusal: Refusal) -> Any:
    # The error is a text: gh:yym68686/uni-api#105
    return {"code": refusal.type or "Client specified an invalid argument", "error": refusal.message}


def _wrap_for_openrouter(refusal: Refusal) -> Any:
    raw = json.dumps(_make_gemini_error(refusal))
    # gh:charmbracelet/crush#279
    metadata = {"raw": raw, "provider_name": "Google AI Studio"}
    return {"error": {"message": "Provider returned error", "code": refusal.status, "metadata": metadata}}


def _wrap_for_litellm(refusal: Refusal) -> Any:
    upstream = json.dumps({"type": "error", "error": {"type": refusal.type, "message": refusal.message}})
    message = f"litellm.BadRequestError: AnthropicException - {upstream}. Received Model Group=claude-sonnet-4-5"
    return {"error": {"message": message, "type": None, "param": None, "code": str(refusal.status)}}


def _make_vllm_error(refusal: Refusal) -> Any:
    error = {"message": refusal.message, "type": "BadRequestError", "param": refusal.param, "code": refusal.status}
    return {"error": error}


def _make_llamacpp_error(refusal: Refusal) -> Any:
    kind = "server_error" if refusal.status == 500 else "invalid_request_error"
    return {"error": {"code": refusal.status, "message": refusal.message, "type": kind}}


def _make_cerebras_error(refusal: Refusal) -> Any:
    return {"message": refusal.message, "type": refusal.type, "param": "validation_error", "code": "wrong_api_format"}


def _make_glm_error(refusal: Refusal) -> Any:
    return {"error": {"code": refusal.code or "1210", "message": refusal.message}}


def _make_minimax_error(refusal: Refusal) -> Any:
    error = {"type": "bad_request_error", "message": f"invalid params, {refusal.message} (2013)", "http_code": "400"}
    return {"type": "error", "error": error, "request_id": "0660b098aa1e9dd5a6773a48c479fc89"}


def _make_qwen_error(refusal: Refusal) -> Any:
    message = f"<400> InternalError.Algo.InvalidParameter: {refusal.message}"
    code = "invalid_parameter_error"
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": None, "code": code},
        "request_id": "r",
    }


# Calls in the text, as models write them


def _leak_json(calls: Sequence[Call]) -> str:
    """Write calls as Qwen and Hermes do: seen of vLLM, llama.cpp and LiteLLM."""
    written = (json.dumps({"name": call.name, "arguments": call.arguments}) for call in calls)
    return "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in written)


def _leak_sections(calls: Sequence[Call]) -> str:
    """Write calls as Kimi does: seen of vLLM and OpenRouter."""
    written = "".join(
        f"<|tool_call_begin|>functions.{call.name}:{number}<|tool_call_argument_begin|>{json.dumps(call.arguments)}"
        "<|tool_call_end|>"
        for number, call in enumerate(calls)
    )
    return f"<|tool_calls_section_begin|>{written}<|tool_calls_section_end|>"


def _leak_dsml(calls: Sequence[Call]) -> str:
    """Write calls as DeepSeek does from V3.2 on: seen of its own API, vLLM and SGLang."""
    mark = "\uff5cDSML\uff5c"
    written = "".join(f'<{mark}invoke name="{call.name}">\n</{mark}invoke>\n' for call in calls)
    return f"\n\n<{mark}tool_calls>\n{written}</{mark}tool_calls>"


def _leak_list(calls: Sequence[Call]) -> str:
    """Write calls as Mistral's models do, without an end."""
    return f"[TOOL_CALLS]{json.dumps([{'name': call.name, 'arguments': call.arguments} for call in calls])}"


# The rows


def _sign_for_gemini(position: int, number: int) -> Mapping[str, Any] | None:
    """Make the signature of a call. Of parallel calls only the first has one."""
    return None if position else {"extra_content": {"google": {"thought_signature": make_signature(number)}}}


def _make_messages_row(
    name: str, model: str, wire: ForeignMessages, rules: tuple[Rule, ...], media: frozenset[str] = frozenset()
) -> Dialect:
    """Make the row of another server with the Messages API."""
    provider = f"{name}_messages"
    return Dialect(
        name=f"anthropic-{name}",
        provider=provider,
        model=model,
        wire=wire,
        rules=rules,
        losses=(*messages_rules.LOSSES, find_foreign_thoughts(f"anthropic-{name}")),
        environ={f"CLEW_PROVIDER_{provider.upper()}_DIALECT": f"anthropic-{name}"},
        thinking_options={"reasoning_effort": "medium"},
        base_path="",
        media=media,
    )


def _make_gateway_row(name: str, wire: GatewayMessages, **fields: Any) -> Dialect:
    """Make the row of a gateway to Anthropic's models."""
    provider = f"{name}_messages"
    variable = f"CLEW_PROVIDER_{provider.upper()}_DIALECT"
    return Dialect(
        name=f"anthropic-{name}",
        provider=provider,
        model="anthropic/claude-sonnet-4-6",
        wire=wire,
        rules=messages_rules.GATEWAY,
        losses=(*messages_api.LOSSES, find_foreign_thoughts(f"anthropic-{name}")),
        environ={variable: "anthropic-gateway"},
        thinking_options={"reasoning_effort": "medium"},
        runs_searches=True,
        base_path="",
        media=DOCUMENTS,
        media_in_results=True,
        **fields,
    )


def _make_dialect(name: str, model: str, wire: ChatCompletions, rules: tuple[Rule, ...], **fields: Any) -> Dialect:
    provider = fields.pop("provider", name.replace("-", "_"))
    losses = (*fields.pop("losses", KEPT), find_foreign_thoughts(name))
    return Dialect(name=name, provider=provider, model=model, wire=wire, rules=rules, losses=losses, **fields)


def _make_thought_id(number: int, name: str) -> str:
    """Make an id as LiteLLM makes it for Gemini: the signature is a part of it."""
    return (
        f"{make_id('call_', 28)(number, name)}__thought__{make_signature(number)}".rstrip("=")
        .replace("+", "-")
        .replace("/", "_")
    )


UPSTREAM_ERROR = {
    "error": {"code": 502, "message": "Provider disconnected unexpectedly", "metadata": {"error_type": "provider"}},
    "choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}],
}


def _leave_to(row: str) -> dict[str, str]:
    """Name the scenarios in which a model family differs in nothing from another row."""
    names = (
        *("plain turns", "tools gone", "structured answer", "cut answer", "cut call", "hard tools", "many tools"),
        *("faults", "break", "empty replies"),
    )
    return dict.fromkeys(names, f"the row {row!r} has it: the model changes nothing here")


# What vLLM reads back is `reasoning`: gh:vllm-project/vllm#38488. Of a cut call it says `tool_calls`:
# gh:vllm-project/vllm#53269
VLLM_WIRE = ChatCompletions(
    thinking="reasoning",
    returns=True,
    cut_reason="tool_calls",
    make_id=make_id("chatcmpl-tool-", 22),
    refuse=_make_vllm_error,
)
# Until late in 2025 an error in the stream was a field of its own, which readers of the standard leave out.
OLDER_ERROR = 'error: {"code": 500, "message": "Compute error.", "type": "server_error"}'
LLAMACPP_WIRE = ChatCompletions(make_id=make_id("", 32), refuse=_make_llamacpp_error, fault=OLDER_ERROR)

CLAUDE_AT_BEDROCK = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"


def _make_responses(
    name: str, model: str, efforts: tuple[str, ...] = (), *, phases: bool = False, **fields: Any
) -> Dialect:
    """Make a row of Responses, for a model that takes these levels of reasoning."""
    provider = name.replace("-", "_").replace(".", "_")
    losses = (*responses_api.LOSSES, *((responses_api.keep_phases,) if phases else ()), find_foreign_thoughts(name))
    return Dialect(
        name=name,
        provider=provider,
        model=model,
        wire=ResponsesApi(efforts, phases),
        rules=responses_api.make_rules(efforts, model),
        losses=losses,
        thinks=bool(efforts),
        environ={f"CLEW_PROVIDER_{provider.upper()}_DIALECT": "responses"},
        runs_searches=True,
        media=DOCUMENTS,
        media_in_results=True,
        **fields,
    )


_ROWS: tuple[Dialect, ...] = (
    _make_dialect(
        "openai",
        "gpt-5-mini",
        ChatCompletions(chunk=ChatCompletionChunk),
        (*OPENAI, *OPENAI_REASONING, take_efforts(("minimal", "low", "medium", "high"), EFFORT_TEXT)),
        thinks=False,
        environ={"CLEW_PROVIDER_OPENAI_DIALECT": "openai"},
        media=DOCUMENTS,
    ),
    _make_dialect(
        "openai-gpt-5.6",
        "gpt-5.6",
        ChatCompletions(chunk=ChatCompletionChunk),
        (
            *OPENAI,
            *OPENAI_REASONING,
            take_efforts(("none", "low", "medium", "high", "xhigh", "max"), EFFORT_TEXT),
            # gh:BerriAI/litellm#34569
            refuse_when(
                lambda body: bool(body.get("tools")) and body.get("reasoning_effort") != "none",
                "Function tools with reasoning_effort are not supported for gpt-5.6 in /v1/chat/completions. To use "
                "function tools, use /v1/responses or set reasoning_effort to 'none'.",
                param="reasoning_effort",
            ),
        ),
        provider="openai_newest",
        thinks=False,
        environ={"CLEW_PROVIDER_OPENAI_NEWEST_DIALECT": "openai"},
        left_out=_leave_to("openai"),
        media=DOCUMENTS,
    ),
    _make_responses(
        "openai-responses",
        "gpt-5.6-sol",
        ("none", "low", "medium", "high", "xhigh", "max"),
        phases=True,
        thinking_options={"reasoning_effort": "high", "verbosity": "low"},
    ),
    # No level is set, so there are no summaries; the reasoning comes back all the same.
    _make_responses("openai-responses-o3", "o3", ("low", "medium", "high")),
    _make_responses("azure-responses", "gpt-4.1", base_path="/openai/v1"),
    _make_dialect(
        "azure",
        "gpt-4.1",
        # gh:langchain4j/langchain4j#2385
        ChatCompletions(
            opening=({"choices": [], "prompt_filter_results": [{"prompt_index": 0}]},),
            # The asynchronous filter sends a choice without a delta: gh:langchain-ai/langchain#18977
            closing=(
                {
                    "id": "",
                    "object": "",
                    "choices": [{"index": 0, "finish_reason": None, "content_filter_offsets": {"end_offset": 9}}],
                },
            ),
        ),
        (
            *OPENAI,
            VERBOSITY,
            refuse_fields(("reasoning_effort",), "Unrecognized request argument supplied: {}"),
            # gh:MoonshotAI/kimi-code#3660
            refuse_fields(("prompt_cache_key",), "Unrecognized request argument supplied: {}"),
            # gh:rusiaaman/wcgw#51
            limit_descriptions(
                1024,
                "Invalid 'tools[{index}].function.description': string too long. Expected a string with maximum "
                "length "
                "{most}, but got a string with length {length} instead.",
            ),
        ),
        base_path="/openai/v1",
        thinks=False,
        media=IMAGES,
    ),
    Dialect(
        name="anthropic",
        provider="anthropic",
        model="claude-sonnet-4-6",
        wire=AnthropicMessages(),
        rules=(
            *messages_api.RULES,
            match_type(MessageCreateParamsStreaming, "{}: Extra inputs are not permitted", "temperature", "top_p"),
        ),
        losses=(*messages_api.LOSSES, find_foreign_thoughts("anthropic")),
        thinking_options={"reasoning_effort": "medium"},
        runs_searches=True,
        pauses=True,
        base_path="",
        media=DOCUMENTS,
        media_in_results=True,
    ),
    _make_messages_row("deepseek", "deepseek-v4-pro", ForeignMessages(indices="zero"), messages_rules.DEEPSEEK),
    _make_messages_row("kimi", "kimi-k2.7-code", ForeignMessages(stops=False), messages_rules.KIMI, PLAIN_IMAGES),
    _make_messages_row("minimax", "MiniMax-M3", ForeignMessages(whole=True), messages_rules.MINIMAX),
    _make_messages_row(
        "ollama",
        "qwen3:8b",
        ForeignMessages(thinks=False, indices="absent"),
        messages_rules.OLLAMA,
    ),
    _make_messages_row("glm", "glm-5.3", ForeignMessages(), messages_rules.GLM),
    _make_messages_row("vllm", "qwen3-vl", ForeignMessages(thinks=False), messages_rules.VLLM, PLAIN_IMAGES),
    _make_messages_row("llamacpp", "qwen3-8b", ForeignMessages(thinks=False), messages_rules.LLAMACPP),
    _make_gateway_row("litellm", GatewayMessages(wrap=messages_rules.wrap_for_litellm)),
    _make_gateway_row(
        "openrouter",
        GatewayMessages(wrap=messages_rules.wrap_for_openrouter),
        left_out=_leave_to("anthropic-litellm"),
    ),
    _make_gateway_row(
        "vertex", GatewayMessages(wrap=messages_rules.wrap_for_vertex), left_out=_leave_to("anthropic-litellm")
    ),
    Dialect(
        name="bedrock",
        provider="bedrock",
        model=CLAUDE_AT_BEDROCK,
        wire=bedrock_api.Converse(CLAUDE_AT_BEDROCK),
        rules=bedrock_api.CLAUDE,
        losses=(*bedrock_api.CLAUDE_LOSSES, find_foreign_thoughts("bedrock")),
        thinking_options={"reasoning_effort": "medium"},
        base_path="",
        configure=bedrock_api.make_environ,
        media=DOCUMENTS,
        media_in_results=True,
    ),
    Dialect(
        name="google",
        provider="google",
        model="gemini-3-pro",
        wire=GeminiApi("/v1beta/models/gemini-3-pro:streamGenerateContent"),
        rules=gemini_api.GEMINI_3,
        losses=(*gemini_api.LOSSES, find_foreign_thoughts("google")),
        thinking_options={"reasoning_effort": "high"},
        base_path="",
        runs_searches=True,
        media=DOCUMENTS | RECORDINGS,
        media_in_results=True,
    ),
    Dialect(
        name="google-2.5",
        provider="second_google",
        model="gemini-2.5-flash",
        wire=GeminiApi("/v1beta/models/gemini-2.5-flash:streamGenerateContent", signs="first", has_ids=False),
        rules=gemini_api.GEMINI_2_5,
        losses=(*gemini_api.LOSSES, find_foreign_thoughts("google-2.5")),
        environ={"CLEW_PROVIDERS": "tests.providers.second_google"},
        thinking_options={"reasoning_effort": "medium"},
        base_path="",
        media=DOCUMENTS | RECORDINGS,
    ),
    _make_dialect(
        "gemini",
        "gemini-3-pro-preview",
        # gh:NousResearch/hermes-agent#62940, gh:ogx-ai/ogx#5122, gh:googleapis/python-genai#2868
        ChatCompletions(
            deltas="same_index",
            signs=_sign_for_gemini,
            make_id=lambda number, _name: f"function-call-{10**18 + number}",
            usage="every_chunk",
            usage_needs_option=False,
            excludes_thinking=True,
            finish_with_calls="stop",
            refuse=_make_gemini_error,
        ),
        GEMINI,
        base_path="/v1beta/openai",
        media=IMAGES | RECORDINGS,
    ),
    _make_dialect(
        "mistral",
        "magistral-medium-latest",
        # gh:dust-tt/dust#4226, gh:dnakov/anon-kode#53, gh:BerriAI/litellm#16272
        ChatCompletions(
            thinking="thinking_chunks",
            returns=True,
            deltas="whole",
            make_id=make_id("", 9),
            usage="last_chunk",
            usage_needs_option=False,
            refuse=_make_mistral_error,
            chunk=CompletionChunk,
        ),
        (*MISTRAL, refuse_fields(("reasoning_effort",), "{} is not enabled for this model", code="3051")),
        media=IMAGES,
    ),
    _make_dialect(
        "mistral-small",
        "mistral-small-2603",
        ChatCompletions(
            thinking="thinking_chunks",
            returns=True,
            deltas="whole",
            make_id=make_id("", 9),
            usage="last_chunk",
            usage_needs_option=False,
            refuse=_make_mistral_error,
            chunk=CompletionChunk,
        ),
        (*MISTRAL, MISTRAL_EFFORTS),
        provider="mistral_small",
        environ={"CLEW_PROVIDER_MISTRAL_SMALL_DIALECT": "mistral"},
        left_out=_leave_to("mistral"),
        media=IMAGES,
    ),
    _make_dialect(
        "deepseek",
        # It thinks unless it is told not to.
        "deepseek-v4-pro",
        ChatCompletions(returns=True, make_id=make_id("call_00_", 24), leak=_leak_dsml),
        DEEPSEEK,
        base_path="",
    ),
    _make_dialect(
        "deepseek-r1",
        "deepseek-reasoner",
        ChatCompletions(returns=True, make_id=make_id("call_0_", 24)),
        DEEPSEEK_R1,
        provider="deepseek_r1",
        environ={"CLEW_PROVIDER_DEEPSEEK_R1_DIALECT": "deepseek"},
        left_out=_leave_to("deepseek"),
    ),
    _make_dialect(
        "xai",
        "grok-4",
        # gh:chenyme/grok2api#219
        ChatCompletions(
            deltas="whole",
            make_id=make_id("call_", 8),
            excludes_thinking=True,
            usage="last_chunk",
            usage_needs_option=False,
            refuse=_make_xai_error,
        ),
        (*XAI, XAI_NO_EFFORT),
        media=PLAIN_IMAGES,
    ),
    _make_dialect(
        "xai-grok-4.5",
        "grok-4.5",
        ChatCompletions(deltas="whole", make_id=make_id("call_", 8), usage="last_chunk", usage_needs_option=False),
        # gh:can1357/oh-my-pi#4888
        (*XAI, take_efforts(("low", "medium", "high"), "Invalid reasoning effort: {}")),
        provider="xai_newest",
        environ={"CLEW_PROVIDER_XAI_NEWEST_DIALECT": "xai"},
        left_out=_leave_to("xai"),
        media=PLAIN_IMAGES,
    ),
    _make_dialect(
        "openrouter",
        "google/gemini-3-pro-preview",
        # gh:Aider-AI/aider#3086, gh:diegosouzapw/OmniRoute#8210
        ChatCompletions(
            thinking="reasoning_details",
            returns=True,
            deltas="whole",
            make_id=lambda number, name: f"tool_0_{name}_{make_id('', 20)(number, name)}",
            comments=True,
            # gh:QwenLM/qwen-code#2402
            repeats_end=True,
            fault=UPSTREAM_ERROR,
            refuse=_wrap_for_openrouter,
        ),
        OPENROUTER,
        base_path="/api/v1",
        media=DOCUMENTS | RECORDINGS,
    ),
    _make_dialect(
        "openrouter-deepseek",
        "deepseek/deepseek-v4-pro",
        ChatCompletions(thinking="reasoning", make_id=make_id("call_00_", 24), comments=True, leak=_leak_dsml),
        OPENROUTER_DEEPSEEK,
        losses=(*KEPT, return_reasoning),
        environ={"CLEW_PROVIDER_OPENROUTER_DEEPSEEK_DIALECT": "openrouter"},
        left_out=_leave_to("openrouter"),
    ),
    _make_dialect(
        "openrouter-kimi",
        "moonshotai/kimi-k2-thinking",
        ChatCompletions(
            thinking="reasoning",
            make_id=lambda number, name: f"functions.{name}:{number}",
            comments=True,
            leak=_leak_sections,
        ),
        OPENROUTER_KIMI,
        losses=(*KEPT, return_reasoning, KIMI_IDS),
        environ={"CLEW_PROVIDER_OPENROUTER_KIMI_DIALECT": "openrouter"},
        left_out=_leave_to("openrouter"),
    ),
    _make_dialect(
        "kimi",
        "kimi-k2-thinking",
        ChatCompletions(
            returns=True,
            make_id=lambda number, name: f"functions.{name}:{number}",
            usage="choice",
            usage_needs_option=False,
        ),
        KIMI,
        losses=(*KEPT, KIMI_IDS),
    ),
    _make_dialect(
        "kimi-k3",
        "kimi-k3",
        ChatCompletions(returns=True, make_id=make_id("call_", 12), usage="choice", usage_needs_option=False),
        (*KIMI, *KIMI_K3),
        provider="kimi_newest",
        environ={"CLEW_PROVIDER_KIMI_NEWEST_DIALECT": "kimi"},
        left_out=_leave_to("kimi"),
        media=IMAGES,
    ),
    _make_dialect(
        "glm",
        "glm-4.6",
        ChatCompletions(
            returns=True,
            deltas="whole",
            make_id=lambda number, _name: f"call_{-8469015594668440441 + number}",
            usage="last_chunk",
            usage_needs_option=False,
            refuse=_make_glm_error,
        ),
        (*GLM, refuse_fields(("reasoning_effort",), "{} 参数非法。请检查文档。", code="1214")),
        base_path="/api/paas/v4",
    ),
    _make_dialect(
        "glm-5.3",
        "glm-5.3",
        ChatCompletions(
            returns=True, deltas="whole", usage="last_chunk", usage_needs_option=False, refuse=_make_glm_error
        ),
        (*GLM, *GLM_5_3),
        base_path="/api/paas/v4",
        provider="glm_newest",
        environ={"CLEW_PROVIDER_GLM_NEWEST_DIALECT": "glm"},
        left_out=_leave_to("glm"),
    ),
    _make_dialect(
        "minimax",
        "MiniMax-M2",
        ChatCompletions(
            thinking="tags",
            returns=True,
            deltas="no_index",
            make_id=lambda number, name: f"call_function_{make_id('', 12)(number, name).lower()}_{number + 1}",
            usage="last_chunk",
            usage_needs_option=False,
            # gh:MiniMax-AI/MiniMax-M2.5#2
            beside=({"role": ""}, None),
            refuse=_make_minimax_error,
            # gh:ENTERPILOT/GoModel#1068
            data="data:",
        ),
        MINIMAX,
    ),
    _make_dialect(
        "qwen",
        "qwen3-max",
        ChatCompletions(
            make_id=make_id("call_", 24),
            # gh:voocel/ainovel-cli#52, gh:ThinkInAIXYZ/deepchat#355
            later=({"id": "", "type": "function"}, {"name": None}),
            ends_with_null=True,
            refuse=_make_qwen_error,
        ),
        QWEN,
        base_path="/compatible-mode/v1",
    ),
    _make_dialect(
        "groq",
        "openai/gpt-oss-120b",
        ChatCompletions(
            thinking="reasoning", deltas="whole", make_id=make_id("fc_", 26), usage="x_groq", usage_needs_option=False
        ),
        (*GROQ, GROQ_EFFORTS),
        base_path="/openai/v1",
    ),
    _make_dialect(
        "groq-qwen",
        "qwen/qwen3.6-27b",
        ChatCompletions(thinking="reasoning", deltas="whole", usage="x_groq", usage_needs_option=False),
        (*GROQ, GROQ_QWEN_EFFORTS),
        base_path="/openai/v1",
        environ={"CLEW_PROVIDER_GROQ_QWEN_DIALECT": "groq"},
        left_out=_leave_to("groq"),
    ),
    _make_dialect(
        "cerebras",
        "gpt-oss-120b",
        ChatCompletions(
            thinking="reasoning",
            deltas="whole",
            make_id=make_id("", 9),
            usage="last_chunk",
            usage_needs_option=False,
            refuse=_make_cerebras_error,
        ),
        (*CEREBRAS, GROQ_EFFORTS),
    ),
    _make_dialect("vllm", "Qwen/Qwen3-235B-A22B-Thinking-2507", VLLM_WIRE, (*VLLM, VLLM_EFFORTS)),
    _make_dialect(
        "vllm-kimi",
        "moonshotai/Kimi-K2-Thinking",
        ChatCompletions(
            thinking="reasoning",
            returns=True,
            make_id=lambda number, name: f"functions.{name}:{number}",
            cut_reason="tool_calls",
            leak=_leak_sections,
            refuse=_make_vllm_error,
        ),
        (*VLLM, VLLM_EFFORTS),
        losses=(*KEPT, KIMI_IDS),
        environ={"CLEW_PROVIDER_VLLM_KIMI_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-glm",
        "zai-org/GLM-4.7",
        # The parser waits for all arguments: gh:vllm-project/vllm#30999
        ChatCompletions(
            thinking="reasoning",
            returns=True,
            deltas="whole",
            # gh:vllm-project/vllm#20611
            beside=({"tool_calls": []}, None),
            make_id=make_id("chatcmpl-tool-", 22),
            cut_reason="tool_calls",
            refuse=_make_vllm_error,
        ),
        (*VLLM, VLLM_EFFORTS),
        environ={"CLEW_PROVIDER_VLLM_GLM_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-gpt-oss",
        "openai/gpt-oss-120b",
        # gh:openai/harmony#114
        ChatCompletions(
            thinking="reasoning",
            make_id=make_id("chatcmpl-tool-", 22),
            name_suffix="<|channel|>commentary",
            cut_reason="tool_calls",
            refuse=_make_vllm_error,
        ),
        (*VLLM, HARMONY_EFFORTS, GPT_OSS),
        environ={"CLEW_PROVIDER_VLLM_GPT_OSS_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-deepseek",
        "deepseek-ai/DeepSeek-R1-Distill-Qwen-32B",
        # Without a parser of its reasoning: gh:vllm-project/vllm#13125, gh:xorbitsai/inference#2805
        ChatCompletions(thinking="closing_tag", make_id=make_id("chatcmpl-tool-", 22), refuse=_make_vllm_error),
        (*VLLM, VLLM_EFFORTS),
        environ={"CLEW_PROVIDER_VLLM_DEEPSEEK_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-qwen-3.8",
        "Qwen/Qwen3.8-27B",
        VLLM_WIRE,
        (*VLLM, *make_template_rules("qwen"), QWEN_3_8_EFFORTS),
        provider="vllm_qwen_newest",
        environ={"CLEW_PROVIDER_VLLM_QWEN_NEWEST_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-mistral",
        "mistralai/Mistral-Small-3.2-24B-Instruct-2506",
        ChatCompletions(make_id=make_id("", 9), leak=_leak_list, refuse=_make_vllm_error),
        (*VLLM, VLLM_EFFORTS, *make_template_rules("mistral"), VLLM_MISTRAL_IDS, NO_TEMPLATE_FIELDS),
        environ={"CLEW_PROVIDER_VLLM_MISTRAL_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
        thinks=False,
        media=IMAGES,
    ),
    _make_dialect(
        "vllm-gemma",
        "google/gemma-3-27b-it",
        VLLM_WIRE,
        (*VLLM, *make_template_rules("gemma")),
        environ={"CLEW_PROVIDER_VLLM_GEMMA_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
        thinks=False,
        media=IMAGES,
    ),
    _make_dialect(
        "vllm-qwen",
        "Qwen/Qwen3.6-27B",
        replace(VLLM_WIRE, leak=_leak_json),
        (*VLLM, *make_template_rules("qwen")),
        environ={"CLEW_PROVIDER_VLLM_QWEN_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
    ),
    _make_dialect(
        "vllm-llama",
        "meta-llama/Llama-3.1-8B-Instruct",
        VLLM_WIRE,
        (*VLLM, *make_template_rules("llama")),
        environ={"CLEW_PROVIDER_VLLM_LLAMA_DIALECT": "vllm"},
        left_out=_leave_to("vllm"),
        thinks=False,
    ),
    _make_dialect(
        "sglang",
        "zai-org/GLM-4.6",
        # gh:sgl-project/sglang#3912, gh:sgl-project/sglang#35542
        ChatCompletions(
            beside=({"role": None, "content": None, "tool_calls": None}, ""),
            later=({"id": None, "type": "function"}, {"name": None}),
            make_id=make_id("call_", 24),
        ),
        (*VLLM, have_content("content: Input should be a valid string (messages[{index}])", null_with_calls=False)),
    ),
    _make_dialect(
        "lmstudio",
        "qwen/qwen3.6-27b",
        # The error is a text, and ids are numbers of nine digits: gh:lmstudio-ai/lmstudio-bug-tracker#830
        ChatCompletions(
            make_id=lambda number, _name: str(193629320 + number),
            refuse=lambda refusal: {"error": refusal.message},
        ),
        (
            *make_template_rules("qwen"),
            have_object_arguments(ARGUMENTS_TEXT),
            # gh:can1357/oh-my-pi#6925, gh:lmstudio-ai/lmstudio-bug-tracker#189
            choose_tools(
                ("none", "auto", "required"),
                "Invalid tool_choice type: 'object'. Supported string values: none, auto, required",
                by_name=False,
            ),
            take_formats(("text", "json_schema"), "'response_format.type' must be 'json_schema' or 'text'"),
        ),
    ),
    _make_dialect("llamacpp", "gpt-oss-20b", LLAMACPP_WIRE, (*LLAMACPP, GPT_OSS)),
    _make_dialect(
        "llamacpp-mistral",
        "devstral-small-2",
        LLAMACPP_WIRE,
        (*LLAMACPP, *make_template_rules("mistral", status=500)),
        environ={"CLEW_PROVIDER_LLAMACPP_MISTRAL_DIALECT": "llamacpp"},
        left_out=_leave_to("llamacpp"),
        thinks=False,
    ),
    _make_dialect(
        "llamacpp-gemma",
        "gemma-3-27b-it-GGUF",
        LLAMACPP_WIRE,
        (*LLAMACPP, *make_template_rules("gemma", status=500)),
        environ={"CLEW_PROVIDER_LLAMACPP_GEMMA_DIALECT": "llamacpp"},
        left_out=_leave_to("llamacpp"),
        thinks=False,
        media=PLAIN_IMAGES,
    ),
    _make_dialect(
        "llamacpp-qwen",
        "Qwen3.6-27B-GGUF",
        replace(LLAMACPP_WIRE, leak=_leak_json),
        (*LLAMACPP, *make_template_rules("qwen", status=500)),
        environ={"CLEW_PROVIDER_LLAMACPP_QWEN_DIALECT": "llamacpp"},
        left_out=_leave_to("llamacpp"),
    ),
    _make_dialect(
        "ollama",
        "qwen3:8b",
        # gh:ollama/ollama#15457
        ChatCompletions(thinking="reasoning", deltas="same_index", make_id=make_id("call_", 8)),
        OLLAMA,
    ),
    _make_dialect(
        "ollama-gpt-oss",
        "gpt-oss:20b",
        ChatCompletions(
            thinking="reasoning", deltas="same_index", make_id=make_id("call_", 8), name_suffix="<|channel|>analysis"
        ),
        (*OLLAMA, GPT_OSS),
        environ={"CLEW_PROVIDER_OLLAMA_GPT_OSS_DIALECT": "ollama"},
        left_out=_leave_to("ollama"),
    ),
    _make_dialect(
        "qianfan",
        "deepseek-v3.2",
        # gh:NousResearch/hermes-agent#35718
        ChatCompletions(deltas="cumulative", make_id=make_id("call_", 24)),
        VLLM,
        left_out=_leave_to("unknown"),
    ),
    _make_dialect(
        "litellm",
        "claude-sonnet-4-5",
        ChatCompletions(returns=True, sign="thinking_blocks", make_id=_make_thought_id, refuse=_wrap_for_litellm),
        LITELLM,
        base_path="",
        media=DOCUMENTS,
    ),
    _make_dialect(
        "unknown",
        "house-blend",
        ChatCompletions(
            returns=True,
            deltas="pieces_without_index",
            # The same ids in each reply.
            make_id=lambda number, _name: f"call_{number % 2}",
            usage="nowhere",
        ),
        STRANGER,
        provider="stranger",
        reports_usage=False,
        losses=(have_unique_ids, return_stranger_thinking),
    ),
)
DIALECTS: tuple[Dialect, ...] = tuple(
    replace(row, rules=(*row.rules, take_media(row.media, in_results=row.media_in_results))) for row in _ROWS
)
"""Every row. A row named `server-family` is a model family on that server, whose dialect a variable names."""
FORMATS = ("openai", "openai-responses", "anthropic", "bedrock", "google", "mistral", "deepseek", "unknown")
"""A row of each format, and of Chat Completions those that refuse most: the quick run plays more with them."""
