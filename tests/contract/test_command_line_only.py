"""A session driven by the `temporal` command line with plain JSON only."""

from __future__ import annotations

import asyncio
import json
import uuid
from typing import Any

from clew.local import Reply, ToolCall
from clew.local.temporal import temporal_command
from tests.support.encrypted import needs_plain
from tests.support.stack import Stack, get_last_message


async def temporal(stack: Stack, *arguments: str) -> tuple[int, Any]:
    """Run a `temporal` command; its exit code and its output, decoded if it is JSON."""
    process = await asyncio.create_subprocess_exec(
        str(temporal_command()),
        *arguments,
        *("--address", stack.server.address, "--output", "json", "--disable-config-file"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    printed, _ = await process.communicate()
    assert process.returncode is not None
    try:
        return process.returncode, json.loads(printed)
    except ValueError:
        return process.returncode, printed.decode()


@needs_plain
async def test_a_session_needs_no_python(stack: Stack) -> None:
    """Start, message, await, every query, a refusal and close work by name and with plain JSON."""

    def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "user":
            return Reply(tool_calls=(ToolCall("add", {"a": 40, "b": 2}),))
        return Reply(f"It is {get_last_message(body)['content']}.")

    session = f"cli-{uuid.uuid4().hex}"
    model = stack.add_model(script)
    workflow = ("--workflow-id", session)

    async def update(name: str, argument: dict[str, Any]) -> tuple[int, Any]:
        return await temporal(
            stack, "workflow", "update", "execute", *workflow, "--name", name, "--input", json.dumps(argument)
        )

    async def query(name: str, argument: dict[str, Any] | None = None) -> Any:
        options = () if argument is None else ("--input", json.dumps(argument))
        code, answer = await temporal(stack, "workflow", "query", *workflow, "--name", name, *options)
        assert code == 0, answer
        return answer["queryResult"][0]

    config = {"model": model, "tools": ["add"], "system_prompt": "Be exact."}
    code, _ = await temporal(
        stack,
        *("workflow", "start", *workflow, "--type", "AgentSession", "--task-queue", stack.clew.task_queue),
        *("--input", json.dumps({"config": config})),
    )
    assert code == 0
    code, answer = await update("message", {"content": "What is 40 + 2?", "request_id": "r-1"})
    assert code == 0, answer
    outcome = answer["result"]
    assert (outcome["status"], outcome["request_id"], outcome["answer_seq"]) == ("completed", "r-1", 4)
    code, answer = await update("await_request", {"request_id": "r-1"})
    assert answer["result"] == outcome
    assert (await query("status"))["status"] == "idle"
    assert (await query("entries", {"from_seq": 4, "limit": 1}))["entries"][0]["payload"]["content"] == "It is 42."
    roles = [message["role"] for message in (await query("transcript"))["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant"]
    context = await query("context", {"call_id": "call-2"})
    assert [message["role"] for message in context["messages"]] == ["system", "user", "assistant", "tool"]
    assert context["tool_spec"][0]["name"] == "add"
    assert (await query("window", {"token_budget": 20}))["messages"][-1]["content"] == "It is 42."
    code, answer = await update("message", {"content": " "})
    assert code != 0
    assert "white space" in json.dumps(answer)
    code, _ = await temporal(stack, "workflow", "signal", *workflow, "--name", "close", "--input", "{}")
    assert code == 0
    code, answer = await temporal(stack, "workflow", "result", *workflow)
    assert (code, answer["result"]) == (0, {"last_seq": 6})
