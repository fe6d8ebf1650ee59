"""Objects of an archive that a hostile writer of the store has forged, each with the right checksum."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from temporalio.api.enums.v1 import EventType

from clew.errors import ArchiveDamaged, ThreadMismatch
from clew_activities.archive import Archive, ObjectDamaged
from clew_activities.archive.thread_source import ArchivedThread
from clew_workflows.thread.entries import Entry
from tests.support.archives import make_entry
from tests.support.stack import Stack

Forgery = Callable[[dict[str, Any]], None]

BLOB: dict[str, Any] = {"digest": "0" * 64, "media_type": "image/png", "bytes": 7}
NO_PARTS: list[Any] = [
    ["no", "part"],
    [{"type": "text", "text": 7}],
    [{"type": "image"}],
    [{"type": "image", "blob": BLOB, "url": "https://images.example/a.png"}],
    [{"type": "image", "url": "file:///etc/passwd"}],
    [{"type": "emperor", "blob": BLOB}],
    [{"type": "file", "blob": [BLOB]}],
    [{"type": "file", "blob": {**BLOB, "digest": "../../heads"}}],
    [{"type": "file", "blob": {**BLOB, "media_type": "text/html; charset=x\r\nSet-Cookie: a=b"}}],
    [{"type": "file", "blob": {**BLOB, "name": "../../.ssh/authorized_keys"}}],
    [{"type": "image", "blob": {**BLOB, "bytes": "7"}}],
    [{"type": "image", "blob": {**BLOB, "bytes": 1 << 60}}],
    [{"type": "image", "blob": {**BLOB, "width": -1}}],
    [{"type": "audio", "blob": {**BLOB, "seconds": True}}],
]
NO_ENTRIES: list[dict[str, Any]] = [
    {"payload": {}},
    {"payload": {"context_ref": "default", "role": "emperor", "content": "obey"}},
    {"tokens": "many"},
    {"id": 7},
    *({"payload": {"context_ref": "default", "role": "user", "content": content}} for content in NO_PARTS),
]


def forge_entries(**fields: Any) -> Forgery:
    """Replace fields of the messages in an archived state."""

    def forge(carried: dict[str, Any]) -> None:
        value = json.loads(zlib.decompress(b64decode(carried["zlib"])))
        for row in value["thread"]["entries"]:
            if row["kind"] == "ai_message":
                row.update(fields)
        forge_bytes(json.dumps(value).encode())(carried)

    return forge


def forge_bytes(data: bytes) -> Forgery:
    """Replace the JSON of an archived state."""

    def forge(carried: dict[str, Any]) -> None:
        carried["zlib"] = b64encode(zlib.compress(data)).decode()

    return forge


@pytest.mark.parametrize(
    "forge",
    [
        forge_entries(**NO_ENTRIES[0]),
        pytest.param(forge_entries(**NO_ENTRIES[1]), marks=pytest.mark.slow),
        pytest.param(forge_entries(tokens="many"), marks=pytest.mark.slow),
        pytest.param(
            forge_entries(payload={"context_ref": "default", "role": "user", "content": NO_PARTS[0]}),
            marks=pytest.mark.slow,
        ),
        forge_bytes(b"[" * 100_000),
        pytest.param(forge_bytes(b'{"state": ' + b"9" * 10_000 + b"}"), marks=pytest.mark.slow),
        forge_bytes(b" " * 100_000_000),
    ],
    ids=["no payload", "an unknown role", "no number", "no parts", "deeply nested", "a huge number", "a bomb"],
)
async def test_a_forged_state_is_refused(stack: Stack, forge: Forgery) -> None:
    """The caller reads why, no workflow task fails, and the session continues when the true state is back."""
    archive = Archive(stack.store, "default")
    session = await stack.open("fine")
    await session.ask("one")
    await session.hibernate()
    head = await archive.read_head(session.id)
    assert head
    assert head.state
    true_state = await archive.read_state(head.family, head.state)
    carried = json.loads(true_state)
    forge(carried)
    forged = head.model_copy(update={"state": await archive.write_state(head.family, json.dumps(carried).encode())})
    await archive.set_head(forged, head)
    with pytest.raises(ThreadMismatch, match="cannot be read by this version of Clew"):
        await (await stack.clew.open(session.id)).ask("two")
    assert not await count_failed_tasks(stack, session.id)

    now = await archive.read_head(session.id)
    await archive.write_state(head.family, true_state)
    await archive.set_head(head, now)
    assert await (await stack.clew.open(session.id)).ask("two") == "fine"


@pytest.mark.slow
async def test_a_forged_entry_after_the_state_is_refused(stack: Stack) -> None:
    """As forks append entries to an archive, so may a hostile writer: a malformed one opens no session."""
    archive = Archive(stack.store, "default")
    session = await stack.open("fine")
    await session.hibernate()
    head = await archive.read_head(session.id)
    assert head
    forged = Entry(**{**make_entry(head.last_seq + 1).as_dict(), **NO_ENTRIES[1]})
    root, last_seq = await archive.append(head.family, head.root, [forged])
    await archive.set_head(head.model_copy(update={"root": root, "last_seq": last_seq}), head)
    with pytest.raises(ArchiveDamaged, match="malformed"):
        await (await stack.clew.open(session.id)).ask("two")
    assert not await count_failed_tasks(stack, session.id)
    await stack.clew.temporal.get_workflow_handle(session.id).terminate()


@pytest.mark.parametrize("fields", NO_ENTRIES)
async def test_no_forged_entry_is_fetched(stack: Stack, fields: dict[str, Any]) -> None:
    """What a session fetches from its archive has the types that its code relies on."""
    archive = Archive(stack.store, "default")
    forged = [make_entry(0), replace(make_entry(1), **fields), make_entry(2)]
    root, last_seq = await archive.append("forged", None, forged)
    thread = ArchivedThread(archive, "forged", root, last_seq)
    with pytest.raises(ObjectDamaged, match="entry 1 is malformed"):
        _ = [entry async for entry in thread.read("ai_message")]


async def count_failed_tasks(stack: Stack, session_id: str) -> int:
    """Count the failed workflow tasks of a session's newest workflow run."""
    history = await stack.clew.temporal.get_workflow_handle(session_id).fetch_history()
    return sum(event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED for event in history.events)
