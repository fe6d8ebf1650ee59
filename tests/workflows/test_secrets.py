"""A provider that repeats the worker's key: the key is not in the history, on the server or in the log."""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Iterator

import pytest
from temporalio.api.workflow.v1 import PendingActivityInfo

from clew import Clew, RequestOutcome, Session
from clew_activities.providers import load_providers
from clew_activities.worker.observability import RedactingFormatter
from tests.support.provider_echoes import ANTHROPIC, FAILURES, FORMS, REPLIES, find_leaks
from tests.support.provider_server import (
    ANTHROPIC_STREAM,
    HELLO_STREAM,
    FakeServer,
    encode_events,
    make_chunk,
    run_fake_server,
)
from tests.support.stack import Stack, make_client, serve
from tests.support.viewers import watch
from tests.support.waiting import wait_until

KEY = "sk-proj-Zm9vYmFyQUJD_dEf-0123456789xyzXYZwq7"


class Log(logging.Handler):
    """All that is logged, as a handler without redaction would write it, and as the worker's does."""

    def __init__(self, formatter: RedactingFormatter) -> None:
        super().__init__()
        self.plain, self.redacted = "", ""
        self._redacting = formatter

    def emit(self, record: logging.LogRecord) -> None:
        self.plain += logging.Formatter().format(record) + "\n"
        self.redacted += self._redacting.format(record) + "\n"


@pytest.fixture
def providers_of() -> Callable[[FakeServer], dict[str, str]]:
    return lambda fake: {
        "CLEW_PROVIDER_ECHO_BASE_URL": fake.url,
        "CLEW_PROVIDER_ECHO_API_KEY": KEY,
        "ANTHROPIC_BASE_URL": fake.url,
        "ANTHROPIC_API_KEY": KEY,
    }


@pytest.fixture
def log(providers_of: Callable[[FakeServer], dict[str, str]]) -> Iterator[Log]:
    providers = load_providers(providers_of(FakeServer(url="http://127.0.0.1:1")))
    handler = Log(RedactingFormatter(providers.redaction))
    root = logging.getLogger()
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    yield handler
    root.removeHandler(handler)
    root.setLevel(before)


async def read_history(session: Session, clew: Clew) -> str:
    """Read a session's complete history, byte for byte, and its thread."""
    handle = clew.temporal.get_workflow_handle(session.id)
    history = await handle.fetch_history()
    events = b"\n".join(event.SerializeToString() for event in history.events)
    entries = [entry.as_dict() for entry in await session.entries()]
    return events.decode("latin-1") + json.dumps(entries)


async def describe_call(session: Session, clew: Clew, *, attempt: int) -> str:
    """Read the server's description of a session's model call once it is in an attempt."""
    handle = clew.temporal.get_workflow_handle(session.id)
    found: list[PendingActivityInfo] = []

    async def is_there() -> bool:
        pending = (await handle.describe()).raw_description.pending_activities
        found[:] = [
            call
            for call in pending
            if call.activity_type.name == "call_model" and call.attempt >= attempt and call.heartbeat_details.payloads
        ]
        return bool(found)

    await wait_until(is_there)
    return found[0].SerializeToString().decode("latin-1")


@pytest.mark.slow
async def test_no_failure_brings_the_key_out(
    stack: Stack, log: Log, providers_of: Callable[[FakeServer], dict[str, str]]
) -> None:
    """Whether a failure is final or retried: history, thread and log do not contain the key."""
    # At once, because the retries wait.
    leaks = await asyncio.gather(*(find_leaks_of_failure(place, stack, providers_of) for place in FAILURES))
    assert dict(zip(FAILURES, leaks, strict=True)) == {place: [] for place in FAILURES}
    assert not find_leaks(log.plain, KEY)


async def find_leaks_of_failure(
    place: str, stack: Stack, providers_of: Callable[[FakeServer], dict[str, str]]
) -> list[str]:
    """Let a session's provider fail twice; returns the parts of the key in its history and thread."""
    async with run_fake_server() as fake, serve(make_client(stack), providers_of(fake)) as clew:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model="echo:m")
        FAILURES[place](fake, KEY)
        FAILURES[place](fake, FORMS["folded"](KEY))
        fake.answer(encode_events(HELLO_STREAM))
        outcome = await (await session.message("hello")).result()
        assert outcome.status == "completed" or outcome.error is not None
        return find_leaks(await read_history(session, clew), KEY)


