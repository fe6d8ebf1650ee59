"""Chat Completions with the official client, on a real server."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from pydantic import BaseModel

from clew.local import Reply, ToolCall
from tests.support.openai_api import check, connect
from tests.support.openai_scripts import call_weather, echo
from tests.support.scripts import PausedModel
from tests.support.serving import Served, make_key, run_service
from tests.support.stack import Stack

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    name: str


async def test_a_completion_has_the_earlier_messages(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Without a session's name the model reads the messages of the request, and the answer has its usage."""
    model = stack.add_model(echo)
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "two"},
        {"role": "user", "content": [{"type": "text", "text": "three"}]},
    ]
    made = check(await client.chat.completions.create(model=model, messages=messages, temperature=0.5))
    choice = made.choices[0]
    assert choice.message.content == "system: Be brief. | user: one | assistant: two | user: three"
    assert choice.finish_reason == "stop"
    assert made.usage is not None
    assert made.usage.total_tokens > 0


async def test_a_stream_has_the_text_and_the_usage(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The chunks of a stream are the text; the last one has the usage if the request asks for it."""
    model = stack.add_model(lambda _body: Reply("Once upon a time. " * 5))
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Hi"}],
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [check(chunk) async for chunk in stream]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == "Once upon a time. " * 5
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens > 0


async def test_a_drain_is_an_error(served: Served, client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A stream of a process that ends fails: nobody takes what was sent for the whole answer."""
    paused = PausedModel()
    messages: Any = [{"role": "user", "content": "Hi"}]
    stream = await client.chat.completions.create(model=stack.add_model(paused), messages=messages, stream=True)
    assert check(await anext(stream)).choices[0].finish_reason is None
    served.app.state.drain.begin()
    with pytest.raises(openai.APIError) as caught:
        await anext(stream)
    assert caught.value.code == "draining"


async def test_a_named_session_has_the_conversation(served: Served, client: openai.AsyncOpenAI, stack: Stack) -> None:
    """With the header the session has the conversation: of the messages the new one is sent."""
    model = stack.add_model(echo)
    headers = {"X-Clew-Session": "support-1"}
    messages: Any = [{"role": "user", "content": "one"}]
    first = await client.chat.completions.create(model=model, messages=messages, extra_headers=headers)
    messages += [{"role": "assistant", "content": "forged"}, {"role": "user", "content": "two"}]
    raw = await client.chat.completions.with_raw_response.create(
        model=model, messages=messages, extra_headers=headers
    )
    assert raw.headers["x-clew-session"] == "support-1"
    second = raw.parse()
    assert (
        second.choices[0].message.content == f"user: one | assistant: {first.choices[0].message.content} | user: two"
    )
    assert len(await stack.clew.session(served.scope("support-1")).entries(kind="run")) == 2


@pytest.mark.slow
@pytest.mark.parametrize("streams", [False, True])
async def test_functions(client: openai.AsyncOpenAI, stack: Stack, *, streams: bool) -> None:
    """A completion ends with calls of functions; the request with their results goes on in the same session."""
    model = stack.add_model(call_weather)
    messages: list[Any] = [{"role": "user", "content": "Weather?"}]

    async def complete() -> Any:
        if not streams:
            return check(await client.chat.completions.create(model=model, messages=messages, tools=[WEATHER]))
        async with client.chat.completions.stream(model=model, messages=messages, tools=[WEATHER]) as stream:
            return await stream.get_final_completion()

    first = await complete()
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", '{"city":"Porto"}')
    messages += [
        {"role": "assistant", "content": None, "tool_calls": [call.to_dict()]},
        {"role": "tool", "tool_call_id": call.id, "content": "sun"},
    ]
    second = await complete()
    assert second.choices[0].message.content == "I read: sun"
    assert len(stack.list_requests(model)) == 2
    messages += [
        {"role": "assistant", "content": second.choices[0].message.content},
        {"role": "user", "content": "And?"},
    ]
    third = await complete()
    assert third.choices[0].message.content == "I read: And?"
    read = stack.list_requests(model)[-1]["messages"]
    assert [message["role"] for message in read] == ["user", "assistant", "tool", "assistant", "user"]


@pytest.mark.parametrize("streams", [False, True])
async def test_structured_outputs(client: openai.AsyncOpenAI, stack: Stack, *, streams: bool) -> None:
    """`parse` and a stream with a type return a value, also where the session has had the answer corrected."""
    answers = iter(["no JSON", '{"name": "Porto"}'])
    model = stack.add_model(lambda _body: Reply(next(answers)))
    messages: Any = [{"role": "user", "content": "Which?"}]
    if streams:
        async with client.chat.completions.stream(model=model, messages=messages, response_format=City) as stream:
            parsed: Any = await stream.get_final_completion()
    else:
        parsed = await client.chat.completions.parse(model=model, messages=messages, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Porto")


async def test_a_failed_request_is_an_error(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A provider's refusal raises the client's exception, also in a stream, and is not repeated."""
    model = stack.add_model(lambda _body: Reply.error(400, "no such thing"))
    messages: Any = [{"role": "user", "content": "Hi"}]
    with pytest.raises(openai.BadRequestError, match="bad_request: "):
        await client.with_options(max_retries=2).chat.completions.create(model=model, messages=messages)
    assert len(stack.list_requests(model)) == 1
    with pytest.raises(openai.APIError, match="bad_request: "):
        async for _ in await client.chat.completions.create(model=model, messages=messages, stream=True):
            pass


async def test_what_is_not_served_is_refused(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Fields and values that Clew does not serve are refused, and nothing is done."""
    model = stack.add_model("fine")
    cases: list[tuple[dict[str, Any], str, str]] = [
        ({"logit_bias": {"1": 2}}, "unsupported_parameter", "logit_bias"),
        ({"n": 2}, "unsupported_value", "n"),
        ({"messages": [{"role": "assistant", "content": "Hi"}]}, "missing_required_parameter", "messages"),
        (
            {"messages": [{"role": "tool", "tool_call_id": "c", "content": "x"}, {"role": "user", "content": "Hi"}]},
            "invalid_value",
            "messages[0]",
        ),
        ({"extra_body": {"wings": 2}}, "unknown_parameter", "wings"),
    ]
    for fields, code, param in cases:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(
                **{"model": model, "messages": [{"role": "user", "content": "Hi"}], **fields}
            )
        assert (refused.value.code, refused.value.param) == (code, param)
    assert stack.list_requests(model) == []


async def test_models(served: Served, stack: Stack) -> None:
    """The list of models has the agents and the models that the key names."""
    token, key = make_key("few", "acme", agents=("support",), models=("openai:gpt-4o", "scripted:*"))
    async with run_service(stack.clew, key) as other, connect(other, api_key=token) as client:
        listed = [check(model).id async for model in client.models.list()]
        assert listed == ["support", "openai:gpt-4o"]
        assert check(await client.models.retrieve("openai:gpt-4o")).owned_by == "openai"
        with pytest.raises(openai.PermissionDeniedError):
            await client.responses.create(model="anthropic:claude", input="Hi")


async def test_a_call_that_waits_for_approval_does_not_end_a_completion(
    served: Served, client: openai.AsyncOpenAI, stack: Stack
) -> None:
    """Chat Completions have no approvals: the stream waits until a person has decided."""

    def script(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return Reply(tool_calls=[ToolCall("guarded", {})])
        return Reply("done")

    model = stack.add_model(script)
    session = await stack.clew.open(served.scope("guards"), model=model, tools=["guarded"])
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Go"}],
        stream=True,
        extra_headers={"X-Clew-Session": "guards"},
    )
    text = ""
    async for event in session.follow(0):
        if event.type == "approval_required":
            await session.approve(event.tool_call_id)
            break
    async for chunk in stream:
        text += chunk.choices[0].delta.content or ""
    assert text == "done"
