"""The page on models: its gateway is one that a worker reaches, with the header and the prices; its Python runs."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl

import httpx
import pytest

from clew import Agent
from clew.local.child import LOOPBACK
from clew.testing import stack
from clew_activities.model.model_table import find_prices, find_taken_media, read_own_models
from clew_activities.providers import Providers, load_providers, make_http_client
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.google.provider import Google
from clew_activities.providers.http import HttpSettings, stream
from clew_activities.providers.loading import MAX_HEADERS, MAX_HEADERS_BYTES
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.provider_errors import ProviderUnavailable, Unauthorized
from clew_activities.providers.reply import RedactedDecoder
from docs.generate import DOCS
from tests.providers.dialects import DIALECTS
from tests.providers.strict_server import Exchange, Refusal, Turn, run_strict_servers
from tests.support.page_code import find_block, list_blocks
from tests.support.provider_server import make_request

PAGE = (DOCS / "models.md").read_text(encoding="utf-8")
KEY, GATEWAY_KEY, COMPANY_SECRET = "key-of-the-tests", "gw-81b2c7d09f", "secret-of-the-company"
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
    return await send(client, load_providers(variables), "gateway")


async def send(client: httpx.AsyncClient, providers: Providers, name: str) -> RedactedDecoder:
    """Send a request to a provider of a worker."""
    provider, request = providers.get(name), replace(make_request(), model=LITELLM.model)
    decoder = RedactedDecoder(provider.make_decoder(request), providers.redaction)
    await stream(client, provider, request, decoder, settings=HttpSettings(), now=lambda: 0.0)
    return decoder


@dataclass
class TokenServer:
    """A server of the company that gives tokens for the secret.

    Attributes:
        url: Where it gives them.
        status: What it answers with.
        forms: What it was sent, in order.
    """

    url: str
    status: int = 200
    forms: list[dict[str, str]] = field(default_factory=list)


@contextmanager
def run_token_server() -> Iterator[TokenServer]:
    """Run the server on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.forms.append(dict(parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode())))
            answer = json.dumps({"access_token": KEY, "expires_in": 3600}).encode()
            self.send_response(server.status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any, **__: Any) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as running:
        server = TokenServer(f"http://{LOOPBACK}:{running.server_address[1]}/oauth2/token")
        Thread(target=running.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            running.shutdown()


async def test_a_token_that_expires_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's provider gets it for the secret, which the gateway never sees. Without a token a call is retried."""
    async with run_strict_servers([LITELLM]) as servers, make_http_client() as client:
        server = servers["litellm"]
        with run_token_server() as tokens:
            code = find_block("models.md", "class Company").replace("https://llm.example.com/v1", server.url)
            code = code.replace("https://login.example.com/oauth2/token", tokens.url)
            module = f"providers_{uuid.uuid4().hex}"
            (tmp_path / f"{module}.py").write_text(code)
            monkeypatch.syspath_prepend(tmp_path)
            providers = load_providers({"CLEW_PROVIDERS": module, "COMPANY_SECRET": COMPANY_SECRET})
            tokens.status = 503
            with pytest.raises(ProviderUnavailable, match="no access token"):
                await send(client, providers, "company")
            tokens.status = 200
            server.play(Turn("It is shipped."), Turn("It has arrived."))
            assert (await send(client, providers, "company")).text == "It is shipped."
            assert (await send(client, providers, "company")).text == "It has arrived."
            server.check()
            refused, *answered = tokens.forms
            assert answered == [refused]
            assert (refused["client_id"], refused["client_secret"]) == ("clew", COMPANY_SECRET)
            assert COMPANY_SECRET not in str([exchange.headers for exchange in server.exchanges])


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
