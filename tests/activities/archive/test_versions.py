"""Archives of newer versions of Clew, and fields that a newer version has added."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.errors import NewerVersion
from clew_activities.archive import Archive, Head, ObjectDamaged, Store
from clew_activities.archive.formats import (
    decode_node,
    decode_segment,
    encode_node,
    encode_segment,
    hash_bytes,
    make_segment_ref,
)
from clew_workflows.contract.messages import canonicalize, compute_digest
from tests.support.archives import begin_archive, list_objects, make_entries, read_thread

HEAD = "default/sessions/s-root.json"


def change_head(data: bytes, **fields: Any) -> bytes:
    """Change fields of an encoded head, with the right checksum."""
    changed = {name: value for name, value in json.loads(data).items() if name != "digest"} | fields
    return canonicalize({**changed, "digest": compute_digest(changed)})


async def read_all(store: Store) -> dict[str, bytes]:
    return {path: await store.get(path) for path in await list_objects(store)}


async def test_a_newer_head_is_neither_overwritten_nor_deleted() -> None:
    """Each operation that needs the head is refused by both versions, and the store stays as it is."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    head = await begin_archive(archive, "root", make_entries(0, 3))
    await store.put(HEAD, change_head(head.encode(), version=2))
    before = await read_all(store)
    with pytest.raises(NewerVersion, match=f"^{HEAD} is of version 2, and this version of Clew reads 1: upgrade"):
        await archive.read_head("root")
    for expected in (head, None):
        with pytest.raises(NewerVersion):
            await archive.set_head(head.model_copy(update={"status": "closed"}), expected)
    with pytest.raises(NewerVersion):
        await archive.join("root", "a-fork")
    assert await read_all(store) == before


async def test_a_newer_segment_or_node_is_refused_by_its_name() -> None:
    """Reading, appending, truncating and checking raise the same error; nothing is taken for damaged."""
    store = Store.from_url("memory://")
    archive = Archive(store, "default")
    entries = make_entries(0, 3)
    data = encode_segment(entries).replace(b'"version":1', b'"version":2')
    await store.put(f"default/families/s-root/segments/{hash_bytes(data)}.jsonl", data)
    node = encode_node([make_segment_ref(entries, data)])
    root = hash_bytes(node)
    await store.put(f"default/families/s-root/nodes/{root}.json", node)
    with pytest.raises(NewerVersion, match=r"segments/.*jsonl is of version 2, .* reads 1: upgrade"):
        await read_thread(archive, Head(session_id="root", family="root", root=root, last_seq=2))
    with pytest.raises(NewerVersion):
        _ = [check async for check in archive.verify("root", root)]

    node = node.replace(b'"version":1', b'"version":2')
    root = hash_bytes(node)
    await store.put(f"default/families/s-root/nodes/{root}.json", node)
    for work in (archive.append("root", root, make_entries(3, 1)), archive.truncate("root", root, 1)):
        with pytest.raises(NewerVersion, match=r"nodes/.*json is of version 2, .* reads 1: upgrade"):
            await work


async def test_a_damaged_head_is_no_newer_one() -> None:
    """The checksum is that of every version: where it does not match, the number is not believed."""
    data = Head(session_id="root", family="root").encode().replace(b'"version":1', b'"version":2')
    with pytest.raises(ObjectDamaged, match="checksum"):
        Head.decode(data, "root", HEAD)


def test_a_head_may_have_more_fields() -> None:
    """They are ignored: the next writer of the head writes all that it knows of the session."""
    head = Head(session_id="root", family="root")
    assert Head.decode(change_head(head.encode(), mood="fine"), "root", HEAD) == head


def test_fields_added_to_a_payload_are_kept() -> None:
    """Readers ignore a payload's unknown field. Where the entry is written again, the field is there."""
    (entry,) = make_entries(0, 1)
    payload = {**entry.payload, "mood": {"deep": [1]}}
    data = encode_segment([type(entry).from_json({**entry.as_dict(), "payload": payload})])
    (read,) = decode_segment(data, hash_bytes(data), "s")
    assert read.payload["mood"] == {"deep": [1]}
    assert read.body.as_dict() == entry.body.as_dict()
    assert encode_segment([read]) == data


def test_a_node_has_no_more_fields() -> None:
    """A reader that ignored one might miss entries."""
    data = encode_node([make_segment_ref(make_entries(0, 1), b"")]).replace(b'"clew"', b'"and":1,"clew"')
    with pytest.raises(ObjectDamaged, match="and"):
        decode_node(data, hash_bytes(data), "nodes/x")
