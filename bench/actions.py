"""Counts the actions of turns, as Temporal Cloud charges for them, beside peers and a bare workflow.

    python -m bench.actions                      # the floor, Clew, and the peers whose environments are there
    python -m bench.actions floor clew           # some of them
    python -m bench.actions clew clew-viewer clew-apart --seconds 0.5 3 20
    python -m bench.actions --session            # all of a session: ten turns, with pauses and without

A model server writes a reply that takes some seconds. Each turn is one message; the last turn calls one tool, and its
two replies take half a second each. A pause of more than ten seconds follows each turn and is a part of it, with the
timers and the updates of lists that come then. The first turn, which opens the conversation, is not counted.

The server counts: the development server has the counter `action`, by kind, which names what Temporal Cloud's page of
actions lists. What that page does not list is not counted: updates of the memo, and calls that only read.

Rows: those of `bench.peers`. `clew` has a worker process that serves everything, `clew-viewer` a viewer of each turn,
too, `clew-apart` a worker process each for sessions, model calls and tools, `clew-apart-viewer` both. With `-live`
they have a live channel (needs `redis-server`).
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from bench.live import run_redis
from bench.peers.conversation import ANSWER, INSTRUCTIONS, MODEL_CALL_SECONDS, QUESTION, TOOL
from bench.peers.process import Setting, find_python, peer_process
from bench.peers.rows import FLOOR, ROWS
from bench.peers.script import read_text
from bench.peers.service import Size
from bench.peers.temporal import measure_runs
from bench.recording import add_write_option, record
from clew import Clew
from clew.local import Reply, TemporalServer, ToolCall, scripted_model, temporal_server, worker_process
from clew.session.live.channel import VARIABLE as LIVE

Turn = Callable[[str], Awaitable[object]]
"""Sends a message and waits for the answer."""

SECONDS = (0.5, 3.0, 60.0)
PAUSE_SECONDS = 11.0
"""Pause after each turn. Lists get what has changed within ten seconds."""
PEER_MARGIN_SECONDS = 10
"""Seconds less than the longest model call of peers that a call of theirs takes at most."""
REPORT_SECONDS = 3.0
"""Time within which the server's metrics have what it has counted."""
SESSION_TURNS = 10
CLEW_ROWS = (
    "clew",
    "clew-viewer",
    "clew-viewer-live",
    "clew-apart",
    "clew-apart-viewer",
    "clew-apart-viewer-live",
)
SERVED = ("sessions", "models", "tools")
KINDS = {
    "grpc_StartWorkflowExecution": "workflow started",
    "command_ContinueAsNewWorkflowExecution": "workflow continued as new",
    "grpc_SignalWorkflowExecution": "signal",
    "message_UpdateWorkflowExecution_Acceptance": "update",
    "message_UpdateWorkflowExecution_Rejection": "update",
    "command_ScheduleActivityTask": "activity",
    "activity_retry": "activity retried",
    "grpc_RecordActivityTaskHeartbeat": "heartbeat",
    "grpc_QueryWorkflow": "query",
    "command_StartTimer": "timer",
    "command_UpsertWorkflowSearchAttributes": "search attributes",
}
"""The kinds of actions by their names in the server's counter; others keep theirs."""
FREE = frozenset({"command_ModifyWorkflowProperties"})
"""What the server counts, and Temporal Cloud's page does not list."""
_COUNTER = re.compile(r'^action\{.*?action_type="(?P<kind>[^"]+)".*\} (?P<count>\S+)$', re.MULTILINE)


async def read_actions(server: TemporalServer) -> Counter[str]:
    """Read how many actions of each kind a server has counted."""
    async with httpx.AsyncClient(trust_env=False) as http:
        text = (await http.get(f"http://{server.metrics_address}/metrics")).raise_for_status().text
    return parse_actions(text)


def parse_actions(text: str) -> Counter[str]:
    """Parse the counts of actions in a server's metrics, by kind."""
    counts: Counter[str] = Counter()
    for match in _COUNTER.finditer(text):
        if match["kind"] not in FREE:
            counts[KINDS.get(match["kind"], match["kind"])] += int(float(match["count"]))
    return counts


def answer(body: dict[str, Any]) -> Reply:
    """Reply within the seconds that the newest message names; `tool` in it makes the model call the tool first."""
    messages = body["messages"]
    newest = max(index for index, message in enumerate(messages) if message["role"] == "user")
    text = read_text(messages[newest])
    seconds = float(text.partition("[seconds ")[2].partition("]")[0] or 0)
    delay = 0.0 if body.get("stream") else seconds
    has_called = any(message["role"] == "tool" for message in messages[newest:])
    # The floor has no tool.
    if "[tool]" in text and not has_called and body.get("tools"):
        (parameter,) = body["tools"][0]["function"]["parameters"]["properties"]
        return Reply(tool_calls=(ToolCall(TOOL, {parameter: 1}),), delay_seconds=seconds)
    pace = len(ANSWER.split()) / seconds if seconds and not delay else None
    return Reply(ANSWER, tokens_per_second=pace, delay_seconds=delay)


