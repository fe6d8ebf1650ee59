"""The Conversations API with the official client, on a real server."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

import openai
import pytest

from clew import Agent
from clew.local import Reply, ToolCall
from tests.support.openai_api import check, connect
from tests.support.openai_scripts import echo
from tests.support.serving import run_service
from tests.support.stack import Stack, make_client, run_deployment
from tests.support.toolbox import add, guarded


async def test_a_conversation_and_its_items(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A conversation begins with items, its responses add theirs, and its list pages over all of them."""
    model = stack.add_model(echo)
    made = check(
        await client.conversations.create(
            metadata={"topic": "tea"},
            items=[{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}],
        )
    )
    answer = await client.responses.create(model=model, input="three", conversation=made.id)
    assert answer.output_text == "user: one | assistant: two | user: three"
    read = check(await client.conversations.retrieve(made.id))
    assert read.metadata == {"topic": "tea"}
    items = [check(item) async for item in client.conversations.items.list(made.id, order="asc", limit=2)]
    texts = [getattr(part, "text", "") for item in items if item.type == "message" for part in item.content]
    assert texts == ["one", "two", "three", answer.output_text]
    newest = (await client.conversations.items.list(made.id, limit=1)).data[0]
    assert check(await client.conversations.items.retrieve(str(newest.id), conversation_id=made.id)) == newest
    assert newest.id == answer.output[0].id


