"""The page about approvals: its service asks in a channel, and a pressed button decides the call."""

from __future__ import annotations

import hmac
import json
import os
import re
import sys
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from clew import Agent, Clew, Request
from clew.errors import UnknownApproval
from clew.local import Reply, ToolCall
from clew.local.child import LOOPBACK, child_process
from docs.generate import DOCS
from tests.support.processes import ROOT
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.waiting import PATIENCE_SECONDS, wait_until, wait_until_listening
from tests.support.webhooks import SECRET, SETTINGS, find_free_port

PAGE = (DOCS / "approvals.md").read_text(encoding="utf-8")
AGENT, DECIDING, SERVICE = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
SIGNING_SECRET = "8f742231b10e8888abcd99yyyzzz85a5"


@dataclass
class Channel:
    """A stand-in for Slack: it takes messages, and presses their buttons.

    Attributes:
        url: Its address.
        posted: The messages that were posted, in order.
        answers: What was sent to the response URL of a pressed button.
    """

    url: str
    posted: list[dict[str, Any]] = field(default_factory=list)
    answers: list[dict[str, Any]] = field(default_factory=list)

    def find_buttons(self, message: int) -> dict[str, str]:
        """Find the values of a message's buttons by their actions, as Slack's rules for blocks allow them."""
        section, actions = self.posted[message]["blocks"]
        assert (section["type"], section["text"]["type"], actions["type"]) == ("section", "plain_text", "actions")
        assert 0 < len(section["text"]["text"]) <= 3000
        for button in actions["elements"]:
            assert (button["type"], button["text"]["type"]) == ("button", "plain_text")
            assert len(button["value"]) <= 2000
        return {button["action_id"]: button["value"] for button in actions["elements"]}

    def make_body(self, user: str, action: str, value: str) -> bytes:
        """Make the body of the request that Slack sends when a user presses a button."""
        payload = {
            "type": "block_actions",
            "user": {"id": user, "username": "ada"},
            "response_url": f"{self.url}/response",
            "actions": [{"type": "button", "action_id": action, "value": value}],
        }
        return urlencode({"payload": json.dumps(payload)}).encode()


@contextmanager
def run_channel() -> Iterator[Channel]:
    """Run the stand-in on a loopback port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            (channel.posted if self.path == "/services/T/B/X" else channel.answers).append(message)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"ok")

        def log_message(self, *_: Any, **__: Any) -> None:
            pass

    with ThreadingHTTPServer((LOOPBACK, 0), Handler) as server:
        channel = Channel(f"http://{LOOPBACK}:{server.server_address[1]}")
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield channel
        finally:
            server.shutdown()


def sign(body: bytes, secret: str = SIGNING_SECRET, age_seconds: int = 0) -> dict[str, str]:
    """Sign a request as Slack does."""
    sent_at = str(int(time.time()) - age_seconds)
    digest = hmac.new(secret.encode(), f"v0:{sent_at}:".encode() + body, "sha256").hexdigest()
    return {
        "Content-Type": "application/x-www-form-urlencoded",
        "X-Slack-Request-Timestamp": sent_at,
        "X-Slack-Signature": f"v0={digest}",
    }


@asynccontextmanager
async def run_service(stack: Stack, channel: Channel, port: int, folder: Path) -> AsyncIterator[httpx.AsyncClient]:
    """Run the page's service, as the page says."""
    (folder / "slack_approvals.py").write_text(SERVICE)
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / name) for name in ("client", "workflows")]),
        "TEMPORAL_ADDRESS": stack.server.address,
        "WEBHOOK_SECRET": SECRET,
        "SLACK_WEBHOOK_URL": f"{channel.url}/services/T/B/X",
        "SLACK_SIGNING_SECRET": SIGNING_SECRET,
        "SLACK_APPROVERS": "U024BE7LH U1",
    }
    (command,) = re.findall(r"^(uvicorn .*)$", PAGE, re.MULTILINE)
    words = [sys.executable, "-m", *command.replace("8080", str(port)).split()]
    async with (
        child_process("slack", words, env=environ, folder=folder),
        httpx.AsyncClient(base_url=f"http://{LOOPBACK}:{port}", timeout=PATIENCE_SECONDS) as http,
    ):
        await wait_until_listening(http)
        yield http


