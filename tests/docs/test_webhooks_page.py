"""The samples of the page about webhooks and schedules: receivers take what workers send, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import standardwebhooks

from clew import Agent
from clew.contract import WebhookMessage
from clew.schedules import Schedules
from clew_activities.webhook_sending import read_webhook_settings
from docs.generate import DOCS
from tests.support.npm import NODE, install_package
from tests.support.page_code import find_block, run_block
from tests.support.stack import Stack
from tests.support.waiting import wait_until_listening
from tests.support.webhooks import SECRET, find_free_port

PAGE = (DOCS / "webhooks.md").read_text()
BODY = re.findall(r"```json\n(\{.*?\n\})\n```", PAGE, re.DOTALL)[0]


def sign(body: str, secret: str = SECRET) -> dict[str, str]:
    """Make the headers of a request, as a worker does."""
    now = datetime.now(UTC)
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": standardwebhooks.Webhook(secret).sign("msg_1", now, body),
        "content-type": "application/json",
    }


async def check(http: httpx.AsyncClient) -> None:
    """Check that a receiver takes the page's message and refuses one that another has written."""
    assert (await http.post("/clew", content=BODY, headers=sign(BODY))).status_code == 204
    assert (await http.post("/clew", content=BODY, headers=sign(BODY))).status_code == 204
    other = "whsec_" + "b" * 44
    assert (await http.post("/clew", content=BODY, headers=sign(BODY, other))).status_code == 401
    changed = BODY.replace("completed", "cancelled")
    assert (await http.post("/clew", content=changed, headers=sign(BODY))).status_code == 401
    assert (await http.post("/clew", content=BODY)).status_code == 401


def test_webhooks_of_an_agent_and_of_a_worker(tmp_path: Path) -> None:
    """The agent of the page has two; a worker reads the page's file, with the secret that its command sets."""
    names: dict[str, Any] = {}
    exec(compile(find_block("webhooks.md", "Agent(", "python"), "webhooks.md", "exec", dont_inherit=True), names)
    agent: Agent = names["support"]
    assert len(agent.config.webhooks or ()) == 2
    file = tmp_path / "webhooks.json"
    file.write_text(find_block("webhooks.md", "ops.example.com", "json"))
    settings = read_webhook_settings({"CLEW_WEBHOOKS": str(file), "CLEW_WEBHOOK_SECRET_MAIN": SECRET})
    assert [webhook.events for webhook in settings.webhooks] == [("request.ended",)]


async def test_the_schedules_of_the_page(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server takes all three; the reminder comes once, two days from now, and then never again."""
    monkeypatch.setenv("TEMPORAL_ADDRESS", stack.server.address)
    names = await run_block(find_block("webhooks.md", "Schedules("), {})
    await run_block(find_block("webhooks.md", "remind-4711"), names)
    schedules: Schedules = names["schedules"]
    daily, watch, reminder = [
        await schedules.show(schedule_id) for schedule_id in ("daily-report", "watch-4711", "remind-4711")
    ]
    for schedule in (daily, watch, reminder):
        await schedules.delete(schedule.summary.schedule_id)
    assert len(daily.next) > 1
    assert len(watch.next) > 1
    assert reminder.next == (names["at"].replace(second=0, microsecond=0),)


def test_the_message_is_one_that_workers_send() -> None:
    """The page's message has no other fields than those of the contract, and all that a message needs."""
    message = WebhookMessage.model_validate_json(BODY)
    assert message.model_dump(mode="json", exclude_none=True) == json.loads(BODY)


async def test_the_python_sample_verifies_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It handles a message once, also if it is sent again."""
    monkeypatch.setenv("WEBHOOK_SECRET", SECRET)
    names: dict[str, Any] = {}
    exec(compile(find_block("webhooks.md", "FastAPI", "python"), "webhooks.md", "exec", dont_inherit=True), names)
    transport = httpx.ASGITransport(app=names["app"])
    async with httpx.AsyncClient(transport=transport, base_url="http://receiver") as http:
        await check(http)
    assert capsys.readouterr().out.splitlines() == ["request.ended support-4711"]


@pytest.mark.slow
async def test_the_typescript_sample_verifies_messages(tmp_path: Path) -> None:
    """With the package from npm. Skipped without npm."""
    await asyncio.to_thread(install_package, "standardwebhooks@1.1.0", tmp_path)
    port = find_free_port()
    (tmp_path / "receiver.mts").write_text(find_block("webhooks.md", "createServer", "typescript"))
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), "--experimental-strip-types", "--no-warnings", str(tmp_path / "receiver.mts")),
        env={**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)},
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
            await wait_until_listening(http)
            await check(http)
    finally:
        process.kill()
        printed, _ = await process.communicate()
    assert printed.decode().splitlines() == ["request.ended support-4711"]
