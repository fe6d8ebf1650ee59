"""A worker dies in the middle of a stream: the stream goes on, and no text is there twice."""

from __future__ import annotations

import asyncio
import uuid
from typing import Any

import openai
import pytest

from clew import Clew
from clew.local import Reply
from tests.support.openai_api import check, connect
from tests.support.processes import run_worker_process
from tests.support.serving import run_service
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS

STORY = "Every message of this session is an event in its history, so nothing that was said is lost. " * 4
OTHER = "Another attempt of the model tells it in other words. " * 2


@pytest.mark.slow
@pytest.mark.parametrize("again", [pytest.param(STORY, marks=pytest.mark.long), OTHER], ids=["alike", "otherwise"])
async def test_a_stream_goes_on_after_its_worker_has_died(stack: Stack, again: str) -> None:
    """SIGKILL in the middle of a reply: the same stream ends with the reply that another worker has got.

    A reply that begins alike adds to the message. Another one is a message of its own.
    """
    attempts = 0

    def script(_body: dict[str, Any]) -> Reply:
        nonlocal attempts
        attempts += 1
        return Reply(STORY, tokens_per_second=2) if attempts == 1 else Reply(again, tokens_per_second=100)

    queue = f"queue-{uuid.uuid4().hex}"
    model = stack.add_model(script)
    clew = Clew(stack.clew.temporal, queue)
    async with run_service(clew) as served, connect(served) as client, run_worker_process(stack, queue) as first:
        events: list[Any] = []
        stream = await client.responses.create(model=model, input="Hi", stream=True)
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            async for event in stream:
                events.append(check(event))
                if sum(one.type == "response.output_text.delta" for one in events) == 5:
                    await first.kill()
                    break
            async with run_worker_process(stack, queue):
                events += [check(event) async for event in stream]
                read = check(await client.responses.retrieve(events[-1].response.id))
    assert events[-1].type == "response.completed"
    final = events[-1].response
    assert final.output_text == again
    assert read.output_text == again
    texts: dict[int, str] = {}
    for event in events:
        if event.type == "response.output_text.delta":
            texts[event.output_index] = texts.get(event.output_index, "") + event.delta
    if again == STORY:
        assert texts == {0: STORY}
    else:
        assert STORY.startswith(texts[0])
        assert texts[1] == OTHER
    numbers = [event.sequence_number for event in events]
    assert numbers == sorted(set(numbers))


@pytest.mark.slow
@pytest.mark.parametrize("again", [pytest.param(STORY, marks=pytest.mark.long), OTHER], ids=["alike", "otherwise"])
async def test_a_completion_goes_on_after_its_worker_has_died(stack: Stack, again: str) -> None:
    """SIGKILL in the middle of a stream of Chat Completions: its chunks are the text, once.

    A reply that begins otherwise fails the stream. The request, repeated with its key, is answered with that reply.
    """
    attempts = 0

    def script(_body: dict[str, Any]) -> Reply:
        nonlocal attempts
        attempts += 1
        return Reply(STORY, tokens_per_second=2) if attempts == 1 else Reply(again, tokens_per_second=100)

    queue = f"queue-{uuid.uuid4().hex}"
    clew = Clew(stack.clew.temporal, queue)
    request: dict[str, Any] = {
        "model": stack.add_model(script),
        "messages": [{"role": "user", "content": "Hi"}],
        "extra_headers": {"Idempotency-Key": uuid.uuid4().hex},
    }
    text = ""
    error: openai.APIError | None = None
    async with run_service(clew) as served, connect(served) as client, run_worker_process(stack, queue) as first:
        stream = await client.chat.completions.create(**request, stream=True)
        async with asyncio.timeout(4 * PATIENCE_SECONDS):
            async for chunk in stream:
                text += check(chunk).choices[0].delta.content or ""
                if len(text) > 20:
                    await first.kill()
                    break
            async with run_worker_process(stack, queue):
                try:
                    async for chunk in stream:
                        text += check(chunk).choices[0].delta.content or ""
                except openai.APIError as raised:
                    error = raised
                repeated = check(await client.chat.completions.create(**request))
    assert repeated.choices[0].message.content == again
    assert attempts == 2
    if again == STORY:
        assert (text, error) == (STORY, None)
    else:
        assert error
        assert error.code == "reply_restarted"
        assert STORY.startswith(text)
