"""`clew import-history`: a session begins with a history, once and completely, or not at all."""

from __future__ import annotations

import json
import os
import sqlite3
import uuid
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from clew import Agent
from clew.errors import NotFound
from clew.local import Reply
from tests.support.command_line import CommandResult, read_error, run_clew
from tests.support.stack import Stack, make_client, run_deployment

HISTORY = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello?"},
    {"role": "assistant", "content": "Hello."},
]


async def run_import(stack: Stack, file: Path, session_id: str, *options: str, **settings: str) -> CommandResult:
    return await run_clew(
        "import-history", str(file), "--session", session_id, *options, address=stack.server.address, **settings
    )


def write(folder: Path, history: Any) -> Path:
    file = folder / "history.json"
    file.write_text(json.dumps(history))
    return file


async def find_prompt(stack: Stack, session_id: str, model: str) -> list[str]:
    """Ask a session, and return the texts that the model saw."""
    await stack.clew.session(session_id).ask("Go on.")
    return [message["content"] for message in stack.list_requests(model)[-1]["messages"]]


async def test_a_history_is_imported_once(stack: Stack, tmp_path: Path) -> None:
    """The session goes on from it; the same file changes nothing, another one under the id is refused."""
    session_id, model = f"import-{uuid.uuid4().hex}", stack.add_model("Fine.")
    file = write(tmp_path, HISTORY)
    done = await run_import(stack, file, session_id, "--model", model)
    assert (done.code, done.out, done.err) == (0, f"session {session_id} begins with 2 messages\n", "")
    assert await find_prompt(stack, session_id, model) == ["Be brief.", "Hello?", "Hello.", "Go on."]
    again = await run_import(stack, file, session_id, "--model", model)
    assert (again.code, again.out) == (0, f"session {session_id} has this history: nothing has changed\n")
    other = await run_import(stack, write(tmp_path, HISTORY[:2]), session_id, "--model", model)
    assert read_error(other) == (1, "thread_mismatch")
    assert await find_prompt(stack, session_id, model) == [
        *("Be brief.", "Hello?", "Hello.", "Go on.", "Fine.", "Go on.")
    ]


async def test_the_session_of_an_import_that_was_interrupted_gets_its_history(stack: Stack, tmp_path: Path) -> None:
    """A session that has begun with nothing yet is the import's own."""
    session_id, model = f"import-{uuid.uuid4().hex}", stack.add_model("Fine.")
    await stack.clew.open(session_id, model=model, system_prompt="Be brief.")
    done = await run_import(stack, write(tmp_path, HISTORY), session_id, "--model", model, "--json")
    assert (done.code, done.json["status"]) == (0, "imported")
    assert await find_prompt(stack, session_id, model) == ["Be brief.", "Hello?", "Hello.", "Go on."]


async def test_an_agent_and_an_option_have_their_own_prompt(stack: Stack, tmp_path: Path) -> None:
    """The prompt of the history is for sessions that have no other."""
    file, model = write(tmp_path, HISTORY), stack.add_model("Fine.")
    client = make_client(stack)
    agent = Agent("helper", model=model, system_prompt="You help.")
    async with run_deployment(stack, client, agent):
        queue, first = ("--task-queue", client.task_queue), f"import-{uuid.uuid4().hex}"
        assert (await run_import(stack, file, first, "--agent", "helper", *queue)).code == 0
        assert (await find_prompt(stack, first, model))[0] == "You help."
    second = f"import-{uuid.uuid4().hex}"
    assert (await run_import(stack, file, second, "--model", model, "--system", "Be kind.")).code == 0
    assert (await find_prompt(stack, second, model))[0] == "Be kind."


async def test_what_is_refused_leaves_no_session(stack: Stack, tmp_path: Path) -> None:
    """Neither a history that is too large, nor one with a bad item, nor one whose image no model can read."""
    session_id, options = f"import-{uuid.uuid4().hex}", ("--model", stack.add_model("Fine."))
    long = [{"role": "user", "content": "x" * 262_144}]
    assert read_error(await run_import(stack, write(tmp_path, long), session_id, *options)) == (1, "too_large")
    bad = [{"role": "user", "content": "Hello?"}, {"role": "robot"}]
    refused = await run_import(stack, write(tmp_path, bad), session_id, *options, "--json")
    assert (refused.code, refused.json["error"]["type"]) == (1, "history_invalid")
    assert "history.json: item 1: " in refused.json["error"]["message"]
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    unknown = [{"role": "user", "content": [image]}]
    refused = await run_import(stack, write(tmp_path, unknown), session_id, *options)
    assert read_error(refused)[1] in ("content_mismatch", "unsupported_content")
    with pytest.raises(NotFound):
        await stack.clew.session(session_id).status()


async def test_what_is_no_history_is_misconfigured(stack: Stack, tmp_path: Path) -> None:
    """A file that is not there or is no database of sessions, a source without one, and no model to go on with."""
    options, file = ("s-1", "--model", stack.add_model("Fine.")), write(tmp_path, HISTORY)
    assert read_error(await run_import(stack, tmp_path / "none.json", *options))[0] == 2
    assert read_error(await run_import(stack, file, *options, "--source", "a"))[0] == 2
    assert read_error(await run_import(stack, file, "s-1"))[0] == 2
    for tables in (["other"], ["agent_messages", "message_structure"], ["agent_messages"]):
        path = tmp_path / f"{len(tables)}-{tables[0]}.db"
        with closing(sqlite3.connect(path)) as database:
            for table in tables:
                database.execute(f"CREATE TABLE {table} (id INTEGER, session_id TEXT, message_data TEXT)")
        assert read_error(await run_import(stack, path, *options))[0] == 2


async def test_the_command_names_the_missing_extra(stack: Stack, tmp_path: Path) -> None:
    """It needs what reads the formats for `clew serve`."""
    (tmp_path / "sitecustomize.py").write_text("import sys\nsys.modules['fastapi'] = None\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = await run_import(stack, write(tmp_path, HISTORY), "s-1", "--model", "scripted:m", PYTHONPATH=path)
    assert read_error(ended)[0] == 2
    assert "pip install 'clew[serve]'" in ended.err


async def test_a_reply_goes_on_after_a_call_of_the_history(stack: Stack, tmp_path: Path) -> None:
    """A history may end with a tool's result: the next message comes behind it."""
    session_id, model = f"import-{uuid.uuid4().hex}", stack.add_model(lambda _body: Reply("Two."))
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    history = [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "a", "content": "2"},
    ]
    assert (await run_import(stack, write(tmp_path, history), session_id, "--model", model)).code == 0
    assert await stack.clew.session(session_id).ask("So?") == "Two."
    (request,) = stack.list_requests(model)
    assert [message["role"] for message in request["messages"]] == ["user", "assistant", "tool", "user"]
    assert request["messages"][1]["tool_calls"][0]["id"] == request["messages"][2]["tool_call_id"]
