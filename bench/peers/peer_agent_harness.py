"""Temporal Agent Harness with the OpenAI Agents SDK.

Model calls stream onto the harness's event stream, as its documentation has it; the client reads the turn's events to
the end. Payloads from 1.5 MB on go to files, as is its default. It has no continue-as-new.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.common import WorkflowIDConflictPolicy
from temporalio.contrib.workflow_streams import WorkflowStream
from temporalio.worker import Worker
from temporalio.workflow import ActivityConfig

from bench.peers import conversation
from bench.peers.conversation import HEARTBEAT_SECONDS, INSTRUCTIONS, MODEL, MODEL_CALL_SECONDS, MOST_MODEL_CALLS
from bench.peers.service import Options, Peer, Size
from bench.peers.temporal import measure_runs

with workflow.unsafe.imports_passed_through():
    from agents import Agent, OpenAIProvider, RunConfig, Runner
    from temporal_agent_harness.ai_sdks.openai_agents import ModelActivityParameters, OpenAIAgentsPlugin
    from temporal_agent_harness.ai_sdks.openai_agents_harness import (
        as_openai_agent_tools,
        harness_observer_factory,
        stream_to_provider,
    )
    from temporal_agent_harness.harness import AgentWorkflowRunner, agent
    from temporal_agent_harness.harness.agent_client import AgentClient
    from temporal_agent_harness.harness.agent_protocol import (
        AgentConfig,
        MessageHandlerEnd,
        TextMessage,
        TextReply,
        ToolApprovalPolicy,
    )
    from temporal_agent_harness.plugin import AgentHarnessPlugin
    from temporal_agent_harness.utils.large_payload import local_payload_storage

PACKAGES = ("temporal-agent-harness", "openai-agents", "temporalio")


@agent.activity_tool_defn(
    activity_config=ActivityConfig(start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS)), inherently_safe=True
)
async def look_up(number: int) -> str:
    """Look a number up."""
    return conversation.look_up(number)


@agent.defn
class Chat:
    """A conversation."""

    @agent.init
    def __init__(self, config: AgentConfig) -> None:
        self._runner = AgentWorkflowRunner(
            config,
            stream=WorkflowStream(),
            approval_policy_default=ToolApprovalPolicy.allow_inherently_safe(),
        )
        tools: list[Any] = as_openai_agent_tools(self._runner, [look_up])
        self._agent = Agent(name="peer", instructions=INSTRUCTIONS, model=MODEL, tools=tools)
        self._items: list[Any] = []

    @agent.accepts
    async def chat(self, message: TextMessage) -> TextReply:
        """Run the agent with the complete conversation."""
        result = Runner.run_streamed(
            self._agent,
            [*self._items, {"role": "user", "content": message.text}],
            context=self._runner,
            max_turns=MOST_MODEL_CALLS,
            run_config=RunConfig(tracing_disabled=True),
        )
        async for _ in result.stream_events():
            pass
        self._items = result.to_input_list()
        return TextReply(text=str(result.final_output))


class HarnessPeer:
    """Conversations as the harness's agents."""

    def __init__(self, client: Client, options: Options) -> None:
        self._client = client
        self._options = options

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Send a message, and read the turn's events to its reply."""
        peer = AgentClient(self._client, conversation)
        await self._client.start_workflow(
            Chat.__name__,
            AgentConfig(),
            id=conversation,
            task_queue=self._options.task_queue,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        )
        reply = ""
        events = await peer.send_message(
            "chat", {"text": text}, on_item=lambda item, _: item, update_id=turn, timeout=None
        )
        async for event in events:
            if isinstance(event, Exception):
                raise event
            if isinstance(event.event, MessageHandlerEnd):
                reply = str(event.event.output["text"])
        return reply

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Send the message with its id again: it is not taken twice, and its turn's events are read."""
        return await self.say(conversation, turn, text)

    async def measure(self, conversation: str) -> Size:
        """Sum the history and the payloads in files."""
        size = await measure_runs(self._client, conversation)
        folder = self._options.folder / "payloads"
        stored = sum(path.stat().st_size for path in folder.iterdir()) if folder.exists() else 0
        return Size(size.bytes, size.events, size.runs, stored)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    plugin = OpenAIAgentsPlugin(
        model_params=ModelActivityParameters(
            start_to_close_timeout=timedelta(seconds=MODEL_CALL_SECONDS),
            heartbeat_timeout=timedelta(seconds=HEARTBEAT_SECONDS),
            stream_to_provider=stream_to_provider,
        ),
        model_provider=OpenAIProvider(use_responses=False),
        observer_factory=harness_observer_factory,
    )
    storage = local_payload_storage(base_dir=options.folder / "payloads")
    harness = AgentHarnessPlugin(tools=[look_up], large_payload_offload=storage)
    client = await Client.connect(options.temporal, plugins=[plugin, harness])
    async with Worker(client, task_queue=options.task_queue, workflows=[Chat]):
        yield HarnessPeer(client, options)
