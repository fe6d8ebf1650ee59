"""The reference of providers: how each is reached, and what each dialect accepts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.dialects import ANTHROPIC, BEDROCK, GOOGLE, MESSAGES_DIALECTS, RESPONSES, VERTEX
from clew_activities.providers.dialects import DIALECTS as SPOKEN
from clew_activities.providers.encoders import get_forms
from clew_activities.providers.google.provider import Google
from clew_activities.providers.interface import Provider
from clew_activities.providers.request_media import PDF
from docs.generate.tables import table
from tests.providers.dialects import DIALECTS
from tests.providers.matrix import list_variables
from tests.providers.scenarios import FALLBACK, FORK, SCENARIOS
from tests.providers.strict_server import Dialect

COLUMNS = {**SCENARIOS, "fallback": FALLBACK, "fork": FORK}
"""The scenarios by their names."""

_URLS = {
    "openai": "https://api.openai.com/v1",
    "azure": "https://<resource>.openai.azure.com/openai/v1",
    "anthropic": "https://api.anthropic.com",
    "google": "https://generativelanguage.googleapis.com",
    "bedrock": "https://bedrock-runtime.us-east-1.amazonaws.com",
    "gemini": "https://generativelanguage.googleapis.com/v1beta/openai",
    "mistral": "https://api.mistral.ai/v1",
    "deepseek": "https://api.deepseek.com",
    "xai": "https://api.x.ai/v1",
    "openrouter": "https://openrouter.ai/api/v1",
    "kimi": "https://api.moonshot.ai/v1",
    "glm": "https://api.z.ai/api/paas/v4",
    "minimax": "https://api.minimax.io/v1",
    "qwen": "https://dashscope-intl.aliyuncs.com/compatible-mode/v1",
    "groq": "https://api.groq.com/openai/v1",
    "cerebras": "https://api.cerebras.ai/v1",
    "vllm": "http://127.0.0.1:8000/v1",
    "llamacpp": "http://127.0.0.1:8080/v1",
    "ollama": "http://127.0.0.1:11434/v1",
    "litellm": "http://127.0.0.1:4000",
}
"""The addresses of services, and of servers at home with their own ports."""
_VARIABLES = {"bedrock": "`CLEW_BEDROCK_REGION`, and AWS credentials or `AWS_BEARER_TOKEN_BEDROCK`"}
"""The variables of providers that have others than an address and a key."""


@dataclass(frozen=True)
class _Other:
    """Models of a dialect that take images elsewhere than its newest.

    Attributes:
        provider: The provider.
        model: One of them.
        models: What they are called.
    """

    provider: Provider
    model: str
    models: str


_HOME = "http://localhost"
_OTHERS = {
    "google": _Other(Google("google", _HOME), "gemini-2.5-pro", "models before Gemini 3"),
    "vertex": _Other(Google("google", _HOME, is_vertex=True), "gemini-2.5-pro", "models before Gemini 3"),
    "bedrock": _Other(Bedrock("bedrock", _HOME), "amazon.nova-pro-v1:0", "models that are not Claude"),
}
"""The models of a dialect that have another place for images than its newest."""
_BUILT_IN = ("openai", "anthropic", "google")
"""Providers whose address need not be named."""


_CHAT = {
    "openai": ("OpenAI", "as they are", "", "JSON Schema, also beside tools"),
    "azure": ("Azure OpenAI", "as they are", "", "JSON Schema, also beside tools"),
    "gemini": (
        "Gemini's endpoint for OpenAI's clients",
        "one system message, alternating roles",
        "`thought_signature` goes back; schemas in Gemini's form",
        "JSON Schema; beside tools in the prompt",
    ),
    "mistral": (
        "Mistral",
        "one system message, alternating roles, no user after a result",
        "ids of nine letters and digits; thinking in the content goes back",
        "JSON Schema; beside tools in the prompt",
    ),
    "deepseek": (
        "DeepSeek",
        "one system message, alternating roles",
        "`reasoning_content` goes back, and is never absent; no forced tool",
        "JSON, with the schema in the prompt",
    ),
    "xai": ("xAI", "as they are", "", "JSON Schema; beside tools in the prompt"),
    "openrouter": (
        "OpenRouter",
        "strict",
        "`reasoning_details` go back unchanged",
        "JSON Schema; beside tools in the prompt",
    ),
    "kimi": (
        "Moonshot",
        "strict, no empty text beside calls",
        "`reasoning_content` goes back, and is never absent; no forced tool",
        "JSON, with the schema in the prompt",
    ),
    "glm": ("Z.ai", "strict", "`reasoning_content` goes back; no forced tool", "JSON, with the schema in the prompt"),
    "minimax": (
        "MiniMax",
        "strict",
        "thinking between tags goes back in the content; no forced tool",
        "in the prompt",
    ),
    "qwen": ("Alibaba's DashScope", "strict", "`reasoning_content` goes back; no forced tool", "in the prompt"),
    "groq": ("Groq", "as they are", "nothing goes back", "in the prompt"),
    "cerebras": ("Cerebras", "as they are", "nothing goes back", "in the prompt"),
    "vllm": ("vLLM", "strict", "`reasoning` goes back", "JSON Schema; beside tools in the prompt"),
    "llamacpp": (
        "llama.cpp, `clew dev`'s own model",
        "strict",
        "`reasoning_content` goes back",
        "JSON Schema; beside tools in the prompt",
    ),
    "ollama": ("Ollama", "strict", "`reasoning` goes back", "JSON Schema; beside tools in the prompt"),
    "litellm": (
        "LiteLLM's proxy",
        "strict",
        "all fields go back; tools that were called stay declared",
        "JSON Schema; beside tools in the prompt",
    ),
    "scripted": ("the scripted model of [tests](../testing.md)", "as they are", "", "JSON Schema, also beside tools"),
    "strict": ("any other", "strict", "all fields go back", "JSON Schema; beside tools in the prompt"),
}
"""Dialects of Chat Completions: the server, its messages, its tool calls, and how an answer gets a schema."""
_MESSAGES = {
    "deepseek": ("DeepSeek", "goes back, and is never absent beside calls", "any choice, without thinking", ""),
    "kimi": (
        "Moonshot",
        "goes back, and is never absent beside calls; cannot be turned off",
        "no forced tool",
        "images",
    ),
    "glm": ("Z.ai", "goes back", "no choice", ""),
    "minimax": ("MiniMax", "goes back", "any choice", "marks of the cache"),
    "ollama": ("Ollama", "goes back", "no choice", "images"),
    "vllm": ("vLLM", "goes back", "any choice", "images"),
    "llamacpp": ("llama.cpp", "goes back", "some tool can be forced", "images"),
    "gateway": (
        "LiteLLM, OpenRouter, Vercel and Cloudflare, with Anthropic's models",
        "as Anthropic's",
        "as Anthropic's",
        "marks of the cache in blocks alone, images",
    ),
    "strict": ("any other", "goes back", "no forced tool", "images"),
}
"""Dialects of Anthropic's Messages: the server, its thinking, its tools, its cache and images."""


