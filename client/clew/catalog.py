"""The context windows of the common model families: one table, read from the top, first match wins.

A name is matched without its provider, as a prefix. To teach Clew a model, add a line; a session that needs
another number says so in its `context_policy`. Sources: the providers' own model pages.
"""

from __future__ import annotations

from clew.answers import Usage

_WINDOWS: tuple[tuple[str, int], ...] = (
    ("claude-", 200_000),
    ("gpt-5-chat", 128_000),
    ("gpt-5", 272_000),  # of its 400 000 tokens 128 000 are for output alone
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4", 8_192),
    ("gpt-3.5-turbo", 16_385),
    ("chatgpt-4o", 128_000),
    ("o1-mini", 128_000),
    ("o1-preview", 128_000),
    ("o1", 200_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("llama3.1", 128_000),
    ("llama3.2", 128_000),
    ("llama3.3", 128_000),
    ("mistral-large", 128_000),
    ("qwen2.5", 32_768),
    ("qwen3", 32_768),
    ("deepseek-", 128_000),
    ("smollm2", 8_192),
)


def window_of(model: str) -> int | None:
    """The window of `provider:model` in tokens, or None where the family is not known."""
    name = model.partition(":")[2].lower().rpartition("/")[2]
    return next((window for family, window in _WINDOWS if name.startswith(family)), None)


def cost_usd(name: str, usage: Usage) -> float | None:  # noqa: ARG001
    """What a usage of `provider:model` costs by the provider's list, in USD, or None where the price is not known."""
    return None
