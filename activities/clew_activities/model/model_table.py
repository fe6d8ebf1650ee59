"""The table of model families: context windows, longest replies, encodings, and the media that they take.

A family matches the names that begin with its prefix. The provider is removed first: `gpt-4o-mini` is matched for
`openai:gpt-4o-mini`. Of several families the one with the longest prefix is taken. A model without a family gets the
default sizes, and the worker logs it once.

To add a model, add its prefix to a line of `FAMILIES`, and a line to `_TAKEN` if the others say something else of its
media, with the page it comes from. Lines may be changed at any time: a session keeps the profile that a worker has
given it, in its history, and the recipe of a call says what media the model was known to take. Prices come from the
data that the library `genai-prices` ships; nothing is read from the network.

A team's own models have their sizes and prices in two files (`OwnModels`), which take precedence. A session sets
other sizes in its `context_policy`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from genai_prices import Usage, calc_price
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice, TieredPrices
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from clew_workflows.contract.content import MediaSort
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.invalid import describe_problems
from clew_workflows.contract.media_tokens import get_bare_name
from clew_workflows.contract.names import EncodingName
from clew_workflows.contract.outcomes import Price, Prices
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import check_encoding

MODELS_VARIABLE = "CLEW_MODELS"
PRICES_VARIABLE = "CLEW_PRICES"

PRICES_SECONDS = 60
"""Seconds for which the library's prices of a model are kept: some change with the time of day."""
MOST_RESERVED = 8192
"""Most tokens that a model's policy reserves for a reply."""


@dataclass(frozen=True, slots=True)
class Family:
    """A family of models.

    Attributes:
        prefix: Beginning of its models' names, in lower case.
        window: Most tokens of a prompt: the context window, less the part that only the reply may use.
        output: Tokens of the longest reply that the provider accepts; None: not known.
        encoding: The encoding that its texts are counted in. For families without a public tokenizer `o200k_base`
            is an estimate, which is corrected by the usage that their provider reports.
    """

    prefix: str
    window: int
    output: int | None = None
    encoding: EncodingName = "o200k_base"


_O200K: EncodingName = "o200k_base"
_CL100K: EncodingName = "cl100k_base"

