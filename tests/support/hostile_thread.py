"""A thread with hostile texts in every place where text enters one."""

from __future__ import annotations

from typing import Any

from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.hostile_texts import HOSTILE_TEXTS
from tests.support.payloads import OTHER_PAYLOADS
from tests.support.recorded import RecordedSession
from tests.support.threads import tool_returns, user_says


def write_hostile_thread() -> Thread:
    """Write the thread: each text as message, thinking, tool, argument, result, lane, reason, name, id and title."""
    first = HOSTILE_TEXTS[0]
    agent = {"name": first, "version": first, "label": first}
    metadata = {"title": first, **{text: text for text in HOSTILE_TEXTS}}
    session = RecordedSession(
        ContextPolicy(max_input_tokens=10_000_000), system_prompt=first, metadata=metadata, agent=agent, model=first
    )
    for text in HOSTILE_TEXTS:
        _write(session, text)
    line = "x" * 1_000_000
    session.writer.message(user_says(line))
    calls: Any = [{"id": "long", "name": line, "arguments": {"line": line}}]
    reply: Any = {"role": "assistant", "content": line, "tool_calls": calls, "thinking": line}
    session.call(reply)
    session.writer.message(tool_returns("long", line, line))
    return session.thread


def _write(session: RecordedSession, text: str) -> None:
    writer, ids = session.writer, {"run_id": text, "request_id": text, "session_id": text}
    user = {"context_ref": text, "role": "user", "content": text, "request_id": text, "source": text}
    writer.commit("ai_message", user | {"metadata": {text: text}}, **ids)
    calls: Any = [{"id": text, "name": text, "arguments": {text: text, "nested": [text]}}]
    reply: Any = {"role": "assistant", "content": text, "tool_calls": calls, "thinking": text}
    session.call(reply, lane=text, run=text, model=text)
    child = {"session_id": text, "agent": text, "usage": {"input_tokens": 1}}
    result = {"context_ref": text, **tool_returns(text, text, text), "subagent": child, "is_error": True}
    edited = {text: text}
    writer.commit("approval", {"tool_call_id": text, "decision": "approve", "reason": text, "arguments": edited})
    writer.commit("ai_message", result | {"edited_arguments": edited}, **ids, tool_call_id=text)
    session.call({"role": "assistant", "content": f"# {text}\n\n| {text} |\n|-|\n| {text} |"}, lane=text, run=text)
    writer.commit("ai_message", {"context_ref": text, **tool_returns(f"{text} of no call", text, text)}, **ids)
    failed = {"status": "failed", "termination_reason": text, "error": {"type": text, "message": text}}
    writer.commit("run", OTHER_PAYLOADS["run"] | failed, **ids)
    writer.commit("error", {"type": text, "message": text, "details": {}})
    unread = {"event": "rejected", "kind": text, "reason": text, "content": text}
    writer.commit("input", unread)
    writer.commit("approval", {"tool_call_id": f"{text} of no call", "decision": "deny", "reason": text})
    writer.commit("fork", {"event": "forked_from", "session_id": text, "fork_seq": 1})
    writer.commit("fork", {"event": "forked_to", "session_id": text, "fork_seq": 1})
    writer.commit("session", {"event": "closed", "workflow": text, "reason": text})
    writer.summary(3, text, text)
    writer.replace([{"role": "user", "content": text}], text, system_prompt=text, reason="compaction")
    writer.switch(text)
    writer.commit("config", dict(writer.thread.configs[0].payload) | {"model": text, "changes": [text]})
