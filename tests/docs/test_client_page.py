"""The page about the Python client: its blocks run in their order, against a session of a scripted model."""

from __future__ import annotations

import importlib
import json
import textwrap
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
from pydantic import BaseModel
from temporalio.worker import Worker

from clew import Agent, Session
from clew.testing import Reply, Stack, stack
from tests.support.media import make_png
from tests.support.page_code import find_block, run_block
from tests.support.waiting import wait_until

PAGE = "client.md"
FORMED = {
    "Which city?": {"name": "Bern", "people": 1},
    "Which cities?": [{"name": "Bern", "people": 1}],
    "Which years?": [1848],
    "Is it spam?": "no",
    "May we refund this order?": {"refund": True},
}
"""The values of typed answers."""
WORKFLOW = """
from pydantic import BaseModel
from temporalio import workflow

{imports}


class Verdict(BaseModel):
    refund: bool


@workflow.defn
class Billing:
    @workflow.run
    async def run(self) -> bool:
{calls}
        return verdict.refund
"""
"""A team's workflow around the page's lines."""


def script(request: Any) -> Reply | str:
    """Answer in the form that is wanted; never, where a message is to be interrupted."""
    if any(message.get("content") == "wait" for message in request.messages):
        return Reply(hangs=True)
    wanted = FORMED.get(request.text)
    schema = (request.body.get("response_format") or {}).get("json_schema", {}).get("schema", {})
    if wanted is not None and "value" in schema.get("properties", {}):
        wanted = {"value": wanted}
    return "It is on its way." if wanted is None else json.dumps(wanted)


@pytest.fixture
async def running() -> AsyncIterator[Stack]:
    support = Agent("support", model="openai:gpt-4o")
    async with stack(agents=[support], scripts={"support": script}) as running:
        yield running


async def open_session(running: Stack) -> dict[str, Any]:
    """Run the first block with the client of a stack."""

    async def connect(_address: str) -> object:
        return running.clew

    session_id = f"page-{uuid.uuid4().hex}"
    code = find_block(PAGE, "Clew.connect").replace("from clew import Clew\n", "")
    code = code.replace("support-4711", session_id)
    return await run_block(code, {"Clew": SimpleNamespace(connect=connect), "session_id": session_id})


async def is_idle(session: Session) -> bool:
    """Whether no request is active or waits."""
    return (await session.status()).status == "idle"


async def test_messages_are_sent_followed_and_read(
    running: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Texts, typed answers and files; then the contexts and the thread, with a server and without one."""
    names = await open_session(running)
    await run_block(find_block(PAGE, "And the invoice?"), names)
    await run_block(find_block(PAGE, "event.text"), names)
    assert capsys.readouterr().out.split("\n")[-1] == "It is on its way."
    assert len(await names["session"].entries(request_id="msg-93")) >= 3
    await run_block(find_block(PAGE, "at_seq=message.seq"), names)
    assert not await names["branch"].entries(request_id="msg-93")

    typed = find_block(PAGE, "class City")
    await run_block(typed, names | {"BaseModel": BaseModel, "Literal": Literal, "__name__": __name__})

    monkeypatch.chdir(tmp_path)
    (tmp_path / "screen.png").write_bytes(make_png())
    (tmp_path / "invoice.pdf").write_bytes(b"%PDF-1.4\n1 0 obj <</Type /Page>> endobj\n%%EOF\n")
    await run_block(find_block(PAGE, "Image.from_path"), names)

    await run_block(find_block(PAGE, "session.context("), names)
    seen = names["context"].messages
    assert names["preview"].meta.fits
    assert names["preview"].messages[-1]["content"] == "And where is it now?"
    await run_block(find_block(PAGE, "build_context"), names)
    assert seen[-1]["content"] == "And the invoice?"
    assert names["context"][-1]["role"] == "assistant"
    assert len(names["messages"]) >= len(names["newest"]) > 0


async def test_a_run_is_changed_and_the_session_configured(running: Stack) -> None:
    """Each line is accepted while a request hangs; in the end nothing runs."""
    names = await open_session(running)
    session = names["session"]
    await session.message("wait")
    await run_block(find_block(PAGE, "session.steer"), names)
    await wait_until(lambda: is_idle(session))
    other = running.model("fine")
    changes = find_block(PAGE, "session.configure").replace("anthropic:claude-sonnet-4-5", other)
    await run_block(changes, names)
    await run_block(changes.splitlines()[1], names)  # a repeated `op_id` has no effect
    status = await session.status()
    assert (status.active_context_ref, status.config["model"]) == ("draft", other)


async def test_a_session_is_kept_copied_and_ended(running: Stack, capsys: pytest.CaptureFixture[str]) -> None:
    """It hibernates, continues, has a fork and a copy, and is deleted."""
    names = await open_session(running)
    for number in range(4):
        await names["session"].ask(f"message {number}")
    await run_block(find_block(PAGE, "session.hibernate").replace("support-4711", names["session_id"]), names)
    assert "0 config" in capsys.readouterr().out
    assert (await names["branch"].entries())[10].kind
    assert [message["content"] for message in (await names["other"].context()).messages][-1] == "It is on its way."


@pytest.mark.slow
async def test_a_workflow_of_a_team_asks(running: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's lines run in a workflow, on a worker without Clew's plugin: they open a session and get a value."""
    session_id = f"page-{uuid.uuid4().hex}"
    code = find_block(PAGE, "from clew import workflow as sessions").replace("support-4711", session_id)
    imports, calls = code.replace("answer=Verdict", f'answer=Verdict, task_queue="{running.clew.task_queue}"').split(
        "\n\n"
    )
    module = f"billing_{uuid.uuid4().hex}"
    (tmp_path / f"{module}.py").write_text(WORKFLOW.format(imports=imports, calls=textwrap.indent(calls, " " * 8)))
    monkeypatch.syspath_prepend(tmp_path)
    billing = importlib.import_module(module).Billing
    client, queue = running.clew.temporal, f"team-{uuid.uuid4().hex}"
    async with Worker(client, task_queue=queue, workflows=[billing]):
        assert await client.execute_workflow(billing.run, id=f"{queue}-asks", task_queue=queue) is True
    messages = await running.clew.session(session_id).transcript()
    assert [message["role"] for message in messages] == ["user", "assistant"]
