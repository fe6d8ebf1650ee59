"""Compares the history of sessions that call the model by reference, as Clew does, and by value.

Both sessions hold the same conversation on the same server: 100 turns of about 1.8 KB, no tools. The second is a
minimal agent on Temporal: a workflow that passes the complete list of messages to each activity.

python -m bench.history
"""

from __future__ import annotations

import argparse
import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from temporalio import activity, workflow
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from bench.peers.conversation import ANSWER, QUESTION
from bench.recording import add_write_option, record
from clew import Clew, Tool, tool
from clew.local import Reply, ToolCall, scripted_model, temporal_server
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import WorkerSettings, make_worker

TURNS = 100


@dataclass(frozen=True)
class Cost:
    """The size of a history.

    Attributes:
        events: The number of events.
        size: Bytes.
        updates: The number of those events that update search attributes.
    """

    events: int
    size: int
    updates: int = 0

    @classmethod
    async def read(cls, handle: WorkflowHandle[Any, Any]) -> Cost:
        """Read the size of a workflow's history from the server."""
        info = (await handle.describe()).raw_description.workflow_execution_info
        events = [event.event_type async for event in handle.fetch_history_events()]
        updates = events.count(EventType.EVENT_TYPE_UPSERT_WORKFLOW_SEARCH_ATTRIBUTES)
        return cls(info.history_length, info.history_size_bytes, updates)

    def subtract(self, other: Cost) -> Cost:
        """Subtract an earlier size."""
        return Cost(self.events - other.events, self.size - other.size, self.updates - other.updates)


@activity.defn
async def answer_messages(messages: list[dict[str, str]]) -> str:
    """A model call by value."""
    return ANSWER if messages else ""


@workflow.defn
class ByValue:
    """A session that passes the complete conversation to every model call."""

    def __init__(self) -> None:
        self._messages: list[dict[str, str]] = []
        self._closed = False

    @workflow.run
    async def run(self) -> None:
        """Wait until closed."""
        await workflow.wait_condition(lambda: self._closed)

    @workflow.update
    async def message(self, content: str) -> str:
        """One turn."""
        self._messages.append({"role": "user", "content": content})
        reply = await workflow.execute_activity(
            answer_messages, self._messages, schedule_to_close_timeout=timedelta(seconds=60)
        )
        self._messages.append({"role": "assistant", "content": reply})
        return "done"

    @workflow.signal
    def close(self) -> None:
        """End."""
        self._closed = True


@tool
def look_up(order: int) -> str:
    """An order's state."""
    return f"order {order} is on its way"


def script(body: dict[str, Any]) -> Reply:
    """Reply at length, or call the tool on the message `look it up`."""
    newest = body["messages"][-1]
    if newest["content"] == "look it up":
        return Reply(tool_calls=(ToolCall("look_up", {"order": 7}),))
    return Reply(ANSWER)


async def measure_by_reference(clew: Clew) -> tuple[Cost, Cost]:
    """Measure 100 turns of a Clew session, and the addition of one tool round to a turn."""
    session = await clew.open("by-reference", model="bench:any", tools=["look_up"])
    handle = clew.temporal.get_workflow_handle(session.id)
    for number in range(TURNS):
        await session.ask(f"{number} {QUESTION}")
    turns = await Cost.read(handle)
    await session.ask("no tool")
    plain = (await Cost.read(handle)).subtract(turns)
    before = await Cost.read(handle)
    await session.ask("look it up")
    with_tool = (await Cost.read(handle)).subtract(before)
    return turns, with_tool.subtract(plain)


async def measure_by_value(clew: Clew) -> Cost:
    """Measure the same turns in a session that calls the model by value."""
    handle = await clew.temporal.start_workflow(ByValue.run, id="by-value", task_queue="by-value")
    for number in range(TURNS):
        await handle.execute_update(ByValue.message, f"{number} {QUESTION}")
    return await Cost.read(handle)


async def measure() -> tuple[Cost, Cost, Cost]:
    """Measure both sessions on one server: by reference, one tool round, by value."""
    tools: dict[str, Tool[..., Any]] = {"look_up": look_up}
    async with temporal_server(ui=False) as server, scripted_model(script) as model, make_http_client() as http:
        clew = await Clew.connect(server.address)
        providers = load_providers({"CLEW_PROVIDER_BENCH_BASE_URL": model.base_url})
        naive = Worker(
            clew.temporal,
            task_queue="by-value",
            workflows=[ByValue],
            activities=[answer_messages],
            workflow_runner=UnsandboxedWorkflowRunner(),
        )
        ours = make_worker(
            clew.temporal,
            WorkerSettings(
                task_queue="clew",
                providers=providers,
                tools=tools,
                store=Store.from_url("memory://"),
            ),
            http,
        )
        async with ours, naive:
            reference, tool_round = await measure_by_reference(clew)
            return reference, tool_round, await measure_by_value(clew)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.history", description=(__doc__ or "").partition("\n")[0])
    add_write_option(parser)
    with record("history", parser.parse_args().write) as console:
        show(*asyncio.run(measure()), console)


def show(reference: Cost, tool_round: Cost, value: Cost, console: Console) -> None:
    """Print the table, and what a tool adds."""
    table = Table(
        "session", "events a turn", "for lists", "KB of history", "times ours", title=f"{TURNS} turns of 1.8 KB"
    )
    for name, cost in (("clew, by reference", reference), ("by value", value)):
        ratio = cost.size / reference.size
        table.add_row(
            name,
            f"{cost.events / TURNS:.1f}",
            f"{cost.updates / TURNS:.2f}",
            f"{cost.size / 1000:,.0f}",
            f"{ratio:.1f}",
        )
    console.print(table)
    console.print(
        f"a round of one tool adds {tool_round.events} events, {tool_round.updates} of them for lists, "
        f"and {tool_round.size:,} bytes"
    )


if __name__ == "__main__":
    main()
