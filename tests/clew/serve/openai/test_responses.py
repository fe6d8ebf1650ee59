"""The Responses API with the official client, on a real server."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from clew import Agent
from clew.local import Reply, ToolCall
from clew.serve.streams import Drain
from tests.support.examples import mark_slow_except
from tests.support.holding import hold_intake, note_answers, run_holding_worker, wait_for_answers
from tests.support.media import make_png
from tests.support.openai_api import check, connect
from tests.support.openai_scripts import call_weather, echo
from tests.support.scripts import PausedModel
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, get_last_message, make_client, run_deployment

PNG = make_png()
STORY = "Once upon a time there was a thread that led out of the labyrinth. " * 3
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class City(BaseModel):
    name: str
    people: int


async def test_a_response_has_the_answer(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response to a text has the reply, its usage and what the request has set; it is read again by its id."""
    model = stack.add_model(echo)
    made = check(
        await client.responses.create(
            model=model,
            input="Hello",
            instructions="Be brief.",
            metadata={"ticket": "7"},
            temperature=0.5,
            max_output_tokens=200,
        )
    )
    assert made.status == "completed"
    assert made.output_text == "system: Be brief. | user: Hello"
    assert made.usage is not None
    assert made.usage.output_tokens > 0
    assert (made.model, made.instructions, made.metadata) == (model, "Be brief.", {"ticket": "7"})
    assert (made.temperature, made.max_output_tokens) == (0.5, 200)
    (request,) = stack.list_requests(model)
    assert request["temperature"] == 0.5

    read = check(await client.responses.retrieve(made.id))
    different = {"created_at"}
    assert read.to_dict() | dict.fromkeys(different) == made.to_dict() | dict.fromkeys(different)


