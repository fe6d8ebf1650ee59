from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import genai_prices
import pytest
from genai_prices import calc_price

from clew.errors import InvalidInput
from clew_activities.model.model_table import (
    FAMILIES,
    MOST_RESERVED,
    Family,
    OwnModels,
    choose_encoding,
    choose_policy,
    find_family,
    find_prices,
    find_taken_media,
    read_own_models,
)
from clew_activities.model.prepare import make_profile
from clew_workflows.contract.outcomes import Usage, compute_cost_usd
from clew_workflows.contract.policy import ContextPolicy, resolve
from clew_workflows.contract.tokens import ENCODINGS


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.prefix)
def test_every_line_is_usable(family: Family) -> None:
    """Sizes are positive, encodings exist, and the policy leaves most of the window to the context."""
    assert family.prefix == family.prefix.lower()
    assert family.encoding in ENCODINGS
    assert family.output is None or 0 < family.output <= family.window
    policy = resolve(agent=choose_policy(f"any:{family.prefix}"))
    assert policy.budget >= family.window // 2
    assert policy.reserve_output_tokens <= (family.output or MOST_RESERVED)


def test_no_line_hides_another() -> None:
    """No prefix is in the table twice."""
    prefixes = [family.prefix for family in FAMILIES]
    assert len(set(prefixes)) == len(prefixes)


def test_every_line_says_something() -> None:
    """One that tells nothing else than the family that it would fall to is not needed."""
    for family in FAMILIES:
        others = [other for other in FAMILIES if other is not family and family.prefix.startswith(other.prefix)]
        if others:
            above = max(others, key=lambda other: len(other.prefix))
            known = (above.window, above.output, above.encoding)
            assert known != (family.window, family.output, family.encoding), family.prefix


@pytest.mark.parametrize(
    ("name", "prefix"),
    [
        ("openai:gpt-4o-mini-2024-07-18", "gpt-4o"),
        ("openai:gpt-4", "gpt-4"),
        ("openai:gpt-5.4-mini", "gpt-5.4-mini"),
        ("openai:gpt-5.9-preview", "gpt-5"),
        ("anthropic:claude-sonnet-4-5-20250929", "claude-"),
        ("anthropic:claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("router:anthropic/Claude-Opus-5-5", "claude-opus-5"),
        ("bedrock:us.anthropic.claude-sonnet-4-6", "claude-sonnet-4-6"),
        ("bedrock:arn:aws:bedrock:us-east-1:1:inference-profile/eu.amazon.nova-pro-v1:0", "nova-pro"),
        ("openai:unheard-of", None),
        ("gpt-4o", None),
    ],
)
def test_the_longest_family_is_the_models(name: str, prefix: str | None) -> None:
    """The longest family wins, in any order of the table; case and a path in front make no difference."""
    family = find_family(name)
    assert (family.prefix if family else None) == prefix


def test_encodings() -> None:
    """The families that OpenAI counts in `cl100k_base` are; all others are counted or estimated in `o200k_base`."""
    older = {family.prefix for family in FAMILIES if family.encoding == "cl100k_base"}
    assert older
    assert all(re.match(r"gpt-(4-|4$|3\.5)", prefix) for prefix in older)
    assert choose_encoding("openai:gpt-4-0613") == "cl100k_base"
    assert choose_encoding("openai:gpt-4o") == choose_encoding("local:unheard-of") == "o200k_base"


@pytest.mark.parametrize(
    ("model", "window", "reserved"),
    [
        ("anthropic:claude-haiku-4-5", 200_000, 8192),
        ("anthropic:claude-opus-4-6", 1_000_000, 8192),
        ("openai:gpt-4o-mini", 128_000, 8192),
        ("openai:gpt-4-turbo", 128_000, 4096),
        ("openai:gpt-4", 8_192, 2048),
        ("openai:gpt-5-mini", 272_000, 8192),
        ("openai:o1", 200_000, 8192),
        ("local:smollm2", 8_192, 2048),
        ("ollama:llama3.1:8b", 128_000, 8192),
        ("router:openai/GPT-4o", 128_000, 8192),
    ],
)
def test_a_known_models_policy_fits_its_window(model: str, window: int, reserved: int) -> None:
    """In epochs, with room for a reply; every field is set, so that no other default can show through."""
    policy = choose_policy(model)
    assert (policy.max_input_tokens, policy.reserve_output_tokens, policy.window) == (window, reserved, "epoch")
    assert policy.model_fields_set == set(ContextPolicy.model_fields)


def test_an_unknown_model_gets_the_default_sizes() -> None:
    assert choose_policy("openai:unheard-of") == choose_policy("smollm2") == ContextPolicy(window="epoch")


def read_files(folder: Path, models: Any = None, prices: Any = None) -> OwnModels:
    """Read files with these contents; None: there is no such file."""
    environ = {}
    for variable, content in (("CLEW_MODELS", models), ("CLEW_PRICES", prices)):
        if content is not None:
            environ[variable] = str(folder / f"{variable}.json")
            Path(environ[variable]).write_text(content if isinstance(content, str) else json.dumps(content))
    return read_own_models(environ)


def test_ones_own_models_win_over_the_table(tmp_path: Path) -> None:
    """A name, or the longest beginning of it with a `*`; case makes no difference. Others are as in the table."""
    own = read_files(
        tmp_path,
        models={
            "gate:*": {"window": 1_000},
            "gate:House-*": {"window": 50_000, "output": 2_000, "encoding": "cl100k_base"},
            "openai:gpt-4o": {"window": 60_000},
        },
    )
    profile = make_profile("gate:house-2", own)
    assert profile.policy is not None
    assert (profile.policy.max_input_tokens, profile.policy.reserve_output_tokens) == (50_000, 2_000)
    assert profile.encoding == "cl100k_base"
    windows = {
        name: choose_policy(name, own).max_input_tokens for name in ("gate:other", "openai:gpt-4o", "x:gpt-4o")
    }
    assert windows == {"gate:other": 1_000, "openai:gpt-4o": 60_000, "x:gpt-4o": 128_000}
    assert resolve(agent=choose_policy("gate:other", own)).budget > 0


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        ("openai:gpt-5.6-sol", {"image", "pdf", "text"}),
        ("openai:gpt-audio", {"audio", "text"}),
        ("openai:o3-mini", {"text"}),
        ("bedrock:us.anthropic.claude-sonnet-4-5-20250929-v1:0", {"image", "pdf", "text"}),
        ("bedrock:amazon.nova-micro-v1:0", {"text"}),
        ("openrouter:google/gemini-3-pro-preview", {"audio", "image", "pdf", "text"}),
        ("vllm:Qwen/Qwen2.5-VL-7B-Instruct", {"image", "text"}),
        ("groq:meta-llama/llama-4-scout-17b-16e-instruct", {"image", "text"}),
        ("glm:glm-4.5v", {"image", "text"}),
        ("glm:glm-4.6", {"text"}),
        ("deepseek:deepseek-v4-pro", {"text"}),
        ("mine:house-blend", set()),
    ],
)
def test_a_models_name_says_what_it_takes(model: str, taken: set[str]) -> None:
    """A model that is not known takes nothing: a server that refuses an image would refuse every later call, too."""
    assert find_taken_media(model) == taken


