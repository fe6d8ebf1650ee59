"""A model with a smaller window than expected: refusals and token counts of its provider shorten contexts."""

from __future__ import annotations

import json
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest

from clew import (
    Clew,
    ContextPolicy,
    RequestFailed,
    Session,
)
from clew.errors import ContextOverflow
from clew.local import Reply
from clew_activities.archive import Archive
from clew_activities.model.summary_calls import INSTRUCTIONS
from clew_audit.audit import audit_session
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import compute_digest
from tests.support.provider_server import decode_request
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until

LIMIT = 1_500
OUTPUT = 200
TURNS = 20


def count_prompt(body: dict[str, Any]) -> int:
    """Count a prompt's tokens as the provider does."""
    return len(json.dumps(body["messages"])) // 4


def reply_within_limit(body: dict[str, Any]) -> Reply:
    """A model that refuses prompts over its limit, reply included, with OpenAI's error."""
    tokens = count_prompt(body)
    if tokens + OUTPUT > LIMIT:
        words = f"This model's maximum context length is {LIMIT} tokens. "
        words += f"However, your messages resulted in {tokens} tokens."
        return Reply(words, status=HTTPStatus.BAD_REQUEST)
    return Reply("It is what it is, and nothing besides. " * 2)


async def open_session(stack: Stack, clew: Clew, **config: Any) -> Session:
    options = {"max_output_tokens": OUTPUT}
    return await clew.open(make_id(), model=stack.add_model(reply_within_limit), model_options=options, **config)


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["one run", pytest.param("many runs", marks=pytest.mark.slow)])
async def test_a_session_learns_what_its_model_takes(stack: Stack, runs: str) -> None:
    """Every request is answered; the first refusal is retried, and later runs stay within the limit.

    What was sent each time follows from the entries, the refused call's too, and the audit is clean.
    """
    if runs == "one run":
        await assert_learns(stack, stack.clew)
    else:
        async with run_rolling_worker(stack) as clew:
            await assert_learns(stack, clew)


async def assert_learns(stack: Stack, clew: Clew) -> None:
    session = await open_session(stack, clew)
    for number in range(TURNS):
        await session.ask(f"{number} " + "some words of a user " * 10)
    entries = await session.entries()
    errors = [entry for entry in entries if entry.kind == "error"]
    replies = [entry for entry in entries if "recipe" in entry.payload]
    assert len(replies) == TURNS
    assert 1 <= len(errors) <= 2
    for error in errors:
        retried = error.payload["details"]["retried"]
        (again,) = (entry for entry in replies if entry.refs["call_id"] == retried["call_id"])
        assert again.refs["run_id"] == error.refs["run_id"]
        assert again.refs["iteration"] == error.refs["iteration"]
        assert again.payload["recipe"]["context_policy"]["max_input_tokens"] <= retried["budget"] + 2_000
        assert again.payload["recipe"]["input_tokens"] <= retried["budget"]
    received = stack.list_requests((await session.status()).model)
    taken = [body for body in received if count_prompt(body) + OUTPUT <= LIMIT]
    assert len(received) == len(taken) + len(errors)
    for entry, body in zip(replies, taken, strict=True):
        assert entry.payload["recipe"]["digest"] == compute_digest(decode_request(body))
        assert (await session.context(call_id=entry.refs["call_id"])).meta.digest == entry.payload["recipe"]["digest"]
    report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
    assert report.clean, report.differences
    assert report.calls.verified == TURNS


@pytest.mark.slow
async def test_summaries_fit_into_the_window_that_the_model_has(stack: Stack) -> None:
    """One asked for before anything was learned is written in pieces, and one after a refusal is never refused."""
    policy = ContextPolicy(max_input_tokens=32_768, reserve_output_tokens=200, keep_last_turns=1)

    def reply(body: dict[str, Any]) -> Reply:
        if body["messages"][0]["content"] != INSTRUCTIONS:
            return Reply("fine")
        tokens = count_prompt(body)
        words = f"maximum context length is {LIMIT} tokens. However, your messages resulted in {tokens} tokens."
        return Reply(words, status=HTTPStatus.BAD_REQUEST) if tokens + OUTPUT > LIMIT else Reply("They talked.")

    session = await stack.clew.open(make_id(), model=stack.add_model(reply), context_policy=policy)
    for number in range(12):
        await session.ask(f"{number} " + "some words of a user " * 40)
    receipt = await session.summarize()
    assert receipt.to_seq > 15
    assert get_text((await session.context()).messages[0]["content"]).endswith("They talked.")


