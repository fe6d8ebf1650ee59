"""The AI SDK from npm, in two major versions, chats with the service.

What does not apply: AI SDK 6 has no chunks for messages that steer a run, nor for a reply that begins anew after a
failure (`steering-message`, `reset-step`). Its page then shows an error, and `resumeStream` brings the message.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path

import pytest

from tests.support.npm import install_packages, run_node
from tests.support.serving import run_service
from tests.support.serving_chats import STORY, answer_chat
from tests.support.stack import Stack

SOURCE = Path(__file__).with_name("ai_sdk")


@pytest.mark.slow
@pytest.mark.parametrize("version", ["6", "7"])
async def test_the_chat_from_npm(stack: Stack, tmp_path: Path, version: str) -> None:
    """Replies, approvals of which two wait, a tool of the client's, streams that go on, and a new page's messages."""
    install_packages(SOURCE / version, tmp_path)
    shutil.copy(SOURCE / "chat.mjs", tmp_path)
    name = f"npm-{uuid.uuid4().hex}"
    async with run_service(stack.clew) as served:
        await stack.clew.open(served.scope(name), model=stack.add_model(answer_chat), tools=["guarded", "add"])
        seen = json.loads(await run_node(tmp_path / "chat.mjs", served.address, served.token, name))
    assert seen["errors"] == []
    assert "".join(seen["hello"]) == "You said hello"
    assert seen["waiting"] == [2, 1]
    assert seen["decided"] == seen["reloaded"] == ["output-available", "output-denied"]
    assert seen["fresh"] == ["ready", 0]
    assert "length" in seen["finished"]
    assert seen["mapped"] == 'I read: {"shown":"Rome"}'
    assert STORY.startswith(seen["partial"])
    assert len(seen["partial"]) < len(STORY)
    assert seen["story"] == STORY
    assert seen["valid"]
    assert "tool-show_map" in seen["types"]
    assert seen["listed"][0] == ["user", 1]