@cache
def make_page() -> str:
    """Make the page."""
    left_out = sum(find_reason(row, name) is not None for row in DIALECTS for name in COLUMNS)
    return (
        "# Providers and dialects\n\n"
        "How a worker reaches each provider, and what each kind of server accepts. [Models](../models.md) shows how to "
        "configure one. A session names its model as `provider:model`, and never an address or a key.\n\n"
        "## How each provider is reached\n\n"
        f"{table(('provider', 'variables', 'example model'), list_providers())}\n"
        "Any other server of Chat Completions, Responses or Anthropic's Messages has the name that you give it: "
        "`CLEW_PROVIDER_<NAME>_BASE_URL`, `CLEW_PROVIDER_<NAME>_API_KEY`, `CLEW_PROVIDER_<NAME>_DIALECT`. A provider's "
        "dialect is the first of these: the one that its variable names, the one of its host, the one of its name, "
        "`strict`.\n\n"
        "## Dialects of Chat Completions\n\n"
        f"{table(('dialect', 'server', 'messages', 'tool calls', 'an answer with a schema'), list_dialects())}\n"
        "Strict messages have one system message at the beginning, then users and assistants in turn, a user first, and "
        "an assistant between a tool's result and the next user. The model's family changes a dialect further: OpenAI's "
        "reasoning models get `max_completion_tokens` and no temperature, Gemma 2 gets no system message.\n\n"
        "## Dialects of Anthropic's Messages\n\n"
        f"{table(('dialect', 'server', 'thinking', 'tools', 'cache, images'), list_messages_dialects())}\n"
        "A provider whose address ends in `/anthropic` speaks this API, and so does one with the dialect `anthropic`. "
        "Another server's dialect is named with the prefix, as in `CLEW_PROVIDER_MINE_DIALECT=anthropic-vllm`.\n\n"
        "## Images, recordings and files\n\n"
        f"{table(('dialect', 'images', 'addresses', 'recordings', 'PDF', 'in results of tools'), list_media())}\n"
        "A tick in `addresses` says that images may be sent as URLs. `inside`: an image of a tool's result is in the "
        "result; `they follow`: it comes as a message after it.\n\n"
        "## How they are tested\n\n"
        f"The tests play {len(COLUMNS)} scenarios (`tests/providers/scenarios.py`) against {len(DIALECTS)} strict "
        "servers, which refuse what the real ones refuse. Of these pairs "
        f"{left_out} are left out, each with its reason in `tests/providers/dialects.py`.\n"
    )


