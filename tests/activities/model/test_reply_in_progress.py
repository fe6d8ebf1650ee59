from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json
from temporalio.activity import ActivityCancellationDetails
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from clew.contract.payloads import AssistantMessage
from clew_activities import heartbeats
from clew_activities.model import reply_in_progress
from clew_activities.model.call_model import ModelActivities
from clew_activities.model.model_table import find_prices
from clew_activities.model.reply_in_progress import (
    MAX_REPLY_BYTES,
    MAX_STREAMED_CHARACTERS,
    ReplyInProgress,
    count_searches,
)
from clew_activities.providers import RedactedDecoder, Redaction, load_providers
from clew_workflows.contract.outcomes import Usage, compute_cost_usd
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import ModelAnswered, ModelReply, RequestedTool
from tests.support.examples import examples
from tests.support.model_calls import Queried, make_activities, make_environment, open_session
from tests.support.provider_server import (
    Step,
    make_chunk,
    make_delta,
    make_tool,
    open_message,
    run_fake_server,
    start_block,
    stop_block,
)
from tests.support.session_harness import SessionHarness
from tests.support.waiting import PATIENCE_SECONDS


@pytest.fixture(autouse=True)
def frequent_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Show a reply every tenth of a second, not every four seconds."""
    monkeypatch.setattr(heartbeats, "REST_SECONDS", 0.1)


@dataclass
class Growing:
    """A decoder in the middle of its reply."""

    text: str = ""
    thinking: str = ""
    tool_name: str | None = None
    arguments_size: int = 0
    usage: Usage = Usage()
    ended: bool = False

    def feed(self, event: str, data: str) -> None: ...

    def finish(self) -> ModelReply:
        raise NotImplementedError


def read_progress(decoder: Growing | None) -> dict[str, Any]:
    session = SessionHarness(model="scripted:m")
    session.ask("hello")
    reading = ReplyInProgress(session.call, (), 1)
    if decoder:
        reading.meta = session.build_context(session.call).meta
        reading.decoder = RedactedDecoder(decoder, Redaction())
    progress: dict[str, Any] = ActivityEnvironment().run(reading.describe)[0]
    return progress


def test_a_growing_reply_is_shown_by_its_newest_part() -> None:
    """`offset` counts the characters left out in front: offset and text together are the reply so far."""
    text = "".join(chr(0x4E00 + n % 20_000) for n in range(MAX_STREAMED_CHARACTERS * 2 + 5))
    for length in (0, 1, MAX_STREAMED_CHARACTERS, MAX_STREAMED_CHARACTERS + 1, len(text)):
        state = read_progress(Growing(text=text[:length]))
        assert text[: state["offset"]] + state["text"] == text[:length]
        assert len(state["text"]) <= MAX_STREAMED_CHARACTERS


def test_thinking_and_the_tool_are_shown_where_there_are_any() -> None:
    """Absent fields are left out."""
    assert "thinking" not in read_progress(None)
    assert "thinking" not in read_progress(Growing(text="a"))
    state = read_progress(Growing(thinking="x" * (MAX_STREAMED_CHARACTERS + 1), tool_name="add"))
    assert (len(state["thinking"]), state["tool_name"], state["text"]) == (MAX_STREAMED_CHARACTERS, "add", "")


texts = st.builds(
    lambda character, size: character * size,
    st.sampled_from(["x", "\x01", '"', "é", "\U0001f43b"]),
    st.integers(0, 262_144),
)
# Within what a decoder lets through: 256 KiB of text, of thinking and of arguments, 64 calls.
replies = st.builds(
    ModelReply,
    content=texts.map(lambda text: text.encode()[:262_144].decode("utf-8", "ignore")),
    thinking=st.none() | texts,
    tool_calls=st.lists(
        st.builds(
            RequestedTool,
            name=st.sampled_from(["add", "\x01" * 256]),
            arguments=texts.map(lambda text: {"text": text[:4096]}),
        ),
        max_size=64,
    ).map(tuple),
    provider_data=st.none() | texts.map(lambda text: {"provider": "anthropic", "blocks": [{"signature": text}]}),
    usage=st.just(Usage(input_tokens=5)),
)


@examples(60)
@given(reply=replies)
def test_every_reply_fits_into_one_payload(reply: ModelReply) -> None:
    """A reply that fits is unchanged; a larger one loses as little as possible, and never a call or the usage."""
    fitted = reply_in_progress.fit_reply(reply)
    assert len(to_json(fitted)) <= MAX_REPLY_BYTES
    if len(to_json(reply)) <= MAX_REPLY_BYTES:
        assert fitted == reply
    assert [tool.name for tool in fitted.tool_calls] == [tool.name for tool in reply.tool_calls]
    assert (fitted.usage, fitted.stop_reason) == (reply.usage, reply.stop_reason)
    if fitted.content != reply.content:
        assert fitted.text.endswith("[truncated]")
        assert reply.text.startswith(fitted.text.removesuffix("[truncated]"))


def test_what_can_be_spared_is_lost_first() -> None:
    """The thinking; then what only its provider would read; an answer only where that is not enough."""
    size = MAX_REPLY_BYTES * 2 // 3
    thought = ModelReply(content="x" * size, thinking="y" * size, tool_calls=(RequestedTool(name="add"),))
    assert reply_in_progress.fit_reply(thought) == thought.model_copy(update={"thinking": None})
    data: Any = {"provider": "anthropic", "blocks": [{"signature": "z" * size}]}
    signed = thought.model_copy(update={"thinking": None, "provider_data": data})
    assert reply_in_progress.fit_reply(signed) == thought.model_copy(update={"thinking": None})


KEY = "sk-secret-0123456789"
TEXT = [make_chunk(role="assistant", content="half an "), make_chunk(content="answer")]
CALL = [
    make_chunk(tool_calls=[make_tool("", "add", index=0, id="call_a", type="function")]),
    make_chunk(tool_calls=[make_tool('{"a": 1, "note": "' + "x" * 400, index=0)]),
]
THINKING = [
    open_message(input_tokens=10, cache_read_input_tokens=70),
    start_block(0, type="thinking", thinking="", signature=""),
    make_delta(0, type="thinking_delta", thinking="Let me think about this."),
]
SPEAKING = [
    make_delta(0, type="signature_delta", signature="c2ln"),
    stop_block(0),
    start_block(1, type="text", text=""),
    make_delta(1, type="text_delta", text="I will add."),
]


def send(events: list[Any]) -> list[Step]:
    """Make the steps of a server that sends events."""
    return [f"event: {event.get('type', 'message')}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


async def interrupt(
    model: str,
    steps: list[Step],
    holds: Callable[[dict[str, Any]], object],
    details: ActivityCancellationDetails | None = None,
    **config: Any,
) -> ModelAnswered:
    """Cancel a call whose provider goes silent, once its heartbeats show what is waited for; return its answer."""
    session, silence = open_session(model=model, **config), asyncio.Event()
    async with run_fake_server() as server, httpx.AsyncClient(trust_env=False) as http:
        server.answer(*steps, silence)
        variables = {
            "OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1",
            "ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.url,
        }  # fmt: skip
        activities: ModelActivities = make_activities(load_providers(variables), http)
        environment = await make_patient_environment(Queried(session))
        arrived = asyncio.Event()
        environment.on_heartbeat = lambda *beat: arrived.set() if holds(beat[0]) else None
        running = asyncio.create_task(environment.run(activities.call_model, session.call))
        async with asyncio.timeout(PATIENCE_SECONDS):
            await arrived.wait()
            environment.cancel(details or ActivityCancellationDetails(cancel_requested=True))
            try:
                answer = await running
            finally:
                silence.set()
            await server.hung_up.wait()
    assert isinstance(answer, ModelAnswered)
    assert (answer.reply.tool_calls, answer.reply.thinking, answer.reply.provider_data) == ((), None, None)
    assert answer.reply.stop_reason == "interrupted"
    assert answer.digest == session.build_context(session.call).meta.digest
    shown = AssistantMessage(context_ref="", role="assistant", content=answer.reply.content, interrupted=True)
    assert answer.tokens == shown.count(load_encoding(session.call.encoding))[1]
    return answer


async def make_patient_environment(queried: Queried) -> ActivityEnvironment:
    """Make an environment in which a request has a minute."""
    environment = await make_environment(queried)
    retries = RetryPolicy(initial_interval=timedelta(seconds=1))
    time = timedelta(minutes=1)
    environment.info = replace(environment.info, schedule_to_close_timeout=time, retry_policy=retries)
    return environment


async def test_a_cancelled_call_answers_the_text_so_far() -> None:
    """Its usage is estimated from the context's tokens and the text's; the cost is that by list price."""
    answer = await interrupt("openai:gpt-4o", send(TEXT), lambda beat: beat["text"] == "half an answer")
    assert answer.reply.content == "half an answer"
    usage = answer.reply.usage
    assert usage.estimated_calls == 1
    assert usage.input_tokens == answer.input_tokens
    assert answer.tokens is not None
    assert usage.output_tokens == load_encoding("heuristic").count("half an answer") < answer.tokens
    assert usage.cost_usd == compute_cost_usd(answer.prices, usage)
    assert usage.cost_usd


async def test_half_a_tool_call_is_not_kept() -> None:
    """The text before it is; the arguments count as output."""
    plain = await interrupt("openai:gpt-4o", send(TEXT), lambda beat: beat["text"] == "half an answer")
    answer = await interrupt("openai:gpt-4o", send(TEXT + CALL), lambda beat: beat.get("tool_name") == "add")
    assert answer.reply.content == "half an answer"
    assert answer.reply.usage.output_tokens >= plain.reply.usage.output_tokens


async def test_thinking_is_counted_and_not_kept() -> None:
    """With the prompt's tokens as the provider has reported them, before any text and after it."""
    model = "anthropic:claude-sonnet-4-5"
    thinking = await interrupt(model, send(THINKING), lambda beat: beat.get("thinking"))
    speaking = await interrupt(model, send(THINKING + SPEAKING), lambda beat: beat["text"] == "I will add.")
    assert (thinking.reply.content, speaking.reply.content) == ("", "I will add.")
    for answer in (thinking, speaking):
        usage = answer.reply.usage
        assert (usage.input_tokens, usage.cached_input_tokens, usage.estimated_calls) == (80, 70, 1)
    assert 4 < thinking.reply.usage.output_tokens < speaking.reply.usage.output_tokens


