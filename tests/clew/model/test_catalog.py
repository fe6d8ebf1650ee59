"""What is known of the common model families."""

from __future__ import annotations

import re

import pytest

from clew.contract.policy import ContextPolicy, resolve
from clew.model.canonical import digest
from clew.model.catalog import EDITION, MODELS, cost_usd, encoding_of, model_of, window_of
from clew.model.tokens import ENCODINGS
from clew.outcomes import Usage

FIRST = {
    "claude-": 200_000,
    "gpt-5-chat": 128_000,
    "gpt-5": 272_000,
    "gpt-4.1": 1_047_576,
    "gpt-4o": 128_000,
    "gpt-4-turbo": 128_000,
    "gpt-4": 8_192,
    "gpt-3.5-turbo": 16_385,
    "chatgpt-4o": 128_000,
    "o1-mini": 128_000,
    "o1-preview": 128_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "llama3.1": 128_000,
    "llama3.2": 128_000,
    "llama3.3": 128_000,
    "mistral-large": 128_000,
    "qwen2.5": 32_768,
    "qwen3": 32_768,
    "deepseek-": 128_000,
    "smollm2": 8_192,
}
RELEASED: dict[int, str] = {}
"""The digests of the editions after the first that were released: add the newest one with every release."""


def edition(number: int) -> list[list[object]]:
    """What workflow code reads of an edition."""
    return [[model.family, model.window, model.output] for model in MODELS if model.since == number]


def test_what_was_released_never_changes() -> None:
    """Sessions look their requests' own models up when they replay: another answer would make another thread."""
    assert edition(0) == [[family, window, None] for family, window in FIRST.items()]
    for number, known in RELEASED.items():
        assert digest(edition(number)) == known, f"edition {number} is released: add lines to a new one"
    assert {model.since for model in MODELS} == set(range(EDITION + 1))


def test_the_first_edition_is_the_policy_of_the_first_release() -> None:
    """Sessions begun under it go on with sliding windows of the numbers that they began with."""
    for family, window in FIRST.items():
        expected = ContextPolicy(
            max_input_tokens=window, reserve_output_tokens=min(window // 4, 8192), keep_last_turns=10
        )
        policy = ContextPolicy.for_model(f"any:{family}", edition=0)
        assert (policy, policy.model_fields_set) == (expected, expected.model_fields_set)
    unknown = ContextPolicy.for_model("openai:unheard-of", edition=0)
    assert (unknown, unknown.model_fields_set) == (ContextPolicy(), set())


@pytest.mark.parametrize("model", MODELS, ids=lambda model: f"{model.family}-{model.since}")
def test_every_line_is_usable(model: object) -> None:
    """Sizes are positive, encodings exist, input costs less than output and cached input less than other input."""
    assert isinstance(model, type(MODELS[0]))
    assert model.family == model.family.lower()
    assert model.encoding in ENCODINGS
    assert model.output is None or 0 < model.output <= model.window
    policy = resolve(agent=ContextPolicy.for_model(f"any:{model.family}"))
    assert policy.budget >= model.window // 2 or model.since == 0
    assert policy.reserve_output_tokens <= (model.output or 8192)
    if prices := model.prices:
        assert 0 < (prices.cached or 0) < prices.input <= prices.output or prices.cached is None
        assert prices.written is None or prices.written > prices.input


def test_no_line_hides_another() -> None:
    """Of an edition no family stands there twice."""
    for number in range(EDITION + 1):
        families = [model.family for model in MODELS if model.since == number]
        assert len(set(families)) == len(families)


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("openai:gpt-4o-mini-2024-07-18", "gpt-4o-mini"),
        ("openai:gpt-4", "gpt-4"),
        ("openai:gpt-5.9-preview", "gpt-5."),
        ("anthropic:claude-sonnet-4-5-20250929", "claude-sonnet-4"),
        ("anthropic:claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("router:anthropic/Claude-Opus-5-5", "claude-opus-5-5"),
        ("openai:unheard-of", None),
        ("gpt-4o", None),
    ],
)
def test_the_longest_family_is_the_models(name: str, family: str | None) -> None:
    """Whatever stands first in the table; upper case and a path in front do not matter."""
    found = model_of(name)
    assert (found.family if found else None) == family


def test_an_edition_knows_what_it_knew() -> None:
    """A later line is not found in an earlier edition, and wins over an older line of the same family."""
    name = "anthropic:claude-opus-4-6"
    first = model_of(name, 0)
    assert first
    assert (first.window, window_of(name)) == (200_000, 1_000_000)
    newest = model_of("openai:gpt-4o")
    assert newest
    assert newest.since == EDITION


def test_encodings() -> None:
    """The families that OpenAI counts in `cl100k_base` are; all others are counted or estimated in `o200k_base`."""
    older = {model.family for model in MODELS if model.encoding == "cl100k_base"}
    assert older
    assert all(re.match(r"gpt-(4-|4$|3\.5)", family) for family in older)
    assert encoding_of("openai:gpt-4-0613") == "cl100k_base"
    assert encoding_of("openai:gpt-4o") == encoding_of("local:unheard-of") == "o200k_base"


@pytest.mark.parametrize(
    ("name", "usage", "dollars"),
    [
        ("openai:gpt-4o", Usage(input_tokens=1_000_000, output_tokens=1_000_000), 12.5),
        ("openai:gpt-4o", Usage(input_tokens=1_000_000, cached_input_tokens=400_000), 2.0),
        ("openai:gpt-4", Usage(input_tokens=1_000_000, cached_input_tokens=400_000), 30.0),
        (
            "anthropic:claude-sonnet-4-5",
            Usage(input_tokens=1_000_000, cached_input_tokens=500_000, written_input_tokens=400_000),
            0.3 + 0.15 + 1.5,
        ),
        ("openai:gpt-4o", Usage(), 0.0),
        ("local:smollm2", Usage(input_tokens=5), None),
        ("openai:unheard-of", Usage(input_tokens=5), None),
    ],
)
def test_what_a_usage_costs(name: str, usage: Usage, dollars: float | None) -> None:
    """Cached and written tokens are part of the input and have prices of their own; what is not known is not 0."""
    cost = cost_usd(name, usage)
    assert cost == (None if dollars is None else pytest.approx(dollars))


def test_what_some_providers_tell_adds_up_over_those_that_do() -> None:
    """A sum knows what either part knows; what neither knows is not 0, and does not travel."""
    some, more = Usage(written_input_tokens=3, cost_usd=0.5), Usage(input_tokens=9)
    assert some.plus(more) == more.plus(some) == Usage(input_tokens=9, written_input_tokens=3, cost_usd=0.5)
    assert some.plus(some).cost_usd == 1.0
    assert set(more.plus(more).as_json()) == {"input_tokens", "output_tokens", "cached_input_tokens", "model_calls"}
