"""Conversations with other libraries go on in sessions: `clew import-history` reads the files that these write."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from clew import Session
from clew.local import Reply
from tests.support.client_suites import PROGRAMS, run_program
from tests.support.command_line import run_clew
from tests.support.media import make_png
from tests.support.serving import run_service
from tests.support.simulated_model import STORY, simulate
from tests.support.stack import Stack

SECONDS = 120
PROMPT = "You know the weather."
IMAGE = make_png()
MARKER = f"[image: {sha256(IMAGE).hexdigest()[:12]}, image/png, 30 x 20, {len(IMAGE)} bytes]"
"""What the scripted model reads of the image, since it takes none."""
FILES: dict[str, tuple[str, ...]] = {
    "chat": ("chat.json", "chat.jsonl", "request.json"),
    "responses": ("items.json", "response.json"),
    "langgraph": ("messages_to_dict.json", "dumpd.json", "model_dump.json", "state.json"),
    "pydantic_ai": ("all_messages.json",),
    "agents_sdk": ("sessions.db", "get_items.json"),
}
"""The files of each library's program."""


def simplify(message: dict[str, Any]) -> Any:
    """Name what a message says: the speaker and the text, or the calls."""
    if calls := message.get("tool_calls"):
        return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]
    return message["role"], message["content"]


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("library", FILES)
async def test_a_conversation_with_a_library_goes_on_in_a_session(stack: Stack, tmp_path: Path, library: str) -> None:
    """A model sees what was said, a marker of the image, the call with its result, and then the new message."""
    (tmp_path / "image.png").write_bytes(IMAGE)
    model, address = stack.add_model(simulate), stack.server.address
    async with run_service(stack.clew) as served:
        environ = {
            "BASE_URL": f"{served.address}/v1",
            "API_KEY": served.token,
            "MODEL": model,
            "IMAGE": str(tmp_path / "image.png"),
        }
        status, printed = await run_program(
            PROGRAMS / "histories.py", library, tmp_path, environ=environ, seconds=SECONDS
        )
    assert status == 0, printed[-4000:]
    for name in FILES[library]:
        session_id, now = f"imported-{uuid.uuid4().hex}", stack.add_model(lambda _body: Reply("Rain."))
        options: tuple[str, ...] = ("--session", session_id, "--model", now)
        if library == "agents_sdk":
            # Its sessions have no instructions.
            options = (*options, "--system", PROMPT)
        if name == "sessions.db":
            refused = await run_clew("import-history", str(tmp_path / name), *options, address=address)
            assert refused.code == 2
            assert "2 sessions (ada@example.com, other)" in refused.err
            options = (*options, "--source", "ada@example.com")
        done = await run_clew("import-history", str(tmp_path / name), *options, "--json", address=address)
        assert (done.code, done.err) == (0, ""), (name, done)
        assert (done.json["status"], done.json["messages"]) == ("imported", 4)
        again = await run_clew("import-history", str(tmp_path / name), *options, "--json", address=address)
        assert (again.code, again.json["status"]) == (0, "duplicate")
        session = stack.clew.session(session_id)
        assert await session.ask("And tomorrow?") == "Rain."
        (request,) = stack.list_requests(now)
        assert [simplify(message) for message in request["messages"]] == [
            ("system", PROMPT),
            ("user", f"What is the weather in 'Porto'?\n{MARKER}"),
            [("get_weather", {"city": "Porto"})],
            ("tool", "sun"),
            ("assistant", STORY),
            ("user", "And tomorrow?"),
        ], name
        (operation,) = await session.entries(kind="ai_context_operation")
        assert b64encode(IMAGE).decode() not in json.dumps(operation.payload)
        (blob,) = [part["blob"] async for part in iterate_media(session)]
        assert await session.read_blob(blob["digest"]) == IMAGE
        again = await run_clew("import-history", str(tmp_path / name), *options, address=address)
        assert again.out == f"session {session_id} has this history: nothing has changed\n"


async def iterate_media(session: Session) -> AsyncIterator[dict[str, Any]]:
    """Iterate over the parts with media that a session's context has."""
    for message in (await session.context()).messages:
        if isinstance(message["content"], list):
            for part in message["content"]:
                if part["type"] != "text":
                    yield dict(part)
