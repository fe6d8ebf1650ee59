"""A request that fails has an outcome with a typed error, and the session continues."""

from __future__ import annotations

import uuid
from http import HTTPStatus
from typing import Any

import pytest

from clew import (
    ContextPolicy,
    RequestFailed,
)
from clew.local import Reply
from tests.support.scripts import list_kinds
from tests.support.stack import Stack


async def test_what_must_fit_and_does_not_is_a_typed_failure(stack: Stack) -> None:
    """A message longer than the budget is kept in the thread, and its request fails with `context_overflow`."""
    session = await stack.open(context_policy=ContextPolicy(max_input_tokens=60, reserve_output_tokens=10))
    outcome = await (await session.message("word " * 200)).result()
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.type == "context_overflow"
    assert await list_kinds(session) == ["config", "user", "error", "run"]
    assert await session.ask("short") == "fine"


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply("that key is wrong", status=HTTPStatus.UNAUTHORIZED), "unauthorized"),
        (Reply("no such parameter", status=HTTPStatus.BAD_REQUEST), "bad_request"),
        (Reply("the model `x` does not exist", status=HTTPStatus.NOT_FOUND), "unknown_model"),
    ],
)
async def test_what_a_provider_refuses_for_good_fails_at_once_with_its_own_words(
    stack: Stack, reply: Reply, word: str
) -> None:
    """A final error of the provider is the outcome, with the provider's message, after one call."""
    session = await stack.open(lambda _body: reply)
    request = await session.message("hello")
    with pytest.raises(RequestFailed, match=reply.text):
        await request.answer()
    outcome = await request.result()
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.retryable) == (word, False)
    assert len(stack.list_requests((await session.status()).model)) == 1


async def test_what_may_pass_is_tried_again_within_the_request(stack: Stack) -> None:
    """A rate limit is retried after the provider's `Retry-After`, and the same request is answered."""
    replies = [Reply("slow down", status=HTTPStatus.TOO_MANY_REQUESTS, headers={"Retry-After": "0"}), Reply("now")]
    session = await stack.open(lambda _body: replies.pop(0))
    assert await session.ask("hello") == "now"
    (answer,) = [entry for entry in await session.entries() if entry.payload.get("role") == "assistant"]
    assert answer.payload["recipe"]["attempt"] == 2


async def test_a_request_has_its_time_and_no_more(stack: Stack) -> None:
    """Retries end with the request's timeout, and the outcome names the last failure."""
    session = await stack.open(lambda _body: Reply("overloaded", status=HTTPStatus.SERVICE_UNAVAILABLE))
    outcome = await (await session.message("hello", timeout_seconds=5)).result()
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.type == "timeout"
    assert "overloaded" in outcome.error.message


async def test_what_the_worker_does_not_know_is_a_failed_outcome(stack: Stack) -> None:
    """An unknown provider and an unknown tool fail each request with a typed error; the session continues."""
    unknown: list[tuple[dict[str, Any], str]] = [
        ({"model": "nowhere:gpt"}, "unknown_model"),
        ({"model": stack.add_model("x"), "tools": ["teleport"]}, "unknown_tool"),
    ]
    for config, word in unknown:
        session = await stack.clew.open(f"test-{uuid.uuid4().hex}", **config)
        for _ in range(2):
            outcome = await (await session.message("hello")).result()
            assert outcome.error is not None
            assert outcome.error.type == word
        assert (await session.entries())[0].kind == "config"


async def test_an_answer_that_is_awaited_says_why_its_call_is_retried(
    stack: Stack, caplog: pytest.LogCaptureFixture
) -> None:
    """`Session.ask` logs the attempt, when it begins and why, without a query of the session."""
    replies = [Reply("too busy", status=HTTPStatus.SERVICE_UNAVAILABLE, headers={"Retry-After": "8"}), Reply("fine")]
    session = await stack.open(lambda _body: replies.pop(0))
    with caplog.at_level("WARNING", "clew"):
        assert await session.ask("hello") == "fine"
    (said,) = [record.getMessage() for record in caplog.records if session.id in record.getMessage()]
    assert "attempt 2 begins at 20" in said
    assert "provider_unavailable" in said
    assert "127.0.0.1" in said
