"""No text of a conversation is readable outside of the processes that have the keys."""

from __future__ import annotations

import io
import os
import re
import zlib
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from clew import Clew, Session
from clew.errors import ClewError
from clew.local import Reply, ToolCall, scripted_model, temporal_server, worker_process
from clew_activities.archive import Archive, open_store
from clew_audit.audit import audit_session
from clew_audit.exports import export_session
from tests.support.command_line import run_clew
from tests.support.encrypted import write_keys
from tests.support.rolling import list_runs
from tests.support.waiting import wait_until

SENTINEL = "Zaunkoenig"
"""A word that is in every text, and nowhere else."""

TOOLS = f'''
    from clew import Agent, ToolContext, tool
    from clew.tools import external_tool
    from clew.hooks import CheckedMessage, Refuse, check_message

    @tool
    def look_up(order: str, context: ToolContext) -> str:
        """Looks an order up."""
        context.report("{SENTINEL} progress", 0.5)
        if order.endswith("fail"):
            raise ValueError(f"{SENTINEL} error of {{order}}")
        return f"{SENTINEL} result of {{order}} " * (20_000 if order.endswith("large") else 1)

    @tool(requires_approval=True)
    def refund(order: str) -> str:
        """Pays back."""
        return "{SENTINEL} refunded"

    order = external_tool(
        "order", "{SENTINEL} orders", {{"type": "object", "properties": {{"item": {{"type": "string"}}}}}}
    )

    @check_message
    def forbid(message: CheckedMessage) -> None:
        if "forbidden" in message.text:
            raise Refuse("{SENTINEL} is forbidden")

    helper = Agent("helper", model="scripted:m", system_prompt="{SENTINEL} prompt of a subagent")
    boss = Agent(
        "boss",
        model="scripted:m",
        system_prompt="{SENTINEL} prompt",
        tools=[look_up, refund, order, helper.as_tool()],
    )
'''


def reply(body: dict[str, Any]) -> Reply:
    """Answer with the word in every part of a reply."""
    last = body["messages"][-1]
    text = str(last["content"])
    if last["role"] == "tool":
        return Reply(f"{SENTINEL} answer after a tool")
    if not body.get("tools"):
        return Reply(f"{SENTINEL} summary, or answer of a subagent")
    if "purchase" in text:
        return Reply(tool_calls=[ToolCall("order", {"item": f"{SENTINEL} item"})])
    if "entrust" in text:
        return Reply(tool_calls=[ToolCall("helper", {"task": f"{SENTINEL} task"})])
    for call in ("fail", "large"):
        if call in text:
            return Reply(f"{SENTINEL} thought", [ToolCall("look_up", {"order": f"{SENTINEL}-{call}"})])
    if "refund" in text:
        return Reply(tool_calls=[ToolCall("refund", {"order": f"{SENTINEL}-refund"})])
    if "refuse" in text:
        return Reply.error(400, f"{SENTINEL} provider error")
    if "slow" in text:
        return Reply(f"{SENTINEL} slow " * 60, tokens_per_second=40)
    return Reply(f"{SENTINEL} answer")


async def converse(session: Session) -> None:
    """Let every kind of text go through a session."""
    for content in ("hello", "large", "fail", "refuse", "entrust", "forbidden"):
        await (await session.message(f"{SENTINEL} {content}", metadata={"note": SENTINEL})).result()
    denied = await session.message(f"{SENTINEL} refund")
    async for event in denied.events():
        if event.type == "approval_required":
            await session.deny(event.tool_call_id, reason=f"{SENTINEL} reason of a denial")
    await denied.result()
    edited = await session.message(f"{SENTINEL} refund")
    async for event in edited.events():
        if event.type == "approval_required":
            await session.approve(event.tool_call_id, arguments={"order": f"{SENTINEL} of the approval"})
    await edited.result()
    ordered = await session.message(f"{SENTINEL} purchase")
    await wait_until(partial(has_external_call, session))
    [call] = (await session.status()).pending_external_calls
    await session.submit_tool_result(call.tool_call_id, f"{SENTINEL} from outside")
    await ordered.result()
    slow = await session.message(f"{SENTINEL} slow")
    async for event in slow.events():
        if event.type == "text":
            break
    await session.steer(f"{SENTINEL} steer")
    await session.inject(f"{SENTINEL} injected")
    await session.cancel(reason=f"{SENTINEL} reason of a cancellation")
    await slow.result()
    with pytest.raises(ClewError):
        await session.steer(f"{SENTINEL} refused steer")
    handle = session._handle.workflow
    await handle.signal("steer", {"content": f"{SENTINEL} refused signal"})
    with pytest.raises(ClewError):
        await session.configure(require_approval=[SENTINEL])
    await session.summarize()
    await session.replace_context([{"role": "user", "content": f"{SENTINEL} replaced"}], op_id="o")
    await (await session.message(f"{SENTINEL} after")).result()