async def test_a_stream_has_the_events_of_the_api(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A stream has the API's own events in order, with rising numbers, and its deltas are the text."""
    model = stack.add_model(lambda _body: Reply(STORY))
    events = [check(event) async for event in await client.responses.create(model=model, input="Hi", stream=True)]
    kinds = list(dict.fromkeys(event.type for event in events))
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == STORY
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == STORY


async def test_the_clients_stream_helper(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The client's own accumulation of a stream is the response."""
    model = stack.add_model(lambda _body: Reply(STORY))
    async with client.responses.stream(model=model, input="Hi") as stream:
        final = await stream.get_final_response()
    assert final.output_text == STORY


async def test_a_stream_goes_on_from_any_event(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A stream that is read again from an event on has the events behind it, as the first one had them."""
    model = stack.add_model(lambda _body: Reply(STORY))
    first = [event async for event in await client.responses.create(model=model, input="Hi", stream=True)]
    assert first[0].type == "response.created"
    stream = await client.responses.retrieve(first[0].response.id, stream=True, starting_after=10)
    again = [check(event) async for event in stream]
    assert [event.to_dict() for event in again[:-1]] == [event.to_dict() for event in first[11:-1]]
    assert again[-1].type == "response.completed"


async def test_a_drain_is_an_error_behind_which_the_stream_goes_on(
    served: Served, client: openai.AsyncOpenAI, stack: Stack
) -> None:
    """A stream of a process that ends has the error `draining`, with the number of the newest event."""
    paused = PausedModel()
    events: list[Any] = []
    async for event in await client.responses.create(model=stack.add_model(paused), input="Hi", stream=True):
        events.append(check(event))
        await paused.called.wait()
        served.app.state.drain.begin()
    assert [event.type for event in events] == ["response.created", "response.in_progress", "error"]
    assert events[-1].code == "draining"
    assert events[-1].sequence_number == events[-2].sequence_number
    paused.free.set()
    served.app.state.drain = Drain()
    stream = await client.responses.retrieve(events[0].response.id, stream=True, starting_after=1)
    behind = [event async for event in stream]
    assert behind[0].sequence_number == 2
    assert behind[-1].type == "response.completed"


@pytest.mark.slow
async def test_a_previous_response_is_continued(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response that names the one before goes on with its conversation, without its instructions."""
    model = stack.add_model(echo)
    first = await client.responses.create(model=model, input="one", instructions="First.")
    second = check(await client.responses.create(model=model, input="two", previous_response_id=first.id))
    assert second.output_text == f"user: one | assistant: {first.output_text} | user: two"
    assert second.previous_response_id == first.id
    assert second.conversation is not None
    assert first.conversation is not None
    assert second.conversation.id == first.conversation.id


@pytest.mark.slow
async def test_an_earlier_response_is_forked(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response that follows an earlier one than the newest begins a fork, and the newest stays as it is."""
    model = stack.add_model(echo)
    first = await client.responses.create(model=model, input="one")
    second = await client.responses.create(model=model, input="two", previous_response_id=first.id)
    other = check(await client.responses.create(model=model, input="other", previous_response_id=first.id))
    assert "two" not in other.output_text
    assert "one" in other.output_text
    assert other.conversation is not None
    assert second.conversation is not None
    assert other.conversation.id != second.conversation.id
    third = await client.responses.create(model=model, input="three", previous_response_id=second.id)
    assert "two" in third.output_text
    assert "other" not in third.output_text


async def test_structured_outputs(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """`parse` returns a value of the type; an answer that does not meet it is corrected before."""
    answers = iter(["no JSON", '{"name": "Porto", "people": 230000}'])
    model = stack.add_model(lambda _body: Reply(next(answers)))
    parsed = await client.responses.parse(model=model, input="Which city?", text_format=City)
    assert parsed.output_parsed == City(name="Porto", people=230_000)
    read = check(await client.responses.retrieve(parsed.id))
    assert read.output_text == '{"name": "Porto", "people": 230000}'
    assert read.text is not None
    assert read.text.format is not None
    assert read.text.format.type == "json_schema"


async def test_a_streamed_answer_is_corrected(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The client's stream with a type survives an answer that the session has corrected."""
    answers = iter(["no JSON", '{"name": "Porto", "people": 230000}'])
    model = stack.add_model(lambda _body: Reply(next(answers)))
    async with client.responses.stream(model=model, input="Which city?", text_format=City) as stream:
        final = await stream.get_final_response()
    assert final.output_parsed == City(name="Porto", people=230_000)
    assert final.output_text == '{"name": "Porto", "people": 230000}'


async def test_background_and_cancel(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response in the background is read while it works, and ends as cancelled."""
    paused = PausedModel()
    model = stack.add_model(paused)
    made = check(await client.responses.create(model=model, input="Hi", background=True))
    assert made.status == "in_progress"
    assert made.background is True
    await paused.called.wait()
    assert check(await client.responses.retrieve(made.id)).status == "in_progress"
    assert check(await client.responses.cancel(made.id)).status == "cancelled"
    assert check(await client.responses.retrieve(made.id)).status == "cancelled"


@pytest.mark.slow
async def test_a_function_is_called(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response ends with the calls of the caller's functions, and the next one goes on with their results."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["role"] == "user":
            cities = ["Porto", "Oslo"]
            return Reply("I look.", [ToolCall("get_weather", {"city": city}, f"c{city}") for city in cities])
        return Reply(" and ".join(message["content"] for message in body["messages"] if message["role"] == "tool"))

    model = stack.add_model(script)
    first = check(await client.responses.create(model=model, input="Weather?", tools=[WEATHER]))
    calls = [item for item in first.output if item.type == "function_call"]
    assert [call.arguments for call in calls] == ['{"city":"Porto"}', '{"city":"Oslo"}']
    assert first.output_text == "I look."
    assert first.status == "completed"
    results: Any = [
        {"type": "function_call_output", "call_id": call.call_id, "output": f"sun {number}"}
        for number, call in enumerate(calls)
    ]
    with pytest.raises(openai.BadRequestError, match="No tool output found"):
        await client.responses.create(model=model, input="And?", previous_response_id=first.id, tools=[WEATHER])
    with pytest.raises(openai.BadRequestError, match="No tool output found"):
        await client.responses.create(model=model, input=results[:1], previous_response_id=first.id, tools=[WEATHER])
    second = check(
        await client.responses.create(model=model, input=results, previous_response_id=first.id, tools=[WEATHER])
    )
    assert second.output_text == "sun 0 and sun 1"
    assert second.previous_response_id == first.id
    for made in (first, second):
        read = check(await client.responses.retrieve(made.id))
        assert read.to_dict() | {"created_at": 0} == made.to_dict() | {"created_at": 0}
    again = await client.responses.create(model=model, input=results, previous_response_id=first.id, tools=[WEATHER])
    assert (again.id, again.output_text) == (second.id, second.output_text)
    listed = await client.responses.input_items.list(second.id, order="asc")
    assert [getattr(item, "output", None) for item in listed.data] == ["sun 0", "sun 1"]
    third = await client.responses.create(model=model, input="Thanks", previous_response_id=second.id)
    assert third.tools == []


@pytest.mark.parametrize(
    ("streams", "store"),
    mark_slow_except([(True, False), (False, True)], itertools.product((False, True), (False, True))),
)
async def test_the_items_of_an_input_name_the_conversation(
    client: openai.AsyncOpenAI, stack: Stack, *, streams: bool, store: bool
) -> None:
    """A client that sends all items each time goes on in the same session, and the model reads nothing twice."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["content"] == "Weather?":
            return Reply(tool_calls=[ToolCall("get_weather", {"city": "Porto"})])
        return echo(body)

    async def send(items: Sequence[Any]) -> Any:
        if not streams:
            return await client.responses.create(model=model, input=list(items), tools=[WEATHER], store=store)
        async with client.responses.stream(model=model, input=list(items), tools=[WEATHER], store=store) as stream:
            return await stream.get_final_response()

    model = stack.add_model(script)
    items: list[Any] = [{"role": "user", "content": "Weather?"}]
    first = await send(items)
    (call,) = first.output
    items += [call.to_dict(), {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}]
    second = await send(items)
    assert second.output_text.endswith("tool: sun")
    items += [*(item.to_dict() for item in second.output), {"role": "user", "content": "Thanks"}]
    third = await send(items)
    assert third.conversation.id == first.conversation.id
    assert third.output_text.count("Weather?") == 2
    assert third.output_text.endswith("user: Thanks")


@pytest.mark.slow
async def test_parts_of_a_message(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """An image and a file are stored as blobs, and the items of the input name them by their digests."""
    model = stack.add_model("seen")
    image = f"data:image/png;base64,{b64encode(PNG).decode()}"
    content: Any = [
        {"type": "input_text", "text": "What is this?"},
        {"type": "input_image", "image_url": image, "detail": "auto"},
        {"type": "input_file", "filename": "notes.txt", "file_data": b64encode(b"a note").decode()},
    ]
    made = check(await client.responses.create(model=model, input=[{"role": "user", "content": content}]))
    assert made.output_text == "seen"
    (item,) = [check(item) async for item in client.responses.input_items.list(made.id)]
    assert item.type == "message"
    text, shown, file = item.content
    assert (text.type, shown.type, file.type) == ("input_text", "input_image", "input_file")
    digest = hashlib.sha256(PNG).hexdigest()
    assert getattr(shown, "file_id", None) == digest
    again: Any = [{"role": "user", "content": [{"type": "input_image", "file_id": digest, "detail": "low"}]}]
    more = check(await client.responses.create(model=model, input=again, previous_response_id=made.id))
    assert more.output_text == "seen"
    sent = [check(item) async for item in client.responses.input_items.list(more.id)]
    parts = [part for item in sent if item.type == "message" for part in item.content]
    assert "low" in [part.detail for part in parts if part.type == "input_image"]
    bad: Any = [{"role": "user", "content": [{"type": "input_image", "image_url": "data:image/png;base64,???"}]}]
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=model, input=bad)


@pytest.mark.slow
async def test_a_key_with_agents_may_bring_functions(stack: Stack) -> None:
    """A key that may use one agent brings functions of its own, and no other model."""
    agent = Agent("forecaster", model=stack.add_model(call_weather))
    clew = make_client(stack)
    async with (
        run_deployment(stack, clew, agent),
        run_service(clew, agents=("forecaster",)) as served,
        connect(served) as client,
    ):
        first = check(await client.responses.create(model="forecaster", input="Weather?", tools=[WEATHER]))
        (call,) = first.output
        assert call.type == "function_call"
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sun"}
        second = await client.responses.create(model="forecaster", input=[result], previous_response_id=first.id)
        assert second.output_text == "I read: sun"
        conversation = await client.conversations.create()
        third = await client.responses.create(model="forecaster", input="Hi", conversation=conversation.id)
        assert third.output_text == "I read: Hi"
        cases: list[dict[str, Any]] = [{}, {"conversation": conversation.id}]
        for fields in cases:
            with pytest.raises(openai.PermissionDeniedError):
                await client.responses.create(model="scripted:other", input="Hi", **fields)


async def test_a_repeated_request_has_one_effect(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A request with the same Idempotency-Key is answered by the same response."""
    model = stack.add_model("fine")
    headers = {"Idempotency-Key": "k-1"}
    made = [await client.responses.create(model=model, input="Hi", extra_headers=headers) for _ in range(2)]
    assert made[0].id == made[1].id
    assert len(stack.list_requests(model)) == 1


@pytest.mark.parametrize("names_previous", [False, True])
async def test_a_repeated_request_finds_what_waits_for_its_caller(
    client: openai.AsyncOpenAI, stack: Stack, *, names_previous: bool
) -> None:
    """A repetition is answered as the request was, also when the session has gone on to wait for its caller."""

    def script(body: dict[str, Any]) -> Reply:
        newest = get_last_message(body)
        if newest["content"] == "Thanks":
            return Reply("done")
        city = "Oslo" if newest["role"] == "tool" else "Porto"
        return Reply(tool_calls=[ToolCall("get_weather", {"city": city})])

    model = stack.add_model(lambda body: Reply("fine") if get_last_message(body)["content"] == "Hi" else script(body))
    zeroth = await client.responses.create(model=model, input="Hi", tools=[WEATHER])
    assert zeroth.conversation is not None
    place: Any = {"previous_response_id": zeroth.id} if names_previous else {"conversation": zeroth.conversation.id}

    async def send(given: Any, key: str, **fields: Any) -> tuple[str, str]:
        made = await client.responses.create(
            model=model, input=given, tools=[WEATHER], extra_headers={"Idempotency-Key": key}, **fields
        )
        (call,) = made.output
        assert call.type == "function_call"
        return made.id, call.call_id

    first = await send("Weather?", "k-1", **place)
    assert await send("Weather?", "k-1", **place) == first
    result: Any = [{"type": "function_call_output", "call_id": first[1], "output": "sun"}]
    second = await send(result, "k-2", previous_response_id=first[0])
    assert second != first
    assert await send(result, "k-2", previous_response_id=first[0]) == second
    assert await send("Weather?", "k-1", **place) == first
    assert len(stack.list_requests(model)) == 3


@pytest.mark.slow
async def test_a_response_is_known_before_its_session_has_decided(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read and streamed, and a response that names it as the one before it finds it in progress."""
    paused = PausedModel()
    model = stack.add_model(lambda body: Reply("fine") if len(body["messages"]) == 1 else paused(body))
    async with (
        run_holding_worker(stack) as (clew, store),
        run_service(clew) as served,
        connect(served) as client,
    ):
        first = await client.responses.create(model=model, input="Hi")
        assert first.conversation is not None
        with note_answers(monkeypatch) as answers:
            async with hold_intake(clew.session(served.scope(first.conversation.id)), store):
                second = await client.responses.create(
                    model=model, input="Go", background=True, previous_response_id=first.id
                )
                answers.clear()
                reading = asyncio.create_task(client.responses.retrieve(second.id))
                following = asyncio.create_task(
                    client.responses.create(model=model, input="And?", previous_response_id=second.id)
                )
                await wait_for_answers(answers, "entries", 4)
        assert check(await reading).status in ("queued", "in_progress")
        with pytest.raises(openai.ConflictError) as busy:
            await following
        assert busy.value.code == "conversation_locked"
        await paused.called.wait()
        paused.free.set()
        stream = await client.responses.retrieve(second.id, stream=True)
        assert [event.type async for event in stream][-1] == "response.completed"


async def test_a_response_that_has_ended_is_not_cancelled(
    served: Served, client: openai.AsyncOpenAI, stack: Stack
) -> None:
    """It is answered as it is, also if its session hibernates."""
    made = await client.responses.create(model=stack.add_model("fine"), input="Hi")
    assert made.conversation is not None
    assert (await client.responses.cancel(made.id)).status == "completed"
    await stack.clew.session(served.scope(made.conversation.id)).hibernate()
    assert check(await client.responses.cancel(made.id)).output_text == "fine"


async def test_what_is_not_served_is_refused(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Fields and values that Clew does not serve are refused with the API's codes, and nothing is done."""
    model = stack.add_model("fine")
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"max_tool_calls": 3}, "unsupported_parameter", "max_tool_calls"),
        ({"truncation": "disabled"}, "unsupported_value", "truncation"),
        ({"tools": [{"type": "web_search"}]}, "unsupported_value", "tools[0].type"),
        ({"extra_body": {"wings": 2}}, "unknown_parameter", "wings"),
        ({"temperature": 7}, "invalid_value", "temperature"),
        ({"metadata": {"clew.response": "x"}}, "invalid_value", "metadata"),
        ({"conversation": "a", "previous_response_id": "b"}, "invalid_value", "previous_response_id"),
    ]
    for fields, code, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(**{"model": model, "input": "Hi", **fields})
        assert (refused.value.code, refused.value.param) == (code, param)
    assert stack.list_requests(model) == []


async def test_errors_are_those_of_the_client(served: Served, client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A wrong key, an unknown response and a busy conversation raise the client's own exceptions."""
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_unknown")
    reference: Any = [{"type": "item_reference", "id": "msg_123"}, {"role": "user", "content": "Hi"}]
    with pytest.raises(openai.NotFoundError, match="msg_123"):
        await client.responses.create(model="scripted:m", input=reference)
    async with connect(served, api_key="clew_wrong") as stranger:
        with pytest.raises(openai.AuthenticationError):
            await stranger.responses.create(model="a", input="Hi")
    paused = PausedModel()
    model = stack.add_model(paused)
    conversation = await client.conversations.create()
    made = await client.responses.create(model=model, input="Hi", background=True, conversation=conversation.id)
    await paused.called.wait()
    with pytest.raises(openai.ConflictError) as busy:
        await client.responses.create(model=model, input="Hi", conversation=conversation.id)
    assert busy.value.code == "conversation_locked"
    paused.free.set()
    stream = await client.responses.retrieve(made.id, stream=True)
    assert [event.type async for event in stream][-1] == "response.completed"


async def test_a_failed_request(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A provider's refusal is the error of a failed response, also in a stream."""
    model = stack.add_model(lambda _body: Reply.error(400, "no such thing"))
    made = check(await client.responses.create(model=model, input="Hi"))
    assert made.status == "failed"
    assert made.error is not None
    assert made.error.message.startswith("bad_request: ")
    assert "no such thing" not in made.error.message
    events = [check(event) async for event in await client.responses.create(model=model, input="Hi", stream=True)]
    assert events[-1].type == "response.failed"


async def test_a_reply_at_its_limit_is_incomplete(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A reply that has reached its limit of tokens makes an incomplete response."""
    model = stack.add_model(lambda _body: Reply("half of", finish_reason="length"))
    made = check(await client.responses.create(model=model, input="Hi", max_output_tokens=16))
    assert made.status == "incomplete"
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "max_output_tokens"


async def test_no_tenant_reads_anothers_response(served: Served, client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A key of another tenant finds neither the response nor its conversation."""
    made = await client.responses.create(model=stack.add_model("fine"), input="Hi")
    assert made.conversation is not None
    for path in (f"responses/{made.id}", f"conversations/{made.conversation.id}/items"):
        assert (await served.stranger.get(f"/v1/{path}")).status_code == 404
    body = {"model": "scripted:x", "input": "Hi", "previous_response_id": made.id}
    assert (await served.stranger.post("/v1/responses", json=body)).status_code == 404


@pytest.mark.slow
async def test_delete(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The only response of a session is deleted with it; one of several is not."""
    model = stack.add_model("fine")
    first = await client.responses.create(model=model, input="Hi")
    second = await client.responses.create(model=model, input="Hi", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError):
        await client.responses.delete(second.id)
    lone = await client.responses.create(model=model, input="Hi")
    await client.responses.delete(lone.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(lone.id)


async def test_a_response_that_is_not_stored(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A response with `store: false` cannot be read or continued by its id."""
    made = await client.responses.create(model=stack.add_model("fine"), input="Hi", store=False)
    assert made.output_text == "fine"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=made.model, input="Hi", previous_response_id=made.id)
