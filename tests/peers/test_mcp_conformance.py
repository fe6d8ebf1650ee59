"""The conformance suite of MCP, with the server of `clew serve` and with the client of the worker.

The files beside this one name the checks that do not apply, each with its reason. A run fails for any other failure,
and for a named check that passes.
"""

from __future__ import annotations

import asyncio
import os
import shlex
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI, Request, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from clew_activities.tools.mcp.mcp_settings import HttpSettings, McpSettings, McpUnavailable
from clew_activities.tools.mcp.mcp_tools import McpTools
from tests.support import web
from tests.support.npm import NODE, install_packages
from tests.support.serving import Served
from tests.support.serving_chats import run_shop
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS, wait_until

SUITE = Path(__file__).with_name("mcp_conformance")
VERSIONS = ("2025-11-25", "2026-07-28")
SCENARIO_MILLISECONDS = 30_000
"""Milliseconds that a scenario may take."""
LISTENING = ("sse-retry",)
"""Scenarios whose server takes any stream that begins after a call for the call's second attempt.

The client opens its own stream beside its first calls, so that on a busy machine it may begin after one.
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the suite. Skipped where npm cannot."""
    folder = tmp_path_factory.mktemp("mcp_conformance")
    install_packages(SUITE, folder)
    return folder


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> set[httpx2.URL]:
    """Where the client's own streams are open: those that bring what answers no call."""
    opened: set[httpx2.URL] = set()
    send = httpx2.AsyncHTTPTransport.handle_async_request

    async def send_and_record(transport: httpx2.AsyncHTTPTransport, request: httpx2.Request) -> httpx2.Response:
        response = await send(transport, request)
        if request.method == "GET":
            opened.add(request.url)
        return response

    monkeypatch.setattr(httpx2.AsyncHTTPTransport, "handle_async_request", send_and_record)
    return opened


async def run_suite(suite: Path, side: str, version: str, *arguments: str) -> None:
    """Run the scenarios of a side, `server` or `client`, in a version of the protocol."""
    program = suite / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    process = await asyncio.create_subprocess_exec(
        NODE, program, side, *arguments, "--suite", "all", "--spec-version", version,
        "--timeout", str(SCENARIO_MILLISECONDS), "--expected-failures", suite / f"{side}-{version}.yml",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=suite,
    )  # fmt: skip
    try:
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            printed, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, printed.decode().partition("=== SUMMARY ===")[2] or printed.decode()


class WithKey:
    """The service for clients that send no key: it adds one to each request."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self.state = served.app.state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            key = (b"authorization", f"Bearer {self._served.token}".encode())
            scope = {**scope, "headers": [*scope["headers"], key]}
        await self._served.app(scope, receive, send)


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_server_conforms(stack: Stack, suite: Path, version: str) -> None:
    """Scenarios that call tools of the suite's own server, or use what `clew serve` does not have, do not apply."""
    async with run_shop(stack, "shop") as served:
        app: Any = WithKey(served)
        async with web.serve(app, served.app.state.clew) as host:
            await run_suite(suite, "server", version, "--url", f"http://{host}/v1/mcp")


@pytest.mark.parametrize("version", VERSIONS)
async def test_the_client_conforms(suite: Path, streams: set[httpx2.URL], version: str) -> None:
    """The client has no OAuth, and gives servers no input."""

    async def run_scenario(request: Request) -> Response:
        body = await request.json()
        try:
            opened = streams if body["scenario"] in LISTENING else None
            return Response(await use_tools(body["url"], body["context"], opened))
        except McpUnavailable as error:
            return Response(str(error), 502)

    app = FastAPI(routes=[Route("/run", run_scenario, methods=["POST"])])
    async with web.serve(app) as host:
        command = shlex.join([os.fspath(NODE), os.fspath(suite / "client.mjs"), f"http://{host}/run"])
        await run_suite(suite, "client", version, "--command", command)


async def use_tools(url: str, context: Any, opened: set[httpx2.URL] | None) -> str:
    """Call the tools of a server: those that the scenario names, or each once. Returns what they answer.

    opened: Where streams are open. The calls begin when the client's own stream is; without the set, at once.
    """
    tools = McpTools(McpSettings({"peer": HttpSettings(url=url)}))
    answers: list[str] = []
    try:
        by_name = {tool.tool: tool for tool in await tools.select("mcp:peer/*")}
        if opened is not None:
            await wait_until(lambda: httpx2.URL(url) in opened)
        listed = (await tools._servers["peer"].list_tools()).tools
        schemas = {name: listed[name]["inputSchema"] for name in by_name}
        calls = context.get("toolCalls") or [
            {"name": name, "arguments": make_arguments(schema, schemas)} for name, schema in schemas.items()
        ]
        for call in calls:
            try:
                answers.append(str(await tools.call(by_name[call["name"]], call["arguments"])))
            except McpUnavailable as error:
                answers.append(str(error))
    finally:
        await tools.close()
    return "\n".join(answers)


def make_arguments(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    """Make arguments that a schema requires. One with the name `schema` is the schema of the first tool."""
    values = {"number": 2, "integer": 2, "boolean": True, "array": [], "object": {}}
    properties = schema.get("properties", {})
    return {
        name: next(iter(schemas.values())) if name == "schema" else values.get(properties[name].get("type"), "text")
        for name in schema.get("required", ())
    }
