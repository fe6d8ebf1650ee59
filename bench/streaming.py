"""Measures what viewers of a reply see and cost: Clew's events beside the SDK's `workflow_streams`.

    python -m bench.streaming

A model server writes a reply of ten seconds, 20 words a second. 1, 20 and 200 viewers in this process follow it, by
`Session.follow`, and by `temporalio.contrib.workflow_streams` in a workflow whose activity publishes the same words
at the same pace, in batches as far apart as Clew's heartbeats. Each word is the time when it was written, so that
each viewer knows how late it is. Clew is also measured without viewers. In its session a second reply is cancelled
while all watch.

Prints for each: milliseconds from the message to the first word at the viewers, median and p95 of the words' delay,
the events and the KiB that the reply added to the history, the viewers' calls to the server, the milliseconds until a
cancellation was answered and until its request had ended, and the viewers that failed or lacked words half a minute
after the reply. Then the calls that a viewer of a session at rest makes in a minute. Takes four minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table
from temporalio import activity, workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.contrib.workflow_streams import WorkflowStream, WorkflowStreamClient
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.endless import compute_p95
from bench.recording import add_write_option, record
from clew import Clew, Session
from clew.local import temporal_server
from clew.session.events import EntryCommitted, TextAdded
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import WorkerSettings, make_worker

VIEWERS = (1, 20, 200)
WORDS, WORDS_PER_SECOND = 200, 20
REST_SECONDS = 60
LATE_SECONDS = 30
"""Seconds after the reply within which each viewer must have all of it."""
BATCH_SECONDS = 0.5
"""How often Workflow Streams send what is new."""
TOPIC = "words"


@dataclass
class Measures:
    """What a number of viewers saw of one reply.

    Attributes:
        first: Seconds from the message to each viewer's first word.
        delays: Seconds from the writing of each word to its arrival at each viewer.
        events: Events that the reply added to the history.
        size: Their size, in bytes.
        calls: The viewers' calls to the server.
        cancel: Seconds until a cancellation was answered; None: none was sent.
        end: Seconds from the cancellation to the outcome of its request; None: none was sent.
        failed: Viewers that failed.
    """

    first: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    events: int = 0
    size: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    cancel: float | None = None
    end: float | None = None
    failed: int = 0


class Eyes:
    """One viewer, which notes when words arrive."""

    def __init__(self, measures: Measures, begun: float) -> None:
        self._measures = measures
        self._begun = begun
        self._has_seen = False

    def see(self, text: str) -> None:
        """Note new words."""
        now = time.time()
        moments = [float(word) for word in text.split()]
        if moments and not self._has_seen:
            self._has_seen = True
            self._measures.first.append(now - self._begun)
        self._measures.delays += [now - moment for moment in moments]


async def write_words() -> AsyncIterator[str]:
    """Write the words of a reply at their pace; each is the time when it is written."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    for number in range(WORDS):
        await asyncio.sleep(max(begun + number / WORDS_PER_SECOND - loop.time(), 0))
        yield f"{time.time():.6f} "


@asynccontextmanager
async def serve_model() -> AsyncIterator[str]:
    """Serve a model of Chat Completions that writes the words, and yield its URL."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n")
            async for word in write_words():
                await send({"delta": {"content": word}, "finish_reason": None}, writer)
            await send({"delta": {}, "finish_reason": "stop"}, writer)
            writer.write(b"data: [DONE]\n\n")
            await writer.drain()
        writer.close()

    async def send(choice: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n".encode())
        await writer.drain()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    finally:
        server.close()


@contextmanager
def count_calls(client: Client) -> Iterator[Counter[str]]:
    """Count the calls to the server by a client, those of workers aside."""
    counts: Counter[str] = Counter()
    service: Any = client.service_client
    original = service._rpc_call

    async def count_call(rpc: str, *args: Any, **options: Any) -> Any:
        counts[rpc] += 1
        return await original(rpc, *args, **options)

    service._rpc_call = count_call
    try:
        yield counts
    finally:
        del service._rpc_call


async def measure_history(handle: WorkflowHandle[Any, Any]) -> tuple[int, int]:
    """Measure the history of a workflow: its events and their size, in bytes."""
    events = (await handle.fetch_history()).events
    return len(events), sum(event.ByteSize() for event in events)


async def run_viewers(
    count: int,
    watch: Callable[[Eyes], Coroutine[Any, Any, None]],
    measures: Measures,
    reply: Callable[[], Awaitable[None]],
) -> None:
    """Let viewers watch while a reply is written."""
    begun = time.time()
    watching = [asyncio.create_task(watch(Eyes(measures, begun))) for _ in range(count)]
    await reply()
    if watching:
        _, late = await asyncio.wait(watching, timeout=LATE_SECONDS)
        for task in late:
            task.cancel()
    ended = await asyncio.gather(*watching, return_exceptions=True)
    measures.failed = sum(isinstance(end, BaseException) for end in ended)


async def measure_clew(clew: Clew, watching: Clew, count: int) -> Measures:
    """Measure the viewers of a session, with a connection of their own."""
    measures = Measures()
    session = await clew.open(f"watched-{count}", model="bench:words")
    watched = Session(watching.temporal, session.id, watching.task_queue)
    while (await session.status()).status != "idle":  # noqa: ASYNC110 - a worker prepares the session
        await asyncio.sleep(0.05)
    handle = clew.temporal.get_workflow_handle(session.id)
    events, size = await measure_history(handle)

    async def watch(eyes: Eyes) -> None:
        async for event in watched.follow(0):
            if isinstance(event, TextAdded):
                eyes.see(event.text)
            elif isinstance(event, EntryCommitted) and event.entry.kind == "run":
                return

    async def reply() -> None:
        await (await session.message("go")).answer()

    with count_calls(watching.temporal) as measures.calls:
        await run_viewers(count, watch, measures, reply)
    after = await measure_history(handle)
    measures.events, measures.size = after[0] - events, after[1] - size

    others = Measures()
    watchers = [asyncio.create_task(_watch_forever(watched)) for _ in range(count)]
    request = await session.message("again")
    await asyncio.sleep(2)
    begun = time.perf_counter()
    await session.cancel()
    measures.cancel = time.perf_counter() - begun
    await request.result()
    measures.end = time.perf_counter() - begun
    for task in watchers:
        others.failed += task.done()
        task.cancel()
    measures.failed += others.failed
    await asyncio.gather(*watchers, return_exceptions=True)
    await session.close()
    return measures


async def _watch_forever(session: Session) -> None:
    async for _event in session.follow():
        pass


@workflow.defn
class Streamed:
    """A workflow whose activity publishes words to its stream."""

    @workflow.init
    def __init__(self) -> None:
        self.stream = WorkflowStream()
        self._go = False

    @workflow.run
    async def run(self) -> None:
        """Wait for the signal, have the words published, and wait for the last poll."""
        await workflow.wait_condition(lambda: self._go)
        await workflow.execute_activity(publish_words, start_to_close_timeout=timedelta(minutes=1))
        await workflow.sleep(1)

    @workflow.signal
    def go(self) -> None:
        """Begin the reply."""
        self._go = True


@activity.defn
async def publish_words() -> None:
    """Publish the words of one reply to the stream of the activity's workflow."""
    batches = timedelta(seconds=BATCH_SECONDS)
    async with WorkflowStreamClient.from_within_activity(batch_interval=batches) as stream:
        topic = stream.topic(TOPIC, type=str)
        async for word in write_words():
            topic.publish(word)


