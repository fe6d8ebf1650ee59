"""The runner's side of a peer's process: commands and answers."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.peers.conversation import EFFECTS
from bench.peers.service import Size

ROOT = Path(__file__).parents[2]
ENVIRONMENTS = ROOT / ".venv" / "peers"
_LINE_BYTES = 16 << 20
_START_SECONDS = 60
_STOP_SECONDS = 20


class PeerFailed(RuntimeError):
    """A command failed, or the process ended. The message says why."""


@dataclass(frozen=True)
class Setting:
    """Where a peer runs.

    Attributes:
        module: The peer's module.
        environment: The folder of its environment in `.venv/peers`; None: Clew's own.
        configuration: The configuration's name.
        model: The scripted model's base URL.
        temporal: The Temporal server's address.
        folder: The peer's folder.
    """

    module: str
    environment: str | None
    configuration: str
    model: str
    temporal: str
    folder: Path

    @property
    def python(self) -> Path:
        """The interpreter."""
        return Path(sys.executable) if self.environment is None else find_python(self.environment)

    @property
    def effects(self) -> Path:
        """The file of the tool's effects."""
        return self.folder / "effects"


def find_python(environment: str) -> Path:
    """Return the interpreter of an environment, which may not exist."""
    return ENVIRONMENTS / environment / "bin" / "python"


class PeerProcess:
    """A running peer."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._ready: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read())

    async def wait_until_ready(self) -> dict[str, str]:
        """Wait until the process takes commands, and return the versions of its packages."""
        async with asyncio.timeout(_START_SECONDS):
            return dict((await self._ready)["versions"])

    async def say(self, conversation: str, turn: str, text: str, *, within: float = 120) -> float:
        """Send a message, wait for the answer, and return the seconds that it took."""
        return await self._converse("say", conversation, turn, text, within)

    async def resume(self, conversation: str, turn: str, text: str, *, within: float = 120) -> float:
        """Wait for the answer to a message that a killed process had taken."""
        return await self._converse("resume", conversation, turn, text, within)

    async def _converse(self, verb: str, conversation: str, turn: str, text: str, within: float) -> float:
        answer = await self._call(within, do=verb, conversation=conversation, turn=turn, text=text)
        if not answer["reply"]:
            raise PeerFailed("the answer is empty")
        return float(answer["seconds"])

    async def measure(self, conversation: str) -> Size:
        """Measure what a conversation takes."""
        answer = await self._call(60, do="measure", conversation=conversation)
        return Size(answer["bytes"], answer["events"], answer["runs"], answer["stored"])

    async def read_cpu(self) -> float:
        """Read the seconds of CPU that the process has used."""
        return float((await self._call(60, do="usage"))["cpu"])

    async def read_memory(self) -> int:
        """Read the most bytes of memory that the process has had."""
        return int((await self._call(60, do="usage"))["memory"])

    async def _call(self, within: float, **command: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._waiting[number] = answer = asyncio.get_running_loop().create_future()
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{json.dumps({'id': number, **command})}\n".encode())
            await self._process.stdin.drain()
            async with asyncio.timeout(within):
                result: dict[str, Any] = await answer
        except TimeoutError:
            raise PeerFailed(f"no answer within {within:g} s") from None
        except ConnectionError as error:
            raise PeerFailed(f"the process ended: {error}") from None
        finally:
            del self._waiting[number]
        if "error" in result:
            raise PeerFailed(result["error"])
        return result

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            if "ready" in answer:
                self._ready.set_result(answer)
            elif waiting := self._waiting.get(answer["id"]):
                waiting.set_result(answer)
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-15:])
        for future in (self._ready, *self._waiting.values()):
            if not future.done():
                future.set_exception(PeerFailed(f"the process ended:\n{tail}"))
                future.exception()

    async def kill(self) -> None:
        """Send SIGKILL and wait for the end."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._reading

    async def stop(self) -> None:
        """Close the standard input, and kill the process if it does not end by itself."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        await self.kill()


@asynccontextmanager
async def peer_process(setting: Setting) -> AsyncIterator[PeerProcess]:
    """Run a peer until the context ends."""
    setting.folder.mkdir(exist_ok=True)
    command = [
        *(str(setting.python), "-m", "bench.peers.service", setting.module),
        *("--model", setting.model, "--temporal", setting.temporal),
        *("--folder", str(setting.folder), "--configuration", setting.configuration),
    ]
    env = {
        **{name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "TMPDIR"}},
        "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT)) if setting.environment is None else str(ROOT),
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": setting.model,
        EFFECTS: str(setting.effects),
    }
    log = setting.folder / "log"
    with log.open("ab") as output:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=output,
            env=env,
            cwd=ROOT,
            limit=_LINE_BYTES,
        )
    peer = PeerProcess(process, log)
    try:
        await peer.wait_until_ready()
        yield peer
    finally:
        await peer.stop()
