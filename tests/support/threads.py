"""Threads to test with: messages as contexts show them, payloads of entries, a writer, and projections."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from clew.contract import SessionConfig
from clew.contract.payloads import EntryKind, read_payload
from clew_workflows.contract.content import Content
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, project
from clew_workflows.thread.entries import DEFAULT_LANE, Draft, Entry, Refs
from clew_workflows.thread.thread import Thread

CALCULATOR: ToolSpec = {
    "name": "calculator",
    "description": "Works out an expression.",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}
WIDE = ContextPolicy(max_input_tokens=100_000)


def user_says(content: Content) -> Message:
    """Make a user's message, as a context shows it."""
    return {"role": "user", "content": content}


def assistant_says(content: Content) -> Message:
    """Make an assistant's message, as a context shows it."""
    return {"role": "assistant", "content": content}


def system_says(content: str) -> Message:
    """Make a system message, as a context shows it."""
    return {"role": "system", "content": content}


def assistant_calls(*ids: str, name: str = "calculator") -> Message:
    """Make an assistant's tool calls, as a context shows them."""
    calls = [{"id": call_id, "name": name, "arguments": {}} for call_id in ids]
    return {"role": "assistant", "content": "", "tool_calls": calls}  # type: ignore[typeddict-item]


def tool_returns(call_id: str, content: Content = "12", name: str = "calculator") -> Message:
    """Make a tool's result, as a context shows it."""
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": name}


class _Readable(Thread):
    """A thread whose `repr` lists its entries, for tests that fail."""

    def __repr__(self) -> str:
        rows = [f"{e.seq} {e.kind} {dict(e.payload)} {dict(e.refs)} {e.tokens}" for e in self]
        return "\n".join(["a thread:", *rows])


class Writer:
    """Writes a thread as a session does: each entry is counted when it is committed; times and ids are fixed."""

    def __init__(self, name: str = "heuristic") -> None:
        self.thread: Thread = _Readable()
        self.encoding = load_encoding(name)

    def commit(self, kind: EntryKind, payload: dict[str, Any], **refs: Any) -> Entry:
        """Commit any entry."""
        seq = self.thread.rev
        at = f"2026-01-01T{seq // 3600:02}:{seq // 60 % 60:02}:{seq % 60:02}.000Z"
        entry = Draft(read_payload(kind, payload), cast("Refs", refs)).commit(seq, f"entry-{seq}", at, self.encoding)
        self.thread.append(entry)
        return entry

    def message(self, message: Message, lane: str = DEFAULT_LANE, run: str | None = None, **refs: Any) -> Entry:
        """Commit a message as a context shows it."""
        if run is not None:
            refs |= {"run_id": run, "request_id": f"request-{run}"}
        return self.commit("ai_message", {"context_ref": lane, **message}, **refs)

    def talk(self, *messages: Message, lane: str = DEFAULT_LANE, run: str | None = None) -> Writer:
        """Commit messages, one after the other."""
        for message in messages:
            self.message(message, lane, run)
        return self

    def replace(
        self,
        messages: Sequence[Message],
        lane: str = DEFAULT_LANE,
        base_seq: int | None = None,
        system_prompt: str | None = None,
        reason: str = "manual",
    ) -> Entry:
        """Put a snapshot under a lane."""
        operation: dict[str, Any] = {
            "type": "replace",
            "reason": reason,
            "result_context": {"messages": list(messages), "system_prompt": system_prompt},
        }
        if base_seq is not None:
            operation["base_seq"] = base_seq
        payload = {"op_id": f"op-{self.thread.rev}", "context_ref": lane, "operation": operation}
        return self.commit("ai_context_operation", payload)

    def operate(self, kind: str, lane: str = DEFAULT_LANE, **fields: Any) -> Entry:
        """Commit an operation that brings no snapshot."""
        operation = {"type": kind, "reason": "manual", **fields}
        payload = {"op_id": f"op-{self.thread.rev}", "context_ref": lane, "operation": operation}
        return self.commit("ai_context_operation", payload)

    def switch(self, lane: str) -> Entry:
        """Make a lane the active one."""
        return self.operate("switch", lane)

    def pin(self, *seqs: int) -> Entry:
        """Pin entries of the default lane."""
        return self.operate("pin", DEFAULT_LANE, seqs=list(seqs))

    def expand(self, lane: str = DEFAULT_LANE) -> Entry:
        """Undo a lane's latest compaction."""
        return self.operate("expand", lane)

    def summary(self, to_seq: int, content: str = "They talked.", lane: str = DEFAULT_LANE) -> Entry:
        """Commit a summary of a lane up to a seq."""
        payload = {"context_ref": lane, "from_seq": 0, "to_seq": to_seq, "content": content, "format": "plain"}
        return self.commit("summary", payload | {"model": "local:tiny"})

    def config(self, **changes: Any) -> Entry:
        """Commit a configuration."""
        policy: ContextPolicy = changes.pop("context_policy", ContextPolicy())
        payload = SessionConfig(model="openai:gpt-4o", system_prompt="You are terse.").model_dump(mode="json") | {
            "context_policy": policy.complete().model_dump(mode="json"),
            "tools": [CALCULATOR],
            "encoding": self.encoding.name,
            "model_options": {},
            "limits": {},
        }
        return self.commit("config", payload | changes)


