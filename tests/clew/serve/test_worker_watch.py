"""The service without a worker: each request is answered within seconds, with the word and the reason."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest

from clew import Clew
from clew.serve import worker_watch
from tests.support.rolling import make_id
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.stack import Stack

MARGIN_SECONDS = 4.0
"""Seconds that an answer may take beside its wait, on a machine that has other work."""


@pytest.fixture
async def unserved(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Served, str]]:
    """The service of a task queue that no worker polls, and the token of an operator's key."""
    monkeypatch.setattr(worker_watch, "CHECK_SECONDS", 1.0)
    token, key = make_key("operator", "ops", operator=True)
    async with run_service(Clew(stack.clew.temporal, make_id()), key) as served:
        yield served, token


async def test_a_message_without_a_worker_is_answered_within_its_wait(unserved: tuple[Served, str]) -> None:
    """503, with the words of the command line for operators; a tenant reads that it may repeat it."""
    served, token = unserved
    async with make_http(served.address, token) as operator:
        for http in (operator, served.http):
            await http.put("/v1/sessions/chat", json={"model": "scripted:none"})
            for method, path, body in (
                ("POST", "/v1/sessions/chat/messages?wait=2", {"content": "hello"}),
                ("GET", "/v1/sessions/chat/requests/r1?wait=2", None),
            ):
                begun_at = time.monotonic()
                refused = await http.request(method, path, json=body)
                assert time.monotonic() - begun_at < 2 + MARGIN_SECONDS
                error = refused.json()["error"]
                assert (refused.status_code, error["code"]) == (503, "worker_unavailable")
                assert ("start one with `clew worker" in error["message"]) == (http is operator)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/sessions/chat", None),
        ("GET", "/v1/sessions/chat/entries", None),
        ("GET", "/v1/sessions/chat/context", None),
        ("POST", "/v1/sessions/chat/cancel", {}),
        ("PATCH", "/v1/sessions/chat", {"model": "scripted:other"}),
        ("POST", "/v1/sessions/chat/steer", {"content": "hello"}),
        ("POST", "/v1/ui/chat", {"id": "chat", "messages": [{"id": "m", "role": "user", "parts": []}]}),
        ("POST", "/v1/chat/completions", {"model": "a:b", "messages": [{"role": "user", "content": "hello"}]}),
        ("POST", "/v1/responses", {"model": "a:b", "input": "hello"}),
    ],
)
async def test_no_route_waits_for_workers_that_do_not_exist(
    unserved: tuple[Served, str], method: str, path: str, body: object
) -> None:
    """Each is answered within seconds."""
    served, _ = unserved
    await served.http.put("/v1/sessions/chat", json={"model": "scripted:none"})
    if path == "/v1/ui/chat":
        body = {"id": "chat", "messages": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "hi"}]}]}
    begun_at = time.monotonic()
    refused = await served.http.request(method, path, json=body)
    assert time.monotonic() - begun_at < 1 + MARGIN_SECONDS
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "worker_unavailable")
