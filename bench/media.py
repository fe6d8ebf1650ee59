"""Measures a session with a thousand images beside a session of the same turns without them.

    python -m bench.media [--images 1000] [--bytes 500000] [--each 10]

Each turn of the one session sends some images, of which the model is sent as many as its window has room for. The
same turn of the other session is text alone. Both sessions are served by one worker process, turn by turn, with
rollovers. Then the session is forked, and the fork sends the first images again.

Checked: the histories of all workflow runs together, the state that a rollover carries, the objects and the bytes of
the store, and the memory of the worker. Times are ratios to the turns without
images. Exit code 1: a check has failed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import struct
import sys
import tempfile
import time
import zlib
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chain import WorkflowRun, list_runs
from bench.recording import add_write_option, record
from clew import Clew, ContextPolicy, Image, Session
from clew.contract import PUT_BLOB_WORKFLOW
from clew.local import Reply, scripted_model, temporal_server, worker_process

WIDTH, HEIGHT = 1024, 768
POLICY = ContextPolicy(max_input_tokens=60_000, reserve_output_tokens=500, max_messages=4)
"""The images of the two newest turns are in the window, and their tokens fit."""
ROLLOVER_EVENTS = 400
MAX_HISTORY = 1_000_000
"""Most bytes of the histories of all workflow runs."""
MAX_CARRIED_RATIO = 1.5
"""Most of the state that a rollover carries, divided by that of the session without images."""
MAX_STORE_RATIO = 1.1
"""Most bytes of the store, divided by those of the images."""
MAX_RAISED = 700_000_000
"""Most bytes by which the first quarter of the images may raise the worker's peak memory."""
MAX_GROWTH = 150_000_000
"""Most bytes by which the others may raise it further."""
MAX_SLOWDOWN = 1.5
"""Most of the ratio of the last turns to turns without images, divided by that of the first."""
WARM_UP = 5
"""Turns of both sessions before the worker's memory is measured."""


@dataclass
class Times:
    """Seconds of each turn.

    Attributes:
        upload: Storing the images of a turn.
        turn: The turn, from the message to the reply, with images.
        text: The same turn without images.
    """

    upload: list[float] = field(default_factory=list)
    turn: list[float] = field(default_factory=list)
    text: list[float] = field(default_factory=list)

    def compute_ratio(self, first: int, last: int) -> float:
        """Compute the median ratio of some turns."""
        return median(one / other for one, other in zip(self.turn[first:last], self.text[first:last], strict=True))


@dataclass(frozen=True)
class Stored:
    """What a folder of the archive has.

    Attributes:
        blobs: The number of blobs.
        bytes: Bytes of all objects.
        chunks: Chunks of uploads that are left.
    """

    blobs: int
    bytes: int
    chunks: int

    @classmethod
    def read(cls, folder: Path) -> Stored:
        """Count the objects of a folder."""
        files = [file for file in folder.rglob("*") if file.is_file()]
        parts = [set(file.relative_to(folder).parts[:-1]) for file in files]
        blobs = sum("blobs" in at and not file.suffix for file, at in zip(files, parts, strict=True))
        return cls(blobs, sum(file.stat().st_size for file in files), sum("uploads" in at for at in parts))


