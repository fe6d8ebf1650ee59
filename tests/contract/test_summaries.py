"""Summaries, compactions and pins of a real session."""

from __future__ import annotations

from http import HTTPStatus
from itertools import pairwise
from typing import Any

import pytest
from obstore.store import MemoryStore

from clew import Clew, ContextPolicy, Session
from clew.errors import InvalidInput, NothingToSummarize, Refusal
from clew.local import Reply
from clew_activities.archive import Archive, Store, StoreUnavailable
from clew_activities.archive.backends import Bucket
from clew_activities.model.summary_calls import INSTRUCTIONS
from clew_audit.audit import audit_session
from clew_workflows.contract.content import get_text
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.scenarios import wait_until_idle
from tests.support.stack import Stack, make_client, serve

POLICY = ContextPolicy(max_input_tokens=1000, reserve_output_tokens=200, keep_last_turns=1)


def is_summary_request(body: dict[str, Any]) -> bool:
    """Whether a request asks for a summary."""
    return bool(body["messages"][0]["content"] == INSTRUCTIONS)


def reply_or_summarize(body: dict[str, Any]) -> Reply:
    """A model that writes short summaries and long answers."""
    if is_summary_request(body):
        return Reply(f"They talked, in {len(body['messages'][1]['content'])} characters.")
    return Reply("It is what it is, and nothing besides. " * 3)


async def open_session(stack: Stack, turns: int, policy: ContextPolicy = POLICY, **config: Any) -> Session:
    """Open a session and run some turns."""
    session = await stack.open(reply_or_summarize, context_policy=policy, **config)
    for number in range(turns):
        await session.ask(f"question {number}")
    return session


async def list_contents(session: Session) -> list[str]:
    return [get_text(message["content"]) for message in (await session.context()).messages]


async def test_a_summary_is_written_on_request(stack: Stack) -> None:
    """The model reads the whole range and nothing after it; receipt, entry and context agree."""
    session = await open_session(stack, 4)
    receipt = await session.summarize()
    (entry,) = await session.entries(kind="summary")
    assert (entry.seq, entry.payload["from_seq"], entry.payload["to_seq"], entry.tokens) == (
        receipt.seq, receipt.from_seq, receipt.to_seq, receipt.tokens,
    )  # fmt: skip
    (request,) = filter(is_summary_request, stack.list_requests((await session.status()).model))
    prompt = request["messages"][1]["content"]
    assert "user: question 0" in prompt
    assert "user: question 2" in prompt
    assert "question 3" not in prompt
    assert entry.payload["usage"]["model_calls"] == 1
    texts = await list_contents(session)
    assert texts[0].startswith("Summary of earlier conversation:\nThey talked")
    assert texts[1] == "question 3"
    assert (await session.status()).usage.model_calls == 5
    with pytest.raises(NothingToSummarize):
        await session.summarize()
    for span in ((0, receipt.to_seq - 1), (5, 4)):
        with pytest.raises(InvalidInput):
            await session.summarize(*span)
    assert len(await session.entries(kind="summary")) == 1


async def test_what_is_too_long_for_one_call_is_summed_up_in_pieces(stack: Stack) -> None:
    """Each call reads the summary of the one before it, and fits the model's window."""
    policy = POLICY.model_copy(update={"max_input_tokens": 1300, "reserve_output_tokens": 100})
    session = await open_session(stack, 1, policy)
    for number in range(3):
        await session.ask(f"{number}: " + "many words of it " * 220)
    await session.summarize()
    requests = list(filter(is_summary_request, stack.list_requests((await session.status()).model)))
    assert len(requests) > 2
    for before, after in pairwise(requests):
        summary = f"They talked, in {len(before['messages'][1]['content'])} characters."
        assert summary in after["messages"][1]["content"]
    assert all(len(body["messages"][1]["content"]) < 6000 for body in requests)


@pytest.mark.parametrize(
    ("reply", "word"),
    [
        (Reply("They talked. " * 200), "unusable_summary"),
        (Reply("no", status=HTTPStatus.BAD_REQUEST), "bad_request"),
    ],
    ids=["longer than its source", "refused by the provider"],
)
async def test_a_summary_that_cannot_be_written_leaves_its_reason(stack: Stack, reply: Reply, word: str) -> None:
    """The caller gets an error, the thread has the reason, and the session continues."""
    session = await stack.open(
        lambda body: reply if is_summary_request(body) else reply_or_summarize(body), context_policy=POLICY
    )
    for number in range(3):
        await session.ask(f"question {number}")
    with pytest.raises(Refusal) as refused:
        await session.summarize()
    assert word in str(refused.value)
    (error,) = await session.entries(kind="error")
    assert error.payload["type"] == word
    assert await session.ask("still there?")


async def test_a_session_that_may_spend_no_more_writes_no_summary(stack: Stack) -> None:
    """A session at its token limit calls no model for a summary."""
    session = await open_session(stack, 3)
    await session.configure(limits={"max_total_tokens": 1})
    with pytest.raises(Refusal, match="its limits allow"):
        await session.summarize()
    assert not list(filter(is_summary_request, stack.list_requests((await session.status()).model)))


