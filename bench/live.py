"""Measures when viewers see what a model says, with the live channel and by heartbeats.

    python -m bench.live
    python -m bench.live --sessions 50 --seconds 10

A model server in a process of its own writes replies, a word after the other; each word is the time when it was
written, so that each viewer knows how late it is. A worker and a Redis server have processes of their own, too; the
viewers share this one. They follow one reply together (1, 100 and 1 000 of them), or a session each: only the words
count that were written while all these replies were streamed. Others come in the middle of a reply: of each it is
measured how long it takes to see all that was said, with a connection of its own.

Prints for each the words that were seen, and the median and the 95th percentile of their delay, in milliseconds.
Fails if a viewer has not seen all of a reply. Needs `redis-server`. Takes six minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import shutil
import sys
import time
import uuid
from array import array
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from statistics import median

from rich.console import Console
from rich.table import Table

from bench import streaming
from bench.endless import compute_p95
from bench.recording import add_write_option, record
from clew import Clew, Session
from clew.contract.payloads import AssistantMessage
from clew.local import temporal_server, worker_process
from clew.local.child import LOOPBACK, accepts_connections, child_process, free_ports
from clew.session.events import EntryCommitted, TextAdded

VIEWERS = (1, 100, 1_000)
SESSIONS = 200
SECONDS = 10
MANY_SECONDS = 40
"""The length of a reply of many sessions. They begin within half of it."""
WORDS_PER_SECOND = 10
LATE_VIEWERS = 20
LATE_PAUSE_SECONDS = 0.2
MODEL, LONG_MODEL = "bench:words", "long:words"


@dataclass
class Seen:
    """What viewers have seen.

    Attributes:
        written: When each word was written, in seconds since the epoch.
        delays: How late it came, in seconds.
        first: When the first word of each reply was seen.
        last: When each reply was complete.
    """

    written: array[float] = field(default_factory=lambda: array("d"))
    delays: array[float] = field(default_factory=lambda: array("d"))
    first: array[float] = field(default_factory=lambda: array("d"))
    last: array[float] = field(default_factory=lambda: array("d"))

    def see(self, text: str) -> None:
        """Note new words."""
        now = time.time()
        for word in text.split():
            self.written.append(float(word))
            self.delays.append(now - self.written[-1])

    def list_steady(self) -> list[float]:
        """List the delays of the words that were written while all replies were streamed."""
        begun, ended = max(self.first), min(self.last)
        return [delay for written, delay in zip(self.written, self.delays, strict=True) if begun <= written < ended]


async def watch(session: Session, seen: Seen) -> None:
    """Follow a session until a reply is complete.

    Raises:
        AssertionError: What was streamed is not the reply.
    """
    text = ""
    async for event in session.follow():
        if isinstance(event, TextAdded):
            if not text:
                seen.first.append(time.time())
            text = text[: event.offset] + event.text
            seen.see(event.text)
        elif isinstance(event, EntryCommitted) and isinstance(event.body, AssistantMessage):
            assert text == event.body.text
            seen.last.append(time.time())
            return


async def open_session(clew: Clew, model: str = MODEL) -> Session:
    """Open a session that a worker has prepared."""
    session = await clew.open(uuid.uuid4().hex, model=model)
    while (await session.status()).status != "idle":  # noqa: ASYNC110 - a worker prepares the session
        await asyncio.sleep(0.05)
    return session


async def measure_one(clew: Clew, viewers: int) -> Seen:
    """Measure the viewers of one reply."""
    seen, session = Seen(), await open_session(clew)
    watching = [asyncio.create_task(watch(session, seen)) for _ in range(viewers)]
    await asyncio.sleep(1)
    await session.message("go")
    await asyncio.gather(*watching)
    return seen


async def measure_many(clew: Clew, sessions: int) -> Seen:
    """Measure replies that are streamed at once, each to a viewer of its own."""
    seen = Seen()
    opened = [await open_session(clew, LONG_MODEL) for _ in range(sessions)]
    watching = [asyncio.create_task(watch(session, seen)) for session in opened]
    await asyncio.sleep(1)
    for session in opened:
        await session.message("go")
    await asyncio.gather(*watching)
    return seen


async def measure_late(clew: Clew, address: str) -> list[float]:
    """Measure, for viewers that come in the middle of a reply, the time until they have seen what was said."""
    session = await open_session(clew)
    request = await session.message("go")
    await asyncio.sleep(1)
    times: list[float] = []
    for _ in range(LATE_VIEWERS):
        other = await Clew.connect(address)
        begun = time.time()
        async for event in other.session(session.id).request(request.request_id).events():
            if isinstance(event, TextAdded):
                times.append(time.time() - begun)
                break
        await asyncio.sleep(LATE_PAUSE_SECONDS)
    await request.result()
    return times


@asynccontextmanager
async def run_redis() -> AsyncIterator[str]:
    """Run a Redis server, and yield its address."""
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("bench.live needs Redis: apt-get install redis-server")
    (port,) = free_ports(1)
    command = [program, "--port", str(port), "--bind", LOOPBACK, "--save", ""]
    async with child_process("redis", command) as child:
        await child.wait_until(lambda: accepts_connections(port), 10)
        yield f"redis://{LOOPBACK}:{port}"


@asynccontextmanager
async def run_model(words: int) -> AsyncIterator[str]:
    """Run the model server in a process of its own, and yield its URL."""
    said = bytearray()
    command = [sys.executable, "-m", "bench.live", "--serve", "--words", str(words)]
    async with child_process("model", command, on_output=said.extend) as child:

        async def is_there() -> bool:
            return said.endswith(b"\n")

        await child.wait_until(is_there, 30)
        yield said.decode().strip()


async def serve_model(words: int) -> None:
    """Serve the model until the process ends, and print its URL."""
    streaming.WORDS, streaming.WORDS_PER_SECOND = words, WORDS_PER_SECOND
    async with streaming.serve_model() as url:
        print(url, flush=True)
        await asyncio.Event().wait()


async def measure(seconds: float, sessions: int, console: Console) -> None:
    """Measure with the live channel, then by heartbeats, and print both."""
    table = Table("", "by", "words", "p50 ms", "p95 ms", title=f"{WORDS_PER_SECOND} words a second and session")
    for way in ("the live channel", "heartbeats"):
        async with AsyncExitStack() as exits:
            os.environ.pop("CLEW_LIVE", None)
            if way == "the live channel":
                os.environ["CLEW_LIVE"] = await exits.enter_async_context(run_redis())
            url = await exits.enter_async_context(run_model(round(seconds * WORDS_PER_SECOND)))
            long = await exits.enter_async_context(run_model(MANY_SECONDS * WORDS_PER_SECOND))
            server = await exits.enter_async_context(temporal_server(ui=False))
            env = {"CLEW_PROVIDER_BENCH_BASE_URL": url, "CLEW_PROVIDER_LONG_BASE_URL": long}
            await exits.enter_async_context(worker_process(server.address, env=env))
            clew = await Clew.connect(server.address)
            # As `clew serve` does: collections of garbage pass over what is there at the start.
            gc.collect()
            gc.freeze()

            def add(name: str, delays: list[float], way: str = way) -> None:
                p50, p95 = 1000 * median(delays), 1000 * compute_p95(delays)
                table.add_row(name, way, str(len(delays)), f"{p50:.1f}", f"{p95:.1f}")

            for viewers in VIEWERS:
                seen = await measure_one(clew, viewers)
                add(f"{viewers} viewers of one reply", list(seen.delays))
            add(f"{sessions} sessions", (await measure_many(clew, sessions)).list_steady())
            late = await measure_late(clew, server.address)
            add("a viewer who comes late", late)
    console.print(table)


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="the length of a reply")
    parser.add_argument("--sessions", type=int, default=SESSIONS, help="sessions that stream at once")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--words", type=int, default=0, help=argparse.SUPPRESS)
    add_write_option(parser)
    options = parser.parse_args()
    if options.serve:
        with suppress(KeyboardInterrupt):
            asyncio.run(serve_model(options.words))
        return
    with record("live", options.write) as console:
        asyncio.run(measure(options.seconds, options.sessions, console))


if __name__ == "__main__":
    main()
