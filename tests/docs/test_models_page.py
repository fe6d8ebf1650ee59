"""The page on models: its gateway is one that a worker reaches, with the header and the prices; its Python runs."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from clew import Agent
from clew.testing import stack
from clew_activities.model.model_table import find_prices, find_taken_media, read_own_models
from clew_activities.providers import load_providers, make_http_client
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.google.provider import Google
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.loading import MAX_HEADERS, MAX_HEADERS_BYTES
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.provider_errors import Unauthorized
from clew_activities.providers.reply import RedactedDecoder
from docs.generate import DOCS
from tests.providers.dialects import DIALECTS
from tests.providers.strict_server import Exchange, Refusal, Turn, run_strict_servers
from tests.support.page_code import list_blocks
from tests.support.provider_server import make_request

PAGE = (DOCS / "models.md").read_text(encoding="utf-8")
KEY, GATEWAY_KEY = "key-of-the-tests", "gw-81b2c7d09f"
(LITELLM,) = [row for row in DIALECTS if row.name == "litellm"]


def read_variables(containing: str) -> dict[str, str]:
    """Read the variables of the block that contains a text, with the tests' keys for those that are left out."""
    (block,) = [block for block in list_blocks("models.md", "sh") if containing in block]
    lines = map(shlex.split, block.replace("\\\n", "").splitlines())
    pairs = dict(word.split("=", 1) for command, *words in lines if command == "export" for word in words)
    return {name: value.replace('"…"', f'"{GATEWAY_KEY}"').replace("…", KEY) for name, value in pairs.items()}


def demand_header(exchange: Exchange) -> Iterator[Refusal]:
    """Refuse requests without the gateway's own key."""
    if exchange.headers.get("x-gateway-key") != GATEWAY_KEY:
        yield Refusal(f"no access with {exchange.headers.get('x-gateway-key')}", status=401)


async def test_the_gateway_of_the_page_is_reached_with_its_header() -> None:
    """A strict server refuses all but the page's variables make it send; without the header it is no reply."""
    variables = read_variables("CLEW_PROVIDER_GATEWAY_HEADERS")
    gateway = replace(LITELLM, rules=(*LITELLM.rules, demand_header))
    async with run_strict_servers([gateway]) as servers, make_http_client() as client:
        server = servers["litellm"]
        variables["CLEW_PROVIDER_GATEWAY_BASE_URL"] = server.url
        server.play(Turn("It is shipped."))
        assert (await ask(client, variables)).text == "It is shipped."
        server.check()
        assert server.exchanges[-1].headers["x-team"] == "support"
        server.play(Turn("never"))
        other = variables | {"CLEW_PROVIDER_GATEWAY_HEADERS": '{"X-Gateway-Key": "another-4711"}'}
        with pytest.raises(Unauthorized, match=r"no access with \[redacted\]"):
            await ask(client, other)


async def ask(client: httpx.AsyncClient, variables: dict[str, str]) -> RedactedDecoder:
    """Send a request to the gateway as a worker does."""
    providers = load_providers(variables)
    provider, request = providers.get("gateway"), replace(make_request(), model=LITELLM.model)
    decoder = RedactedDecoder(provider.make_decoder(request), providers.redaction)
    await stream(client, provider, request, decoder, settings=HttpSettings(), now=lambda: 0.0)
    return decoder


def test_the_files_have_sizes_and_prices(tmp_path: Path) -> None:
    """A worker reads both, and the agents of the page name their models."""
    sizes, prices = list_blocks("models.md", "json")
    variables = read_variables("CLEW_PROVIDER_GATEWAY_HEADERS")
    (tmp_path / variables["CLEW_MODELS"]).write_text(sizes)
    (tmp_path / variables["CLEW_PRICES"]).write_text(prices)
    own = read_own_models({name: str(tmp_path / variables[name]) for name in ("CLEW_MODELS", "CLEW_PRICES")})
    (model,) = [name for name in json.loads(sizes) if "*" not in name]
    family, (price,) = own.find_family(model), find_prices(model, own)
    assert family is not None
    assert (family.window, family.output) == (128_000, 8192)
    assert sorted(find_taken_media(model, own)) == ["image", "pdf"]
    assert (price.input, price.output) == (0.5, 1.5)
    assert own.find_family("gateway:small-7b") is not None
    agents = [block for block in list_blocks("models.md", "python") if "Agent(" in block]
    for block in agents:
        names: dict[str, Any] = {}
        exec(block, names)
        assert isinstance(names["support"], Agent)
    assert model in agents[-1]


@pytest.mark.parametrize(
    ("containing", "name", "kind"),
    [
        ("CLEW_PROVIDER_AZURE_BASE_URL", "azure", Responses),
        ("CLEW_PROVIDER_DEEPSEEK_BASE_URL", "deepseek", Anthropic),
        ("GOOGLE_ACCESS_TOKEN", "google", Google),
    ],
)
def test_other_variables_make_the_providers_that_the_page_says(containing: str, name: str, kind: type) -> None:
    assert isinstance(load_providers(read_variables(containing)).get(name), kind)


async def test_the_sessions_of_the_page_open() -> None:
    """Their options are valid, and the loops over a reply's calls and sources read what a reply has."""
    options, searches = [block for block in list_blocks("models.md", "python") if "clew.open(" in block]
    async with stack() as running:
        for number, block in enumerate((options, searches)):
            code = re.sub(r'model="[^"]*"', f'model="{running.model(lambda _: "In Assam.")}"', block)
            names: dict[str, Any] = {}
            code = code.replace("research-7", f"research-{number}")
            exec(f"async def run(clew):\n{textwrap.indent(code, '    ')}", names)
            await names["run"](running.clew)


def test_the_limits_of_headers_are_those_of_the_code() -> None:
    assert f"more than {MAX_HEADERS} headers or {MAX_HEADERS_BYTES // 1024} KiB" in " ".join(PAGE.split())
