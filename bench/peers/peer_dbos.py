"""DBOS with SQLite: an agent loop as its workflow, whose model calls and tool calls are steps.

A turn is a workflow, whose id is the turn's. DBOS records each step's result; the messages of a conversation are in a
table of the application, written by steps. After a restart DBOS continues the workflows that had not ended.
"""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

from dbos import DBOS, DBOSConfig, SetWorkflowID
from openai import AsyncOpenAI

from bench.peers.conversation import INSTRUCTIONS, MODEL, MODEL_CALL_SECONDS, TOOL, TOOL_DESCRIPTION, look_up
from bench.peers.service import Options, Peer, Size

PACKAGES = ("dbos", "openai")
SYSTEM = {"role": "system", "content": INSTRUCTIONS}
PARAMETERS = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
TOOLS: Any = [
    {"type": "function", "function": {"name": TOOL, "description": TOOL_DESCRIPTION, "parameters": PARAMETERS}}
]
database = Path()
client: AsyncOpenAI


def connect() -> sqlite3.Connection:
    """Open the application's database."""
    return sqlite3.connect(database, timeout=30, isolation_level=None)


@DBOS.step()
def load(conversation: str) -> int:
    """Find where the conversation's messages end: the record of the step stays small."""
    with closing(connect()) as connection:
        row = connection.execute(
            "SELECT coalesce(max(number), 0) FROM messages WHERE conversation = ?", (conversation,)
        ).fetchone()
    return int(row[0])


@DBOS.step()
async def call_model(conversation: str, until: int, added: list[dict[str, Any]]) -> dict[str, Any]:
    """Call the model with the stored messages and those of this turn."""
    messages = [SYSTEM, *await asyncio.to_thread(read, conversation, until), *added]
    completion = await client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS)
    return completion.choices[0].message.model_dump(exclude_none=True)


@DBOS.step()
def call_tool(number: int) -> str:
    """Carry out one call."""
    return look_up(number)


@DBOS.step()
def store(conversation: str, until: int, added: list[dict[str, Any]]) -> None:
    """Store the turn's messages. The keys make a repetition harmless."""
    rows = [(conversation, until + index, json.dumps(message)) for index, message in enumerate(added, 1)]
    with closing(connect()) as connection:
        connection.executemany("INSERT OR REPLACE INTO messages VALUES (?, ?, ?)", rows)


def read(conversation: str, until: int) -> list[Any]:
    """Read stored messages."""
    with closing(connect()) as connection:
        rows = connection.execute(
            "SELECT message FROM messages WHERE conversation = ? AND number <= ? ORDER BY number",
            (conversation, until),
        ).fetchall()
    return [json.loads(row[0]) for row in rows]


@DBOS.workflow()
async def take_turn(conversation: str, text: str) -> str:
    """The agent's loop."""
    until = await asyncio.to_thread(load, conversation)
    added: list[dict[str, Any]] = [{"role": "user", "content": text}]
    while True:
        reply = await call_model(conversation, until, added)
        added.append(reply)
        if not reply.get("tool_calls"):
            break
        for call in reply["tool_calls"]:
            result = await asyncio.to_thread(call_tool, **json.loads(call["function"]["arguments"]))
            added.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    await asyncio.to_thread(store, conversation, until, added)
    return str(reply["content"])


class DBOSPeer:
    """Conversations as workflows, one for each turn."""

    def __init__(self, system: Path) -> None:
        self._system = system

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Run the turn's workflow."""
        with SetWorkflowID(turn):
            return await take_turn(conversation, text)

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Wait for the workflow, which DBOS has continued at its launch."""
        del conversation, text
        handle = await DBOS.retrieve_workflow_async(turn)
        return str(await handle.get_result())

    async def measure(self, conversation: str) -> Size:
        """Sum the rows of the conversation's workflows and messages."""
        like = f"{conversation}-%"
        with closing(sqlite3.connect(self._system, timeout=30)) as connection:
            sizes = [
                connection.execute(statement, (like,)).fetchone()
                for statement in (
                    "SELECT coalesce(sum(length(inputs) + coalesce(length(output), 0)), 0), count(*)"
                    " FROM workflow_status WHERE workflow_uuid LIKE ?",
                    "SELECT coalesce(sum(coalesce(length(output), 0) + coalesce(length(error), 0)), 0), count(*)"
                    " FROM operation_outputs WHERE workflow_uuid LIKE ?",
                )
            ]
        with closing(connect()) as connection:
            sizes.append(
                connection.execute(
                    "SELECT coalesce(sum(length(message)), 0), count(*) FROM messages WHERE conversation = ?",
                    (conversation,),
                ).fetchone()
            )
        return Size(sum(size for size, _ in sizes), sum(rows for _, rows in sizes))


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Launch DBOS."""
    global database, client  # noqa: PLW0603 - steps are functions of a module
    database, system = options.folder / "messages.sqlite", options.folder / "dbos.sqlite"
    client = AsyncOpenAI(timeout=MODEL_CALL_SECONDS)
    with closing(connect()) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute(
            "CREATE TABLE IF NOT EXISTS messages"
            " (conversation TEXT, number INTEGER, message TEXT, PRIMARY KEY (conversation, number))"
        )
    DBOS(config=DBOSConfig(name="peer", system_database_url=f"sqlite:///{system}", run_admin_server=False))
    DBOS.launch()
    try:
        yield DBOSPeer(system)
    finally:
        DBOS.destroy()
