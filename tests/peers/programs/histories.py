"""Conversations with other libraries, and the files in which they keep them. Each has an image, a tool and an answer.

The first argument is the library, the second the folder of the files.
"""

import asyncio
import base64
import json
import os
import sys
from pathlib import Path
from typing import Any

from agents import Agent, OpenAIResponsesModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from langchain_core.load import dumpd
from langchain_core.messages import HumanMessage, SystemMessage, messages_to_dict
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI, OpenAI
from pydantic_ai import Agent as PydanticAgent
from pydantic_ai import BinaryContent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL, API_KEY, MODEL = os.environ["BASE_URL"], os.environ["API_KEY"], os.environ["MODEL"]
PNG = Path(os.environ["IMAGE"]).read_bytes()
IMAGE = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
PROMPT, QUESTION = "You know the weather.", "What is the weather in 'Porto'?"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
FUNCTION = {"name": "get_weather", "description": "Tell the weather.", "parameters": PARAMETERS}


def run_chat(folder: Path) -> None:
    """The official client and Chat Completions: the list that a program sends with each request."""
    client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    messages: list[Any] = [{"role": "system", "content": PROMPT}, {"role": "user", "content": content}]
    for _ in range(2):
        done = client.chat.completions.create(
            model=MODEL, messages=messages, tools=[{"type": "function", "function": FUNCTION}]
        )
        reply = done.choices[0].message
        messages.append(reply.model_dump())
        messages += [{"role": "tool", "tool_call_id": call.id, "content": "sun"} for call in reply.tool_calls or ()]
    (folder / "chat.json").write_text(json.dumps(messages))
    (folder / "chat.jsonl").write_text("".join(f"{json.dumps(message)}\n" for message in messages))
    (folder / "request.json").write_text(json.dumps({"model": MODEL, "messages": messages}))


def run_responses(folder: Path) -> None:
    """The official client and Responses: the items of the input, with those of each output."""
    client = OpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    content = [{"type": "input_text", "text": QUESTION}, {"type": "input_image", "image_url": IMAGE}]
    items: list[Any] = [{"role": "user", "content": content}]
    done: Any = None
    for _ in range(2):
        sent = list(items)
        done = client.responses.create(
            model=MODEL, instructions=PROMPT, input=items, tools=[{"type": "function", **FUNCTION}]
        )
        items += [item.model_dump() for item in done.output]
        items += [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
            for item in done.output
            if item.type == "function_call"
        ]
    (folder / "items.json").write_text(json.dumps([{"role": "developer", "content": PROMPT}, *items]))
    (folder / "response.json").write_text(json.dumps({**done.model_dump(), "input": sent}))


def run_langgraph(folder: Path) -> None:
    """LangGraph: the messages of a thread's state, in the three forms in which LangChain writes them."""

    @tool
    def get_weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    model = ChatOpenAI(base_url=BASE_URL, api_key=API_KEY, model=MODEL).bind_tools([get_weather])
    made = StateGraph(MessagesState)
    made.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    made.add_node("tools", ToolNode([get_weather]))
    made.add_edge(START, "model")
    made.add_conditional_edges("model", tools_condition)
    made.add_edge("tools", "model")
    graph = made.compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    content = [{"type": "text", "text": QUESTION}, {"type": "image_url", "image_url": {"url": IMAGE}}]
    graph.invoke({"messages": [SystemMessage(PROMPT), HumanMessage(content)]}, config)
    messages = graph.get_state(config).values["messages"]
    (folder / "messages_to_dict.json").write_text(json.dumps(messages_to_dict(messages)))
    (folder / "dumpd.json").write_text(json.dumps(dumpd(messages)))
    (folder / "model_dump.json").write_text(json.dumps([message.model_dump(mode="json") for message in messages]))
    (folder / "state.json").write_text(json.dumps({"values": dumpd(graph.get_state(config).values)}))


async def run_agents_sdk(folder: Path) -> None:
    """The OpenAI Agents SDK: the database of its sessions, and what `get_items` returns."""
    set_tracing_disabled(True)

    @function_tool
    def get_weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    model = OpenAIResponsesModel(
        model=MODEL, openai_client=AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    )
    agent = Agent(name="weather", instructions=PROMPT, model=model, tools=[get_weather])
    session, other = (SQLiteSession(name, folder / "sessions.db") for name in ("ada@example.com", "other"))
    content = [{"type": "input_text", "text": QUESTION}, {"type": "input_image", "image_url": IMAGE}]
    await Runner.run(agent, [{"role": "user", "content": content}], session=session, max_turns=4)
    await other.add_items([{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}])
    (folder / "get_items.json").write_text(json.dumps(await session.get_items()))
    session.close()
    other.close()


async def run_pydantic_ai(folder: Path) -> None:
    """Pydantic AI: all messages of a run."""
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE_URL, api_key=API_KEY))
    agent = PydanticAgent(model, instructions=PROMPT)

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather."""
        return "sun"

    done = await agent.run([QUESTION, BinaryContent(PNG, media_type="image/png")])
    (folder / "all_messages.json").write_bytes(done.all_messages_json())


if __name__ == "__main__":
    library, written = sys.argv[1], Path(sys.argv[2])
    if library in ("agents_sdk", "pydantic_ai"):
        asyncio.run({"agents_sdk": run_agents_sdk, "pydantic_ai": run_pydantic_ai}[library](written))
    else:
        {"chat": run_chat, "responses": run_responses, "langgraph": run_langgraph}[library](written)
