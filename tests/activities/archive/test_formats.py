from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.errors import NewerVersion
from clew_activities.archive import Archive, Head, ObjectDamaged, Store
from clew_activities.archive.formats import (
    Children,
    Ref,
    append_refs,
    decode_node,
    decode_segment,
    encode_node,
    encode_segment,
    hash_bytes,
    limit_children,
    make_segment_ref,
    split_entries,
    truncate_children,
)
from clew_workflows.contract.messages import canonicalize, compute_digest
from clew_workflows.thread.entries import Entry
from tests.support.archives import begin_archive, draw_threads, list_objects, make_entries, make_entry, read_thread


@pytest.mark.slow
@given(draw_threads())
def test_a_segment_has_its_entries(entries: list[Entry]) -> None:
    """Entries are read as they were written: the order of members, and each digit of numbers."""
    data = encode_segment(entries)
    back = decode_segment(data, hash_bytes(data), "s")
    assert repr([one.as_dict() for one in back]) == repr([one.as_dict() for one in entries])
    assert encode_segment(back) == data


def test_damage_of_any_byte_of_a_segment_is_named() -> None:
    """No changed, missing or additional byte goes unnoticed."""
    data = encode_segment(make_entries(3, 3))
    digest = hash_bytes(data)
    for i in range(len(data)):
        for broken in (data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], data[:i], data[:i] + b" " + data[i:]):
            with pytest.raises(ObjectDamaged, match="segments/x is damaged"):
                decode_segment(broken, digest, "segments/x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b"nonsense",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"9" * 5000,
        b"\xff\n",
        encode_segment(make_entries(0, 2)).replace(b"segment", b"node"),
        encode_segment(make_entries(0, 2)).replace(b'"version":1', b'"version":0'),
        encode_segment(make_entries(0, 2)).replace(b'"version":1', b'"version":"2"'),
        encode_segment(make_entries(0, 2)).replace(b'"to_seq":1', b'"to_seq":2'),
        encode_segment(make_entries(0, 2)).replace(b'"from_seq":0', b'"from_seq":null'),
        encode_segment(make_entries(0, 2)).replace(b'"kind":"ai_message"', b'"kind":"unheard_of"'),
        encode_segment(make_entries(0, 2)).replace(b'"seq":1', b'"seq":7'),
        encode_segment(make_entries(0, 2)).replace(b'"tokens"', b'"t"'),
        b'{"clew":"segment","version":1,"from_seq":0,"to_seq":-1}\n',
    ],
)
def test_what_is_not_a_segment_is_named(data: bytes) -> None:
    """Also with the right checksum, nothing is read that is not a segment of consecutive entries."""
    with pytest.raises(ObjectDamaged, match="segments/x"):
        decode_segment(data, hash_bytes(data), "segments/x")


def test_what_is_not_json_is_refused_on_writing() -> None:
    """A segment that could not be read back is never written."""
    with pytest.raises(ValueError, match="at least one"):
        encode_segment([])
    for bad, why in (("\ud800", "surrogates not allowed"), (float("nan"), "not JSON compliant")):
        with pytest.raises(ValueError, match=why):
            encode_segment([Entry(0, "e", "error", "", {"bad": bad}, {}, 0)])


@given(st.lists(st.integers(0, 300), max_size=30), st.integers(1, 2000))
def test_split_keeps_all_in_order_and_under_the_size(lengths: list[int], size: int) -> None:
    """Pieces join to the run they come from; each is under the size or a single entry."""
    entries = [make_entry(seq, text="x" * length) for seq, length in enumerate(lengths)]
    pieces = split_entries(entries, size)
    assert [one for piece in pieces for one in piece] == entries
    assert split_entries(iter(entries), size) == pieces
    for piece in pieces:
        assert len(piece) == 1 or len(encode_segment(piece)) - len(encode_segment(piece).splitlines()[0]) - 1 <= size
    assert split_entries([], 500) == []


def test_a_long_thread_is_split_near_a_megabyte() -> None:
    """A run of large entries makes segments of about a megabyte."""
    pieces = split_entries([make_entry(seq, text="x" * 100_000) for seq in range(25)], 1_000_000)
    assert [len(piece) for piece in pieces] == [9, 9, 7]


def make_ref(from_seq: int, to_seq: int, tag: int = 0) -> Ref:
    """A segment of which only the name is needed."""
    digest = hash_bytes(f"{from_seq}-{to_seq}-{tag}".encode())
    return Ref(digest=digest, level=0, from_seq=from_seq, to_seq=to_seq, kinds=("ai_message",))


