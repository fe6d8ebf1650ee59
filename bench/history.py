"""How much history a session costs: by reference, as Clew calls a model, and by value, as most do.

Both sessions hold the same conversation on the same server: 100 turns of about 1.8 KB, no tools. The second is
the least that an agent on Temporal can be: a workflow that hands the whole list of messages to each activity.

python -m bench.history
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.table import Table
from temporalio import activity, workflow
from temporalio.client import WorkflowHandle
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from clew import Clew, Tool, tool
from clew_activities.archive import Store
from clew_activities.providers import load_providers, make_http_client
from clew_activities.worker import make_worker
from deploy.local import Reply, ToolCall, scripted_model, temporal_server

TURNS = 100
QUESTION = "A question that a user might ask, in so many words. " * 17
ANSWER = "An answer that a model might give, with this and that. " * 17


@dataclass(frozen=True)
class Cost:
    """What a history holds."""

    events: int
    size: int

    @classmethod
    async def of(cls, handle: WorkflowHandle[Any, Any]) -> Cost:
        """What the server says of it."""
        info = (await handle.describe()).raw_description.workflow_execution_info
        return cls(info.history_length, info.history_size_bytes)

    def less(self, other: Cost) -> Cost:
        """What came since."""
        return Cost(self.events - other.events, self.size - other.size)


@activity.defn
async def answer_messages(messages: list[dict[str, str]]) -> str:
    """A model call by value."""
    return ANSWER if messages else ""


@workflow.defn
class ByValue:
    """A session that hands every model call the whole conversation."""

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
    """A model that answers at length, and looks an order up when asked to."""
    newest = body["messages"][-1]
    if newest["content"] == "look it up":
        return Reply(tool_calls=(ToolCall("look_up", {"order": 7}),))
    return Reply(ANSWER)


async def by_reference(clew: Clew) -> tuple[Cost, Cost]:
    """What 100 turns cost a session of Clew, and what a round of one tool adds to a turn."""
    session = await clew.open("by-reference", model="bench:any", tools=["look_up"])
    handle = clew.temporal.get_workflow_handle(session.id)
    for number in range(TURNS):
        await session.ask(f"{number} {QUESTION}")
    turns = await Cost.of(handle)
    await session.ask("no tool")
    plain = (await Cost.of(handle)).less(turns)
    before = await Cost.of(handle)
    await session.ask("look it up")
    with_tool = (await Cost.of(handle)).less(before)
    return turns, with_tool.less(plain)


async def by_value(clew: Clew) -> Cost:
    """What the same turns cost the session that hands everything over."""
    handle = await clew.temporal.start_workflow(ByValue.run, id="by-value", task_queue="by-value")
    for number in range(TURNS):
        await handle.execute_update(ByValue.message, f"{number} {QUESTION}")
    return await Cost.of(handle)


async def measure() -> tuple[Cost, Cost, Cost]:
    """Both sessions on one server: by reference, a round of one tool, by value."""
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
            task_queue="clew",
            providers=providers,
            tools=tools,
            http=http,
            store=Store.from_url("memory://"),
        )
        async with ours, naive:
            reference, round_of_one = await by_reference(clew)
            return reference, round_of_one, await by_value(clew)


def main() -> None:
    """Measure and print."""
    reference, round_of_one, value = asyncio.run(measure())
    table = Table("session", "events a turn", "KB of history", "times ours", title=f"{TURNS} turns of 1.8 KB")
    for name, cost in (("clew, by reference", reference), ("by value", value)):
        ratio = cost.size / reference.size
        table.add_row(name, f"{cost.events / TURNS:.1f}", f"{cost.size / 1000:,.0f}", f"{ratio:.1f}")
    console = Console()
    console.print(table)
    console.print(f"a round of one tool adds {round_of_one.events} events and {round_of_one.size:,} bytes to a turn")


if __name__ == "__main__":
    main()
