"""LangGraph with its SQLite checkpointer, without Temporal: a graph of a model's node and a tools' node.

`durability="sync"` writes each step before the next one begins. After a restart the application continues the thread
itself, by a call without input. The configuration `delta channel` keeps the messages in a channel that writes only
what is new (a beta in this version); otherwise each checkpoint has all messages.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AnyMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition

from bench.peers.conversation import INSTRUCTIONS, MODEL, MOST_MODEL_CALLS, look_up
from bench.peers.service import Options, Peer, Size

PACKAGES = ("langgraph", "langgraph-checkpoint-sqlite")
DELTA = "delta channel"


def merge(messages: list[AnyMessage], writes: Sequence[Any]) -> list[AnyMessage]:
    """Add batches of messages."""
    for write in writes:
        messages = add_messages(messages, write)
    return messages


class DeltaState(TypedDict):
    """The state whose checkpoints have only what is new."""

    messages: Annotated[list[AnyMessage], DeltaChannel(merge)]


class GraphPeer:
    """Threads of a graph."""

    def __init__(self, saver: AsyncSqliteSaver, state: Any) -> None:
        self._saver = saver
        model = ChatOpenAI(model=MODEL).bind_tools([tool(look_up)])

        async def call_model(values: Any) -> dict[str, Any]:
            return {"messages": [await model.ainvoke([SystemMessage(INSTRUCTIONS), *values["messages"]])]}

        graph = StateGraph(state)
        graph.add_node("model", call_model)
        graph.add_node("tools", ToolNode([tool(look_up)]))
        graph.add_edge(START, "model")
        graph.add_conditional_edges("model", tools_condition)
        graph.add_edge("tools", "model")
        self._graph = graph.compile(checkpointer=saver)

    async def say(self, conversation: str, turn: str, text: str) -> str:
        """Add a message and run the graph."""
        return await self._run(conversation, {"messages": [{"role": "user", "content": text, "id": turn}]})

    async def resume(self, conversation: str, turn: str, text: str) -> str:
        """Continue the thread after its last checkpoint, which has the message."""
        del turn, text
        return await self._run(conversation, None)

    async def _run(self, conversation: str, values: dict[str, Any] | None) -> str:
        config = {"configurable": {"thread_id": conversation}, "recursion_limit": 2 * MOST_MODEL_CALLS}
        state = await self._graph.ainvoke(values, config, durability="sync")
        return str(state["messages"][-1].content)

    async def measure(self, conversation: str) -> Size:
        """Sum the rows of the thread."""
        async with self._saver.conn.execute(
            "SELECT (SELECT coalesce(sum(length(checkpoint) + length(metadata)), 0) FROM checkpoints"
            " WHERE thread_id = ?1) + (SELECT coalesce(sum(length(value)), 0) FROM writes WHERE thread_id = ?1),"
            " (SELECT count(*) FROM checkpoints WHERE thread_id = ?1)"
            " + (SELECT count(*) FROM writes WHERE thread_id = ?1)",
            (conversation,),
        ) as cursor:
            row = await cursor.fetchone()
        return Size(*row)


@asynccontextmanager
async def open_peer(options: Options) -> AsyncIterator[Peer]:
    """Open the database."""
    async with AsyncSqliteSaver.from_conn_string(str(options.folder / "checkpoints.sqlite")) as saver:
        await saver.setup()
        yield GraphPeer(saver, DeltaState if options.configuration == DELTA else MessagesState)