def list_dialects() -> Iterable[list[str]]:
    """List the dialects of Chat Completions.

    Raises:
        ValueError: The code has a dialect without a row, or a row has no dialect.
    """
    yield from _check(_CHAT, set(SPOKEN) - {"anthropic"})


def list_messages_dialects() -> Iterable[list[str]]:
    """List the dialects of Anthropic's Messages.

    Raises:
        ValueError: The code has a dialect without a row, or a row has no dialect.
    """
    yield from _check(_MESSAGES, set(MESSAGES_DIALECTS) - {"anthropic"})


def _check(rows: Mapping[str, tuple[str, ...]], names: set[str]) -> Iterable[list[str]]:
    if wrong := rows.keys() ^ names:
        raise ValueError(f"the reference of providers lacks a row, or has one too many: {', '.join(sorted(wrong))}")
    return ([f"`{name}`", *cells] for name, cells in rows.items())


def find_reason(row: Dialect, name: str) -> str | None:
    """Find why a server has no mark in a scenario; None: it has one."""
    if SCENARIOS.get(name) is SCENARIOS["provider tools"] and not row.runs_searches:
        return "not offered: the server runs no tools itself beside those of a session, and the recipe says so"
    return row.left_out.get(name)


def list_media() -> Iterable[list[str]]:
    """List the forms that each dialect has for images, recordings and files."""
    for name, media in {
        **{dialect.name: dialect.media for dialect in (ANTHROPIC, RESPONSES, GOOGLE, VERTEX)},
        "bedrock": BEDROCK.media,
        **{dialect.name: dialect.media for dialect in SPOKEN.values()},
    }.items():
        if not media.types:
            continue
        images, recordings = (
            ", ".join(sorted(one.partition("/")[2] for one in media.types if one.startswith(kind)))
            for kind in ("image/", "audio/")
        )
        inside = "inside" if "image" in media.in_results else "they follow"
        # The provider's older models, or those of others, may take less than its newest.
        if (other := _OTHERS.get(name)) and "image" not in get_forms(other.provider, other.model).in_results:
            inside += f"; of {other.models} they follow"
        yield [
            f"`{name}`",
            images,
            "✓" if media.image_urls else "",
            recordings,
            "✓" if PDF in media.types else "",
            inside,
        ]


def list_providers() -> Iterable[list[str]]:
    """List how each provider is reached: its variables, and a model of it."""
    for row in DIALECTS:
        if (url := _URLS.get(row.name)) is None:
            continue
        address, key = list_variables(row.provider)
        shown = [] if row.name in _BUILT_IN else [f"`{address}={url}`"]
        if not url.startswith("http://"):
            shown.append(f"`{key}`")
        if row.name in SPOKEN and row.provider != row.name:
            raise ValueError(f"the row {row.name!r} has another provider's name")
        yield [f"`{row.provider}`", _VARIABLES.get(row.name, ", ".join(shown)), f"`{row.full_model}`"]
