"""What is known of the common model families: windows, encodings, prices. One table.

A name is matched without its provider, as a prefix: of `openai:gpt-4o-mini` it is `gpt-4o-mini`. The longest family
that fits is the model's, and of two alike the newer line. A model that fits none gets the default sizes, and the
worker's log says so once.

To teach Clew a model, add a line to `MODELS`, with the page it comes from and `since` the current `EDITION`; if that
one has been released, raise it by one first. Families, windows and outputs of released editions stay as they are:
sessions in flight look their requests' own models up in the edition that they were begun with, and must find again
what they found. What has changed is a new line for the same family. Encodings and prices may be put right in place.

A session that needs other numbers says so in its `context_policy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from clew.model.tokens import EncodingName
from clew.outcomes import Usage

EDITION = 1
"""The newest edition of the table. In the first one, 0, there were windows alone."""


class Prices(NamedTuple):
    """List prices in USD per million tokens; of models with steps by length those of the lowest step.

    `cached` is for input that the provider had in its cache, `written` for input that it put there where it charges
    for that. None: like `input`.
    """

    input: float
    output: float
    cached: float | None = None
    written: float | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """A family of models.

    `window` is what a prompt may take, in tokens: the context window, or less where a part of that is for the reply
    alone. `output` is the longest reply that the provider agrees to, where it is known. Families without a public
    tokenizer are counted in `o200k_base`, as an estimate; what their provider reports corrects it.
    """

    family: str
    window: int
    output: int | None = None
    encoding: EncodingName = "o200k_base"
    prices: Prices | None = None
    since: int = 1


# Edition 0: windows, and what a reply has to itself already taken off.
_FIRST = (
    ("claude-", 200_000),
    ("gpt-5-chat", 128_000),
    ("gpt-5", 272_000),
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

_CL100K: EncodingName = "cl100k_base"
_SONNET = Prices(3, 15, 0.3, 3.75)
_OPUS_4 = Prices(15, 75, 1.5, 18.75)
_OPUS = Prices(5, 25, 0.5, 6.25)
_O_MINI = Prices(1.1, 4.4, 0.55)

MODELS: tuple[Model, ...] = (
    *(Model(family, window, since=0) for family, window in _FIRST),
    # Anthropic: platform.claude.com/docs/en/models, a page for each model. The tokenizer is not public; of the same
    # text the one of 4.7 and later makes some 30 % more tokens than the one before. Cache writes are for 5 minutes.
    Model("claude-", 200_000, 64_000),
    Model("claude-3-haiku", 200_000, 4_096, prices=Prices(0.25, 1.25, 0.03, 0.3)),
    Model("claude-3-sonnet", 200_000, 4_096, prices=_SONNET),
    Model("claude-3-opus", 200_000, 4_096, prices=_OPUS_4),
    Model("claude-3-5-haiku", 200_000, 8_192, prices=Prices(0.8, 4, 0.08, 1)),
    Model("claude-3-5-sonnet", 200_000, 8_192, prices=_SONNET),
    Model("claude-3-7-sonnet", 200_000, 64_000, prices=_SONNET),
    Model("claude-haiku-4-5", 200_000, 64_000, prices=Prices(1, 5, 0.1, 1.25)),
    Model("claude-haiku-5-5", 1_000_000, 128_000),
    Model("claude-sonnet-4", 200_000, 64_000, prices=_SONNET),
    Model("claude-sonnet-4-6", 1_000_000, 128_000, prices=_SONNET),
    Model("claude-sonnet-5", 1_000_000, 128_000, prices=Prices(2, 10, 0.2, 2.5)),
    Model("claude-opus-4", 200_000, 32_000, prices=_OPUS_4),
    Model("claude-opus-4-5", 200_000, 64_000, prices=_OPUS),
    Model("claude-opus-4-6", 1_000_000, 128_000, prices=_OPUS),
    Model("claude-opus-4-7", 1_000_000, 128_000, prices=_OPUS),
    Model("claude-opus-4-8", 1_000_000, 128_000, prices=_OPUS),
    Model("claude-opus-5", 1_000_000, 128_000, prices=_OPUS),
    Model("claude-opus-5-5", 1_000_000, 128_000, prices=Prices(4, 20, 0.4, 5)),
    Model("claude-fable-5", 1_000_000, 128_000, prices=Prices(10, 50, 1, 12.5)),
    # OpenAI: developers.openai.com/api/docs/models and /pricing; encodings as in `tiktoken.model`. Of the 400 000 and
    # 1 050 000 tokens that the models of GPT-5 have, 128 000 are for the reply alone.
    Model("gpt-5", 272_000, 128_000, prices=Prices(1.25, 10, 0.125)),
    Model("gpt-5-mini", 272_000, 128_000, prices=Prices(0.25, 2, 0.025)),
    Model("gpt-5-nano", 272_000, 128_000, prices=Prices(0.05, 0.4, 0.005)),
    Model("gpt-5-pro", 272_000, 128_000, prices=Prices(15, 120)),
    Model("gpt-5-chat", 128_000, 16_384, prices=Prices(1.25, 10, 0.125)),
    Model("gpt-5.", 272_000, 128_000),
    Model("gpt-5.1", 272_000, 128_000, prices=Prices(1.25, 10, 0.125)),
    Model("gpt-5.1-codex-mini", 272_000, 128_000, prices=Prices(0.25, 2, 0.025)),
    Model("gpt-5.2", 272_000, 128_000, prices=Prices(1.75, 14, 0.175)),
    Model("gpt-5.2-pro", 272_000, 128_000, prices=Prices(21, 168)),
    Model("gpt-5.4", 922_000, 128_000, prices=Prices(2.5, 15, 0.25)),
    Model("gpt-5.4-mini", 272_000, 128_000, prices=Prices(0.75, 4.5, 0.075)),
    Model("gpt-5.4-nano", 272_000, 128_000, prices=Prices(0.2, 1.25, 0.02)),
    Model("gpt-5.4-pro", 922_000, 128_000, prices=Prices(30, 180)),
    Model("gpt-5.5", 922_000, 128_000, prices=Prices(5, 30, 0.5)),
    Model("gpt-5.5-pro", 922_000, 128_000, prices=Prices(30, 180)),
    Model("gpt-4.1", 1_047_576, 32_768, prices=Prices(2, 8, 0.5)),
    Model("gpt-4.1-mini", 1_047_576, 32_768, prices=Prices(0.4, 1.6, 0.1)),
    Model("gpt-4.1-nano", 1_047_576, 32_768, prices=Prices(0.1, 0.4, 0.025)),
    Model("gpt-4o", 128_000, 16_384, prices=Prices(2.5, 10, 1.25)),
    Model("gpt-4o-mini", 128_000, 16_384, prices=Prices(0.15, 0.6, 0.075)),
    Model("chatgpt-4o", 128_000, 16_384, prices=Prices(5, 15)),
    Model("gpt-4-turbo", 128_000, 4_096, _CL100K, Prices(10, 30)),
    Model("gpt-4-1106", 128_000, 4_096, _CL100K, Prices(10, 30)),
    Model("gpt-4-0125", 128_000, 4_096, _CL100K, Prices(10, 30)),
    Model("gpt-4", 8_192, 8_192, _CL100K, Prices(30, 60)),
    Model("gpt-4-32k", 32_768, 32_768, _CL100K, Prices(60, 120)),
    Model("gpt-4.5", 128_000, 16_384, prices=Prices(75, 150, 37.5)),
    Model("gpt-3.5-turbo", 16_385, 4_096, _CL100K, Prices(0.5, 1.5)),
    Model("o1", 200_000, 100_000, prices=Prices(15, 60, 7.5)),
    Model("o1-preview", 128_000, 32_768, prices=Prices(15, 60, 7.5)),
    Model("o1-mini", 128_000, 65_536, prices=_O_MINI),
    Model("o1-pro", 200_000, 100_000, prices=Prices(150, 600)),
    Model("o3", 200_000, 100_000, prices=Prices(2, 8, 0.5)),
    Model("o3-mini", 200_000, 100_000, prices=_O_MINI),
    Model("o3-pro", 200_000, 100_000, prices=Prices(20, 80)),
    Model("o4-mini", 200_000, 100_000, prices=Prices(1.1, 4.4, 0.275)),
    Model("gpt-oss", 131_072),
    # Google: ai.google.dev/gemini-api/docs/models and /pricing. The tokenizer is not public.
    Model("gemini-2.0-flash", 1_048_576, 8_192, prices=Prices(0.1, 0.4, 0.025)),
    Model("gemini-2.5-flash", 1_048_576, 65_536, prices=Prices(0.3, 2.5, 0.03)),
    Model("gemini-2.5-flash-lite", 1_048_576, 65_536, prices=Prices(0.1, 0.4, 0.01)),
    Model("gemini-2.5-pro", 1_048_576, 65_536, prices=Prices(1.25, 10, 0.125)),
    Model("gemini-3-flash", 1_048_576, 65_536, prices=Prices(0.5, 3, 0.05)),
    Model("gemini-3-pro", 1_048_576, 65_536, prices=Prices(2, 12, 0.2)),
    # Mistral: docs.mistral.ai/getting-started/models. DeepSeek: api-docs.deepseek.com/quick_start/pricing.
    Model("mistral-large", 128_000, prices=Prices(2, 6)),
    Model("mistral-large-2512", 256_000, prices=Prices(0.5, 1.5, 0.05)),
    Model("mistral-medium", 128_000, prices=Prices(0.4, 2)),
    Model("mistral-small", 128_000),
    Model("deepseek-", 128_000, 8_192),
    Model("deepseek-v4-flash", 1_000_000, prices=Prices(0.14, 0.28, 0.0028)),
    Model("deepseek-v4-pro", 1_000_000, prices=Prices(0.435, 0.87, 0.003625)),
    # Open weights, by the names that Ollama and Hugging Face give them. Servers often allow less than the model
    # could: what they refuse teaches the session. Who runs them decides what they cost.
    Model("llama-3.1", 128_000),
    Model("llama-3.2", 128_000),
    Model("llama-3.3", 128_000),
    Model("meta-llama-3.1", 128_000),
    Model("gemma3", 128_000),
    Model("gemma-3", 128_000),
    Model("phi4", 16_384),
    Model("phi-4", 16_384),
    Model("mistral-nemo", 128_000),
    Model("qwen-2.5", 32_768),
    Model("smollm2", 8_192),
)


def model_of(name: str, edition: int = EDITION) -> Model | None:
    """The family of `provider:model` in an edition of the table, or None where it is not known."""
    bare = name.partition(":")[2].lower().rpartition("/")[2]
    fitting = (model for model in MODELS if model.since <= edition and bare.startswith(model.family))
    return max(fitting, key=lambda model: (len(model.family), model.since), default=None)


def window_of(name: str) -> int | None:
    """The window of `provider:model` in tokens, or None where the family is not known."""
    model = model_of(name)
    return model.window if model else None


def encoding_of(name: str) -> EncodingName:
    """The encoding that `provider:model` is counted in: its own, or else an estimate."""
    model = model_of(name)
    return model.encoding if model else "o200k_base"


def cost_usd(name: str, usage: Usage) -> float | None:
    """What a usage of `provider:model` costs by the provider's list, in USD, or None where the price is not known."""
    model = model_of(name)
    if model is None or model.prices is None:
        return None
    prices, written = model.prices, usage.written_input_tokens or 0
    dollars = (
        (usage.input_tokens - usage.cached_input_tokens - written) * prices.input
        + usage.cached_input_tokens * (prices.input if prices.cached is None else prices.cached)
        + written * (prices.input if prices.written is None else prices.written)
        + usage.output_tokens * prices.output
    )
    return dollars / 1_000_000