FAMILIES: tuple[Family, ...] = tuple(
    Family(prefix, window, output, encoding)
    for prefixes, window, output, encoding in (
        # Anthropic: platform.claude.com/docs/en/models, a page for each model. The tokenizer is not public; of the
        # same text the one of 4.7 and later makes some 30 % more tokens than the one before.
        ("claude- claude-opus-4-5", 200_000, 64_000, _O200K),
        ("claude-3-haiku claude-3-sonnet claude-3-opus", 200_000, 4_096, _O200K),
        ("claude-3-5-haiku claude-3-5-sonnet", 200_000, 8_192, _O200K),
        ("claude-opus-4", 200_000, 32_000, _O200K),
        ("claude-haiku-5-5 claude-sonnet-4-6 claude-sonnet-5 claude-fable-5", 1_000_000, 128_000, _O200K),
        ("claude-opus-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5", 1_000_000, 128_000, _O200K),
        # OpenAI: developers.openai.com/api/docs/models; encodings as in `tiktoken.model`. Of the 400 000 and
        # 1 050 000 tokens that the models of GPT-5 have, 128 000 are for the reply alone.
        ("gpt-5 gpt-5.4-mini gpt-5.4-nano", 272_000, 128_000, _O200K),
        ("gpt-5.4 gpt-5.5", 922_000, 128_000, _O200K),
        ("gpt-5-chat gpt-4o chatgpt-4o gpt-4.5", 128_000, 16_384, _O200K),
        ("gpt-4.1", 1_047_576, 32_768, _O200K),
        ("gpt-4-turbo gpt-4-1106 gpt-4-0125", 128_000, 4_096, _CL100K),
        ("gpt-4", 8_192, 8_192, _CL100K),
        ("gpt-4-32k", 32_768, 32_768, _CL100K),
        ("gpt-3.5-turbo", 16_385, 4_096, _CL100K),
        ("o1 o3 o4-mini", 200_000, 100_000, _O200K),
        ("o1-preview", 128_000, 32_768, _O200K),
        ("o1-mini", 128_000, 65_536, _O200K),
        ("gpt-oss", 131_072, None, _O200K),
        # Google: ai.google.dev/gemini-api/docs/models. The tokenizer is not public.
        ("gemini-2.0-flash", 1_048_576, 8_192, _O200K),
        ("gemini-2.5-flash gemini-2.5-pro gemini-3-flash gemini-3-pro", 1_048_576, 65_536, _O200K),
        ("gemini-3.1-pro gemini-3.1-flash-lite gemini-3.5-flash", 1_048_576, 65_536, _O200K),
        # Mistral: docs.mistral.ai/getting-started/models. DeepSeek: api-docs.deepseek.com/quick_start/pricing.
        ("mistral-large mistral-medium mistral-small", 128_000, None, _O200K),
        ("mistral-large-2512", 256_000, None, _O200K),
        ("deepseek-", 128_000, 8_192, _O200K),
        ("deepseek-v4-flash deepseek-v4-pro", 1_000_000, None, _O200K),
        # Amazon: docs.aws.amazon.com/nova/latest/userguide/what-is-nova.html
        ("nova-lite nova-pro", 300_000, 10_000, _O200K),
        ("nova-micro", 128_000, 10_000, _O200K),
        ("nova-premier", 1_000_000, 10_000, _O200K),
        ("nova-2-lite", 1_000_000, 64_000, _O200K),
        # Open weights, by their names on Ollama and Hugging Face. Servers often allow less than the model: a session
        # learns the limit when a call is refused.
        ("llama3.1 llama3.2 llama3.3 llama-3.1 llama-3.2 llama-3.3", 128_000, None, _O200K),
        ("meta-llama-3.1 gemma3 gemma-3 mistral-nemo", 128_000, None, _O200K),
        ("phi4 phi-4", 16_384, None, _O200K),
        ("qwen2.5 qwen-2.5 qwen3", 32_768, None, _O200K),
        ("smollm2", 8_192, None, _O200K),
    )
    for prefix in prefixes.split()
)


_TEXT: frozenset[MediaSort] = frozenset({"text"})
_IMAGES: frozenset[MediaSort] = frozenset({"text", "image"})
_DOCUMENTS: frozenset[MediaSort] = frozenset({"text", "image", "pdf"})
_AUDIO: frozenset[MediaSort] = frozenset({"audio"})

