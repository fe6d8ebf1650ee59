"""What one key does costs others little: a process of `clew serve`, flooded with one key and used with another."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clew.serve.test_service_process import run_process, write_keys
from tests.support.flood import Flood
from tests.support.scripts import PausedModel
from tests.support.serving import make_http, make_key
from tests.support.stack import Stack

MAX_DELAY_SECONDS = 0.5
"""By how much the requests of others may be later than at a process of its own, while one key does its worst."""
MAX_MEMORY_BYTES = 600_000_000
HELD_SECONDS = 3.0
"""Seconds that half-sent bodies are held open."""
PATIENT_SECONDS = 180.0
"""Seconds after which the flooding client leaves a request that no answer has come to."""
NO_SHARE = "the key sends too many large bodies at a time: repeat the request"
"""The answer to a large body that has waited too long for its share of what the key may hold."""
PAUSE_SECONDS = 0.02
"""Seconds between two requests of others."""
USER = {"role": "user", "content": "a"}
TEXT = {"type": "text", "text": "a"}
LONG = {"role": "user", "content": "a word " * 30_000}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0K" + "A" * 37_000_000}}
CALL = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}


def make_chat(messages: list[Any]) -> dict[str, Any]:
    """Make the body of a chat completion."""
    return {"model": "scripted:none", "messages": messages}


def make_call(text: str) -> dict[str, Any]:
    """Make the call of an MCP client."""
    return {**CALL, "params": {"name": "run_agent", "arguments": {"message": text, "session_id": "own"}}}


def make_run(messages: list[Any]) -> dict[str, Any]:
    """Make the input of an AG-UI client."""
    return {
        "threadId": "own", "runId": "r", "state": {}, "messages": messages, "tools": [], "context": [],
        "forwardedProps": {},
    }  # fmt: skip


@dataclass(frozen=True)
class Worst:
    """What a key does.

    Attributes:
        name: Its name.
        path: The path of its requests.
        body: The body; None: a GET without one. Bytes are sent as they are.
        times: How many requests there are at once.
        answers: What each answer begins with, one of them.
        holds: The client leaves after a while.
        sends_half: The second half of each body never comes.
    """

    name: str
    path: str
    body: Any
    times: int
    answers: tuple[str, ...]
    holds: bool = False
    sends_half: bool = False


FLOODS = [
    Worst(
        "a million parts",
        "/v1/responses",
        {"model": "scripted:none", "input": [{**USER, "content": [TEXT] * 1_200_000}]},
        1,
        ("413 too_large",),
    ),
    Worst("texts", "/v1/responses", {"model": "scripted:none", "input": "a" * 38_000_000}, 12, ("413 too_large",)),
    Worst("histories", "/v1/chat/completions", make_chat([LONG] * 100), 8, ("413 too_large",)),
    Worst(
        "parts", "/v1/chat/completions", make_chat([{**USER, "content": [TEXT] * 101}] * 160), 20, ("400 invalid_",)
    ),
    Worst("MCP", "/v1/mcp", make_call("a" * 1_900_000), 40, ("413 too_large",)),
    Worst("half bodies", "/v1/responses", {"input": "a" * 10_000_000}, 100, ("0 left",), holds=True, sends_half=True),
    Worst("AG-UI", "/v1/ag-ui/run", make_run([{**USER, "id": "m"}] * 12_000), 20, ("200 events", "409 busy")),
    Worst(
        "useChat",
        "/v1/ui/chat",
        {"id": "own", "messages": [{**USER, "id": "m", "parts": [TEXT]}] * 6_000},
        20,
        ("409 busy",),
    ),
    Worst(
        "images", "/v1/chat/completions", make_chat([{**USER, "content": [IMAGE]}]), 3, ("400 unsupported_content",)
    ),
    Worst(
        "contexts",
        "/v1/sessions/own/context",
        {"operation": {"type": "replace", "result_context": {"messages": [USER] * 8_000}}},
        20,
        ("200 ",),
    ),
    Worst("previews", "/v1/sessions/own/preview", {"pending": [LONG] * 8}, 20, ("413 too_large",)),
    Worst("messages", "/v1/sessions/own/messages", {"content": [TEXT] * 500}, 300, ("400 invalid_input",)),
    Worst("blobs", "/v1/sessions/own/blobs", b"\x00" * 20_000_000, 6, ("400 unsupported_content",)),
    Worst("streams", "/v1/sessions/own/events", None, 500, ("200 events", "0 left"), holds=True),
    Worst("waits", "/v1/sessions/own/requests/r?wait=60", None, 1_000, ("0 left",), holds=True),
    Worst("entries", "/v1/sessions/own/entries", None, 100, ("200 ",)),
]


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.long
async def test_a_flood_costs_others_little(stack: Stack, tmp_path: Path) -> None:
    """The requests of another tenant are at most half a second later than elsewhere, and the process stays small."""
    tenants = [f"t-{uuid.uuid4().hex[:12]}" for _ in range(2)]
    (flooding, flooder), (token, key) = (make_key("k", tenant, requests_per_minute=100_000) for tenant in tenants)
    write_keys(tmp_path / "keys.toml", flooder, key.model_copy(update={"name": "other", "agents": (), "models": ()}))
    model = PausedModel()
    name = stack.add_model(model)
    keys = tmp_path / "keys.toml"
    async with (
        run_process(stack, stack.clew, keys) as served,
        run_process(stack, stack.clew, keys) as quiet,
        make_http(served.address, flooding) as own,
        make_http(served.address, token) as http,
        make_http(quiet.address, token) as elsewhere,
    ):
        await own.put("/v1/sessions/own", json={"model": name})
        await own.post("/v1/sessions/own/messages", json={"content": "hello", "request_id": "r"})
        await model.called.wait()
        measured = [(http, served.process.pid), (elsewhere, quiet.process.pid)]
        found: list[str] = []
        for worst in FLOODS:
            flood = make_flood(worst, served.address, flooding, tmp_path)
            delays, answers = await flood_and_measure(flood, tmp_path / "flood.json", *measured)
            # The worker may be busy while a query waits for it, and other bodies while one waits for its share.
            allowed = (*worst.answers, "503 worker_unavailable")
            others = [line for line in answers if not line.split(" ", 1)[1].startswith(allowed)]
            problems = [line for line in others if not (" 429 " in line and line.endswith(NO_SHARE))]
            memory = read_memory(served.process.pid)
            if problems or delays[0] - delays[1] > MAX_DELAY_SECONDS or memory > MAX_MEMORY_BYTES:
                found.append(f"{worst.name}: {delays} s, {memory} bytes, {[line[:200] for line in answers]}")
        model.free.set()
        assert not found


def make_flood(worst: Worst, address: str, token: str, folder: Path) -> Flood:
    """Make the flood that does what a key does."""
    body = None
    if worst.body is not None:
        body = folder / "body"
        is_raw = isinstance(worst.body, bytes)
        body.write_bytes(worst.body if is_raw else json.dumps(worst.body, separators=(",", ":")).encode())
    return Flood(
        address=address,
        token=token,
        method="GET" if body is None else "POST",
        path=worst.path,
        body=body,
        times=worst.times,
        seconds=HELD_SECONDS if worst.holds else PATIENT_SECONDS,
        sends_half=worst.sends_half,
    )


async def flood_and_measure(
    flood: Flood, file: Path, *clients: tuple[httpx.AsyncClient, int]
) -> tuple[list[float], list[str]]:
    """Measure the longest time of a request of each client during a flood. Returns them, and its answers.

    The time in which the process of the service has worked counts, not that in which other processes have: on a busy
    machine each request takes longer.

    Args:
        flood: The flood.
        file: A file for it.
        clients: The clients, each with the process that serves it.
    """
    await asyncio.to_thread(file.write_text, flood.model_dump_json())
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.flood", str(file), stdout=asyncio.subprocess.PIPE
    )
    answered = asyncio.create_task(process.communicate())

    async def measure(http: httpx.AsyncClient, pid: int) -> float:
        longest = 0.0
        while not answered.done():
            begun, worked = time.monotonic(), read_processor_seconds(pid)
            # The service itself answers this. The worker of the test may be busy, too: its time is not the service's.
            (await http.get("/v1/models")).raise_for_status()
            seconds = min(time.monotonic() - begun, read_processor_seconds(pid) - worked)
            longest = max(longest, seconds)
            await asyncio.sleep(PAUSE_SECONDS)
        return longest

    delays = await asyncio.gather(*(measure(http, pid) for http, pid in clients))
    return delays, (await answered)[0].decode().splitlines()


def read_processor_seconds(pid: int) -> float:
    """Read for how long a process has worked."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def read_memory(pid: int) -> int:
    """Read the most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [peak] = [line for line in lines if line.startswith("VmHWM:")]
    return int(peak.split()[1]) * 1024