def list_leaves(children: Children, nodes: dict[str, bytes]) -> list[Ref]:
    """The segments below, as views."""
    refs: list[Ref] = []
    for child in children:
        if child.level:
            below = decode_node(nodes[child.digest], child.digest, "n")
            refs += list_leaves(limit_children(child, below, "n"), nodes)
        else:
            refs.append(child)
    return refs


@given(st.lists(st.tuples(st.integers(1, 5), st.none() | st.floats(0, 1)), max_size=80), st.integers(2, 4))
def test_append_and_truncate_are_those_of_a_list(steps: list[tuple[int, float | None]], fanout: int) -> None:
    """However a thread grows and is truncated, the index shows the same places of the same segments as a list."""
    children: Children = ()
    plain: list[tuple[str, int]] = []
    nodes: dict[str, bytes] = {}
    for tag, (length, where) in enumerate(steps):
        new = make_ref(len(plain), len(plain) + length - 1, tag)
        children, made = append_refs(children, [new], fanout)
        nodes |= {hash_bytes(data): data for data in made}
        plain += [(new.digest, seq) for seq in range(new.from_seq, new.to_seq + 1)]
        if where is not None:
            at_seq = int(where * (len(plain) - 1))
            children = truncate_children(children, at_seq)
            plain = plain[: at_seq + 1]
        assert decode_node(encode_node(children), hash_bytes(encode_node(children)), "root") == children
    shown = [
        (leaf.digest, seq) for leaf in list_leaves(children, nodes) for seq in range(leaf.from_seq, leaf.to_seq + 1)
    ]
    assert shown == plain


def test_a_root_stays_small() -> None:
    """After ten thousand segments a root has no more than 63 children of each level, and how they came is equal."""
    refs = [make_ref(i, i) for i in range(10_000)]
    at_once, all_nodes = append_refs((), refs, 64)
    one_by_one: Children = ()
    nodes: list[bytes] = []
    for one in refs:
        one_by_one, made = append_refs(one_by_one, [one], 64)
        nodes += made
    assert (at_once, all_nodes) == (one_by_one, nodes)
    assert [sum(child.level == level for child in at_once) for level in (2, 1, 0)] == [2, 28, 16]
    assert len(all_nodes) == 156 + 2


def test_kinds_rise_to_the_nodes() -> None:
    """A node's ref names every kind that is somewhere below it, in one order."""
    refs = [make_ref(i, i).model_copy(update={"kinds": ("run",) if i else ("ai_message",)}) for i in range(64)]
    (node,), _ = append_refs((), refs, 64)
    assert (node.level, node.from_seq, node.to_seq, node.kinds) == (1, 0, 63, ("ai_message", "run"))


def test_damage_of_any_byte_of_a_node_is_named() -> None:
    """No changed or missing byte goes unnoticed."""
    data = encode_node((make_ref(0, 4), make_ref(5, 9)))
    for i in range(len(data)):
        for broken in (data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], data[:i]):
            with pytest.raises(ObjectDamaged, match="nodes/x is damaged"):
                decode_node(broken, hash_bytes(data), "nodes/x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        encode_node(()),
        encode_node((make_ref(0, 4), make_ref(6, 9))),
        encode_node((make_ref(0, 4), make_ref(4, 9))),
        encode_node((make_ref(5, 4),)),
        encode_node((make_ref(0, 4), make_ref(5, 9).model_copy(update={"level": 1}))),
        encode_node((make_ref(0, 4),)).replace(b'"version":1', b'"version":0'),
        encode_node((make_ref(0, 4),)).replace(b',"version":1', b""),
        encode_node((make_ref(0, 4).model_copy(update={"digest": "../../secret"}),)),
    ],
)
def test_what_is_not_a_node_is_named(data: bytes) -> None:
    """Also with the right checksum, nothing is read that is not a node of consecutive children."""
    with pytest.raises(ObjectDamaged, match="nodes/x"):
        decode_node(data, hash_bytes(data), "nodes/x")


@pytest.mark.parametrize(
    "change", [{"from_seq": 1}, {"to_seq": 10}, {"level": 2}, {"kinds": ()}, {"kinds": ("run",)}]
)
def test_a_node_that_is_another_than_its_ref_says_is_named(change: dict[str, object]) -> None:
    """A node whose content differs from its ref is refused."""
    children = (make_ref(0, 4), make_ref(5, 9))
    right = Ref(digest="0" * 64, level=1, from_seq=0, to_seq=9, kinds=("ai_message",))
    assert limit_children(right, children, "nodes/x") == children
    with pytest.raises(ObjectDamaged, match="nodes/x"):
        limit_children(right.model_copy(update=change), children, "nodes/x")


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
