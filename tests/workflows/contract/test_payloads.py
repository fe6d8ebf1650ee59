"""The types of payloads: they read the JSON that they write, and no other module reads a payload's fields."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from clew.contract.payloads import ConfigPayload, EntryKind, MessagePayload, Recipe, RunPayload, read_payload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import Entry
from tests.support.session_harness import SessionHarness
from tests.support.threads import OTHER_PAYLOADS, make_recipe

ROOT = Path(__file__).parents[3]
SOURCES = ("client", "workflows", "activities", "audit", "bench", "deploy", "examples")
RAW = ("ingress.py", "remote_calls.py")
"""Modules that read Temporal's raw payloads, and no entries."""
CALL = {"id": "tool00001", "name": "add", "arguments": {"a": None}}
SAID = {"context_ref": "default", "content": "a", "request_id": "r-1", "run_id": "run-1"}
STORED = {"digest": "d", "bytes": 9, "shown": 3}
WRITTEN: list[tuple[EntryKind, dict[str, Any]]] = [
    *OTHER_PAYLOADS.items(),
    ("ai_message", {**SAID, "role": "user", "settings": {"model": None}, "output_schema": {"default": None}}),
    ("ai_message", {**SAID, "role": "user", "input_id": "i-1", "source": "steer", "metadata": {"a": "b"}}),
    ("ai_message", {**SAID, "role": "assistant", "tool_calls": [CALL], "thinking": "hm"}),
    ("ai_message", {**SAID, "role": "tool", "tool_call_id": "tool00001", "name": "add", "in_doubt": True}),
    ("ai_message", {**SAID, "role": "tool", "tool_call_id": "tool00001", "result": STORED, "pieces": [1, 2]}),
    ("approval", {"tool_call_id": "tool00001", "decision": "approve", "arguments": {"a": None}}),
    ("error", {"type": "timeout", "message": "late", "details": {"cause": None}}),
]
NAMED = [f"{kind}: {', '.join(payload)}" for kind, payload in WRITTEN]


@pytest.mark.parametrize(("kind", "payload"), WRITTEN, ids=NAMED)
def test_a_payload_travels_as_it_was_written(kind: EntryKind, payload: dict[str, Any]) -> None:
    """Reading and writing changes nothing: what is absent stays absent, and a null of a caller's stays null."""
    read = read_payload(kind, payload)
    assert read.entry_kind == kind
    assert read.as_dict() == payload
    assert read_payload(kind, json.loads(json.dumps(read.as_dict()))) == read


@pytest.mark.parametrize(("kind", "payload"), WRITTEN, ids=NAMED)
def test_what_a_later_release_writes_is_ignored(kind: EntryKind, payload: dict[str, Any]) -> None:
    """A field that is not known yet makes no entry unreadable, and the entry keeps it as it travels."""
    entry = Entry(0, "e0", kind, "", {**payload, "new": {"a": [1]}}, {}, 0)
    assert entry.body == read_payload(kind, payload)
    assert entry.as_dict()["payload"]["new"] == {"a": [1]}


@pytest.mark.parametrize("wrong", [{"id": 1}, {"name": None}, {"arguments": "{}"}, {"name": 7, "arguments": {}}])
def test_a_tool_call_has_an_id_a_name_and_arguments(wrong: dict[str, Any]) -> None:
    """Readers rely on the types of all three."""
    with pytest.raises(ValueError, match="an id, a name and arguments"):
        read_payload("ai_message", {**SAID, "role": "assistant", "tool_calls": [CALL, {**CALL, **wrong}]})


def test_what_a_session_commits_is_read_back_equal() -> None:
    """Each payload that a session commits equals the one that is read back from its JSON."""
    session = SessionHarness(system_prompt="Be brief.", metadata={"user": "u-1"})
    session.ask("add", output_schema={"type": "object"}, metadata={"a": "b"})
    session.steer("both")
    session.reply("", "add", "look", thinking="hm", provider_data={"provider": "openai", "blocks": [{"a": None}]})
    session.answer_calls("1", "2 " * 9000)
    session.reply("{}")
    session.reply("{}")
    session.operate("op-1")
    session.operate("op-2", "switch", lane="draft")
    session.configure(on_busy="queue")
    session.ask("go on")
    session.fail()
    session.close()
    kinds = {entry.kind for entry in session.thread}
    assert kinds >= {"config", "ai_message", "ai_context_operation", "error", "run", "session"}
    for entry in session.thread:
        again = Entry.from_json(json.loads(json.dumps(entry.as_dict())))
        assert again == entry
        assert again.body == entry.body
        assert again.body.as_dict() == entry.payload


def test_a_payload_is_read_as_its_own_kind_alone() -> None:
    """A payload read as another kind is an error that names its actual kind."""
    entry = Entry(7, "e7", "run", "", OTHER_PAYLOADS["run"], {}, 0)
    assert entry.read(RunPayload).iterations == 1
    with pytest.raises(TypeError, match="RunPayload"):
        entry.read(ConfigPayload)
    with pytest.raises(TypeError):
        entry.read(MessagePayload)


@pytest.mark.parametrize("kind", get_args(EntryKind))
def test_what_is_no_payload_is_refused(kind: EntryKind) -> None:
    """A payload without the fields of its kind is an error when it is read, and no sooner."""
    entry = Entry(0, "e0", kind, "", {"gossip": True}, {}, 0)
    with pytest.raises(ValueError, match=r"Payload|Message|union"):
        _ = entry.body


def test_a_recipes_policy_is_what_it_set() -> None:
    """A call's own policy overlays the one in force by the fields that the recipe holds, and no others."""
    own = Recipe.from_json(make_recipe(1, context_policy={"keep_last_turns": 1, "include_kinds": ["message"]})).policy
    assert own is not None
    assert own.model_fields_set == {"keep_last_turns", "include_kinds"}
    assert ContextPolicy(max_messages=9).overlay(own).max_messages == 9
    assert Recipe.from_json(make_recipe(1)).policy is None


@pytest.mark.slow
def test_nothing_else_knows_the_names_of_a_payloads_fields() -> None:
    """An entry's payload is read through its types: no source outside of them looks into the mapping."""
    lines = [
        f"{path.relative_to(ROOT)}:{line}: {text}"
        for folder in SOURCES
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "payloads" not in path.parts and path.name not in RAW
        for line, text in looks_into_payloads(path.read_text())
    ]
    assert not lines, "\n".join(lines)


def test_a_look_into_a_payload_is_found() -> None:
    """By subscript, by `get`, by `in`, and under another name."""
    source = 'a.payload["x"]\na.payload.get("x")\n"x" in a.payload\nsaid = a.payload\na.payload.data\nf(a.payload)\n'
    assert sorted(line for line, _ in looks_into_payloads(source)) == [1, 2, 3, 4]


def looks_into_payloads(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a source that look into the mapping of an attribute `payload`, or give it another name."""
    if ".payload" not in source:
        return
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        looked: list[ast.expr] = []
        match node:
            case ast.Subscript(value=value):
                looked = [value]
            case ast.Attribute(value=value, attr="get" | "items" | "keys" | "values"):
                looked = [value]
            case ast.Compare(comparators=others):
                looked = [*others]
            case ast.Assign(value=value) | ast.AnnAssign(value=ast.expr() as value):
                looked = [value]
            case _:
                pass
        for value in looked:
            if isinstance(value, ast.Attribute) and value.attr == "payload":
                yield value.lineno, lines[value.lineno - 1].strip()