async def test_a_secret_at_the_end_is_not_kept() -> None:
    """What may be the beginning of a key is left out, as in heartbeats."""
    chunks = [make_chunk(role="assistant", content=f"the key is {KEY[:12]}")]
    answer = await interrupt("openai:gpt-4o", send(chunks), lambda beat: beat["text"])
    assert KEY[:12] not in answer.reply.content
    assert answer.reply.text.startswith("the key is")


@pytest.mark.parametrize(
    "details", [ActivityCancellationDetails(worker_shutdown=True), ActivityCancellationDetails(timed_out=True)]
)
async def test_a_call_that_the_session_has_not_cancelled_has_no_answer(details: ActivityCancellationDetails) -> None:
    """Another attempt follows where the worker stops."""
    with pytest.raises(asyncio.CancelledError):
        await interrupt("openai:gpt-4o", send(TEXT), lambda beat: beat["text"], details)


async def test_a_call_of_which_nothing_was_read_has_no_answer() -> None:
    """Cancelled before the provider has begun to reply."""
    with pytest.raises(asyncio.CancelledError):
        await interrupt("openai:gpt-4o", send([]), lambda beat: beat["call_id"])


async def fail(*steps: Step, **info: Any) -> ApplicationError:
    """Have a call fail whose provider goes silent, and return its failure."""
    session, silence = open_session(model="openai:gpt-4o"), asyncio.Event()
    async with run_fake_server() as server, httpx.AsyncClient(trust_env=False) as http:
        server.answer(*steps, silence)
        variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": f"{server.url}/v1"}
        environment = await make_patient_environment(Queried(session))
        environment.info = replace(environment.info, **info)
        activities: ModelActivities = make_activities(load_providers(variables), http)
        with pytest.raises(ApplicationError) as caught:
            await environment.run(activities.call_model, session.call)
        silence.set()
    return caught.value


