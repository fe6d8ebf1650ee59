"""A worker dies in the middle of streams that unchanged clients read: those from npm, LangChain and `llm`.

Each test has all its streams on one worker, and kills it when each client has handed out its first text.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from asyncio import subprocess
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
import pytest
from langchain_core.messages import AIMessageChunk
from pydantic import SecretStr

from clew import Clew
from clew.local import Reply
from tests.support.llm_command import make_llm_environment
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
        text: The texts that it has handed out, one after the other.
        has_begun: It has handed out the first one.
        answer: The answer that it names at the end. None: it names none.
        error: The code of the error with which it has ended, or the status of a command. None: it has not failed.
    """

    text: str = ""
    has_begun: asyncio.Event = field(default_factory=asyncio.Event)
    answer: str | None = None
    error: str | None = None

    def add(self, piece: str) -> None:
        """Add a text that the client has handed out."""
        if piece:
            self.text += piece
            self.has_begun.set()


Client = Callable[[Served, str, Reading, Path], Coroutine[Any, Any, None]]
"""Sends a prompt to a model of a service, and reads the stream. It has an empty folder of its own."""


def make_npm_client(name: str, packages: Path) -> Client:
    """Make a client of `takeover.mjs`."""

    async def read(served: Served, model: str, reading: Reading, _folder: Path) -> None:
        program = packages / "takeover.mjs"
        async with run_program(NODE, program, f"{served.address}/v1", served.token, model, name) as (process, output):
            async for line in output:
                match json.loads(line):
                    case {"piece": piece}:
                        reading.add(piece)
                    case {"answer": answer}:
                        reading.answer = answer
                    case {"error": code}:
                        reading.error = code
            assert await process.wait() == 0

    return read


def make_langchain_client(*, responses: bool) -> Client:
    """Make a client of LangChain's model. Its answer is the last text block of its message."""

    async def read(served: Served, model: str, reading: Reading, _folder: Path) -> None:
        from langchain_openai import ChatOpenAI  # noqa: PLC0415 - takes most of a second

        chat = ChatOpenAI(
            model=model, base_url=f"{served.address}/v1", api_key=SecretStr(served.token), use_responses_api=responses
        )
        message: AIMessageChunk | None = None
        try:
            async for chunk in chat.astream("Hi"):
                assert isinstance(chunk, AIMessageChunk)
                reading.add(chunk.text)
                message = chunk if message is None else message + chunk
        except openai.APIError as error:
            reading.error = error.code
        else:
            assert message
            reading.answer = [block["text"] for block in message.content_blocks if block["type"] == "text"][-1]

    return read


def make_llm_client(*, responses: bool) -> Client:
    """Make a client of the command `llm`, which prints texts alone."""

    async def read(served: Served, model: str, reading: Reading, folder: Path) -> None:
        named = {
            "model_id": "clew",
            "model_name": model,
            "api_base": f"{served.address}/v1",
            "api_key_name": "clew",
            "responses": responses,
        }
        (folder / "extra-openai-models.yaml").write_text(json.dumps([named]))
        environ = make_llm_environment(folder, served.token)
        async with run_program(sys.executable, "-m", "llm", "-m", "clew", "Hi", env=environ) as (process, output):
            while printed := await output.read(1000):
                reading.add(printed.decode())
            status = await process.wait()
        reading.text = reading.text.removesuffix("\n")
        reading.error = f"status {status}" if status else None

    return read


@asynccontextmanager
async def run_program(
    *command: str | Path, env: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[subprocess.Process, asyncio.StreamReader]]:
    """Run a program whose output is read. It is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(*command, env=env, stdout=subprocess.PIPE)
    assert process.stdout
    try:
        yield process, process.stdout
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def read_through_takeover(
    stack: Stack, folder: Path, clients: Mapping[str, Client], again: str
) -> dict[str, Reading]:
    """Have each client read a stream, and kill the worker of all when each has handed out its first text.

    Each model tells the story, a word every two seconds. After the worker's death it replies with `again`.
    """
    readings = {name: Reading() for name in clients}
    waiting = set(clients)
    have_all_called, has_died = asyncio.Event(), asyncio.Event()

    def make_script(name: str) -> Any:
        async def script(_body: dict[str, Any]) -> Reply:
            waiting.discard(name)
            if not waiting:
                have_all_called.set()
            # No story goes far before the slowest client has come.
            await have_all_called.wait()
            return Reply(again) if has_died.is_set() else Reply(STORY, tokens_per_second=0.5)

        return script

    clew = Clew(stack.clew.temporal, f"queue-{uuid.uuid4().hex}")
    async with (
        run_service(clew) as served,
        asyncio.timeout(6 * PATIENCE_SECONDS),
        run_worker_process(stack, clew.task_queue) as first,
        asyncio.TaskGroup() as tasks,
    ):
        reads = []
        for name, read in clients.items():
            own = folder / name
            own.mkdir()
            model = stack.add_model(make_script(name))
            reads.append(tasks.create_task(read(served, model, readings[name], own)))
        for reading in readings.values():
            await reading.has_begun.wait()
        assert all(STORY.startswith(reading.text) and reading.text != STORY for reading in readings.values())
        await first.kill()
        has_died.set()
        async with run_worker_process(stack, clew.task_queue):
            await asyncio.wait(reads)
    return readings


def check_readings(readings: Mapping[str, Reading], again: str) -> None:
    """Check what clients have read whose worker has died, and whose models have replied with `again` then.

    What begins alike goes on, and each text is there once. Otherwise a response has a new message, which is the
    answer, and a completion fails.
    """
    for name, reading in readings.items():
        # The command `llm` prints the texts of all messages, and does not say which one is the answer.
        answer, error = (None, "status 1") if name.startswith("llm") else (again, RESTARTED)
        if again == STORY:
            assert (reading.text, reading.answer, reading.error) == (STORY, answer, None), name
        elif name.endswith("responses"):
            assert (reading.answer, reading.error) == (answer, None), name
            assert reading.text.endswith(OTHER), name
            assert STORY.startswith(reading.text.removesuffix(OTHER)), name
        else:
            assert (reading.answer, reading.error) == (None, error), name
            assert STORY.startswith(reading.text), name


@pytest.mark.slow
@pytest.mark.parametrize("again", [pytest.param(STORY, marks=pytest.mark.long), OTHER], ids=["alike", "otherwise"])
async def test_streams_of_langchain_and_llm_go_on_after_their_worker_has_died(
    stack: Stack, tmp_path: Path, again: str
) -> None:
    """SIGKILL in the middle of streams that LangChain and `llm` read, over both APIs."""
    clients = {
        "langchain responses": make_langchain_client(responses=True),
        "langchain chat": make_langchain_client(responses=False),
        "llm responses": make_llm_client(responses=True),
        "llm chat": make_llm_client(responses=False),
    }
    check_readings(await read_through_takeover(stack, tmp_path, clients, again), again)


@pytest.mark.slow
@pytest.mark.parametrize("again", [pytest.param(STORY, marks=pytest.mark.long), OTHER], ids=["alike", "otherwise"])
async def test_streams_of_clients_from_npm_go_on_after_their_worker_has_died(
    stack: Stack, npm_packages: Path, tmp_path: Path, again: str
) -> None:
    """SIGKILL in the middle of streams that the TypeScript client and the AI SDK read, over both APIs."""
    names = ("openai responses", "openai chat", "sdk responses", "sdk chat")
    clients = {name: make_npm_client(name, npm_packages) for name in names}
    check_readings(await read_through_takeover(stack, tmp_path, clients, again), again)