_TAKEN: tuple[tuple[re.Pattern[str], frozenset[MediaSort]], ...] = tuple(
    # Names at Amazon Bedrock begin with the vendor.
    (re.compile(rf"(?:[a-z-]+\.)*(?:{pattern})"), taken)
    for pattern, taken in (
        # platform.claude.com/docs/en/build-with-claude/vision and /pdf-support
        (r"claude-(v?2|instant)", _TEXT),
        (r"claude-", _DOCUMENTS),
        # developers.openai.com/api/docs/models; PDF files: "gpt-4o and later models" (/api/docs/guides/file-inputs)
        (r"gpt-audio|gpt-4o(-mini)?-audio", _TEXT | _AUDIO),
        (r"gpt-oss|gpt-3|gpt-4(-\d|-32k|$)|gpt-4o(-mini)?-search|o1-(mini|preview)|o3-mini", _TEXT),
        (r"gpt-4-turbo|gpt-4-vision", _IMAGES),
        (r"gpt-(4o|4\.1|4\.5|[5-9]|\d\d)|chatgpt-4o|o[1-9](-|$)|codex-mini", _DOCUMENTS),
        # ai.google.dev/gemini-api/docs/models: all of these, and video, which no part of a message can be.
        (r"gemini-embedding", _TEXT),
        (r"gemini-", _DOCUMENTS | _AUDIO),
        # ai.google.dev/gemma/docs: the smallest one reads texts alone.
        (r"gemma-?3(-|:)(270m|1b)", _TEXT),
        (r"gemma-?[34]", _IMAGES),
        # docs.aws.amazon.com/nova/latest/userguide/what-is-nova.html
        (r"nova-micro", _TEXT),
        (r"nova-2-omni", _DOCUMENTS | _AUDIO),
        (r"nova-", _DOCUMENTS),
        # docs.mistral.ai/capabilities/vision
        (r"pixtral|mistral-small-(latest|2503|2506|26\d\d|3\.[12]|4)|mistral-medium|magistral", _IMAGES),
        (r"mistral-large-(latest|2512|26\d\d|3)|ministral-3|ministral-\d+b-(latest|2512)", _IMAGES),
        # help.aliyun.com/zh/model-studio/vision, huggingface.co/Qwen
        (r"qwen[\d.]*-?omni", _IMAGES | _AUDIO),
        (r"qwen[\d.]*-?vl|qvq|qwen3\.[5-9]-(plus|flash)", _IMAGES),
        # huggingface.co/meta-llama
        (r"(meta-)?llama-?4|(meta-)?llama-?3[.-]2-?(vision|11b|90b)", _IMAGES),
        # platform.moonshot.ai/docs: K2.5 and later read images.
        (r"kimi-k2\.[5-9]|kimi-k([3-9]|\d\d)|kimi-latest|kimi-vl|moonshot-v1-[\w]+-vision", _IMAGES),
        # docs.z.ai/guides/vlm
        (r"(zai-)?glm-[\d.]+v", _IMAGES),
        # docs.x.ai/docs/models
        (r"grok-code", _TEXT),
        (r"grok-([4-9]|2-vision|vision)", _IMAGES),
        (r"phi-?4-multimodal", _IMAGES | _AUDIO),
        (r"phi-?3(\.5)?-vision|llava|bakllava|moondream|minicpm-v|minicpm-o|internvl|deepseek-vl|smolvlm", _IMAGES),
        (r"molmo|aya-vision|command-a-vision|granite-[\w.-]*vision|nemotron-[\w.-]*-vl", _IMAGES),
        # Texts alone.
        (r"deepseek|qwen|(meta-)?llama|mistral|ministral|mixtral|codestral|devstral|kimi|moonshot|glm|zai", _TEXT),
        (r"grok|phi|minimax|command|granite|gemma|smollm|nemotron|jamba|olmo", _TEXT),
    )
)
"""What models take of images, recordings and files, by the beginnings of their names; the first row is taken."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


TakenMedia = Literal["image", "audio", "pdf", "text"]


class OwnModel(_Entry):
    """The sizes of a team's own model, in tokens, as in `Family`.

    Attributes:
        window: Most tokens of a prompt.
        output: The longest reply; absent: not known.
        encoding: The encoding that its texts are counted in.
        takes: What it takes of images, recordings and files; absent: as the table says of its name.
    """

    window: Annotated[int, Field(ge=1, le=1_000_000_000)]
    output: Annotated[int, Field(ge=1, le=1_000_000_000)] | None = None
    encoding: EncodingName = "o200k_base"
    takes: Annotated[tuple[TakenMedia, ...], Field(strict=False)] | None = None


_UsdPerMillion = Annotated[float, Field(ge=0)]


class OwnPrice(_Entry):
    """The prices of a team's own model, in USD per million tokens; 0: it costs nothing.

    Attributes:
        input: The price of input tokens.
        output: The price of output tokens.
        cached_input: The price of input tokens read from the provider's cache; absent: as `input`.
        written_input: The price of input tokens written to it; absent: as `input`.
        long_written_input: The price of those that it keeps for an hour; absent: as `written_input`.
        searches: The price of a thousand web searches that the provider runs itself; absent: they cost nothing.
    """

    input: _UsdPerMillion
    output: _UsdPerMillion
    cached_input: _UsdPerMillion | None = None
    written_input: _UsdPerMillion | None = None
    long_written_input: _UsdPerMillion | None = None
    searches: _UsdPerMillion | None = None


E = TypeVar("E", OwnModel, OwnPrice)


@dataclass(frozen=True)
class OwnModels:
    """A team's own models, by `provider:model`; a `*` at the end stands for the rest of the name.

    Attributes:
        sizes: Their sizes.
        prices: Their prices.
    """

    sizes: Mapping[str, OwnModel] = field(default_factory=dict)
    prices: Mapping[str, OwnPrice] = field(default_factory=dict)

    def find_family(self, name: str) -> Family | None:
        """Find the sizes of `provider:model`; None: it has none of its own."""
        own = _find_own(self.sizes, name)
        return Family(name.lower(), own.window, own.output, own.encoding) if own else None

    def find_taken(self, name: str) -> frozenset[MediaSort] | None:
        """Find what `provider:model` takes of images, recordings and files; None: it has none of its own."""
        own = _find_own(self.sizes, name)
        return None if own is None or own.takes is None else frozenset(own.takes)

    def find_price(self, name: str) -> Price | None:
        """Find the price of `provider:model`; None: it has none of its own."""
        own = _find_own(self.prices, name)
        return Price(**own.model_dump()) if own else None


NO_OWN_MODELS = OwnModels()


def read_own_models(environ: Mapping[str, str]) -> OwnModels:
    """Read the JSON files that `CLEW_MODELS` and `CLEW_PRICES` name; nothing if they are not set.

    Raises:
        InvalidInput: A file cannot be read, has another form, or names an encoding that this process does not have.
    """
    own = OwnModels(
        _read_entries(environ, MODELS_VARIABLE, OwnModel), _read_entries(environ, PRICES_VARIABLE, OwnPrice)
    )
    for name, model in own.sizes.items():
        try:
            check_encoding(model.encoding)
        except InvalidInput as error:
            raise InvalidInput(f"{MODELS_VARIABLE}: {name[:100]!r}: {error}") from None
    return own


def _read_entries(environ: Mapping[str, str], variable: str, kind: type[E]) -> Mapping[str, E]:
    path = environ.get(variable, "").strip()
    if not path:
        return {}
    try:
        document: Any = json.loads(Path(path).read_bytes())
        entries = TypeAdapter(dict[str, kind]).validate_python(document)  # type: ignore[valid-type]
    except ValidationError as error:
        problem = describe_problems(error, dict[str, kind])  # type: ignore[valid-type]
        raise InvalidInput(f"{variable}: {path!r} is not valid: {problem}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"{variable}: {path!r} cannot be read: {type(error).__name__}: {error}") from None
    for name in entries:
        if not all(name.partition(":")):
            raise InvalidInput(
                f"{variable}: {name[:100]!r} in {path!r} is not PROVIDER:MODEL, as in vllm:qwen3 or vllm:*"
            )
    return {name.lower(): entry for name, entry in entries.items()}


def _find_own(entries: Mapping[str, E], name: str) -> E | None:
    """Find the entry of a model: the one of its name, or else the one with the longest beginning of it."""
    name = name.lower()
    if name in entries:
        return entries[name]
    fitting = [pattern for pattern in entries if pattern.endswith("*") and name.startswith(pattern[:-1])]
    return entries[max(fitting, key=len)] if fitting else None


def find_family(name: str, own: OwnModels = NO_OWN_MODELS) -> Family | None:
    """Find the family of `provider:model`; None: neither the team's models nor the table have it."""
    if family := own.find_family(name):
        return family
    bare = get_bare_name(name)
    fitting = (family for family in FAMILIES if bare.startswith(family.prefix))
    return max(fitting, key=lambda family: len(family.prefix), default=None)


