"""Measures the history of long conversations at the default thresholds of rollovers.

    python -m bench.workload

A conversation of 209 000 tokens is complete in every context: 100 model calls may take 4 MB of history, and 1 000
calls 12 MB. The first calls add the conversation, the others a short question. The size is the sum over all workflow
runs, as the server reports them. Exit code 1: a limit is exceeded.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import itertools
import random
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.chain import WorkflowRun, list_runs
from bench.recording import add_write_option, record
from clew import Clew, ContextPolicy
from clew.local import Reply, scripted_model, temporal_server, worker_process
from clew_workflows.contract.tokens import _load_vocabulary, load_encoding

CONVERSATION_TOKENS = 209_000
TOKENS_A_MESSAGE = 10_000
POLICY = ContextPolicy(max_input_tokens=400_000, reserve_output_tokens=2_000)


@dataclass(frozen=True)
class Workload:
    """Model calls over a conversation, and their limit of history.

    Attributes:
        calls: The number of model calls.
        tokens: The conversation's length.
        limit: Most bytes of history.
    """

    calls: int
    tokens: int
    limit: int


@dataclass(frozen=True)
class Cost:
    """The measured history of a workload.

    Attributes:
        workload: The workload.
        context_tokens: Tokens of the last call's context.
        runs: The session's workflow runs, oldest first.
    """

    workload: Workload
    context_tokens: int
    runs: list[WorkflowRun]

    @property
    def size(self) -> int:
        """Bytes of all histories together."""
        return sum(run.size for run in self.runs)


WORKLOADS = (
    Workload(100, CONVERSATION_TOKENS, 4_000_000),
    Workload(1_000, CONVERSATION_TOKENS, 12_000_000),
)


@functools.cache
def _list_words() -> list[str]:
    """List words of one token each, enough to make texts that compress as badly as prose."""
    vocabulary = _load_vocabulary("o200k_base")
    known = (vocabulary.decode([token]) for token in itertools.count())
    words = (word for word in known if re.fullmatch(" [a-z]{1,7}", word))
    return list(itertools.islice(words, 1_000))


def make_text(chance: random.Random, tokens: int) -> str:
    """Make a text of `tokens` tokens."""
    return "".join(chance.choices(_list_words(), k=tokens)).strip()


def _script(body: dict[str, Any]) -> Reply:
    return Reply(f"I have read {len(body['messages'])} messages.")


async def serve(clew: Clew, workload: Workload) -> Cost:
    """Serve a workload in a new session and measure its history."""
    session = await clew.open(f"workload-{workload.calls}", model="bench:any", context_policy=POLICY)
    chance, exact = random.Random(workload.calls), load_encoding("o200k_base")
    left = workload.tokens
    for number in range(workload.calls):
        text = make_text(chance, min(TOKENS_A_MESSAGE, left)) if left > 0 else f"And what of number {number}?"
        left -= exact.count(text)
        await session.ask(text)
    meta = (await session.context()).meta
    return Cost(workload, meta.estimated_tokens, await list_runs(clew.temporal, session.id))


async def measure(workloads: Sequence[Workload]) -> list[Cost]:
    """Serve the workloads on one server."""
    with tempfile.TemporaryDirectory(prefix="clew-workload-", ignore_cleanup_errors=True) as folder:
        async with temporal_server(ui=False) as server, scripted_model(_script) as model:
            env = {"CLEW_STORE": folder, "CLEW_PROVIDER_BENCH_BASE_URL": model.base_url}
            async with worker_process(server.address, env=env):
                clew = await Clew.connect(server.address)
                return [await serve(clew, workload) for workload in workloads]


def show(costs: Sequence[Cost], console: Console) -> bool:
    """Print the table; return whether every workload is within its limit."""
    table = Table("model calls", "tokens shown", "runs", "events", "largest carried", "history", "limit")
    for cost in costs:
        within = cost.size < cost.workload.limit
        table.add_row(
            f"{cost.workload.calls:,}",
            f"{cost.context_tokens:,}",
            f"{len(cost.runs)}",
            f"{sum(run.events for run in cost.runs):,}",
            f"{max(run.start_size for run in cost.runs):,}",
            f"{cost.size:,}",
            f"{cost.workload.limit:,}{'' if within else ' exceeded'}",
            style=None if within else "red",
        )
    console.print(table)
    return all(cost.size < cost.workload.limit for cost in costs)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.workload", description=(__doc__ or "").partition("\n")[0])
    add_write_option(parser)
    options = parser.parse_args(arguments)
    with record("workload", options.write) as console:
        return 0 if show(asyncio.run(measure(WORKLOADS)), console) else 1


if __name__ == "__main__":
    sys.exit(main())
