"""Webhooks on a real server: what receivers are told, once, whatever happens to workers and receivers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from temporalio.common import RetryPolicy

from clew import Clew, Session
from clew.contract import WORKFLOW_TYPE, Webhook
from clew.errors import InvalidInput, RequestFailed
from clew.local import Reply, ToolCall
from clew_workflows.host.services import DeliverWebhook
from tests.support.stack import Stack, get_last_message, make_client, serve
from tests.support.waiting import wait_until
from tests.support.webhooks import SETTINGS, Receiver, find_free_port, listen, receive

QUICK = RetryPolicy(initial_interval=timedelta(milliseconds=50), maximum_interval=timedelta(milliseconds=200))


@pytest.fixture(scope="module", autouse=True)
def quick_retries() -> Any:
    """Repeat deliveries soon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeliverWebhook, "retries", QUICK)
        yield


@pytest.fixture(scope="module")
async def hooked(stack: Stack) -> AsyncIterator[Clew]:
    """A worker that sends to receivers on this machine."""
    async with serve(make_client(stack), stack.environ, store=stack.store, webhooks=SETTINGS) as clew:
        yield clew


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receive() as receiver:
        yield receiver


async def open_session(stack: Stack, clew: Clew, script: Any = "fine", **config: Any) -> Session:
    name = f"hooked-{next(stack.names)}"
    return await clew.open(f"test-{name}-{id(config)}", model=stack.add_model(script), **config)


async def test_an_outcome_is_told(stack: Stack, hooked: Clew, receiver: Receiver) -> None:
    """A receiver is told of the end of a request: its ids, seqs and usage, and no text."""
    session = await open_session(stack, hooked, "a secret answer", webhooks=[receiver.make_webhook()])
    assert await session.ask("a secret question", request_id="r1") == "a secret answer"
    (told,) = await receiver.wait_for(1)
    outcome = await session.request("r1").result()
    assert told.type == "request.ended"
    assert (told.data.session_id, told.data.request_id, told.data.status) == (session.id, "r1", "completed")
    assert (told.data.seq, told.data.answer_seq, told.data.usage) == (
        outcome.last_seq,
        outcome.answer_seq,
        outcome.usage,
    )
    assert "secret" not in told.model_dump_json()