def find_taken_media(name: str, own: OwnModels = NO_OWN_MODELS) -> frozenset[MediaSort]:
    """Find what `provider:model` takes of images, recordings and files; nothing if its name is not known."""
    if (taken := own.find_taken(name)) is not None:
        return taken
    bare = name.partition(":")[2].lower().rpartition("/")[2]
    return next((taken for pattern, taken in _TAKEN if pattern.match(bare)), frozenset())


def choose_encoding(name: str, own: OwnModels = NO_OWN_MODELS) -> EncodingName:
    """Choose the encoding that `provider:model` is counted in; an estimate if its own is not known."""
    family = find_family(name, own)
    return family.encoding if family else "o200k_base"


def choose_policy(name: str, own: OwnModels = NO_OWN_MODELS) -> ContextPolicy:
    """Choose a complete policy for `provider:model`, in epochs. An unknown model gets the default sizes."""
    epochs, family = ContextPolicy(window="epoch"), find_family(name, own)
    if family is None:
        return epochs.complete()
    reserved = min(family.window // 4, MOST_RESERVED, family.output or MOST_RESERVED)
    sizes = ContextPolicy(max_input_tokens=family.window, reserve_output_tokens=reserved, keep_last_turns=10)
    return epochs.overlay(sizes).complete()


def find_prices(name: str, own: OwnModels = NO_OWN_MODELS) -> Prices:
    """Find the current prices of `provider:model`; empty: they are neither in `own` nor in the library.

    If the library does not know the provider, such as an own gateway, the prices of the model's maker are used.
    """
    if own_price := own.find_price(name):
        return (own_price,)
    return _find_listed_prices(name, int(time.time() // PRICES_SECONDS))


@lru_cache(maxsize=256)
def _find_listed_prices(name: str, _period: int) -> Prices:
    """Find the library's prices, once in a period: it takes a third of a millisecond, and each model call asks."""
    provider, _, model = name.partition(":")
    price = _find_model_price(model, provider)
    # A model with a price for each request costs more than its tokens.
    if price is None or price.input_mtok is None or price.output_mtok is None or price.requests_kcount is not None:
        return ()
    units = (
        *(price.input_mtok, price.output_mtok, price.cache_read_mtok, price.cache_write_mtok),
        *(price.cache_write_1h_mtok, price.web_searches_kcount),
    )
    starts = {tier.start for unit in units if isinstance(unit, TieredPrices) for tier in unit.tiers}
    return tuple(_make_price(start, price) for start in sorted({-1} | starts))


def load_prices() -> None:
    """Load the library's data, which takes about 0.2 s."""
    find_prices("openai:gpt-4o")


def _find_model_price(model: str, provider: str | None) -> ModelPrice | None:
    """Find the library's prices of a model: those of its provider, or else of its maker."""
    try:
        get_snapshot().find_provider(None, provider, None)
    except LookupError:
        provider, model = None, model.rpartition("/")[2]
    try:
        return calc_price(Usage(), model, provider_id=provider).model_price
    except LookupError:
        return None


def _make_price(start: int, price: ModelPrice) -> Price:
    """Make the prices of calls with more input tokens than `start`."""
    return Price(
        input=_find_unit_price(price.input_mtok, start) or 0.0,
        output=_find_unit_price(price.output_mtok, start) or 0.0,
        cached_input=_find_unit_price(price.cache_read_mtok, start),
        written_input=_find_unit_price(price.cache_write_mtok, start),
        long_written_input=_find_unit_price(price.cache_write_1h_mtok, start),
        searches=_find_unit_price(price.web_searches_kcount, start),
        above=start,
    )


def _find_unit_price(price: Decimal | TieredPrices | None, start: int) -> float | None:
    if isinstance(price, TieredPrices):
        steps = [tier.price for tier in price.tiers if tier.start <= start]
        price = steps[-1] if steps else price.base
    return None if price is None else float(price)
