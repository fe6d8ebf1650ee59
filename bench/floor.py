"""The floor of `bench.load`: a bare workflow with one update and one activity, on the SDK's defaults.

It keeps no context, counts no tokens and archives nothing. `ask` answers from a constant; `ask_model` first sends the
question to the model's server and reads the reply as bytes. The server hands over these activities with the end of
their workflow task, as it does with model calls where one worker serves everything. That of `ask_apart` has a queue
of its own, as model calls have between workers apart, and is dispatched like any task.

    python -m bench.floor serve             # a worker with CACHED workflows in its cache, on TEMPORAL_ADDRESS;
                                            # it serves the least agent, too
    python -m bench.floor query WORKFLOW    # one query by a client of its own
    python -m bench.floor packages          # the bytes of memory of the packages that Clew stands on beside the SDK
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from datetime import timedelta
from importlib import import_module
from pathlib import Path

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker

QUEUE = "floor"
QUEUE_APART = "floor-apart"
TIMEOUT = timedelta(seconds=60)
READY = "floor ready"
ANSWER = "An answer that a model might give, with this and that. " * 17
CACHED = 1_000
"""Workflows that a worker keeps in its cache, by the SDK's default."""


@activity.defn
async def answer(question: str) -> str:
    """Answer at once."""
    return ANSWER if question else ""


class Caller:
    """Calls the model's server."""

    def __init__(self, base_url: str) -> None:
        # Not at the module's level: the sandbox imports the module for each workflow.
        import httpx  # noqa: PLC0415

        self._url = f"{base_url}/chat/completions"
        self._http = httpx.AsyncClient(trust_env=False, timeout=60)

    @activity.defn
    async def answer_from_model(self, question: str) -> str:
        """Send the question alone, and read the reply without decoding it."""
        body = {"model": "any", "stream": True, "messages": [{"role": "user", "content": question}]}
        response = await self._http.post(self._url, json=body)
        response.raise_for_status()
        return ANSWER


@workflow.defn
class Floor:
    """A workflow that answers updates until it is terminated."""

    def __init__(self) -> None:
        self._turns = 0

    @workflow.run
    async def run(self) -> None:
        """Wait for ever."""
        await workflow.wait_condition(lambda: False)

    @workflow.update
    async def ask(self, question: str) -> str:
        """Answer from a constant."""
        self._turns += 1
        return await workflow.execute_activity(answer, question, start_to_close_timeout=TIMEOUT)

    @workflow.update
    async def ask_model(self, question: str) -> str:
        """Answer from the model's server."""
        self._turns += 1
        reply: str = await workflow.execute_activity(
            "answer_from_model", question, result_type=str, start_to_close_timeout=TIMEOUT
        )
        return reply

    @workflow.update
    async def ask_apart(self, question: str) -> str:
        """Answer from the model's server, by an activity of another task queue."""
        self._turns += 1
        reply: str = await workflow.execute_activity(
            "answer_from_model",
            question,
            result_type=str,
            start_to_close_timeout=TIMEOUT,
            task_queue=QUEUE_APART,
        )
        return reply

    @workflow.query
    def count_turns(self) -> int:
        """Count the turns."""
        return self._turns


async def serve() -> None:
    """Run a worker until SIGTERM."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    caller, stopped = Caller(os.environ["MODEL_URL"]), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    # Not at the module's level: the sandbox of the floor's workflow would import it, too.
    agents = import_module("bench.least_agent")
    agent = agents.AgentActivities(os.environ["MODEL_URL"], os.environ["FOLDER"])
    activities = [answer, caller.answer_from_model, agent.answer_from_context, agent.keep_older]
    async with (
        Worker(
            client,
            task_queue=QUEUE,
            workflows=[Floor, agents.LeastAgent],
            activities=activities,
            max_cached_workflows=int(os.environ["CACHED"]),
        ),
        Worker(client, task_queue=QUEUE_APART, activities=[caller.answer_from_model]),
    ):
        print(READY, flush=True)
        await stopped.wait()


async def query(workflow_id: str) -> None:
    """Query a workflow once."""
    client = await Client.connect(os.environ["TEMPORAL_ADDRESS"])
    print(await client.get_workflow_handle(workflow_id).query(Floor.count_turns), flush=True)
    # The SDK's threads may crash an interpreter that ends.
    os._exit(0)


def measure_packages() -> None:
    """Print the bytes of memory that packages take beside those of the floor, tiktoken with its vocabulary."""
    import_module("httpx")
    before = measure_memory()
    for package in ("jsonschema_rs", "obstore", "pydantic"):
        import_module(package)
    import_module("pydantic").TypeAdapter(list[str])
    packages = measure_memory() - before
    # Clew's own code does not count.
    load_encoding = import_module("clew_workflows.contract.tokens").load_encoding
    before = measure_memory()
    load_encoding("o200k_base").count(ANSWER)
    print(packages + measure_memory() - before, flush=True)


def measure_memory(pid: int | str = "self") -> int:
    """Measure the resident bytes of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve"]:
            asyncio.run(serve())
        case ["packages"]:
            measure_packages()
        case ["query", name]:
            asyncio.run(query(name))
        case _:
            sys.exit(__doc__)
