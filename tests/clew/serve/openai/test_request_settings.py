"""Settings belong to the request that has them: in a tool loop, in a hand-off, and under a repeated key."""

from __future__ import annotations

import uuid
from typing import Any

import openai
import pytest

from clew import Agent
from clew.local import Reply, ToolCall
from tests.support.openai_api import check, connect
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.stack import Stack, get_last_message, make_client, run_deployment

FUNCTION: dict[str, Any] = {
    "name": "get_weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}
OTHER: dict[str, Any] = {"name": "book", "description": "", "parameters": {"type": "object", "properties": {}}}


def call_if_forced(body: dict[str, Any]) -> Reply:
    """Call the first tool whenever the provider is told that a call is required, as models do."""
    if body.get("tool_choice") in ("required", "any"):
        return Reply(tool_calls=[ToolCall(body["tools"][0]["function"]["name"], {}, f"c{len(body['messages'])}")])
    return Reply(f"read {get_last_message(body)['content']}")


def in_responses(function: dict[str, Any]) -> Any:
    return {"type": "function", "strict": False, **function}


async def test_a_forced_choice_is_for_its_response_alone(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The result comes with other settings or none: the model is not forced again, and the loop ends."""
    model = stack.add_model(call_if_forced)
    first = await client.responses.create(
        model=model,
        input="Weather?",
        tools=[in_responses(FUNCTION)],
        tool_choice="required",
        instructions="Be brief.",
        temperature=0.25,
        metadata={"a": "b"},
    )
    (call,) = first.output
    assert call.type == "function_call"
    second = check(
        await client.responses.create(
            model=model,
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
            tools=[in_responses(OTHER)],
            instructions="Be kind.",
        )
    )
    assert second.output_text == "read sun"
    assert (second.tool_choice, second.instructions, second.temperature) == ("auto", "Be kind.", 1.0)
    assert [tool.name for tool in second.tools if tool.type == "function"] == ["book"]
    before, after = stack.list_requests(model)
    assert (before["tool_choice"], before["temperature"]) == ("required", 0.25)
    assert "temperature" not in after
    assert after.get("tool_choice", "auto") == "auto"
    assert [tool["function"]["name"] for tool in after["tools"]] == ["book"]
    assert after["messages"][0]["content"] == "Be kind."
    # Both responses are read again as they were.
    again = check(await client.responses.retrieve(first.id))
    assert (again.tool_choice, again.instructions, again.metadata) == ("required", "Be brief.", {"a": "b"})
    assert await client.responses.retrieve(second.id) == second
    third = await client.responses.create(model=model, previous_response_id=second.id, input="And?")
    assert third.output_text == "read And?"
    assert "tools" not in stack.list_requests(model)[-1]


async def test_a_forced_choice_is_for_its_completion_alone(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """The same in Chat Completions, also in a stream."""
    model = stack.add_model(call_if_forced)
    tools: Any = [{"type": "function", "function": FUNCTION}]
    messages: Any = [{"role": "user", "content": "Weather?"}]
    made = await client.chat.completions.create(model=model, messages=messages, tools=tools, tool_choice="required")
    calls = made.choices[0].message.tool_calls
    assert calls
    (call,) = calls
    messages += [made.choices[0].message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    stream = await client.chat.completions.create(model=model, messages=messages, tools=tools, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
    assert text == "read sun"


async def test_another_agent_goes_on_with_its_own_instructions(stack: Stack) -> None:
    """A hand-off: the results come with the name of another agent, and other instructions."""
    model = stack.add_model(call_if_forced)
    agents = [Agent(name, model=model, system_prompt=f"You are {name}.") for name in ("triage", "sales")]
    clew = make_client(stack)
    async with (
        run_deployment(stack, clew, *agents),
        run_service(clew) as served,
        connect(served) as client,
    ):
        first = await client.responses.create(
            model="triage",
            input="Buy",
            tools=[in_responses(OTHER)],
            tool_choice="required",
        )
        (call,) = first.output
        assert call.type == "function_call"
        second = await client.responses.create(
            model="sales",
            previous_response_id=first.id,
            input=[{"type": "function_call_output", "call_id": call.call_id, "output": "go"}],
        )
    assert (second.model, second.output_text) == ("sales", "read go")
    assert stack.list_requests(model)[-1]["messages"][0]["content"] == "You are sales."


async def test_one_call_a_reply(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """With `parallel_tool_calls: false` a reply with two calls has one; the model reads that one did not run."""

    def call_both(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "tool":
            return Reply("done")
        return Reply(tool_calls=[ToolCall("get_weather", {}, "a"), ToolCall("get_weather", {}, "b")])

    model = stack.add_model(call_both)
    made = await client.responses.create(
        model=model,
        input="Weather?",
        tools=[in_responses(FUNCTION)],
        parallel_tool_calls=False,
    )
    assert made.parallel_tool_calls is False
    (call,) = check(made).output
    assert call.type == "function_call"
    told = await client.responses.create(
        model=model,
        previous_response_id=made.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sun"}],
    )
    assert told.output_text == "done"
    results = [
        message["content"] for message in stack.list_requests(model)[-1]["messages"] if message["role"] == "tool"
    ]
    assert results[0] == "sun"
    assert "one tool call" in results[1]


@pytest.mark.slow
@pytest.mark.parametrize("api", ["responses", "chat"])
async def test_a_key_stands_for_one_request(client: openai.AsyncOpenAI, stack: Stack, api: str) -> None:
    """The same key with another body is a conflict that says so, whatever differs; the same body is a repetition."""
    model, other = stack.add_model("fine"), stack.add_model("fine")
    headers = {"Idempotency-Key": f"key-{api}-{model}"}

    async def send(text: str, **fields: Any) -> str:
        body: dict[str, Any] = {"model": model, "extra_headers": headers, **fields}
        if api == "responses":
            return str((await client.responses.create(input=text, **body)).id)
        messages: Any = [{"role": "user", "content": text}]
        return str((await client.chat.completions.create(messages=messages, **body)).id)

    made = await send("Hi")
    assert await send("Hi") == made
    for text, fields in (("Hello", {}), ("Hi", {"temperature": 0}), ("Hi", {"model": other}), ("Hi", {"user": "u"})):
        with pytest.raises(openai.ConflictError) as refused:
            await send(text, **fields)
        assert refused.value.code == "request_reused"
    assert len(stack.list_requests(model)) == 1


@pytest.mark.slow
@pytest.mark.parametrize(("model", "stream"), [("nobody:gpt", False), ("nobody", True)])
async def test_an_unknown_model_leaves_no_conversation(served: Served, model: str, *, stream: bool) -> None:
    """Both APIs answer 404 `model_not_found`."""
    before = (await served.http.get("/v1/sessions")).json()["sessions"]
    for path, body in (
        ("/v1/responses", {"input": "Hi"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
    ):
        answer = await served.http.post(path, json={"model": model, "stream": stream, **body})
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found"), answer.text
        assert answer.json()["error"]["param"] == "model"
    assert (await served.http.get("/v1/sessions")).json()["sessions"] == before


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
async def test_a_content_filter_keeps_the_text_so_far(
    client: openai.AsyncOpenAI, stack: Stack, *, stream: bool
) -> None:
    """It is no error: the response is incomplete, and has the text and the reason."""
    model = stack.add_model(lambda _body: Reply("Once upon", finish_reason="content_filter"))
    made = check(await _respond(client, model, stream=stream))
    assert (made.status, made.error) == ("incomplete", None)
    assert made.incomplete_details is not None
    assert made.incomplete_details.reason == "content_filter"
    text, refusal = made.output
    assert text.type == refusal.type == "message"
    assert [part.type for part in (*text.content, *refusal.content)] == ["output_text", "refusal"]
    assert made.output_text == "Once upon"
    messages: Any = [{"role": "user", "content": "Hi"}]
    if stream:
        chunks = [c async for c in await client.chat.completions.create(model=model, messages=messages, stream=True)]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Once upon"
        assert "".join(chunk.choices[0].delta.refusal or "" for chunk in chunks)
        assert chunks[-1].choices[0].finish_reason == "content_filter"
    else:
        completion = check(await client.chat.completions.create(model=model, messages=messages))
        assert completion.choices[0].finish_reason == "content_filter"
        assert completion.choices[0].message.content == "Once upon"
        assert completion.choices[0].message.refusal


async def _respond(client: openai.AsyncOpenAI, model: str, *, stream: bool) -> Any:
    if not stream:
        return await client.responses.create(model=model, input="Hi")
    async with client.responses.stream(model=model, input="Hi") as events:
        newest = [event async for event in events][-1]
    assert newest.type == "response.incomplete"
    return newest.response


async def test_a_key_stands_for_one_conversation(client: openai.AsyncOpenAI) -> None:
    """Repeated it is the same one; with other items or metadata it is a conflict."""
    headers = {"Idempotency-Key": f"key-{uuid.uuid4().hex}"}
    made = await client.conversations.create(metadata={"a": "b"}, extra_headers=headers)
    assert (await client.conversations.create(metadata={"a": "b"}, extra_headers=headers)).id == made.id
    assert made.metadata == {"a": "b"}
    with pytest.raises(openai.ConflictError) as refused:
        await client.conversations.create(metadata={"a": "c"}, extra_headers=headers)
    assert refused.value.code == "request_reused"


@pytest.mark.slow
async def test_a_key_stands_for_one_answer_of_calls(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Results with a key: the same are a repetition, others are a conflict."""
    model = stack.add_model(call_if_forced)
    tools: Any = [in_responses(FUNCTION)]
    first = await client.responses.create(model=model, input="Weather?", tools=tools, tool_choice="required")
    (call,) = first.output
    assert call.type == "function_call"
    headers = {"Idempotency-Key": f"key-{uuid.uuid4().hex}"}

    async def answer(text: str) -> str:
        result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": text}
        made = await client.responses.create(
            model=model, previous_response_id=first.id, input=[result], extra_headers=headers
        )
        return made.output_text

    assert await answer("sun") == "read sun"
    assert await answer("sun") == "read sun"
    with pytest.raises(openai.ConflictError) as refused:
        await answer("rain")
    assert refused.value.code == "request_reused"


async def test_the_lists_have_what_a_key_may_use(stack: Stack) -> None:
    """All agents of the workers, or those of the key; and the models, or those that the key names."""
    model = stack.add_model("fine")
    clew = make_client(stack)
    token, key = make_key("narrow", "narrow", agents=("sales",), models=("openai:gpt-4o", "scripted:*"))
    agents = [Agent(name, model=model) for name in ("triage", "sales")]
    async with run_deployment(stack, clew, *agents), run_service(clew, key) as served:
        async with connect(served) as client:
            assert [listed.id async for listed in client.models.list()] == ["sales", "triage", model]
            assert (await client.models.retrieve("sales")).owned_by == "clew"
            with pytest.raises(openai.NotFoundError) as unknown:
                await client.models.retrieve("nobody")
            assert unknown.value.code == "model_not_found"
        async with make_http(served.address, token) as http:
            listed = (await http.get("/v1/models")).json()["data"]
            assert [row["id"] for row in listed] == ["sales", "openai:gpt-4o"]
            for name, status in ((model, 200), ("scripted:", 404), ("openai:gpt-5", 404), ("openai:gpt-4o", 200)):
                assert (await http.get(f"/v1/models/{name}")).status_code == status, name
            rows = (await http.get("/v1/agents")).json()["agents"]
            assert [row["name"] for row in rows] == ["sales"]
            assert "model" not in rows[0]
        assert [row["name"] for row in (await served.http.get("/v1/agents")).json()["agents"]] == ["sales", "triage"]
