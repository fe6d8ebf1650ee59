"""The tables of the page on models: which server is tested in which scenario, and how each provider is reached."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import product
from string import ascii_uppercase

from clew_activities.providers.bedrock.provider import Bedrock
from clew_activities.providers.dialects import ANTHROPIC, BEDROCK, GOOGLE, RESPONSES, VERTEX
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
"""The scenarios by their names, in the order of the columns."""

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


@cache
def blocks() -> dict[str, str]:
    """The text of each block, by name."""
    found = (find_reason(row, name) for row in DIALECTS for name in COLUMNS)
    reasons = list(dict.fromkeys(filter(None, found)))
    notes = {reason: number for number, reason in enumerate(reasons, 1)}
    letters = ("".join(pair) for first in ("", *ascii_uppercase) for pair in product([first], ascii_uppercase))
    heads = dict(zip(COLUMNS, letters, strict=False))
    return {
        "matrix": table(
            ("server", *heads.values()),
            ([row.name, *(_mark(row, name, notes) for name in COLUMNS)] for row in DIALECTS),
        )
        + "".join(f"\n{number}. {reason[0].upper()}{reason[1:]}." for reason, number in notes.items())
        + "\n",
        "scenarios": table(
            ("", "scenario", "what happens"),
            ([heads[name], name, _summarize(scenario.play.__doc__)] for name, scenario in COLUMNS.items()),
        ),
        "media": table(("dialect", "images", "addresses", "recordings", "PDF", "in tools' results"), _list_media()),
        "providers": table(("provider", "variables", "example model"), _list_providers()),
    }


def find_reason(row: Dialect, name: str) -> str | None:
    """Find why a server has no mark in a scenario; None: it has one."""
    if SCENARIOS.get(name) is SCENARIOS["provider tools"] and not row.runs_searches:
        return "not offered: the server runs no tools itself beside those of a session, and the recipe says so"
    return row.left_out.get(name)


def _mark(row: Dialect, name: str, notes: dict[str, int]) -> str:
    reason = find_reason(row, name)
    return "✓" if reason is None else f"&ndash;<sup>{notes[reason]}</sup>"


def _summarize(docstring: str | None) -> str:
    return " ".join((docstring or "").split())


def _list_media() -> Iterable[list[str]]:
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


def _list_providers() -> Iterable[list[str]]:
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