@pytest.mark.slow
async def test_a_pending_call_does_not_tell_the_key(
    stack: Stack, log: Log, providers_of: Callable[[FakeServer], dict[str, str]]
) -> None:
    """The last attempt's failure and the heartbeat of the growing reply do not contain the key."""
    async with run_fake_server() as fake, serve(make_client(stack), providers_of(fake)) as clew:
        go_on = asyncio.Event()
        fake.answer_verbatim(b"HTTP/1.1 200 OK\r\nx echo Bearer " + KEY.encode() + b": no\r\n\r\n")
        begun = [make_chunk(content=f"You sent {KEY[:30]}")]
        fake.answer(
            encode_events(begun),
            go_on,
            encode_events([make_chunk(content=KEY[30:] + ", I think."), make_chunk("stop"), "[DONE]"]),
        )
        session = await clew.open(f"test-{uuid.uuid4().hex}", model="echo:m")
        request = await session.message("hello")
        seen = ""
        # While a viewer follows, heartbeats show the reply soon.
        async with watch(session):
            while "You sent" not in seen:
                seen = await describe_call(session, clew, attempt=2)
        assert "illegal header line" in seen
        assert not find_leaks(seen, KEY)
        go_on.set()
        assert (await request.result()).status == "completed"
        entries = await session.entries()
        assert "You sent [redacted], I think." in [entry.payload.get("content") for entry in entries]
        assert not find_leaks(await read_history(session, clew), KEY)
    assert not find_leaks(log.plain, KEY)


@pytest.mark.parametrize(
    "place", [pytest.param(place, marks=pytest.mark.slow) if place == "cut" else place for place in REPLIES]
)
async def test_no_reply_brings_the_key_out(
    place: str, stack: Stack, log: Log, providers_of: Callable[[FakeServer], dict[str, str]]
) -> None:
    """Neither as an answer, nor as a tool's name or arguments, which a tool's result repeats."""
    async with run_fake_server() as fake, serve(make_client(stack), providers_of(fake)) as clew:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model="echo:m", tools=["add"])
        for form in ("as it is", "base64 of a header"):
            fake.answers.clear()
            REPLIES[place](fake, FORMS[form](KEY))
            fake.answer(encode_events(HELLO_STREAM))
            assert (await (await session.message("hello")).result()).status == "completed"
        assert not find_leaks(await read_history(session, clew), KEY)
    assert not find_leaks(log.plain, KEY)


@pytest.mark.parametrize("place", ANTHROPIC)
async def test_no_block_brings_the_key_out(
    place: str, stack: Stack, log: Log, providers_of: Callable[[FakeServer], dict[str, str]]
) -> None:
    """A provider's block that contains the key is left out, and the session continues."""
    async with run_fake_server() as fake, serve(make_client(stack), providers_of(fake)) as clew:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model="anthropic:claude-sonnet-4-5", tools=["add"])
        ANTHROPIC[place](fake, KEY)
        fake.answer(encode_events(ANTHROPIC_STREAM[:2] + ANTHROPIC_STREAM[9:13] + ANTHROPIC_STREAM[-2:]))
        outcome: RequestOutcome = await (await session.message("hello")).result()
        assert outcome.status in ("completed", "failed")
        assert not find_leaks(await read_history(session, clew), KEY)
    assert not find_leaks(log.plain, KEY)


async def test_a_summary_does_not_tell_the_key(
    stack: Stack, log: Log, providers_of: Callable[[FakeServer], dict[str, str]]
) -> None:
    """It is a model's reply like any other."""
    async with run_fake_server() as fake, serve(make_client(stack), providers_of(fake)) as clew:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model="echo:m")
        fake.answer(encode_events(HELLO_STREAM))
        await session.ask("hello " * 200)
        FAILURES["broken chunk"](fake, KEY)
        REPLIES["text in pieces"](fake, KEY)
        await session.summarize(0, 2)
        contents = [entry.payload["content"] for entry in await session.entries(kind="summary")]
        assert contents == ["You sent [redacted]."]
        assert not find_leaks(await read_history(session, clew), KEY)
    assert not find_leaks(log.plain, KEY)


def test_a_log_line_tells_no_secret_however_it_was_logged(log: Log) -> None:
    """In the message, its arguments, an exception with its causes, or a stack."""
    logger = logging.getLogger("some.tool")
    try:
        try:
            raise ValueError(f"inner {KEY}")
        except ValueError as inner:
            raise LookupError(f"outer {FORMS['base64 of a header'](KEY)}") from inner
    except LookupError:
        logger.exception("failed with %s and %r", KEY, {"key": FORMS["percent-encoded in full"](KEY)})
    assert find_leaks(log.plain, KEY)
    assert not find_leaks(log.redacted, KEY)
    assert "LookupError" in log.redacted
