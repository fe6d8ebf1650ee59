"""Requests that are not valid: each gets an error of its caller's, with a word, whatever it has."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from clew.serve.openai import ids
from tests.support.serving import run_service
from tests.support.stack import Stack

DEEP = "[" * 20_000 + "]" * 20_000
RAW = ["{", "[]", '"x"', "\x00", DEEP, '{"a":' * 20_000, '{"\\ud800":1}', '{"unknown":1}', "1e999", "9" * 5000]
"""Bodies that no route takes."""
VALUES = ['"\\ud800"', '"a\\u0000b"', "NaN", "1e400", "9" * 400, "[null]", '{"":1}', DEEP, json.dumps(DEEP), '"a:b"']
"""Values, as JSON, that a field may get."""
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "@"}
AG_UI = {
    "threadId": "chat",
    "runId": "r",
    "state": {},
    "messages": [{"id": "m", "role": "user", "content": "x"}],
    "context": [],
    "forwardedProps": {},
}
BODIES: list[tuple[str, Any]] = [
    ("/v1/responses", {"model": "scripted:none", "input": [CALL]}),
    ("/v1/responses", {"model": "scripted:none", "input": "hi", "previous_response_id": "@"}),
    ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "@", "output": "x"}]}),
    ("/v1/conversations", {"items": [CALL]}),
    (
        "/v1/chat/completions",
        {"model": "scripted:none", "messages": [{"role": "user", "content": "x"}], "tools": "@"},
    ),
    ("/v1/chat/completions", {"model": "@", "messages": []}),
    ("/v1/ui/chat", {"id": "chat", "messages": [{"id": "m", "role": "assistant", "parts": [{"toolCallId": "@"}]}]}),
    ("/v1/ui/chat", {"id": "chat", "messages": [{"id": "m", "role": "user", "parts": ["@"]}]}),
    ("/v1/ag-ui/run", {"threadId": "chat", "messages": "@"}),
    ("/v1/ag-ui/run", {**AG_UI, "tools": [{"name": "f", "description": "d", "parameters": "@"}]}),
    ("/v1/sessions", {"model": "scripted:none", "system_prompt": "x", "unknown": "@"}),
    ("/v1/sessions/chat/messages", {"content": "x", "timeout_seconds": "@"}),
    ("/v1/sessions/chat/tool-results/c", {"content": "@"}),
    ("/v1/sessions/chat/approvals/c", {"decision": "approve", "arguments": "@"}),
    ("/v1/sessions/chat/preview", {"pending": "@"}),
    ("/v1/sessions/chat/context", {"operation": "@"}),
    ("/v1/sessions/chat/fork", {"at_seq": "@"}),
    ("/v1/sessions/restore", {"token": "@"}),
]
"""Paths and bodies; `@` is replaced by each value."""
NAMES = [
    ids.encode("resp", "chat", "r", "9" * 5000),
    ids.encode("resp", "acme:chat", "r"),
    ids.encode("resp", "chat", "r\n"),
    "resp_%ED%A0%80",
    "%00",
    "%ff",
    "x" * 300,
]
"""Names in a path that name nothing."""


def list_requests() -> Iterator[tuple[str, str, str]]:
    """List the method, the path and the body of each request."""
    for path, body in BODIES:
        for raw in RAW:
            yield "POST", path, raw
        for value in VALUES:
            yield "POST", path, json.dumps(body).replace('"@"', value)
    for name in NAMES:
        for path in (f"/v1/responses/{name}", f"/v1/conversations/{name}/items", f"/v1/sessions/{name}"):
            yield "GET", path, ""


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_request_that_is_not_valid_is_its_callers_error(stack: Stack) -> None:
    """The service answers each hostile request with a status of 4xx and a word, and lives."""
    async with run_service(stack.clew) as served:
        for method, path, body in list_requests():
            answer = await served.http.request(method, path, content=body.encode())
            assert 400 <= answer.status_code <= 499, (method, path, body[:80], answer.text[:200])
            assert answer.json()["error"]["code"] not in (None, "internal"), (method, path, body[:80])
