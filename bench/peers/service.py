"""A peer in a process of its own, which takes commands as lines of JSON and answers them.

    python -m bench.peers.service MODULE --model URL --temporal ADDRESS --folder FOLDER [--configuration NAME]

A command is `{"id", "do", …}`; commands run concurrently. An answer is `{"id", "seconds", …}` or `{"id", "error"}`.
The process ends with its standard input. It imports only the standard library and the peer's module.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

_MEMORY_BYTES = 6 << 30
_LINE_BYTES = 16 << 20


@dataclass(frozen=True)
class Size:
    """What a conversation takes in the history of its workflows, in a database, and in external storage.

    Attributes:
        bytes: Bytes of history, or of the rows in the database.
        events: Events, or rows.
        runs: Workflow runs; 0 without Temporal.
        stored: Bytes of payloads and archives outside of the history.
    """

    bytes: int
    events: int
    runs: int = 0
    stored: int = 0


@dataclass(frozen=True)
class Options:
    """What a peer needs to begin.

    Attributes:
        model: The base URL of the scripted model, which ends in `/v1`.
        temporal: The Temporal server's address.
        folder: Where a peer keeps its files. It is the same after a restart.
        configuration: Which of the peer's configurations is measured.
    """

    model: str
    temporal: str
    folder: Path
    configuration: str

    @property
    def task_queue(self) -> str:
        """A task queue of this peer's own."""
        return self.folder.name


class Peer(Protocol):
    """A way to run conversations that survive a killed process."""

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Send a message and return the answer; a conversation begins with its first message."""
        ...

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Return the answer to a message whose process was killed, as the peer's documentation says."""
        ...

    async def measure(self, conversation: str) -> Size:
        """Measure what the conversation takes by now."""
        ...


Open = Callable[[Options], AbstractAsyncContextManager[Peer]]
"""What a peer's module has as `open_peer`; it also has `PACKAGES`, the distributions whose versions are reported."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve a peer until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m bench.peers.service")
    parser.add_argument("module")
    parser.add_argument("--model", required=True)
    parser.add_argument("--temporal", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--configuration", default="")
    chosen = parser.parse_args(arguments)
    resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY_BYTES, _MEMORY_BYTES))
    # Frameworks print; the answers have the only standard output.
    answers = os.dup(1)
    os.dup2(2, 1)
    module = importlib.import_module(f"bench.peers.{chosen.module}")
    options = Options(chosen.model, chosen.temporal, chosen.folder, chosen.configuration)
    asyncio.run(_serve(module, options, answers))


async def _serve(module: Any, options: Options, answers: int) -> None:
    open_peer: Open = module.open_peer
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    async with open_peer(options) as peer:
        versions = {name: importlib.metadata.version(name) for name in module.PACKAGES}
        _answer(answers, {"ready": True, "versions": versions})
        running: set[asyncio.Task[None]] = set()
        while line := await reader.readline():
            task = asyncio.create_task(_carry_out(peer, json.loads(line), answers))
            running.add(task)
            task.add_done_callback(running.discard)
        for task in running:
            task.cancel()


async def _carry_out(peer: Peer, command: dict[str, Any], answers: int) -> None:
    started = time.perf_counter()
    try:
        result = await _do(peer, command)
    except Exception as error:
        result = {"error": describe(error)}
    _answer(answers, {"id": command["id"], "seconds": time.perf_counter() - started, **result})


async def _do(peer: Peer, command: dict[str, Any]) -> dict[str, Any]:
    match command["do"]:
        case "say":
            return {"reply": await peer.say(command["conversation"], command["turn"], command["text"])}
        case "resume":
            return {"reply": await peer.resume(command["conversation"], command["turn"], command["text"])}
        case "measure":
            return asdict(await peer.measure(command["conversation"]))
        case "usage":
            used = resource.getrusage(resource.RUSAGE_SELF)
            return {"cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss * 1024}
        case other:
            raise ValueError(f"unknown command {other!r}")


def describe(error: BaseException) -> str:
    """Describe an error by its causes, the last one first."""
    parts: list[str] = []
    cause: BaseException | None = error
    while cause is not None and len(parts) < 5:
        text = str(cause).strip().partition("\n")[0]
        if text and text not in parts:
            parts.append(text[:300])
        cause = getattr(cause, "cause", None) or cause.__cause__
    return " < ".join(reversed(parts)) or type(error).__name__


def _answer(answers: int, value: dict[str, Any]) -> None:
    data = f"{json.dumps(value)}\n".encode()
    while data:
        data = data[os.write(answers, data) :]


if __name__ == "__main__":
    main()
