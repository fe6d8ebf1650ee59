"""Strands Agents on Temporal, by the package `temporalio-strands-agents`.

The agent keeps the messages; with continue-as-new they are carried. Strands shows a window of 40 messages by default:
here its conversation manager shows all.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from strands.agent.conversation_manager import NullConversationManager
from strands.models.openai import OpenAIModel
from temporalio import activity, workflow
from temporalio.strands_agents import StrandsPlugin, TemporalAgent
from temporalio.strands_agents.workflow import activity_as_tool
from temporalio.worker import Worker

from bench.peers import conversation
from bench.peers.conversation import HEARTBEAT_SECONDS, INSTRUCTIONS, MODEL, MODEL_CALL_SECONDS
from bench.peers.service import Options, Peer
from bench.peers.temporal import Conversation, WorkflowPeer, connect

PACKAGES = ("temporalio-strands-agents", "strands-agents", "temporalio")


@activity.defn
async def look_up(number: int) -> str:
    """Look a number up."""
    return conversation.look_up(number)


@workflow.defn
class Chat(Conversation):
    """A conversation."""

    @workflow.run
    async def run(self, renews: bool, carried: list[dict[str, Any]]) -> None:
        """Serve the conversation."""
        timeout = timedelta(seconds=MODEL_CALL_SECONDS)
        self._agent = TemporalAgent(
            model="scripted",
            start_to_close_timeout=timeout,
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
            system_prompt=INSTRUCTIONS,
            messages=carried,
            tools=[activity_as_tool(look_up, start_to_close_timeout=timeout)],
            conversation_manager=NullConversationManager(),
            callback_handler=None,
        )
        await self.serve(renews=renews)
        workflow.continue_as_new(args=[renews, self._agent.messages])

    async def answer(self, text: str) -> str:
        """Run the agent, which keeps the conversation."""
        return str(await self._agent.invoke_async(text))


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    plugin = StrandsPlugin(models={"scripted": lambda: OpenAIModel(model_id=MODEL)})
    client = await connect(options, plugins=[plugin])
    worker = Worker(client, task_queue=options.task_queue, workflows=[Chat], activities=[look_up])
    async with worker:
        yield WorkflowPeer(client, Chat, options)
