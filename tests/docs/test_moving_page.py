"""The page for teams that come from other libraries: all sides of it work, and the conversation goes on."""

from __future__ import annotations

import json
import re
import uuid
from pathlib import Path
from typing import Any

import pytest

from clew.local import Reply, ToolCall
from docs.generate import DOCS
from tests.support.client_suites import run_program
from tests.support.command_line import run_clew
from tests.support.page_agents import deploy_agent, run_backend
from tests.support.serving import run_service
from tests.support.stack import Stack

SECONDS = 120
ANSWER = "order 1234 is shipped"
END = """
if __name__ == "__main__":
    import os, sys

    sys.stdout.flush()
    os._exit(0)
"""
"""Ends the process without the interpreter's end, in which threads of Temporal's SDK may crash it."""
RUN = "import os, sys; os.chdir(sys.argv[1]); os.execv(sys.executable, [sys.executable, sys.argv[2]])"
PAGE = (DOCS / "moving.md").read_text(encoding="utf-8")
PYDANTIC_AI, AGENTS_SDK, LANGGRAPH = "From Pydantic AI on Temporal", "From the OpenAI Agents SDK", "From LangGraph"
FILES = {PYDANTIC_AI: (), AGENTS_SDK: ("sessions.db",), LANGGRAPH: ("4711.json",)}
"""The sections, with the files of conversations that their code has written."""


def read_section(heading: str) -> str:
    """Read the text of a section."""
    return PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]


def read_blocks(text: str) -> dict[str, str]:
    """Read the Python of a text, by the names of its files."""
    return dict(re.findall(r"^```python\n# (\S+)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))


def answer(body: dict[str, Any]) -> Reply:
    """Look the order up, and say what the tool has said."""
    newest = body["messages"][-1]
    if newest["role"] == "tool":
        return Reply(newest["content"])
    return Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 1234}, "call_1")])


@pytest.mark.slow
@pytest.mark.parametrize("section", FILES)
async def test_both_sides_give_the_same_answer(stack: Stack, tmp_path: Path, section: str) -> None:
    """The other library's code runs with its real packages, and what it has written goes on in a session."""
    blocks = read_blocks(read_section("The agent in Clew")) | read_blocks(read_section(section))
    model = stack.add_model(answer)
    name, base_url = model.partition(":")[2], stack.provider.base_url
    async with run_service(stack.clew) as served:
        if section == AGENTS_SDK:
            # It speaks the Responses API, as the service does.
            name, base_url = model, f"{served.address}/v1"
        before = blocks["before.py"] + blocks.get("export.py", "")
        queue = f"queue-{uuid.uuid4().hex}"
        before = before.replace("gpt-4o-mini", name).replace("localhost:7233", stack.server.address)
        before = before.replace('task_queue="support"', f'task_queue="{queue}"').replace("chat-4711", queue)
        (tmp_path / "before.py").write_text(before + END)
        environ = {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": served.token,
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "OTEL_SDK_DISABLED": "true",
            # Without a limit for the first workflow task, which imports the framework: 2 seconds by default.
            "TEMPORAL_DEBUG": "1",
        }
        # It has newer packages than the clients of other tests can share.
        environment = "peers/pydantic_ai" if section == PYDANTIC_AI else "clients"
        status, printed = await run_program(
            *("-c", RUN, tmp_path, "before.py"), environ=environ, seconds=SECONDS, environment=environment
        )
    assert (status, printed.splitlines()[-1:]) == (0, [ANSWER]), printed[-4000:]

    async with deploy_agent(stack, blocks["support.py"], "support", model) as client:
        assert await run_backend(stack, client, blocks["backend.py"], "support-4711") == f"{ANSWER}\n"
        for file in FILES[section]:
            (options,) = re.findall(rf"^clew import-history {file} (.*)$", read_section(section), re.MULTILINE)
            imported = f"imported-{uuid.uuid4().hex}"
            done = await run_clew(
                *("import-history", str(tmp_path / file), *options.replace("support-4711", imported).split()),
                *("--task-queue", client.task_queue, "--json"),
                address=stack.server.address,
            )
            assert (done.code, done.json["messages"]) == (0, 4), done
            assert await client.session(imported).ask("And now?") == ANSWER
            seen = stack.list_requests(model)[-2]["messages"]
            assert [message["role"] for message in seen] == [
                *("system", "user", "assistant", "tool", "assistant", "user")
            ]
            assert json.loads(seen[2]["tool_calls"][0]["function"]["arguments"]) == {"order_id": 1234}
