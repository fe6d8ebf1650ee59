"""Clients from npm and others in Python, unchanged: they have a base URL and a key, and nothing else."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from pydantic import BaseModel, SecretStr

from clew.local import Reply
from tests.support.llm_command import run_llm
from tests.support.npm import NODE
from tests.support.openai_scripts import call_weather, echo
from tests.support.serving import run_service
from tests.support.stack import Stack, get_last_message
from tests.support.waiting import PATIENCE_SECONDS

STORY = "Once upon a time. " * 20
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tell the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


class City(BaseModel):
    """A city."""

    name: str


def answer(body: dict[str, Any]) -> Reply:
    """Tell a story, name a city as JSON, call for the weather, or repeat what was read."""
    newest = get_last_message(body)
    match newest["content"]:
        case "story":
            return Reply(STORY, tokens_per_second=200)
        case "city":
            return Reply('{"name": "Porto"}')
        case "Weather?":
            return call_weather(body)
    return call_weather(body) if newest["role"] == "tool" else echo(body)


@pytest.mark.slow
async def test_clients_from_npm(stack: Stack, npm_packages: Path) -> None:
    """The official TypeScript client and the AI SDK: texts, streams, tools, objects, errors. Skipped without npm."""
    model = stack.add_model(answer)
    async with run_service(stack.clew) as served:
        process = await asyncio.create_subprocess_exec(
            NODE, npm_packages / "clients.mjs", f"{served.address}/v1", served.token, model,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        async with asyncio.timeout(2 * PATIENCE_SECONDS):
            printed, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    seen = json.loads(printed)
    assert seen["responses"] == ["user: one", "user: one | assistant: user: one | user: two"]
    assert seen["retrieved"] == seen["responses"][1]
    assert seen["streamed"] == [STORY, STORY]
    assert seen["items"] == ["message", "message"]
    assert seen["chat"] == STORY
    assert seen["chatTools"] == "I read: sun in Porto"
    assert seen["errors"] == [
        ["NotFoundError", "not_found"],
        ["BadRequestError", "unsupported_value"],
        ["AuthenticationError", "invalid_api_key"],
    ]
    for name in ("sdkResponses", "sdkChat"):
        assert seen[name] == {
            "text": "system: Be brief. | user: one",
            "story": STORY,
            "usage": True,
            "loop": "I read: sun in Porto",
            "steps": 2,
            "streamedLoop": "I read: sun in Porto",
            "object": {"name": "Porto"},
        }


@pytest.mark.slow
@pytest.mark.parametrize("responses", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
async def test_langchain(stack: Stack, *, responses: bool) -> None:
    """LangChain's model, over both APIs: a text, a stream, a tool, and a structured output."""
    model = stack.add_model(answer)
    from langchain_openai import ChatOpenAI  # noqa: PLC0415 - takes most of a second

    async with run_service(stack.clew) as served:
        chat = ChatOpenAI(
            model=model,
            base_url=f"{served.address}/v1",
            api_key=SecretStr(served.token),
            use_responses_api=responses,
            max_retries=0,
        )
        assert (await chat.ainvoke("one")).text == "user: one"
        pieces = [piece.text async for piece in chat.astream("story")]
        assert "".join(pieces) == STORY
        assert len(pieces) > 10
        calling = chat.bind_tools([WEATHER])
        asked = await calling.ainvoke("Weather?")
        assert isinstance(asked, AIMessage)
        (call,) = asked.tool_calls
        assert call["args"] == {"city": "Porto"}
        result = ToolMessage("sun", tool_call_id=str(call["id"]))
        told = await calling.ainvoke([HumanMessage("Weather?"), asked, result])
        assert told.text == "I read: sun"
        structured = chat.with_structured_output(City, method="json_schema")
        assert await structured.ainvoke("city") == City(name="Porto")
    assert stack.list_requests(model)


@pytest.mark.slow
async def test_llm(stack: Stack, tmp_path: Path) -> None:
    """The command `llm`: a prompt, and its continuation, with a model that its configuration names."""
    model = stack.add_model(answer)
    async with run_service(stack.clew) as served:
        named = {"model_id": "clew", "model_name": model, "api_base": f"{served.address}/v1", "api_key_name": "clew"}
        (tmp_path / "extra-openai-models.yaml").write_text(json.dumps([named]))
        run = partial(run_llm, tmp_path, served.token)
        assert await run("-m", "clew", "one") == "user: one"
        assert await run("-m", "clew", "story") == STORY.strip()
        assert await run("-c", "two") == f"user: story | assistant: {STORY} | user: two"
