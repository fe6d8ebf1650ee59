"""Pydantic AI on Temporal, by its own integration.

The capability `TemporalDurability` makes model calls and tool calls activities. With continue-as-new, its handler
continues in the middle of a turn, too.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from pydantic_ai import Agent, ModelMessage, RunContext, UsageLimits
from pydantic_ai.durable_exec.temporal import PydanticAIPlugin, PydanticAIWorkflow, TemporalDurability
from pydantic_ai.models.openai import OpenAIChatModel
from temporalio import workflow
from temporalio.worker import Worker
from temporalio.workflow import ActivityConfig

from bench.peers.conversation import (
    HEARTBEAT_SECONDS,
    INSTRUCTIONS,
    MODEL,
    MODEL_CALL_SECONDS,
    MOST_MODEL_CALLS,
    look_up,
)
from bench.peers.service import Options, Peer
from bench.peers.temporal import Conversation, WorkflowPeer, connect

PACKAGES = ("pydantic-ai-slim", "temporalio")


async def renew(context: RunContext[None]) -> None:
    """Continue as new in the middle of a turn."""
    chat = workflow.instance()
    if isinstance(chat, Chat) and chat.renews:
        workflow.continue_as_new(args=[True, context.messages, chat.turn])


agent = Agent(
    OpenAIChatModel(MODEL),
    name="peer",
    instructions=INSTRUCTIONS,
    capabilities=[
        TemporalDurability(
            model_activity_config=ActivityConfig(
                start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS),
                heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
            ),
            continue_as_new=renew,
        )
    ],
)
agent.tool_plain(look_up)


@workflow.defn
class Chat(Conversation, PydanticAIWorkflow):
    """A conversation."""

    __pydantic_ai_agents__ = (agent,)

    # An update may reach the next workflow run before `run` begins: the turn is known by then.
    @workflow.init
    def __init__(self, renews: bool, carried: list[ModelMessage], turn: str = "") -> None:
        super().__init__()
        self.renews, self._messages, self._turn = renews, carried, turn

    @property
    def turn(self) -> str:
        """The turn that is being answered."""
        return self._turn

    @workflow.run
    async def run(self, renews: bool, carried: list[ModelMessage], turn: str = "") -> None:  # noqa: ARG002 - as __init__
        """Serve the conversation."""
        if turn:
            self._answers = {turn: await self._run_agent(None)}
        await self.serve(renews=renews)
        workflow.continue_as_new(args=[renews, self._messages, ""])  # typed only if all are passed

    async def answer(self, text: str) -> str:
        """Run the agent with the complete conversation."""
        return await self._run_agent(text)

    async def _run_agent(self, text: str | None) -> str:
        result = await agent.run(
            text, message_history=self._messages, usage_limits=UsageLimits(request_limit=MOST_MODEL_CALLS)
        )
        self._messages = result.all_messages()
        return result.output


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    client = await connect(options, plugins=[PydanticAIPlugin()])
    async with Worker(client, task_queue=options.task_queue, workflows=[Chat]):
        yield WorkflowPeer(client, Chat, options)
