"""A worker dies in the middle of streams that unchanged clients read: the clients from npm, LangChain and `llm`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import uuid
from asyncio import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from clew import Clew
from clew.local import Reply
from tests.support.npm import NODE
from tests.support.processes import run_worker_process
from tests.support.serving import Served, run_service
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS

STORY = "Every message of this session is an event in its history, so nothing that was said is lost. " * 4
OTHER = "Another attempt of the model tells it in other words. " * 2
RESTARTED = "reply_restarted"


@dataclass
class Reading:
    """What a client has read of its stream.

    Attributes:
        pieces: The texts that it has handed out, in their order.
        has_begun: It has handed out the first one.
        answer: The answer that it has at the end. None: it has none, or does not tell its answer from other texts.
        error: The code of the error with which it has ended. None: it has ended without one.
    """

    pieces: list[str] = field(default_factory=list)
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    answer: str | None = None
    error: str | None = None

    @property
    def text(self) -> str:
        """All that it has handed out."""
        return "".join(self.pieces)

    def take(self, piece: str) -> None:
        """Take a text that the client has handed out."""
        if piece:
            self.pieces.append(piece)
            self.has_begun.set()


@asynccontextmanager
async def run_program(
    *command: str | Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[subprocess.Process, asyncio.StreamReader]]:
    """Run a program, and read its output. It is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE)
    assert process.stdout
    try:
        yield process, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


Client = Callable[[Served, str, Reading, Path], Awaitable[None]]
"""Reads the stream of a prompt to a model, with a folder of its own."""


def use_npm(name: str, packages: Path) -> Client:
    """Make a client of `takeover.mjs`."""

    async def read(served: Served, model: str, reading: Reading, _folder: Path) -> None:
        program = packages / "takeover.mjs"
        async with run_program(NODE, program, f"{served.address}/v1", served.token, model, name) as (process, output):
            async for line in output:
                match json.loads(line):
                    case {"piece": piece}:
                        reading.take(piece)
                    case ended:
                        reading.answer, reading.error = ended.get("answer"), ended.get("error")
            assert await process.wait() == 0

    return read


def use_langchain(*, responses: bool) -> Client:
    """Make a client of LangChain's model. Its answer is the last text of its message."""

    async def read(served: Served, model: str, reading: Reading, _folder: Path) -> None:
        chat = ChatOpenAI(
            model=model, base_url=f"{served.address}/v1", api_key=SecretStr(served.token), use_responses_api=responses
        )
        message: AIMessageChunk | None = None
        try:
            async for chunk in chat.astream("Hi"):
                assert isinstance(chunk, AIMessageChunk)
                reading.take(chunk.text)
                message = chunk if message is None else message + chunk
        except openai.APIError as error:
            reading.error = error.code
            return
        assert message
        texts = [block["text"] for block in message.content_blocks if block["type"] == "text"]
        reading.answer = texts[-1]

    return read


def use_llm(*, responses: bool) -> Client:
    """Make a client of the command `llm`. Its error has no code."""

    async def read(served: Served, model: str, reading: Reading, folder: Path) -> None:
        named = {
            "model_id": "clew",
            "model_name": model,
            "api_base": f"{served.address}/v1",
            "api_key_name": "clew",
            "responses": responses,
        }
        (folder / "extra-openai-models.yaml").write_text(json.dumps([named]))
        (folder / "keys.json").write_text(json.dumps({"clew": served.token}))
        # The local model of the tests is a plugin whose own dependencies are not installed.
        environ = {**os.environ, "LLM_USER_PATH": str(folder), "LLM_LOAD_PLUGINS": ""}
        async with run_program(sys.executable, "-m", "llm", "-m", "clew", "Hi", env=environ) as (process, output):
            while piece := await output.read(1000):
                reading.take(piece.decode())
            status = await process.wait()
        reading.error = f"status {status}" if status else None

    return read


async def read_through_takeover(
    stack: Stack, folder: Path, clients: Mapping[str, Client], again: str
) -> dict[str, Reading]:
    """Have each client read a stream, and kill the worker of all when each has handed out its first text.

    The models reply with the story, slowly, and after the worker's death with `again`.
    """
    readings = {name: Reading() for name in clients}
    attempts = dict.fromkeys(clients, 0)
    have_all_called = asyncio.Barrier(len(clients))

    def make_script(name: str) -> Any:
        async def script(_body: dict[str, Any]) -> Reply:
            attempts[name] += 1
            if attempts[name] > 1:
                return Reply(again, tokens_per_second=100)
            # No reply ends before the slowest client has begun to read.
            await have_all_called.wait()
            return Reply(STORY, tokens_per_second=2)

        return script

    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with run_service(clew) as served, asyncio.timeout(4 * PATIENCE_SECONDS):
        async with run_worker_process(stack, clew.task_queue) as first, asyncio.TaskGroup() as tasks:
            reads = []
            for name, read in clients.items():
                own = folder / name
                own.mkdir()
                model = stack.add_model(make_script(name))
                reads.append(tasks.create_task(read(served, model, readings[name], own)))
            for reading in readings.values():
                await reading.has_begun.wait()
            await first.kill()
            before = {name: reading.text for name, reading in readings.items()}
            async with run_worker_process(stack, clew.task_queue):
                await asyncio.wait(reads)
    assert all(STORY.startswith(text) and text != STORY for text in before.values())
    assert attempts == dict.fromkeys(clients, 2)
    return readings


def list_clients(packages: Path | None) -> Mapping[str, Client]:
    """List the clients."""


@pytest.mark.slow
@pytest.mark.parametrize("again", [STORY, OTHER], ids=["alike", "otherwise"])
async def test_clients_in_python(stack: Stack, tmp_path: Path, again: str) -> None:
    """x."""
    clients = {
        "langchain responses": use_langchain(responses=True),
        "langchain chat": use_langchain(responses=False),
        "llm responses": use_llm(responses=True),
        "llm chat": use_llm(responses=False),
    }
    readings = await read_through_takeover(stack, tmp_path, clients, again)
    for name, reading in readings.items():
        print(name, reading)


@pytest.mark.slow
@pytest.mark.parametrize("again", [STORY, OTHER], ids=["alike", "otherwise"])
async def test_clients_from_npm(stack: Stack, npm_packages: Path, tmp_path: Path, again: str) -> None:
    """x."""
    clients = {name: use_npm(name, npm_packages) for name in ("responses", "chat", "sdkResponses", "sdkChat")}
    readings = await read_through_takeover(stack, tmp_path, clients, again)
    for name, reading in readings.items():
        print(name, reading)
