"""Measures `clew serve` under load: many streams at once through one process.

    python -m bench.serve [STREAMS]

A model server writes replies of ten seconds, 20 words a second. STREAMS sessions (200) each get a message at the same
time, and a client follows each request as server-sent events, all through one process of `clew serve`. Each word is
the time when it was written, so that each client knows how late it is. The worker is in another process.

Prints the milliseconds from the message to the first word, median and p95 of the words' delay, the processor time of
the service in each second of the replies, its memory before and with the streams, and the streams that failed or
lacked words.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx
from httpx_sse import aconnect_sse
from rich.table import Table

from bench.endless import compute_p95
from bench.recording import add_write_option, record
from bench.streaming import WORDS, WORDS_PER_SECOND, serve_model
from clew.local import temporal_server, worker_process
from clew.serve.access import compute_hash, make_token

STREAMS = 200
TIMEOUT = httpx.Timeout(120)


@dataclass
class Measures:
    """What the clients saw.

    Attributes:
        first: Seconds from the message to each client's first word.
        delays: Seconds from the writing of each word to its arrival.
        failed: Streams that failed, or lacked words.
    """

    first: list[float] = field(default_factory=list)
    delays: list[float] = field(default_factory=list)
    failed: int = 0


@asynccontextmanager
async def run_service(address: str, token: str) -> AsyncIterator[tuple[int, str]]:
    """Run the service. Yields its process id and its URL."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder, "keys.toml")
        row = f'name = "bench"\nhash = "{compute_hash(token)}"\ntenant = "bench"\nrequests_per_minute = 100000'
        await asyncio.to_thread(keys.write_text, f"[[key]]\n{row}\n")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "clew.cli", "serve", "--keys", str(keys), "--port", "0", "--address", address),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        assert process.stdout
        line = (await process.stdout.readline()).decode()
        try:
            yield process.pid, line.removeprefix("serving: ").strip()
        finally:
            process.terminate()
            await process.wait()


def read_cpu_seconds(pid: int) -> float:
    """Read the processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_megabytes(pid: int) -> float:
    """Read the memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def follow(http: httpx.AsyncClient, path: str, measures: Measures) -> None:
    """Send a message, and follow its request to the outcome."""
    begun, words, seen = time.time(), 0, False
    try:
        sent = await http.post(f"{path}/messages", json={"content": "go", "request_id": "r"})
        sent.raise_for_status()
        async with aconnect_sse(http, "GET", f"{path}/requests/r/events") as source:
            async for event in source.aiter_sse():
                data = json.loads(event.data)
                if data["type"] != "text":
                    continue
                now = time.time()
                moments = [float(word) for word in data["text"].split()]
                words += len(moments)
                measures.delays += [now - moment for moment in moments]
                if moments and not seen:
                    seen = True
                    measures.first.append(now - begun)
    except (httpx.HTTPError, ValueError):
        words = 0
    measures.failed += words < WORDS


async def measure(count: int) -> Table:
    """Measure a number of streams."""
    token = make_token()
    async with (
        temporal_server(ui=False) as server,
        serve_model() as url,
        worker_process(server.address, env={"CLEW_PROVIDER_BENCH_BASE_URL": url}),
        run_service(server.address, token) as (pid, address),
    ):
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=TIMEOUT, limits=limits) as http:
            paths = [f"/v1/sessions/s-{number}" for number in range(count)]
            for path in paths:
                (await http.put(path, json={"model": "bench:words"})).raise_for_status()
            before, measures = read_megabytes(pid), Measures()
            cpu, begun, most = read_cpu_seconds(pid), time.time(), before
            clients = [asyncio.create_task(follow(http, path, measures)) for path in paths]
            pending = set(clients)
            while pending:
                _, pending = await asyncio.wait(pending, timeout=0.5)
                most = max(most, read_megabytes(pid))
            seconds = time.time() - begun
            used = read_cpu_seconds(pid) - cpu
    table = Table("", "value", title=f"{count} streams of a reply of {WORDS / WORDS_PER_SECOND:g} s")
    for name, value in (
        ("until the last outcome", f"{seconds:.1f} s"),
        ("first word, median", f"{median(measures.first) * 1e3:.0f} ms"),
        ("first word, p95", f"{compute_p95(measures.first) * 1e3:.0f} ms"),
        ("delay of words, median", f"{median(measures.delays) * 1e3:.0f} ms"),
        ("delay of words, p95", f"{compute_p95(measures.delays) * 1e3:.0f} ms"),
        ("service, processor time", f"{used:.1f} s"),
        ("service, memory before", f"{before:.0f} MB"),
        ("service, memory with the streams", f"{most:.0f} MB"),
        ("streams that failed or lacked words", f"{measures.failed}"),
    ):
        table.add_row(name, value)
    return table


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.serve", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("streams", type=int, nargs="?", default=STREAMS, help="streams at once (%(default)s)")
    add_write_option(parser)
    options = parser.parse_args()
    with record("serve", options.write) as console:
        console.print(asyncio.run(measure(options.streams)))


if __name__ == "__main__":
    main()