async def measure_streams(client: Client, watching: Client, count: int) -> Measures:
    """Measure the subscribers of a workflow stream, with a connection of their own."""
    measures = Measures()
    handle = await client.start_workflow(Streamed.run, id=f"streamed-{count}", task_queue="streams")
    events, size = await measure_history(handle)

    async def watch(eyes: Eyes) -> None:
        seen = 0
        async for item in WorkflowStreamClient.create(watching, handle.id).subscribe(TOPIC, result_type=str):
            eyes.see(item.data)
            seen += 1
            if seen == WORDS:
                return

    async def reply() -> None:
        await handle.signal(Streamed.go)
        await handle.result()

    with count_calls(watching) as measures.calls:
        await run_viewers(count, watch, measures, reply)
    after = await measure_history(handle)
    measures.events, measures.size = after[0] - events, after[1] - size
    return measures


async def measure_rest(clew: Clew, watching: Clew) -> Counter[str]:
    """Count the calls of a viewer of a session at rest."""
    session = await clew.open("at-rest", model="bench:words")
    task = asyncio.create_task(_watch_forever(Session(watching.temporal, session.id, watching.task_queue)))
    await asyncio.sleep(5)
    with count_calls(watching.temporal) as calls:
        await asyncio.sleep(REST_SECONDS)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return calls


async def measure() -> tuple[dict[str, dict[int, Measures]], Counter[str]]:
    """Measure both ways with each number of viewers, and a session at rest."""
    results: dict[str, dict[int, Measures]] = {"Clew": {}, "workflow_streams": {}}
    async with temporal_server(ui=False) as server, serve_model() as url, make_http_client() as http:
        clew, watching = await Clew.connect(server.address), await Clew.connect(server.address)
        sessions = make_worker(
            clew.temporal,
            WorkerSettings(
                task_queue=clew.task_queue,
                providers=load_providers({"CLEW_PROVIDER_BENCH_BASE_URL": url}),
                store=Store.from_url("memory://"),
            ),
            http,
        )
        streams = Worker(
            clew.temporal,
            task_queue="streams",
            workflows=[Streamed],
            activities=[publish_words],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        async with sessions, streams:
            results["Clew"][0] = await measure_clew(clew, watching, 0)
            for count in VIEWERS:
                results["Clew"][count] = await measure_clew(clew, watching, count)
                results["workflow_streams"][count] = await measure_streams(clew.temporal, watching.temporal, count)
            rest = await measure_rest(clew, watching)
    return results, rest


def show(results: dict[str, dict[int, Measures]], rest: Counter[str], console: Console) -> None:
    """Print the table, and the calls at rest."""
    columns = ("first ms", "delay p50", "delay p95", "events", "KiB", "calls", "cancel ms", "end ms", "failed")
    table = Table("", "viewers", *columns, title=f"a reply of {WORDS / WORDS_PER_SECOND:g} seconds")
    for name, measured in results.items():
        for count, one in measured.items():
            table.add_row(
                name,
                str(count),
                f"{median(one.first) * 1e3:.0f}" if one.first else "-",
                f"{median(one.delays) * 1e3:.0f}" if one.delays else "-",
                f"{compute_p95(one.delays) * 1e3:.0f}" if one.delays else "-",
                str(one.events),
                f"{one.size / 1024:.0f}",
                str(one.calls.total()),
                *("-" if seconds is None else f"{seconds * 1e3:.0f}" for seconds in (one.cancel, one.end)),
                str(one.failed),
            )
    console.print(table)
    console.print(f"a session at rest: {rest.total()} calls in {REST_SECONDS} s: {dict(rest)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.streaming", description=(__doc__ or "").partition("\n")[0])
    add_write_option(parser)
    with record("streaming", parser.parse_args().write, width=140) as console:
        show(*asyncio.run(measure()), console)


if __name__ == "__main__":
    main()
