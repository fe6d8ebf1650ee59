from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.archive.errors import ObjectDamaged
from clew_activities.archive.index import Children, Ref, append, decode, encode, limit_children, truncate
from clew_activities.archive.segment import hash_bytes


def make_ref(from_seq: int, to_seq: int, tag: int = 0) -> Ref:
    """A segment of which only the name is needed."""
    digest = hash_bytes(f"{from_seq}-{to_seq}-{tag}".encode())
    return Ref(digest=digest, level=0, from_seq=from_seq, to_seq=to_seq, kinds=("ai_message",))


def list_leaves(children: Children, nodes: dict[str, bytes]) -> list[Ref]:
    """The segments below, as views."""
    refs: list[Ref] = []
    for child in children:
        if child.level:
            below = decode(nodes[child.digest], child.digest, "n")
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
        children, made = append(children, [new], fanout)
        nodes |= {hash_bytes(data): data for data in made}
        plain += [(new.digest, seq) for seq in range(new.from_seq, new.to_seq + 1)]
        if where is not None:
            at_seq = int(where * (len(plain) - 1))
            children = truncate(children, at_seq)
            plain = plain[: at_seq + 1]
        assert decode(encode(children), hash_bytes(encode(children)), "root") == children
    shown = [
        (leaf.digest, seq) for leaf in list_leaves(children, nodes) for seq in range(leaf.from_seq, leaf.to_seq + 1)
    ]
    assert shown == plain


def test_a_root_stays_small() -> None:
    """After ten thousand segments a root has no more than 63 children of each level, and how they came is equal."""
    refs = [make_ref(i, i) for i in range(10_000)]
    at_once, all_nodes = append((), refs, 64)
    one_by_one: Children = ()
    nodes: list[bytes] = []
    for one in refs:
        one_by_one, made = append(one_by_one, [one], 64)
        nodes += made
    assert (at_once, all_nodes) == (one_by_one, nodes)
    assert [sum(child.level == level for child in at_once) for level in (2, 1, 0)] == [2, 28, 16]
    assert len(all_nodes) == 156 + 2


def test_kinds_rise_to_the_nodes() -> None:
    """A node's ref names every kind that is somewhere below it, in one order."""
    refs = [make_ref(i, i).model_copy(update={"kinds": ("run",) if i else ("ai_message",)}) for i in range(64)]
    (node,), _ = append((), refs, 64)
    assert (node.level, node.from_seq, node.to_seq, node.kinds) == (1, 0, 63, ("ai_message", "run"))


def test_damage_of_any_byte_is_found_and_named() -> None:
    """No changed or missing byte goes unnoticed."""
    data = encode((make_ref(0, 4), make_ref(5, 9)))
    for i in range(len(data)):
        for broken in (data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :], data[:i]):
            with pytest.raises(ObjectDamaged, match="nodes/x is damaged"):
                decode(broken, hash_bytes(data), "nodes/x")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        encode(()),
        encode((make_ref(0, 4), make_ref(6, 9))),
        encode((make_ref(0, 4), make_ref(4, 9))),
        encode((make_ref(5, 4),)),
        encode((make_ref(0, 4), make_ref(5, 9).model_copy(update={"level": 1}))),
        encode((make_ref(0, 4),)).replace(b'"version":1', b'"version":0'),
        encode((make_ref(0, 4),)).replace(b',"version":1', b""),
        encode((make_ref(0, 4).model_copy(update={"digest": "../../secret"}),)),
    ],
)
def test_what_is_no_node_is_named(data: bytes) -> None:
    """Also with the right checksum, nothing is read that is not a node of consecutive children."""
    with pytest.raises(ObjectDamaged, match="nodes/x"):
        decode(data, hash_bytes(data), "nodes/x")


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