async def has_external_call(session: Session) -> bool:
    """Whether the session waits for a result from outside."""
    return bool((await session.status()).pending_external_calls)


def read_files(folder: Path) -> dict[str, bytes]:
    """Read all files in a folder and below, without the tools' own code."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "sentinel_tools" not in path.name]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def shows(data: bytes) -> bool:
    """Whether the word is in some bytes: as it is, in base64, or compressed in base64, as a session's state is."""
    word = SENTINEL.encode()
    forms = [word, *(b64encode(b"x" * skipped + word)[4:-4] for skipped in range(3))]
    return any(form in data for form in forms) or any(word in inflate(run) for run in _PACKED.findall(data))


def inflate(packed: bytes) -> bytes:
    """Inflate as much of a compressed text in base64 as there is."""
    with suppress(zlib.error, ValueError):
        return zlib.decompressobj().decompress(b64decode(packed[: len(packed) // 4 * 4]))
    return b""


# zlib's first bytes in base64.
_PACKED = re.compile(rb"eJ[A-Za-z0-9+/]{40,}")


@pytest.mark.slow
@pytest.mark.parametrize("encrypted", [True, False])
async def test_no_text_is_readable_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool) -> None:
    """Neither in the server's database, the archive, exports, checkpoints, nor in what any process has written.

    Without keys the word is found in all of them, except in the output of the processes.
    """
    keys, store = write_keys("k1") if encrypted else "", tmp_path / "store"
    for name, value in {"CLEW_ENCRYPTION_KEYS": keys, "CLEW_STORE": str(store)}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "sentinel_tools.py").write_text(dedent(TOOLS))
    written: list[bytes] = []
    environment = {
        "CLEW_AGENTS": "sentinel_tools",
        "CLEW_CHECKPOINT_KEYS": f"c:{b64encode(bytes(32)).decode()}",
        "CLEW_ENCRYPTION_KEYS": keys,
        "CLEW_HOOKS": "sentinel_tools",
        "CLEW_LOG_FORMAT": "json",
        "CLEW_ROLLOVER_EVENTS": "100",
        "CLEW_STORE": str(store),
    }
    async with (
        temporal_server(ui=False, db_filename=tmp_path / "temporal.db") as server,
        scripted_model(reply) as model,
        worker_process(
            server.address,
            env={**environment, "CLEW_PROVIDER_SCRIPTED_BASE_URL": model.base_url},
            tools=["sentinel_tools"],
            folder=tmp_path,
            on_output=written.append,
        ),
    ):
        clew = await Clew.connect(server.address)
        session = await clew.open(
            "sentinels", agent="boss", metadata={"title": f"{SENTINEL} title", SENTINEL: SENTINEL}
        )
        await converse(session)
        checkpoint = await session.checkpoint()
        fork = await session.fork(metadata={"note": SENTINEL})
        await (await fork.message(f"{SENTINEL} in the fork")).result()
        assert len(await list_runs(clew, session.id)) > 1
        await session.hibernate(reason=f"{SENTINEL} reason of a hibernation")
        archive, exported = Archive(open_store(os.environ), "default"), io.BytesIO()
        await export_session(clew.temporal, archive, session.id, exported)
        # The texts are there for those who have the key.
        report = await audit_session(clew.temporal, archive, session.id)
        assert report.clean, report.differences
        shown = await run_clew("entries", session.id, address=server.address, CLEW_ENCRYPTION_KEYS=keys)
        assert SENTINEL in shown.out
        await fork.close(reason=f"{SENTINEL} reason of a close")
        await clew.restore(checkpoint)
        printed = {"server": server.log.read_bytes(), "worker": b"".join(written), "client": shown.err.encode()}
    files = read_files(tmp_path) | {"checkpoint": checkpoint.encode(), "export": exported.getvalue()}
    assert len(files["temporal.db"]) > 100_000
    assert b"turn completed" in printed["worker"]
    for kind in ("temporal.db", "checkpoint", "export", "/results/", "/segments/", "/states/"):
        found = {name: shows(data) for name, data in files.items() if kind in name}
        assert found
        assert any(found.values()) is not encrypted, found
    if encrypted:
        assert [name for name, data in (files | printed).items() if shows(data)] == []
        assert not [name for name, data in files.items() if keys.partition(":")[2].encode() in data]
