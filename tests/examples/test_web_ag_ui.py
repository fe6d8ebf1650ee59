"""The service of `examples/web` with the client of AG-UI from npm."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from ag_ui.core import ToolMessage

from clew import testing
from clew.ag_ui.mapping import convert_thread
from clew.local import Reply, ToolCall
from clew.testing import ScriptedRequest
from examples.web.agents import shop
from examples.web.service import app
from tests.support.npm import NODE, install_package
from tests.support.waiting import PATIENCE_SECONDS
from tests.support.web import serve

CLIENT = "@ag-ui/client@1.0.0"
SCRIPT = Path(__file__).with_name("ag_ui_client.mjs")
STORY = "Once upon a time. " * 20


def answer(request: ScriptedRequest) -> Reply:
    """Look an order up, pay it back, tell a story, or fail."""
    if request.role == "tool":
        return Reply(f"I read: {request.text}")
    match request.text:
        case "look":
            return Reply("I look.", tool_calls=[ToolCall("lookup_order", {"order_id": 1234})])
        case "refund":
            return Reply(tool_calls=[ToolCall("refund", {"order_id": 1234, "euros": 5})])
        case "break":
            return Reply.error(400, "no")
        case "story":
            return Reply(STORY, tokens_per_second=60)
    return Reply("Good morning")


@pytest.mark.slow
async def test_the_client_from_npm(tmp_path: Path) -> None:
    """A reply, tools, an approval, an error, a lost connection: it has the thread's messages. Skipped without npm."""
    await asyncio.to_thread(install_package, CLIENT, tmp_path)
    script = tmp_path / SCRIPT.name
    script.write_text(SCRIPT.read_text())
    agent = replace(shop, model="scripted:shop")
    async with testing.stack(agents=[agent], models={"shop": answer}) as stack, serve(app, stack.clew) as address:
        process = await asyncio.create_subprocess_exec(
            NODE, script, f"http://{address}/ag-ui", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(PATIENCE_SECONDS):
            printed, errors = await process.communicate()
        assert process.returncode == 0, errors.decode()
        seen = json.loads(printed)
        session = stack.clew.session("web:ann:npm")
        thread = await convert_thread(session.read(kind="ai_message"))
    outcomes = {name: run["outcome"] for name, run in seen.items() if isinstance(run, dict) and "outcome" in run}
    assert outcomes == {
        "reply": "success",
        "tools": "success",
        "interrupt": "interrupt",
        "resumed": "success",
        "error": "bad_request",
        "aborted": "abort",
        "reconnected": "success",
        "connected": "success",
    }
    assert "TOOL_CALL_RESULT" in seen["tools"]["events"]
    assert "TOOL_CALL_START" not in seen["resumed"]["events"]
    assert STORY.startswith(seen["partial"]["content"])
    assert 0 < len(seen["partial"]["content"]) < len(STORY)
    expected = [json.loads(message.model_dump_json(by_alias=True)) for message in thread]
    assert not [message for message in thread if isinstance(message, ToolMessage) and message.error]
    assert seen["others"] == expected
    assert seen["messages"] == expected
