"""Metrics of a worker process, as Prometheus reads them."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any

import httpx

from clew import Clew
from clew.local import Reply, ToolCall, Worker
from clew.local.child import LOOPBACK, free_ports
from tests.support.processes import run_worker_process
from tests.support.stack import Stack, get_last_message

CONTENT = "purple"
"""The text of every message and every answer."""
PRICED_MODEL = "gpt-4o-mini"
"""A model whose price is known."""

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})? (?P<value>\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.samples: list[tuple[str, Mapping[str, str], float]] = []
        for line in text.splitlines():
            if match := _SAMPLE.match(line):
                labels = dict(_LABEL.findall(match["labels"] or ""))
                self.samples.append((match["name"], labels, float(match["value"])))

    @property
    def names(self) -> set[str]:
        """The names of all samples."""
        return {name for name, _, _ in self.samples}

    def sum(self, metric: str, **labels: str) -> float:
        """Add up the samples of a metric that have these labels."""
        return sum(value for name, held, value in self.samples if name == metric and held.items() >= labels.items())


@dataclass(frozen=True)
class ObservedWorker:
    """A worker process with both ports.

    Attributes:
        worker: The process.
        metrics: The address of its metrics.
        health: The URL of its health port.
    """

    worker: Worker
    metrics: str
    health: str

    async def scrape(self) -> Scrape:
        """Read the metrics."""
        async with httpx.AsyncClient(trust_env=False) as http:
            answer = await http.get(f"http://{self.metrics}/metrics")
            answer.raise_for_status()
            return Scrape(answer.text)


@asynccontextmanager
async def run_observed_worker(stack: Stack, task_queue: str, **settings: str) -> AsyncIterator[ObservedWorker]:
    """Run a worker process with metrics and a health port; it rolls sessions over soon."""
    metrics, health = (f"{LOOPBACK}:{port}" for port in free_ports(2))
    defaults = {
        "CLEW_METRICS_ADDRESS": metrics,
        "CLEW_HEALTH_ADDRESS": health,
        "CLEW_ROLLOVER_EVENTS": "50",
        "OPENAI_BASE_URL": stack.provider.base_url,
        "OPENAI_API_KEY": "a-key-of-a-test",
    }
    async with run_worker_process(stack, task_queue, **{**defaults, **settings}) as worker:
        yield ObservedWorker(worker, metrics, f"http://{health}")


async def serve_turns(stack: Stack, task_queue: str, turns: int) -> str:
    """Have a session serve messages, each with a call of a tool; the first model call fails once. Then close it."""
    failing = [replace(Reply.error(HTTPStatus.SERVICE_UNAVAILABLE), headers={"Retry-After": "0.01"})]

    def answer(body: dict[str, Any]) -> Reply:
        if failing:
            return failing.pop()
        if get_last_message(body)["role"] == "user":
            return Reply("", tool_calls=(ToolCall("add", {"a": 1, "b": 2}),))
        return Reply(CONTENT)

    stack.scripts[PRICED_MODEL] = answer
    clew = Clew(stack.clew.temporal, task_queue)
    session = await clew.open(f"test-{uuid.uuid4().hex}", model=f"openai:{PRICED_MODEL}", tools=["add"])
    for _ in range(turns):
        assert await session.ask(CONTENT) == CONTENT
    await session.close()
    return session.id
