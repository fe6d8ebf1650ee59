"""List prices, by the library that keeps them."""

from __future__ import annotations

import subprocess
import sys

import genai_prices
import pytest
from genai_prices import calc_price

from clew_activities.model.model_table import find_prices
from clew_workflows.contract.outcomes import Usage, compute_cost_usd

OFFLINE = """
import sys, threading

def refuse(event, args):
    assert not event.startswith("socket.") or event in ("socket.gethostname", "socket.__new__"), (event, args)

sys.addaudithook(refuse)
from clew_activities.model.model_table import load_prices, find_prices
load_prices()
assert find_prices("openai:gpt-4o")
assert threading.active_count() == 1
"""
USAGES = (
    Usage(input_tokens=10_000, output_tokens=1_000),
    Usage(input_tokens=10_000, cached_input_tokens=6_000, output_tokens=1_000),
    Usage(input_tokens=10_000, cached_input_tokens=6_000, written_input_tokens=3_000),
    Usage(input_tokens=300_000, cached_input_tokens=100_000, written_input_tokens=50_000, output_tokens=9),
)


@pytest.mark.parametrize("usage", USAGES)
@pytest.mark.parametrize(
    ("provider", "model"),
    [
        ("openai", "gpt-4o"),
        ("openai", "gpt-4o-mini-2024-07-18"),
        ("openai", "gpt-4"),
        ("openai", "gpt-5.4"),
        ("anthropic", "claude-sonnet-4-5-20250929"),
        ("anthropic", "claude-opus-5-5"),
        ("google", "gemini-2.5-pro"),
        ("groq", "llama-3.3-70b-versatile"),
    ],
)
def test_a_call_costs_what_the_library_says(provider: str, model: str, usage: Usage) -> None:
    """Cached and written tokens, and the higher prices of long prompts, are counted as it counts them."""
    theirs = genai_prices.Usage(
        input_tokens=usage.input_tokens,
        cache_read_tokens=usage.cached_input_tokens,
        cache_write_tokens=usage.written_input_tokens or 0,
        output_tokens=usage.output_tokens,
    )
    expected = calc_price(theirs, model, provider_id=provider).total_price
    assert expected > 0
    assert compute_cost_usd(find_prices(f"{provider}:{model}"), usage) == pytest.approx(float(expected))


@pytest.mark.parametrize("name", ["scripted:gpt-4o", "router:openai/GPT-4o"])
def test_a_provider_of_ones_own_is_taken_to_charge_what_the_maker_does(name: str) -> None:
    """A model's price is found by the model's name, behind any gateway."""
    assert find_prices(name) == find_prices("openai:gpt-4o")


@pytest.mark.parametrize(
    "name",
    [
        "openai:unheard-of",
        "local:smollm2",
        "local:llama3.1:8b",
        "groq:gpt-4o",
        "gpt-4o",
        "openai:",
        "openai:text-embedding-3-small",
        "perplexity:sonar",
    ],
)
def test_what_is_not_known_has_no_price(name: str) -> None:
    """Models without a list price per token have no price; open weights have none either."""
    assert find_prices(name) == ()


def test_nothing_is_fetched() -> None:
    """Prices are those that the library ships: no connection is made, and no thread watches for newer ones."""
    done = subprocess.run([sys.executable, "-c", OFFLINE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