@pytest.mark.parametrize("runs", ["one run", "many runs"])
@pytest.mark.parametrize("how", ["request_new", "compact"])
@pytest.mark.slow
async def test_a_session_keeps_its_context_in_bounds_by_itself(stack: Stack, runs: str, how: str) -> None:
    """A summary or a compaction follows a run whose window was truncated; contexts keep pinned messages."""
    if runs == "one run":
        await assert_kept_in_bounds(stack, stack.clew, how)
    else:
        async with run_rolling_worker(stack) as clew:
            await assert_kept_in_bounds(stack, clew, how)


async def assert_kept_in_bounds(stack: Stack, clew: Clew, how: str) -> None:
    policy = POLICY.model_copy(update={"summarization": how})
    model = stack.add_model(reply_or_summarize)
    session = await clew.open(make_id(), model=model, context_policy=policy, on_busy="queue")
    await session.ask("Never forget the number 4711.")
    first = (await session.transcript())[0]["seq"]
    await session.pin(first, op_id="keep")
    for number in range(24):
        await session.ask(f"question {number}")
        # A message that came now would take the place of the summary.
        await wait_until_idle(session)
    entries = [
        entry
        for entry in await session.entries()
        if entry.kind == "summary" or entry.payload.get("operation", {}).get("reason") == "compaction"
    ]
    assert len(entries) > 1
    assert {entry.kind for entry in entries} == {"summary" if how == "request_new" else "ai_context_operation"}
    contexts = [
        [message["content"] for message in body["messages"]]
        for body in stack.list_requests(model)
        if not is_summary_request(body)
    ]
    assert all("Never forget the number 4711." in messages for messages in contexts)
    # A call whose context overflows may drop what a compaction has written; the next compaction follows it.
    assert any(text.startswith("Summary of earlier conversation:") for messages in contexts[-2:] for text in messages)
    for entry in await session.entries():
        if recipe := entry.recipe:
            assert (await session.context(call_id=entry.refs["call_id"])).meta.digest == recipe.digest


@pytest.mark.slow
@pytest.mark.parametrize("runs", ["one run", pytest.param("many runs", marks=pytest.mark.slow)])
async def test_a_compaction_is_undone_by_expand(stack: Stack, runs: str) -> None:
    """The context is equal to the byte as before, also if its entries were archived meanwhile."""
    if runs == "one run":
        await assert_undone(stack, stack.clew)
    else:
        async with run_rolling_worker(stack) as clew:
            await assert_undone(stack, clew)


async def assert_undone(stack: Stack, clew: Clew) -> None:
    policy = POLICY.model_copy(update={"max_input_tokens": 8000})
    session = await clew.open(
        make_id(), model=stack.add_model(reply_or_summarize), context_policy=policy, on_busy="queue"
    )
    for number in range(4):
        await session.ask(f"question {number}")
    before = await list_contents(session)
    assert (await session.compact(op_id="c-1")).status == "applied"
    await session.ask("and now?")
    (operation,) = await session.entries(kind="ai_context_operation")
    assert operation.payload["operation"]["meta"]["source_digest"]
    texts = await list_contents(session)
    assert texts[0].startswith("Summary of earlier conversation:")
    assert len(texts) < len(before)
    for number in range(12):
        await session.ask(f"later {number}")
    assert (await session.expand(op_id="e-1")).status == "applied"
    await session.ask("and after that?")
    assert (await list_contents(session))[: len(before)] == before


async def test_what_was_compacted_can_be_asked_for_as_it_was_seen(stack: Stack) -> None:
    """The context of every call, before and after, can be rebuilt from the thread alone."""
    session = await open_session(stack, 3)
    await session.compact(op_id="c-1")
    await session.message("next", on_busy="queue")
    await session.ask("and next", on_busy="queue")
    for entry in await session.entries(kind="ai_message"):
        if recipe := entry.recipe:
            assert (await session.context(call_id=entry.refs["call_id"])).meta.digest == recipe.digest


class _Forgetful(Store):
    """A store that takes no results and no earlier calls of summaries."""

    async def put_new(self, path: str, data: bytes) -> None:
        if "/results/" in path:
            raise StoreUnavailable(path, "it is full")
        await super().put_new(path, data)


async def test_a_store_that_fails_costs_the_proof_and_not_the_summary(stack: Stack) -> None:
    """The summary is committed without its earlier calls, and the audit says that it cannot compare them."""
    store = _Forgetful(Bucket(MemoryStore()))
    policy = POLICY.model_copy(update={"max_input_tokens": 1300, "reserve_output_tokens": 100})
    async with serve(make_client(stack), stack.environ, store=store) as clew:
        session = await clew.open(make_id(), model=stack.add_model(reply_or_summarize), context_policy=policy)
        for number in range(3):
            await session.ask(f"{number}: " + "many words of it " * 220)
        await session.summarize()
        (entry,) = await session.entries(kind="summary")
        recipe = entry.summary_recipe
        assert recipe
        assert (recipe.calls > 1, recipe.earlier_calls) == (True, None)
        report = await audit_session(clew.temporal, Archive(store, "default"), session.id)
        assert report.clean, report.differences
        assert report.calls.other_encoders.total() == recipe.calls
        assert report.calls.sent == 3