async def test_items_are_added(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Items that are added are read by the next response; those before keep their ids."""
    model = stack.add_model(echo)
    made = await client.conversations.create()
    await client.responses.create(model=model, input="one", conversation={"id": made.id})
    before = [item.id async for item in client.conversations.items.list(made.id, order="asc")]
    added: Any = check(
        await client.conversations.items.create(
            made.id,
            items=[
                {"role": "user", "content": "two"},
                {"role": "assistant", "content": "three"},
            ],
        )
    )
    assert [item.content[0].text for item in added.data] == ["two", "three"]
    after = [item.id async for item in client.conversations.items.list(made.id, order="asc")]
    assert after == [*before, *(item.id for item in added.data)]
    answer = await client.responses.create(model=model, input="four", conversation=made.id)
    assert answer.output_text.endswith("user: two | assistant: three | user: four")


async def test_each_addition_is_answered_by_its_own_items(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Calls of functions can be added twice. What makes no item is not answered by an earlier one."""
    made = await client.conversations.create()
    await client.responses.create(model=stack.add_model("fine"), input="one", conversation=made.id)

    async def add(*items: Any) -> list[Any]:
        return check(await client.conversations.items.create(made.id, items=items)).data

    call: Any = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    result: Any = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    added = [await add(call, result) for _ in range(2)]
    assert [[item.type for item in items] for items in added] == [["function_call", "function_call_output"]] * 2
    assert await add({"role": "assistant", "content": ""}) == []
    assert await add() == []
    ids = [item.id async for item in client.conversations.items.list(made.id)]
    assert len(ids) == len(set(ids)) == 6


@pytest.mark.slow
async def test_metadata_and_deletion(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """Metadata is replaced, and a deleted conversation is gone. Items alone are not deleted."""
    made = await client.conversations.create(metadata={"a": "b"})
    changed = check(await client.conversations.update(made.id, metadata={"c": "d"}))
    assert changed.metadata == {"c": "d"}
    assert (await client.conversations.retrieve(made.id)).metadata == {"c": "d"}
    with pytest.raises(openai.BadRequestError):
        await client.conversations.items.delete("msg_x", conversation_id=made.id)
    deleted = check(await client.conversations.delete(made.id))
    assert deleted.deleted
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(made.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=stack.add_model("fine"), input="Hi", conversation=made.id)


@pytest.mark.slow
async def test_a_conversation_without_an_agent_takes_none(client: openai.AsyncOpenAI, stack: Stack) -> None:
    """A conversation that began without an agent has a model; a response that names an agent is refused."""
    made = await client.conversations.create()
    with pytest.raises(openai.BadRequestError, match=r"clew\.agent"):
        await client.responses.create(model="cleaner", input="Hi", conversation=made.id)
    with pytest.raises(openai.BadRequestError, match="model"):
        await client.responses.create(input="Hi", conversation=made.id)
    first = await client.responses.create(model=stack.add_model("one"), input="Hi", conversation=made.id)
    other = stack.add_model("two")
    second = check(await client.responses.create(model=other, input="Hi", conversation=made.id))
    third = check(await client.responses.create(input="Hi", conversation=made.id))
    assert [answer.output_text for answer in (first, second, third)] == ["one", "two", "one"]
    assert (second.model, third.model) == (other, first.model)
    assert check(await client.responses.retrieve(second.id)).model == other


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["call", "round"])
async def test_all_approvals_that_wait_are_told(stack: Stack, scope: Any) -> None:
    """A response has each request; after one is decided, the next one has the other, beside another viewer, too.

    Also where the call that is approved first waits for the decision about the other.
    """

    def script(body: dict[str, Any]) -> Reply:
        if body["messages"][-1]["role"] == "user":
            return Reply("", [ToolCall("guarded", {}, "x"), ToolCall("guarded", {}, "y")])
        return Reply("all done")

    agent = Agent("cleaner", model=stack.add_model(script), tools=[guarded], approval_scope=scope)
    clew = make_client(stack)
    async with (
        run_deployment(stack, clew, agent, tools=(guarded,)),
        run_service(clew) as served,
        connect(served) as client,
    ):
        conversation = await client.conversations.create(metadata={"clew.agent": "cleaner"})
        session = served.app.state.clew.session(served.scope(conversation.id))
        async with aclosing(session.follow(0)) as viewing:
            await anext(viewing)
            first = check(await client.responses.create(model="cleaner", input="Go", conversation=conversation.id))
            requests = [item for item in first.output if item.type == "mcp_approval_request"]
            assert len(requests) == 2

            async def decide(request: Any, approve: bool) -> Any:
                decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": approve}
                sent: Any = [request.to_dict(), decision]
                return check(await client.responses.create(model="cleaner", input=sent))

            second = await decide(requests[0], approve=True)
            ran = ["mcp_call"] if scope == "call" else []
            assert [item.type for item in second.output] == [*ran, "mcp_approval_request"]
            assert second.output[-1].id == requests[1].id
            third = await decide(requests[1], approve=False)
            assert third.output_text == "all done"


@pytest.mark.slow
async def test_an_agent_with_tools_and_an_approval(stack: Stack) -> None:
    """An agent's own tools are calls of a server's; one that needs approval waits for the caller's decision."""

    def script(body: dict[str, Any]) -> Reply:
        newest = body["messages"][-1]
        if newest["role"] == "user":
            return Reply("I see.", [ToolCall("add", {"a": 1, "b": 2}, "x"), ToolCall("guarded", {}, "y")])
        results = [message["content"] for message in body["messages"] if message["role"] == "tool"]
        return Reply(" and ".join(results))

    agent = Agent("cleaner", model=stack.add_model(script), tools=[add, guarded])
    clew = make_client(stack)
    async with (
        run_deployment(stack, clew, agent, tools=(add, guarded)),
        run_service(clew) as served,
        connect(served) as client,
    ):
        conversation = await client.conversations.create(metadata={"clew.agent": "cleaner"})
        first = check(await client.responses.create(model="cleaner", input="Go", conversation=conversation.id))
        assert first.model == "cleaner"
        call, request = first.output[1:]
        assert call.type == "mcp_call"
        assert (call.name, call.output) == ("add", "3")
        assert request.type == "mcp_approval_request"
        assert request.name == "guarded"
        decision = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        sent: Any = [request.to_dict(), decision]
        second = check(await client.responses.create(model="cleaner", input=sent))
        done = second.output[0]
        assert done.type == "mcp_call"
        assert done.approval_request_id == request.id
        assert second.output_text.startswith("3 and ")
        read = check(await client.responses.retrieve(first.id))
        assert [item.type for item in read.output] == [item.type for item in first.output]
        listed = [check(item) async for item in client.conversations.items.list(conversation.id, order="asc")]
        assert {"mcp_call", "mcp_approval_request", "mcp_approval_response"} <= {item.type for item in listed}