@asynccontextmanager
async def open_peer_turn(row: str, server: TemporalServer, model: str, folder: Path) -> AsyncIterator[Turn]:
    """Run a peer in its process, with one conversation."""
    peer = ROWS[row]
    setting = Setting(peer.module, peer.environment, peer.configuration, model, server.address, folder)
    async with peer_process(setting) as process:
        numbers = iter(range(1_000))

        async def take_turn(text: str) -> object:
            return await process.say("conversation", f"turn-{next(numbers)}", text, within=180)

        yield take_turn


@asynccontextmanager
async def open_clew_turn(row: str, server: TemporalServer, model: str, folder: Path) -> AsyncIterator[Turn]:
    """Run Clew's workers, with one session."""
    env = {"CLEW_STORE": folder.as_uri(), "CLEW_PROVIDER_BENCH_BASE_URL": model}
    os.environ.pop(LIVE, None)
    async with AsyncExitStack() as stack:
        if "live" in row:
            os.environ[LIVE] = await stack.enter_async_context(run_redis())
        for served in SERVED if "apart" in row else (",".join(SERVED),):
            worker = worker_process(server.address, env={**env, "CLEW_SERVE": served}, tools=["bench.tools"])
            await stack.enter_async_context(worker)
        clew = await Clew.connect(server.address)
        session = await clew.open("conversation", model="bench:any", system_prompt=INSTRUCTIONS, tools=[TOOL])

        async def take_turn(text: str) -> object:
            request = await session.message(text)
            if "viewer" in row:
                async for _ in request.events():
                    pass
            return await request.answer()

        yield take_turn


async def measure_row(row: str, seconds: Sequence[float]) -> dict[str, Counter[str]]:
    """Count the actions of a row's turns."""
    bound = math.inf if row in CLEW_ROWS else MODEL_CALL_SECONDS - PEER_MARGIN_SECONDS
    messages = {f"{number:g} s": f"[seconds {number}] {QUESTION}" for number in (min(s, bound) for s in seconds)}
    messages["0.5 s, one tool"] = f"[tool] [seconds 0.5] {QUESTION}"
    counted: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory(prefix="clew-actions-", ignore_cleanup_errors=True) as name:
        async with temporal_server(ui=False) as server, scripted_model(answer) as model:
            opening = open_clew_turn if row in CLEW_ROWS else open_peer_turn
            async with opening(row, server, model.base_url, Path(name)) as take_turn:
                await take_turn(QUESTION)
                await asyncio.sleep(PAUSE_SECONDS)
                for title, message in messages.items():
                    before = await read_actions(server)
                    await take_turn(message)
                    await asyncio.sleep(PAUSE_SECONDS)
                    counted[title] = await read_actions(server) - before
    return counted


async def measure_session(turns: int, pause_seconds: float) -> tuple[Counter[str], Size]:
    """Count the actions of a session from its start until it hibernates, and measure its history."""
    with tempfile.TemporaryDirectory(prefix="clew-actions-", ignore_cleanup_errors=True) as name:
        async with temporal_server(ui=False) as server, scripted_model(answer) as model:
            env = {"CLEW_STORE": Path(name).as_uri(), "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url}
            async with worker_process(server.address, env=env):
                clew = await Clew.connect(server.address)
                before = await read_actions(server)
                session = await clew.open("session", model="bench:any", system_prompt=INSTRUCTIONS)
                for number in range(turns):
                    await asyncio.sleep(pause_seconds)
                    await session.ask(f"{number} {QUESTION}")
                await asyncio.sleep(pause_seconds)
                await session.hibernate()
                await asyncio.sleep(REPORT_SECONDS)
                return await read_actions(server) - before, await measure_runs(clew.temporal, session.id)


def list_rows() -> list[str]:
    """List the rows that can be measured here: peers on Temporal whose environments are there."""
    peers = [
        name
        for name, row in ROWS.items()
        if row.environment is not None
        and "-" not in name
        and name not in ("dbos", "langgraph_sqlite")
        and find_python(row.environment).exists()
    ]
    return [FLOOR, *CLEW_ROWS, *peers]


def show(row: str, counted: dict[str, Counter[str]], console: Console) -> None:
    """Print the actions of a row's turns."""
    table = Table("turn", "actions", "of them", title=row)
    for title, counts in counted.items():
        parts = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items()))
        table.add_row(title, f"{counts.total()}", parts)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", choices=[*CLEW_ROWS, *ROWS, []], help="default: all that can run here")
    parser.add_argument("--seconds", nargs="+", type=float, default=SECONDS, help="seconds of the model calls")
    parser.add_argument("--session", action="store_true", help="measure whole sessions of Clew instead of turns")
    add_write_option(parser)
    chosen = parser.parse_args()
    name = "actions-session" if chosen.session else "actions"
    with record(name, chosen.write, width=118) as console:
        for pause in (PAUSE_SECONDS, 0.0) if chosen.session else ():
            counts, size = asyncio.run(measure_session(SESSION_TURNS, pause))
            title = (
                f"a session of {SESSION_TURNS} turns, {pause:g} s apart: {size.events} events, {size.bytes:,} bytes"
            )
            show(title, {"all": counts}, console)
        for row in () if chosen.session else chosen.rows or list_rows():
            show(row, asyncio.run(measure_row(row, chosen.seconds)), console)


if __name__ == "__main__":
    main()