async def is_idle(session: Session) -> bool:
    return (await session.status()).status == "idle"


@pytest.mark.slow
async def test_what_a_smaller_window_drops_is_summarized(stack: Stack) -> None:
    """A table says 32 768 tokens, the server takes 8 000: after its refusal the session writes summaries by itself.

    Every message is in the last context or in the summary, and no summary is written after every run.
    """
    limit, turns = 8_000, 24
    policy = ContextPolicy(
        max_input_tokens=32_768, reserve_output_tokens=OUTPUT, keep_last_turns=10, summarization="request_new"
    )

    def reply(body: dict[str, Any]) -> Reply:
        tokens = count_prompt(body)
        if tokens + OUTPUT > limit:
            words = f"This model's maximum context length is {limit} tokens. "
            words += f"However, your messages resulted in {tokens} tokens."
            return Reply(words, status=HTTPStatus.BAD_REQUEST)
        return Reply("They talked." if body["messages"][0]["content"] == INSTRUCTIONS else "Fine.")

    options = {"max_output_tokens": OUTPUT}
    session = await stack.clew.open(
        make_id(), model=stack.add_model(reply), context_policy=policy, model_options=options
    )
    for number in range(turns):
        await session.ask(f"{number} " + "some words of a user " * 180)
        # A message that came now would end the summary that is being written.
        await wait_until(partial(is_idle, session))
    entries = await session.entries()
    written = [entry for entry in entries if entry.kind == "summary"]
    assert 1 <= len(written) <= turns // 4
    assert [entry.payload["type"] for entry in entries if entry.kind == "error"] == ["context_length_exceeded"]
    context = await session.context()
    shown = {
        get_text(message["content"]).partition(" ")[0] for message in context.messages if message["role"] == "user"
    }
    covered = {
        get_text(entry.payload["content"]).partition(" ")[0]
        for entry in entries
        if entry.payload.get("role") == "user" and entry.seq <= written[-1].payload["to_seq"]
    }
    assert shown | covered == {str(number) for number in range(turns)}
    assert not context.meta.truncated


async def test_a_refusal_that_shortening_does_not_help_is_the_failure(stack: Stack) -> None:
    """A request that is too long by itself fails with a typed error after one retry; the session continues."""
    session = await open_session(stack, stack.clew)
    await session.ask("hello")
    with pytest.raises(RequestFailed) as caught:
        await session.ask("some words of a user " * 400)
    error = caught.value.outcome.error
    assert error
    assert error.type == ContextOverflow.type
    refused, final = (entry for entry in await session.entries() if entry.kind == "error")
    assert refused.payload["type"] == "context_length_exceeded"
    assert (refused.payload["details"]["limit"], final.payload["type"]) == (LIMIT, ContextOverflow.type)
    assert await session.ask("hello again")


@pytest.mark.slow
async def test_a_provider_that_counts_more_is_believed(stack: Stack) -> None:
    """The recipe has the ratio, contexts fit the provider's count, and the policy changes only in steps."""

    def generous(_body: dict[str, Any]) -> Reply:
        return Reply("It is what it is, and nothing besides. " * 2)

    policy = ContextPolicy(window="epoch", max_input_tokens=1_000, reserve_output_tokens=200, keep_last_turns=1)
    session = await stack.clew.open(make_id(), model=stack.add_model(generous), context_policy=policy)
    for number in range(20):
        await session.ask(f"{number} " + '"quoted" ' * 20)
    recipes = [entry.payload["recipe"] for entry in await session.entries() if "recipe" in entry.payload]
    ratios = [recipe.get("token_ratio", 1.0) for recipe in recipes]
    assert ratios[0] == 1.0
    assert ratios[-1] > 1.0
    assert len({recipe["policy_hash"] for recipe in recipes}) == len(set(ratios)) <= 3
    assert all(recipe["usage"]["input_tokens"] <= 820 for recipe in recipes[-8:])
