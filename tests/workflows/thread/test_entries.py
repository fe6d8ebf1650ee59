"""Entries: their JSON, their messages for a model, and their tokens."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given

from clew.contract.payloads import KINDS, ErrorPayload
from clew_workflows.contract.messages import list_call_ids
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.entries import Draft, Entry
from tests.support.examples import examples
from tests.support.generated_threads import Step, histories, write
from tests.support.reference import canonical_json, count_tokens
from tests.support.threads import CALCULATOR, Writer, assistant_calls, system_says, tool_returns, user_says

WIRE = {
    "seq": 0,
    "id": "e0",
    "kind": "ai_message",
    "at": "2026-01-01T00:00:00.000Z",
    "payload": {"context_ref": "default", "role": "user", "content": "a"},
    "refs": {"request_id": "r"},
    "tokens": 5,
}


def test_an_entry_travels_as_it_is() -> None:
    """An entry's JSON has the contract's fields, in order, and reads back equal."""
    entry = Entry.from_json(WIRE)
    assert entry.as_dict() == WIRE
    assert list(entry.as_dict()) == ["seq", "id", "kind", "at", "payload", "refs", "tokens"]
    assert (entry.lane, entry.message) == ("default", user_says("a"))


@pytest.mark.parametrize("name", list(WIRE))
def test_an_entry_needs_all_its_fields(name: str) -> None:
    """JSON that lacks a field is refused."""
    with pytest.raises(ValueError, match=name):
        Entry.from_json({key: value for key, value in WIRE.items() if key != name})


def test_an_entry_has_a_known_kind() -> None:
    """The kinds are those of the contract; any other is refused."""
    shown_or_operating = {"config", "ai_message", "ai_context_operation", "summary"}
    assert set(KINDS) == shown_or_operating | {"error", "run", "input", "approval", "fork", "session"}
    with pytest.raises(ValueError, match="gossip"):
        Entry.from_json(WIRE | {"kind": "gossip"})


def test_an_entry_never_changes() -> None:
    """Entries are immutable."""
    with pytest.raises(FrozenInstanceError):
        Entry.from_json(WIRE).seq = 1  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_model_sees_what_is_meant_for_it() -> None:
    """Thinking, refs and the lane stay in the thread; ids and names go with tools, provider data with calls."""
    data = {"provider": "anthropic", "blocks": [{"type": "thinking"}]}
    writer = Writer()
    spoken = writer.commit(
        "ai_message",
        {"context_ref": "default", "role": "assistant", "content": "a", "thinking": "hm", "provider_data": data},
    )
    assert spoken.message == {"role": "assistant", "content": "a"}
    calls: dict[str, Any] = {**assistant_calls("x"), "provider_data": data}
    assert writer.commit("ai_message", {"context_ref": "default", **calls}).message == calls
    assert writer.message(tool_returns("x")).message == tool_returns("x")
    assert list_call_ids(assistant_calls("x", "y")) == ["x", "y"]
    assert list_call_ids(user_says("a")) == []


@pytest.mark.parametrize("name", ["o200k_base", "heuristic"])
@given(steps=histories)
@examples(40)
def test_counts_are_those_of_the_encoding(name: str, steps: list[Step]) -> None:
    """What an entry was counted as when it was committed is what counting its message anew gives."""
    by = load_encoding(name)
    for entry in write(steps, name):
        match entry.kind:
            case "ai_message":
                assert entry.tokens == count_tokens(entry.message, by, entry.payload.get("media_tokens", ()))
            case "summary":
                assert entry.tokens == count_tokens(
                    system_says("Summary of earlier conversation:\n" + entry.payload["content"]), by
                )
            case "ai_context_operation" if snapshot := entry.payload["operation"].get("result_context"):
                media = snapshot.get("media_tokens") or [()] * len(snapshot["messages"])
                counted = zip(snapshot["messages"], media, strict=True)
                assert snapshot["tokens"] == [count_tokens(message, by, counts) for message, counts in counted]
                assert entry.tokens == sum(snapshot["tokens"])


def test_a_configuration_keeps_the_counts_of_its_parts() -> None:
    """A `config` entry records what its prompt and its tool schemas cost, and its payload is otherwise as given."""
    by = load_encoding("heuristic")
    entry = Writer().config()
    prompt = count_tokens({"role": "system", "content": "You are terse."}, by)
    tools = by.framing + by.count(canonical_json(CALCULATOR))
    assert entry.payload["tokens"] == {"system_prompt": prompt, "tools": tools}
    assert entry.tokens == prompt + tools


def test_other_facts_cost_nothing() -> None:
    """An entry that no context shows has no tokens."""
    error = ErrorPayload(type="timeout", message="no answer", details={})
    entry = Draft(error, {"run_id": "run-1"}).commit(3, "e3", "", load_encoding("heuristic"))
    assert (entry.kind, entry.body, entry.payload, entry.tokens) == ("error", error, error.as_dict(), 0)


def test_a_transcript_has_what_a_reply_is_founded_on() -> None:
    """The calls of the provider's tools and the citations; contexts have neither."""
    founded = {
        "provider_calls": [{"tool": "web_search", "input": "tea"}],
        "citations": [{"url": "https://a.example"}],
    }
    payload = {"context_ref": "default", "role": "assistant", "content": "a"}
    entry = Entry.from_json(WIRE | {"payload": payload | founded})
    assert entry.transcript_message == {"role": "assistant", "content": "a", "seq": 0} | founded
    assert entry.message == {"role": "assistant", "content": "a"}
    assert Entry.from_json(WIRE | {"payload": payload}).transcript_message == {**entry.message, "seq": 0}