def test_ones_own_models_say_what_they_take(tmp_path: Path) -> None:
    """A file may say more or less than the table; where it says nothing, the table does."""
    models: dict[str, Any] = {
        "gate:*": {"window": 1_000, "takes": ["image", "audio"]},
        "openai:gpt-4o": {"window": 1_000, "takes": []},
        "openai:gpt-4.1": {"window": 1_000},
    }
    own = read_files(tmp_path, models=models)
    assert find_taken_media("gate:other", own) == {"image", "audio"}
    assert find_taken_media("openai:gpt-4o", own) == set()
    assert "pdf" in find_taken_media("openai:gpt-4.1", own)
    with pytest.raises(InvalidInput, match=r"gate:\*\.takes"):
        read_files(tmp_path, models={"gate:*": {"window": 1, "takes": ["video"]}})


def test_ones_own_prices_win_over_list_prices(tmp_path: Path) -> None:
    """In USD per million tokens. A price of 0 is one."""
    own = read_files(
        tmp_path, prices={"local:*": {"input": 0, "output": 0}, "openai:gpt-4o": {"input": 3, "output": 4.5}}
    )
    spent = Usage(input_tokens=1_000_000, output_tokens=2_000_000)
    costs = {name: compute_cost_usd(find_prices(name, own), spent) for name in ("local:tiny", "openai:gpt-4o", "x:y")}
    assert costs == {"local:tiny": 0, "openai:gpt-4o": 12, "x:y": None}


def test_without_files_there_is_only_the_table() -> None:
    """The variables may be absent or empty."""
    assert read_own_models({}) == read_own_models({"CLEW_MODELS": "", "CLEW_PRICES": " "}) == OwnModels()


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        {"gpt-4o": {"input": 1, "output": 1}},
        {"openai:": {"input": 1, "output": 1}},
        {"a:b": {"input": 1}},
        {"a:b": {"input": -1, "output": 1}},
        {"a:b": {"input": "1", "output": 1}},
        {"a:b": {"input": 1, "output": 1, "inptu": 1}},
        '{"a:b": {"input": Infinity, "output": 1}}',
    ],
    ids=repr,
)
def test_a_file_that_is_not_valid_is_refused(tmp_path: Path, content: Any) -> None:
    """With the variable, the file, and what is wrong in it."""
    with pytest.raises(InvalidInput, match="CLEW_PRICES"):
        read_files(tmp_path, prices=content)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A file with sizes that are not valid is refused, too."""
    with pytest.raises(InvalidInput, match="CLEW_MODELS"):
        read_own_models({"CLEW_MODELS": str(tmp_path / "none.json")})
    with pytest.raises(InvalidInput, match=r"a:b\.window"):
        read_files(tmp_path, models={"a:b": {"window": 0}})
    with pytest.raises(InvalidInput, match="CLEW_MODELS: 'a:b': unknown encoding 'gpt2'"):
        read_files(tmp_path, models={"a:b": {"window": 1, "encoding": "gpt2"}})


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


def test_prompts_cached_for_an_hour_and_searches_cost_what_the_library_says() -> None:
    """A search is priced apart from its tokens; a model without a price of searches pays for tokens alone."""
    usage = Usage(input_tokens=1000, written_input_tokens=900, long_written_input_tokens=600, output_tokens=10)
    theirs = genai_prices.Usage(
        input_tokens=1000, cache_write_tokens=900, cache_write_1h_tokens=600, output_tokens=10, web_searches=3
    )
    expected = calc_price(theirs, "claude-opus-5-5", provider_id="anthropic").total_price
    prices = find_prices("anthropic:claude-opus-5-5")
    assert compute_cost_usd(prices, usage, 3) == pytest.approx(float(expected))
    cost = compute_cost_usd(prices, usage)
    assert cost is not None
    assert float(expected) - cost == pytest.approx(0.03)
    local = find_prices("groq:llama-3.3-70b-versatile")
    assert compute_cost_usd(local, usage, 3) == compute_cost_usd(local, usage)


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