@pytest.mark.parametrize(
    ("info", "is_last"),
    [
        ({}, False),
        ({"attempt": 3}, False),
        ({"heartbeat_details": ({}, None, None, {"wasted": 2})}, True),
        ({"schedule_to_close_timeout": None}, False),
        ({"schedule_to_close_timeout": timedelta(seconds=0.9)}, True),
    ],
)
async def test_only_the_last_attempt_fails_with_what_it_has_read(info: dict[str, Any], is_last: bool) -> None:
    """The third that was cut off, or the one after which there is no time for another."""
    error = await fail(*send(TEXT), None, **info)
    assert error.type == "truncated_stream"
    assert len(error.details) == (2 if is_last else 0)
    if is_last:
        assert error.details[0] == {}
        assert error.details[1].reply.content == "half an answer"


async def test_a_call_fails_before_the_server_gives_it_up() -> None:
    """So that all of a long text is kept, and not the end of it that heartbeats have."""
    error = await fail(*send(TEXT), schedule_to_close_timeout=timedelta(seconds=0.9))
    assert (error.type, error.non_retryable) == ("timeout", True)
    assert error.message == "the reply was being streamed, 14 characters had arrived"
    assert error.details[1].reply.content == "half an answer"
    error = await fail(schedule_to_close_timeout=timedelta(seconds=0.9))
    assert (error.message, error.details) == ("the model had not begun to reply", ())


async def test_the_text_of_a_refused_reply_is_not_kept() -> None:
    """Providers want it left out of later contexts. It is counted."""
    error = await fail(*send([*TEXT, make_chunk("content_filter")]), b"data: [DONE]\n\n")
    assert error.type == "content_refused"
    assert error.details[1].reply.content == ""
    assert error.details[1].reply.usage.output_tokens > 0


async def test_a_providers_searches_are_a_part_of_the_cost() -> None:
    """Those that failed are free, and so are other tools."""
    session = SessionHarness()
    session.ask("hello")
    prices = find_prices("anthropic:claude-opus-5")
    usage = Usage(input_tokens=1_000, output_tokens=100)
    calls: Any = (
        {"tool": "web_search", "input": "one"},
        {"tool": "web_search", "input": "two"},
        {"tool": "web_search", "error": "unavailable"},
        {"tool": "web_fetch", "input": "https://a.example"},
    )
    reply = ModelReply(content="hi", usage=usage, provider_calls=calls)
    complete = await ReplyInProgress(session.call, prices, 1).complete_usage(reply, count_searches(reply))
    tokens = compute_cost_usd(prices, usage)
    assert tokens is not None
    assert complete.usage.cost_usd == pytest.approx(tokens + 0.02)