@dataclass(frozen=True)
class Report:
    """The results.

    Attributes:
        images: The number of images.
        image_bytes: Bytes of each.
        times: The times of the turns.
        with_images: The workflow runs of the session with images.
        without: Those of the session without.
        stored: The store after the last turn.
        stored_after_fork: The store after the fork has sent images again.
        uploads: Workflows of uploads that the server has not deleted yet: it was asked to, and takes some seconds.
        memory: Peak memory of the worker before the first image, after the first quarter of them, and at the end.
        sent: Images in the largest request that the model has received.
    """

    images: int
    image_bytes: int
    times: Times
    with_images: list[WorkflowRun]
    without: list[WorkflowRun]
    stored: Stored
    stored_after_fork: Stored
    uploads: int
    memory: tuple[int, int, int]
    sent: int

    def list_checks(self) -> list[tuple[str, float, float, str]]:
        """List the checks: what is measured, its value, the most that is allowed, and the unit."""
        turns = len(self.times.turn)
        part = max(turns // 4, 1)
        text_bytes = sum(run.size for run in self.without)
        return [
            ("history of all workflow runs", sum(run.size for run in self.with_images), MAX_HISTORY, "bytes"),
            ("  without images", text_bytes, 0, "bytes"),
            ("largest state carried", max(run.start_size for run in self.with_images), 0, "bytes"),
            ("  divided by that without images", self._compute_carried_ratio(), MAX_CARRIED_RATIO, ""),
            ("blobs in the store", self.stored.blobs, self.images, ""),
            ("  after the fork sent images again", self.stored_after_fork.blobs, self.images, ""),
            ("bytes of the store", self.stored.bytes, self.images * self.image_bytes * MAX_STORE_RATIO, "bytes"),
            ("chunks of uploads left", self.stored_after_fork.chunks, 0.5, ""),
            ("histories of uploads that the server has yet to delete", self.uploads, 0, ""),
            ("worker's peak memory", self.memory[2], 0, "bytes"),
            ("  raised by the first quarter by", self.memory[1] - self.memory[0], MAX_RAISED, "bytes"),
            ("  raised by the others by", self.memory[2] - self.memory[1], MAX_GROWTH, "bytes"),
            ("images in the largest request", self.sent, 0, ""),
            ("time to store the images of a turn", median(self.times.upload) * 1e3, 0, "ms"),
            ("time of a turn", median(self.times.turn) * 1e3, 0, "ms"),
            ("  divided by that without images", self.times.compute_ratio(0, turns), 0, ""),
            (
                "  the last quarter's ratio by the first's",
                self.times.compute_ratio(turns - part, turns) / self.times.compute_ratio(0, part),
                MAX_SLOWDOWN,
                "",
            ),
        ]

    def _compute_carried_ratio(self) -> float:
        carried, other = (max(run.start_size for run in runs) for runs in (self.with_images, self.without))
        return carried / other

    @property
    def holds(self) -> bool:
        """Whether every check holds, and each image was stored."""
        within = all(value <= most for _, value, most, _ in self.list_checks() if most)
        return within and self.stored.blobs == self.stored_after_fork.blobs == self.images


def make_image(number: int, size: int) -> bytes:
    """Make a PNG of about so many bytes, which is different for each number."""
    rows = b"".join(b"\0" + bytes((number % 256, row % 256, 90)) * WIDTH for row in range(HEIGHT))
    chunks = [(b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(rows))]
    noise = random.Random(number).randbytes(max(size - sum(len(data) for _, data in chunks) - 60, 1))
    chunks[1:1] = [(b"teXt", b"noise\0" + noise)]
    body = b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in (*chunks, (b"IEND", b""))
    )
    return b"\x89PNG\r\n\x1a\n" + body


def read_peak_memory(pid: int) -> int:
    """Read the peak of a process's resident memory, in bytes."""
    (line,) = [
        line for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines() if "VmHWM" in line
    ]
    return int(line.split()[1]) * 1024


def count_images(body: dict[str, Any]) -> int:
    """Count the images of a request in the dialect of Chat Completions."""
    contents = [message.get("content") for message in body["messages"]]
    return sum(
        part.get("type") == "image_url" for content in contents if isinstance(content, list) for part in content
    )


