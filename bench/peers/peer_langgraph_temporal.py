"""LangGraph on Temporal, by the package `temporalio-langgraph`: the model's node and the tools' node are activities.

The graph's state is the list of messages. The workflow keeps it and passes it to the next run of the graph, as its
documentation says: Temporal keeps what is durable, no checkpointer does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

from temporalio import workflow
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.langgraph import LangGraphPlugin, graph
from temporalio.worker import Worker

with workflow.unsafe.imports_passed_through():
    from langchain_core.messages import SystemMessage, convert_to_messages
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import END, START, MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition

from bench.peers.conversation import (
    HEARTBEAT_SECONDS,
    INSTRUCTIONS,
    MODEL,
    MODEL_CALL_SECONDS,
    MOST_MODEL_CALLS,
    look_up,
)
from bench.peers.service import Options, Peer
from bench.peers.temporal import Conversation, WorkflowPeer, connect, heartbeats

PACKAGES = ("temporalio-langgraph", "langgraph", "temporalio")
TOOLS = [tool(look_up)]


async def call_model(state: MessagesState) -> dict[str, Any]:
    """Call the model with the complete conversation."""
    async with heartbeats():
        reply = await _make_model().ainvoke([SystemMessage(INSTRUCTIONS), *_read_messages(state)])
    return {"messages": [reply]}


async def call_tools(state: MessagesState) -> Any:
    """Carry out the calls of the newest message."""
    return await ToolNode(TOOLS).ainvoke({"messages": _read_messages(state)})


def _read_messages(state: MessagesState) -> list[Any]:
    """Make messages of the plain objects that an activity gets."""
    return convert_to_messages(state["messages"])


def _make_model() -> Any:
    if not _models:
        _models.append(ChatOpenAI(model=MODEL).bind_tools(TOOLS))
    return _models[0]


_models: list[Any] = []


async def route(state: MessagesState) -> str:
    """Choose the next node. A workflow cannot run the prebuilt condition itself: it needs a thread."""
    return str(tools_condition(state))


def make_graph() -> Any:
    """Make the graph: model, then tools while it calls them."""
    timeout = timedelta(seconds=MODEL_CALL_SECONDS)
    made = StateGraph(MessagesState)
    made.add_node(
        "model",
        call_model,
        metadata={
            "execute_in": "activity",
            "start_to_close_timeout": timeout,
            "heartbeat_timeout": timedelta(seconds=HEARTBEAT_SECONDS),
        },
    )
    made.add_node("tools", call_tools, metadata={"execute_in": "activity", "start_to_close_timeout": timeout})
    made.add_edge(START, "model")
    made.add_conditional_edges("model", route, ["tools", END])
    made.add_edge("tools", "model")
    return made


@workflow.defn
class Chat(Conversation):
    """A conversation."""

    def __init__(self) -> None:
        super().__init__()
        self._messages: list[Any] = []
        self._graph = graph("chat").compile()

    @workflow.run
    async def run(self, renews: bool, carried: list[Any]) -> None:
        """Serve the conversation."""
        self._messages = convert_to_messages(carried)
        await self.serve(renews=renews)
        workflow.continue_as_new(args=[renews, self._messages])

    async def answer(self, text: str) -> str:
        """Run the graph with the complete conversation."""
        state = await self._graph.ainvoke(
            {"messages": [*self._messages, {"role": "user", "content": text}]},
            {"recursion_limit": 2 * MOST_MODEL_CALLS},
        )
        self._messages = state["messages"]
        return str(self._messages[-1].content)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Run the worker."""
    plugin = LangGraphPlugin(graphs={"chat": make_graph()})
    client = await connect(options, converter=pydantic_data_converter)
    async with Worker(client, task_queue=options.task_queue, workflows=[Chat], plugins=[plugin]):
        yield WorkflowPeer(client, Chat, options)
