"""A provider in a user's module: a worker whose CLEW_PROVIDERS names the module serves its models."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from clew import Clew, Session
from clew.session.events import TextAdded
from tests.support.processes import run_worker_process
from tests.support.provider_server import FakeServer, run_fake_server
from tests.support.stack import Stack

KEY = "polly-0123456789-wants-a-cracker"


def make_events(*named: tuple[str, dict[str, Any]]) -> bytes:
    return "".join(f"event: {name}\ndata: {json.dumps(data)}\n\n" for name, data in named).encode()


def make_word(text: str) -> bytes:
    return make_events(("word", {"say": text}))


END = make_events(("count", {"in": 12, "out": 3}), ("end", {"why": "done"}))


@asynccontextmanager
async def open_parrot_session(stack: Stack, **config: Any) -> AsyncIterator[tuple[FakeServer, Session, Any]]:
    """A parrot's server, a session that uses it, and the worker's log."""
    queue = f"queue-{uuid.uuid4().hex}"
    async with run_fake_server() as server:
        settings = {"CLEW_PROVIDERS": "tests.support.parrot", "PARROT_URL": server.url, "PARROT_KEY": KEY}
        async with run_worker_process(stack, queue, **settings) as process:
            clew = Clew(stack.clew.temporal, queue)
            session = await clew.open(f"test-{uuid.uuid4().hex}", model="parrot:grey", **config)
            yield server, session, process.log


async def test_a_session_talks_through_a_provider_that_a_module_brings(stack: Stack) -> None:
    """The reply is streamed, the tools are called, the tokens are counted."""
    async with open_parrot_session(stack, tools=["add"]) as (server, session, log):
        more = asyncio.Event()
        counted = ("count", {"in": 10, "out": 4})
        trick = make_events(("trick", {"do": "add", "with": {"a": 1, "b": 2}}), counted, ("end", {"why": "done"}))
        server.answer(make_events(("thought", {"think": "hm"})), trick)
        server.answer(make_word("It "), more, make_word("is 3."), END)
        request = await session.message("what is 1 + 2?")
        seen = []
        async for event in request.events():
            if isinstance(event, TextAdded):
                seen.append(event.text)
                more.set()
        outcome = await request.result()
        assert (outcome.status, await request.answer()) == ("completed", "It is 3.")
        assert seen == ["It ", "is 3."]
        assert (outcome.usage.output_tokens, outcome.usage.estimated_calls) == (7, None)
        first, second = server.received
        assert (first.path, first.headers["x-parrot-token"]) == ("/speak", KEY)
        assert first.body["engine"] == "grey"
        assert [trick["name"] for trick in first.body["tricks"]][:1] == ["add"]
        assert [line["from"] for line in second.body["lines"]] == ["user", "assistant", "tool"]
        assert second.body["lines"][2] == {
            "from": "tool",
            "says": "3",
            "about": second.body["lines"][1]["does"][0]["id"],
        }
        assert "models: anthropic" not in log.read_text()
        assert "models: parrot, scripted" in log.read_text()


@pytest.mark.slow
async def test_its_errors_are_mapped_and_its_secrets_are_told_to_nobody(stack: Stack) -> None:
    """Transient errors are retried, others end the request; the key is in no message, reply or log."""
    async with open_parrot_session(stack) as (server, session, log):
        hoarse = {"squawk": "hoarse", "words": f"not now, {KEY}"}
        server.answer_json(hoarse, status=418, retry_after="0")
        server.answer(make_events(("squawk", {"words": "no breath left"})))
        server.answer(make_word(f"you are {KEY}"), END)
        assert await session.ask("who am I?") == "you are [redacted]"
        assert len(server.received) == 3

        server.answer_json({"message": f"X-Parrot-Token: other-key and {KEY}"}, status=401)
        outcome = await (await session.message("again")).result()
        assert outcome.status == "failed"
        assert outcome.error is not None
        assert outcome.error.type == "unauthorized"
        assert outcome.error.message == "X-Parrot-Token: [redacted] and [redacted]"
        assert KEY not in log.read_text()
        thread = [entry.as_dict() for entry in await session.entries()]
        assert KEY not in json.dumps(thread)