async def measure(images: int, size: int, each: int) -> Report:
    """Serve both sessions, and measure them."""
    largest = 0

    def reply(body: dict[str, Any]) -> Reply:
        nonlocal largest
        largest = max(largest, count_images(body))
        return Reply("I have looked at all of it.")

    with tempfile.TemporaryDirectory(prefix="clew-media-", ignore_cleanup_errors=True) as temporary:
        folder = Path(temporary)
        archive = folder / "archive"
        models = {"bench:eyes": {"window": 128_000, "takes": ["image"]}}
        (folder / "models.json").write_text(json.dumps(models), encoding="utf-8")
        # In a file: the server would keep the uploads in memory until they are deleted.
        async with (
            temporal_server(ui=False, db_filename=folder / "temporal.db") as server,
            scripted_model(reply) as model,
        ):
            env = {
                "CLEW_STORE": archive.as_uri(),
                "CLEW_MODELS": str(folder / "models.json"),
                "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url,
                "CLEW_ROLLOVER_EVENTS": str(ROLLOVER_EVENTS),
            }
            async with worker_process(server.address, env=env) as worker:
                clew = await Clew.connect(server.address)
                options: dict[str, Any] = {"model": "bench:eyes", "context_policy": POLICY}
                seeing, reading = [await clew.open(name, **options) for name in ("with-images", "without")]
                for number in range(WARM_UP):
                    for session in (seeing, reading):
                        await session.ask(f"Are you ready, for the time number {number}?")
                before = early = read_peak_memory(worker.pid)
                times = Times()
                for turn, first in enumerate(range(0, images, each)):
                    numbers = range(first, min(first + each, images))
                    await _take_turn(seeing, reading, turn, [make_image(number, size) for number in numbers], times)
                    model.requests.clear()
                    if numbers.stop <= images / 4:
                        early = read_peak_memory(worker.pid)
                    if turn % 10 == 9:
                        print(f"{numbers.stop} images", file=sys.stderr, flush=True)
                stored = Stored.read(archive)
                with_images, without = [await list_runs(clew.temporal, session.id) for session in (seeing, reading)]
                fork = await seeing.fork(session_id="fork")
                again = [Image.from_bytes(make_image(number, size)) for number in range(each)]
                await fork.ask(["And these?", *again])
                uploads = (await clew.temporal.count_workflows(f'WorkflowType = "{PUT_BLOB_WORKFLOW}"')).count
                return Report(
                    images, size, times, with_images, without, stored, Stored.read(archive), uploads,
                    (before, early, read_peak_memory(worker.pid)), largest,
                )  # fmt: skip


async def _take_turn(seeing: Session, reading: Session, turn: int, images: list[bytes], times: Times) -> None:
    """Take the turn in both sessions, in turns the one and the other first."""
    question = f"What do you see, the turn being number {turn}?"
    blobs = [Image.from_bytes(data, name=f"{turn}-{number}.png") for number, data in enumerate(images)]
    start = time.perf_counter()
    stored = await asyncio.gather(*(seeing.put_blob(image.read(), name=image.name) for image in blobs))
    times.upload.append(time.perf_counter() - start)

    async def look() -> None:
        await _time(times.turn, seeing.ask([question, *map(Image.from_blob, stored)]))

    async def read() -> None:
        await _time(times.text, reading.ask(question))

    for take in (look, read) if turn % 2 else (read, look):
        await take()


async def _time(times: list[float], work: Awaitable[object]) -> None:
    start = time.perf_counter()
    await work
    times.append(time.perf_counter() - start)


def show(report: Report, console: Console) -> None:
    """Print the table."""
    title = f"{report.images:,} images of {report.image_bytes:,} bytes in {len(report.times.turn):,} turns"
    table = Table("", "value", "most", title=title)
    for name, value, most, unit in report.list_checks():
        digits = 0 if unit in ("bytes", "ms") or float(value).is_integer() else 2
        limit = f"{most:,.0f}" if most > 2 else f"{most:.1f}" if most >= 1 else "0"
        failed = bool(most) and value > most
        table.add_row(
            name, f"{value:,.{digits}f} {unit}".strip(), limit if most else "", style="red" if failed else None
        )
    table.add_row(
        "rollovers, with and without images", f"{len(report.with_images) - 1}, {len(report.without) - 1}", ""
    )
    console.print(table)
    console.print("every check holds" if report.holds else "a check has failed")


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark and print its report; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.media", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=1000, help="images to send (%(default)s)")
    parser.add_argument("--bytes", type=int, default=500_000, help="bytes of each (%(default)s)")
    parser.add_argument("--each", type=int, default=10, help="images of a turn (%(default)s)")
    add_write_option(parser)
    options = parser.parse_args(arguments)
    with record("media", options.write) as console:
        report = asyncio.run(measure(options.images, options.bytes, options.each))
        show(report, console)
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
