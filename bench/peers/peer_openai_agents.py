"""The OpenAI Agents SDK on Temporal, by the package `temporalio-openai-agents`.

The workflow keeps the list of input items, which the runner's result returns, and passes it to the next run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from agents import Agent, ModelProvider, OpenAIProvider, RunConfig, Runner
from temporalio import activity, workflow
from temporalio.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
from temporalio.openai_agents.workflow import activity_as_tool
from temporalio.worker import Worker

from bench.peers import conversation
from bench.peers.conversation import (
    HEARTBEAT_SECONDS,
    INSTRUCTIONS,
    MODEL,
    MODEL_CALL_SECONDS,
    MOST_MODEL_CALLS,
)
from bench.peers.service import Options, Peer
from bench.peers.temporal import Conversation, WorkflowPeer, connect

PACKAGES = ("temporalio-openai-agents", "openai-agents", "temporalio")


@activity.defn
async def look_up(number: int) -> str:
    """Look a number up."""
    return conversation.look_up(number)


@workflow.defn
class Chat(Conversation):
    """A conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._items: list[Any] = []
        self._agent = Agent(
            name="peer",
            instructions=INSTRUCTIONS,
            model=MODEL,
            tools=[activity_as_tool(look_up, start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS))],
        )

    @workflow.run
    async def run(self, renews: bool, carried: list[Any]) -> None:
        """Serve the conversation."""
        self._items = carried
        await self.serve(renews=renews)
        workflow.continue_as_new(args=[renews, self._items])

    async def answer(self, text: str) -> str:
        """Run the agent with the complete conversation."""
        result = await Runner.run(
            self._agent,
            [*self._items, {"role": "user", "content": text}],
            max_turns=MOST_MODEL_CALLS,
            run_config=RunConfig(tracing_disabled=True),
        )
        self._items = result.to_input_list()
        return str(result.final_output)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    provider: ModelProvider = OpenAIProvider(use_responses=False)
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(
            start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
        ),
        model_provider=provider,
    )
    client = await connect(options, plugins=[plugin])
    worker = Worker(client, task_queue=options.task_queue, workflows=[Chat], activities=[look_up])
    async with worker:
        yield WorkflowPeer(client, Chat, options)