def rebuild(thread: Thread) -> Thread:
    """Parse the same thread from the JSON of its entries."""
    text = json.dumps([entry.as_dict() for entry in thread])
    return Thread(map(Entry.from_json, json.loads(text)))


def project_thread(thread: Thread, policy: ContextPolicy = WIDE, **fields: Any) -> Projection:
    """Project a context, counted without a vocabulary."""
    return project(replace(ProjectionInput(thread, policy, encoding="heuristic"), **fields))


def project_messages(thread: Thread, policy: ContextPolicy = WIDE, **fields: Any) -> list[Message]:
    """Project the messages of a context."""
    return project_thread(thread, policy, **fields).messages


@dataclass
class Back:
    """Reads a thread that is complete in memory."""

    thread: Thread
    upto: int

    async def read(
        self, kind: str, *, context_ref: str | None = None, from_seq: int = 0, to_seq: int | None = None
    ) -> AsyncIterator[Entry]:
        for entry in reversed(self.thread.slice(from_seq, self.upto if to_seq is None else min(to_seq, self.upto))):
            if entry.kind == kind and context_ref in (None, entry.lane):
                yield entry


OTHER_PAYLOADS: dict[EntryKind, dict[str, Any]] = {
    "error": {"type": "timeout", "message": "no answer within 900 seconds", "details": {}},
    "run": {
        "event": "finished",
        "status": "completed",
        "termination_reason": "final_answer",
        "usage": {"input_tokens": 7, "output_tokens": 1, "cached_input_tokens": 0, "model_calls": 1},
        "iterations": 1,
    },
    "input": {"event": "rejected", "kind": "steer", "reason": "empty_content", "content": ""},
    "approval": {"tool_call_id": "tool00001", "decision": "approve"},
    "fork": {"event": "forked_to", "session_id": "s-2", "fork_seq": 3},
    "session": {"event": "hibernated"},
}


def make_recipe(basis_seq: int, **fields: Any) -> dict[str, Any]:
    """Make the recipe of a model call; `fields` replace its defaults."""
    return {
        "context_ref": "default",
        "basis_seq": basis_seq,
        "model": "openai:gpt-4o",
        "model_options": {},
        "policy_hash": "",
        "digest": "",
        "input_tokens": 0,
        "usage": {},
        "attempt": 1,
        "stop_reason": "stop",
    } | fields


def assert_valid(messages: list[Message]) -> None:
    """Assert what every provider demands: each call has one result, right after its message, and no other results."""
    waiting: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            call_id = message.get("tool_call_id", "")
            assert call_id in waiting, f"a result without its call: {call_id}"
            waiting.remove(call_id)
        else:
            assert not waiting, f"calls without a result: {waiting}"
            calls = [call["id"] for call in message.get("tool_calls", [])]
            waiting = set(calls)
            assert len(waiting) == len(calls), "two calls of one id"
    assert not waiting, f"calls without a result at the end: {waiting}"
