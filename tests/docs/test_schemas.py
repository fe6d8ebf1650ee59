"""The JSON Schemas say what the code takes and answers."""

from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from pydantic import TypeAdapter, ValidationError

from clew.contract import (
    ContextQuery,
    EntriesQuery,
    FollowQuery,
    OutcomeError,
    RequestOutcome,
    TranscriptQuery,
    Usage,
    WindowQuery,
)
from clew.contract.payloads import KINDS
from clew.thread import Refs
from clew_workflows import contract
from clew_workflows.protocol import RequestedTool
from clew_workflows.session import views
from docs.generate import DOCS, SCHEMAS
from docs.generate.messages import wire_types
from tests.support.session_harness import SessionHarness

BUNDLE = json.loads((DOCS / SCHEMAS / "clew.json").read_text())
INPUTS: list[tuple[str, Any, bool]] = [
    ("MessageInput", {"content": "hello"}, True),
    ("MessageInput", {"content": "hello", "request_id": None, "metadata": {"a": "b"}}, True),
    ("MessageInput", {}, False),
    ("MessageInput", {"content": "hello", "contents": "hello"}, False),
    ("MessageInput", {"content": "hello", "max_iterations": 0}, False),
    ("MessageInput", {"content": "hello", "metadata": {"a": 1}}, False),
    ("MessageInput", {"content": "hello", "model": "http://elsewhere/gpt"}, False),
    ("SessionStart", {"config": {"model": "openai:gpt-4o", "tools": ["a"], "limits": {"max_cost_usd": 1}}}, True),
    ("SessionStart", {"config": {"model": "openai:gpt-4o", "context_policy": {"low_water": 1}}}, False),
    ("ContextOperation", {"op_id": "op-1", "operation": {"type": "pin", "seqs": [1]}}, True),
    ("ContextOperation", {"op_id": "op-1", "operation": {"type": "pin"}}, False),
    ("ContextOperation", {"op_id": "op-1", "operation": {"type": "merge"}}, False),
    ("ContextOperation", {"op_id": "op-1", "operation": {"type": "expand", "base_seq": 3}}, False),
    ("CheckpointInput", {"expires_seconds": 60}, True),
    ("CheckpointInput", {"expires_seconds": None}, False),
]


def satisfies(name: str, value: Any) -> bool:
    """Whether a JSON value is valid for a type of the bundle."""
    schema = {"$schema": BUNDLE["$schema"], "$ref": f"#/$defs/{name}", "$defs": BUNDLE["$defs"]}
    return jsonschema_rs.validator_for(schema).is_valid(value)


def talk() -> SessionHarness:
    """A session with a turn behind it."""
    session = SessionHarness(system_prompt="Be brief.")
    session.ask("What is it?", request_id="r-1")
    session.reply("This.")
    return session


def test_the_bundle_is_valid() -> None:
    """It is a JSON Schema of the dialect that it names, complete in itself; messages name types that it has."""
    assert BUNDLE["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert jsonschema_rs.meta.is_valid(BUNDLE)
    jsonschema_rs.validator_for(BUNDLE)
    types = set(re.findall(r'"#/\$defs/(\w+)"', json.dumps(BUNDLE)))
    assert types <= BUNDLE["$defs"].keys()


@pytest.mark.parametrize(("name", "value", "is_valid"), INPUTS)
def test_an_input_is_valid_where_the_code_takes_it(name: str, value: Any, is_valid: bool) -> None:
    """A schema and the type that it is made from agree about inputs."""
    assert satisfies(name, value) is is_valid
    try:
        TypeAdapter(wire_types()[name]).validate_json(json.dumps(value))
    except ValidationError:
        assert not is_valid
    else:
        assert is_valid


def test_answers_are_valid() -> None:
    """What the session answers to queries is what the schemas say."""
    session = talk()
    state, thread = session.state, session.thread
    assert satisfies("SessionStatus", views.answer_status(state, thread))
    assert satisfies("TranscriptPage", views.answer_transcript(state, thread, TranscriptQuery(include_system=True)))
    assert satisfies("EntriesPage", page := views.answer_entries(thread, EntriesQuery(limit=2)))
    assert not satisfies("EntriesPage", page | {"entries": [page["entries"][0] | {"payload": {}}]})
    follow = views.answer_follow(state, thread, FollowQuery(from_seq=0))
    assert follow["status"]["rev"] == thread.rev
    assert satisfies("FollowPage", follow)
    assert satisfies("Window", views.answer_window(state, thread, WindowQuery(token_budget=100)))
    shown = views.build_projection(state, thread, ContextQuery())
    assert satisfies("ContextPage", {"messages": shown.messages, "tool_spec": [], "meta": shown.meta.as_dict()})


def test_entries_are_valid() -> None:
    """What a thread holds after a run with tools, a steer, operations and a failure is what the schemas say."""
    session = SessionHarness(system_prompt="Be brief.")
    session.ask("what is 2 + 2?", request_id="r-1", metadata={"a": "b"})
    session.reply("let me see", RequestedTool(name="add", arguments={"a": 2}), "look", usage=Usage(input_tokens=5))
    session.steer("quickly", source="app")
    session.operate("op-1", result_context={"messages": [{"role": "user", "content": "before"}]})
    session.operate("op-2", "switch", "draft")
    session.configure(system_prompt="Be kind.")
    session.answer_calls("4", "clear")
    session.reply("it is 4", thinking="easy")
    session.reply("as I said")
    session.ask("and now?", request_id="r-2")
    session.fail()
    session.ask("and now?", request_id="r-3")
    session.cancel(reason="enough")
    session.close()
    entries = [entry.as_dict() for entry in session.thread.slice(0, session.thread.last_seq)]
    assert {entry["kind"] for entry in entries} == {*KINDS} - {"summary", "approval", "fork"}
    for entry in entries:
        assert satisfies("Entry", entry), entry
        assert entry["refs"].keys() <= Refs.__annotations__.keys()


def test_filters_of_entries_are_refs() -> None:
    """What the query `entries` filters by is a ref, or the kind, the lane and where to begin."""
    others = {"from_seq", "limit", "kind", "context_ref"}
    assert EntriesQuery.model_fields.keys() - others <= Refs.__annotations__.keys()


def test_an_answer_has_all_that_its_schema_requires() -> None:
    """What cannot be absent is required, and null is nowhere."""
    outcome = RequestOutcome(request_id="r-1", status="failed", last_seq=3, error=OutcomeError(type="a", message="b"))
    assert satisfies("RequestOutcome", outcome.as_dict())
    assert not satisfies("RequestOutcome", outcome.as_dict() | {"run_id": None})
    without = outcome.as_dict()
    del without["usage"]
    assert not satisfies("RequestOutcome", without)
    assert Usage().as_dict().keys() == {"input_tokens", "output_tokens", "cached_input_tokens", "model_calls"}


def test_every_type_of_the_contract_has_a_schema() -> None:
    """What `clew.contract` shows of messages is in a schema, be it as a part of one."""
    types = {name for name in contract.__all__ if isinstance(getattr(contract, name), type)}
    assert types - BUNDLE["$defs"].keys() - {"Context", "SessionId"} == set()