def script(body: dict[str, Any]) -> Reply:
    """Refund order 7, and say what came of it."""
    newest = get_last_message(body)
    if newest["role"] == "tool":
        return Reply(newest["content"])
    return Reply(tool_calls=[ToolCall("refund", {"order_id": 7})])


@asynccontextmanager
async def deploy(stack: Stack, hook: str) -> AsyncIterator[Clew]:
    """Run a worker with the page's agent, whose webhook is on this machine."""
    code = AGENT.replace("https://approvals.example.com/clew", hook)
    names: dict[str, Any] = {}
    exec(code.replace("openai:gpt-4o-mini", stack.add_model(script)), names)
    support = names["support"]
    assert isinstance(support, Agent)
    client = make_client(stack)
    async with run_deployment(stack, client, support, webhooks=SETTINGS):
        yield client


async def ask(client: Clew) -> Request:
    """Ask a new session for a refund."""
    session = await client.open(f"slack-{uuid.uuid4().hex}", agent="support")
    return await session.message("I want my money back.")


async def test_buttons_decide_calls(stack: Stack, tmp_path: Path) -> None:
    """Forged, old and foreign presses decide nothing. One approves a call, one denies another, and one is late."""
    port = find_free_port()
    with run_channel() as channel:
        async with (
            run_service(stack, channel, port, tmp_path) as http,
            deploy(stack, f"http://{LOOPBACK}:{port}/clew") as client,
        ):
            request = await ask(client)
            await wait_until(lambda: channel.posted)
            assert 'refund {"order_id": 7}' in channel.posted[0]["blocks"][0]["text"]["text"]
            buttons = channel.find_buttons(0)
            body = channel.make_body("U024BE7LH", "approve", buttons["approve"])
            assert (await http.post("/clew", content=b"{}")).status_code == 401
            for forged in ({}, sign(body, "another secret"), sign(body, age_seconds=400), sign(body + b"&")):
                assert (await http.post("/slack", content=body, headers=forged)).status_code == 401
            foreign = channel.make_body("U666", "approve", buttons["approve"])
            assert (await http.post("/slack", content=foreign, headers=sign(foreign))).status_code == 200
            assert channel.answers == [{"text": "You may not decide this.", "replace_original": False}]
            assert (await client.session(request.session_id).status()).pending_approvals

            assert (await http.post("/slack", content=body, headers=sign(body))).status_code == 200
            assert await request.answer() == "order 7 was paid back"
            assert channel.answers[1]["text"] == "approve: <@U024BE7LH>"
            assert (await http.post("/slack", content=body, headers=sign(body))).status_code == 200
            assert channel.answers[2]["text"].startswith("Somebody else has decided")

            denied = await ask(client)
            await wait_until(lambda: len(channel.posted) == 2)
            body = channel.make_body("U1", "deny", channel.find_buttons(1)["deny"])
            assert (await http.post("/slack", content=body, headers=sign(body))).status_code == 200
            assert "a colleague has denied it" in await denied.answer()
            entries = await client.session(denied.session_id).entries(kind="approval")
            assert [entry.payload["by"] for entry in entries] == ["U1"]


async def test_a_cancelled_call_cannot_be_approved(stack: Stack) -> None:
    """The page's own loop approves what waits; afterwards, or after a cancellation, a decision is refused."""
    async with deploy(stack, "https://approvals.example.com/clew") as client:
        request = await ask(client)
        session = client.session(request.session_id)
        await wait_until(lambda: _waits(client, request))
        lines = "\n".join(f"    {line}" for line in DECIDING.splitlines())
        names: dict[str, Any] = {}
        exec(f"async def decide(clew, session):\n{lines}", names)
        await names["decide"](client, session)
        assert await request.answer() == "order 7 was paid back"
        cancelled = await ask(client)
        await wait_until(lambda: _waits(client, cancelled))
        session = client.session(cancelled.session_id)
        (call,) = (await session.status()).pending_approvals
        await session.cancel()
        assert (await cancelled.result()).status == "cancelled"
        assert "A later decision raises `UnknownApproval`." in PAGE
        with pytest.raises(UnknownApproval):
            await session.approve(call.tool_call_id)


async def _waits(client: Clew, request: Request) -> bool:
    return bool((await client.session(request.session_id).status()).pending_approvals)
