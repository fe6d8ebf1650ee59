"""The thread and the next prompt state what happened to tool calls."""

from __future__ import annotations

import asyncio
import uuid
from pathlib import Path
from typing import Any

import pytest

from clew import RequestFailed, Session
from clew.errors import Busy
from clew.local import Reply, ToolCall
from clew_workflows.thread.entries import Entry
from tests.support.processes import open_session_on, run_worker_process
from tests.support.rolling import SlowModel, make_summary_policy
from tests.support.scripts import list_results
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS, wait_until


def make_payer(folder: Path) -> Any:
    """Make a model that pays twice, and then repeats the results."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["content"] == "pay":
            amounts = (5, 500)
            return Reply(
                tool_calls=tuple(ToolCall("pay", {"folder": str(folder), "cents": cents}) for cents in amounts)
            )
        return Reply(" | ".join(message["content"] for message in body["messages"] if message["role"] == "tool"))

    return script


async def wait_until_half_paid(session: Session, folder: Path) -> list[Entry]:
    """Wait until the small payment has returned and the large one has taken effect; the results in the thread."""

    async def is_half_paid() -> bool:
        return bool(await list_results(session)) and "500" in _make_ledger(folder)

    await wait_until(is_half_paid)
    return await list_results(session)


async def wait_until_late(session: Session) -> None:
    """Wait until a call has returned after its run."""

    async def has_late_result() -> bool:
        return any(entry.payload.get("late") for entry in await list_results(session))

    await wait_until(has_late_result)


def _make_ledger(folder: Path) -> list[str]:
    ledger = folder / "ledger"
    return ledger.read_text().split() if ledger.exists() else []


def released(folder: Path) -> None:
    (folder / "release").touch()


@pytest.mark.parametrize("how", ["interrupt", "cancel"])
async def test_a_payment_that_ran_is_never_said_not_to_have_run(stack: Stack, tmp_path: Path, how: str) -> None:
    """A call that has returned keeps its result; a call in flight is in doubt until it returns."""
    session = await stack.open(make_payer(tmp_path), tools=["pay"])
    request = await session.message("pay")
    (first,) = await wait_until_half_paid(session, tmp_path)
    assert first.payload["content"] == "paid 5"
    if how == "cancel":
        await session.cancel()
        answer = await session.ask("what was paid?")
    else:
        answer = await session.ask("what was paid?", on_busy="interrupt")
    assert (await request.result()).status == "cancelled"
    paid, doubt = answer.split(" | ")
    assert paid == "paid 5"
    assert doubt.startswith("in doubt")
    assert f"{session.id}/tool00002" in doubt
    # The tool has been asked to stop, and goes on.
    await wait_until((tmp_path / "stop").exists)
    released(tmp_path)
    await wait_until_late(session)
    assert await session.ask("and now?") == "paid 5 | paid 500"
    assert sorted(_make_ledger(tmp_path)) == ["5", "500"]


async def test_a_close_in_the_middle_of_a_round_tells_the_truth(stack: Stack, tmp_path: Path) -> None:
    """The resumed session reads which call was paid and which is in doubt."""
    session = await stack.open(make_payer(tmp_path), tools=["pay"])
    await session.message("pay")
    await wait_until_half_paid(session, tmp_path)
    await session.close()
    released(tmp_path)
    again = await stack.clew.open(session.id)
    paid, doubt = (await again.ask("what was paid?")).split(" | ")
    assert paid == "paid 5"
    assert doubt.startswith("in doubt")


async def test_a_session_is_not_put_away_before_a_call_has_returned(stack: Stack, tmp_path: Path) -> None:
    """The result of a call that returns after its run's end is in the thread before the session hibernates."""
    session = await stack.open(make_payer(tmp_path), tools=["pay"])
    await session.message("pay")
    await wait_until_half_paid(session, tmp_path)
    await session.cancel()
    with pytest.raises(Busy, match="may still return"):
        await session.hibernate()
    released(tmp_path)
    await wait_until_late(session)
    await session.hibernate()
    again = await stack.clew.open(session.id)
    assert await again.ask("what was paid?") == "paid 5 | paid 500"


async def test_the_end_of_a_request_in_the_middle_of_a_round_tells_the_truth(stack: Stack, tmp_path: Path) -> None:
    """The outcome names the tool that was running at the deadline."""
    session = await stack.open(make_payer(tmp_path), tools=["pay"])
    request = await session.message("pay", timeout_seconds=5)
    await wait_until_half_paid(session, tmp_path)
    with pytest.raises(RequestFailed) as failed:
        await request.answer()
    error = failed.value.outcome.error
    assert error
    assert error.type == "timeout"
    assert error.message == "no answer within 5 seconds: tool 'pay' (tool00002) had not returned"
    released(tmp_path)
    paid, doubt = (await session.ask("what was paid?")).split(" | ")
    assert paid == "paid 5"
    assert doubt.startswith("in doubt (timeout)")


@pytest.mark.slow
async def test_a_worker_that_dies_in_the_middle_of_a_round_leaves_the_truth(stack: Stack, tmp_path: Path) -> None:
    """A call that has returned does not run again, one in flight is in doubt, and the model reads both."""
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_worker_process(stack, queue) as first:
        session = await open_session_on(stack, queue, make_payer(tmp_path), tools=["pay"])
        request = await session.message("pay")
        await wait_until_half_paid(session, tmp_path)
        await first.kill()
        async with run_worker_process(stack, queue):
            paid, doubt = (await request.answer()).split(" | ")
    assert paid == "paid 5"
    assert doubt.startswith("in doubt (worker_lost)")
    assert sorted(_make_ledger(tmp_path)) == ["5", "500"]


async def test_a_deadline_within_a_reply_says_that_it_was_being_streamed(stack: Stack) -> None:
    """The error also says how much of the reply had arrived."""
    session = await stack.open(lambda _body: Reply("word " * 100, tokens_per_second=10))
    with pytest.raises(RequestFailed) as failed:
        await session.ask("go", timeout_seconds=5)
    error = failed.value.outcome.error
    assert error
    assert error.message.startswith("no answer within 5 seconds: the reply was being streamed, ")
    assert error.message.endswith(" characters had arrived")


@pytest.mark.slow
async def test_an_interrupt_does_not_wait_for_an_automatic_summary(stack: Stack) -> None:
    """A message is answered at once although the automatic summary hangs, with every `on_busy`."""
    summarizer = SlowModel()
    policy = make_summary_policy(stack.add_model(summarizer))
    session = await stack.open("word " * 60, context_policy=policy)
    for number in range(4):
        await session.ask(f"question {number} " + "word " * 60)
    await summarizer.wait_for_call()
    assert (await session.status()).status == "summarizing"
    for on_busy in ("reject", "interrupt", "queue"):
        async with asyncio.timeout(PATIENCE_SECONDS):
            await session.ask("now " + "word " * 60, on_busy=on_busy)
        await summarizer.wait_for_call()
    await session.cancel()
    summarizer.release(10)
    assert (await session.status()).status == "idle"
