"""The OpenAI Agents SDK as a client of a service: a forced tool, and a hand-off."""

import asyncio
import json
import os
import sys
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    handoff,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

BASE_URL, API_KEY, MODEL = os.environ["BASE_URL"], os.environ["API_KEY"], os.environ["MODEL"]


async def run(api: str) -> dict[str, Any]:
    """The OpenAI Agents SDK: a forced tool, which it resets itself, and a hand-off with other instructions."""
    set_tracing_disabled(True)
    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    model = kind(model=MODEL, openai_client=client)
    calls: list[str] = []

    @function_tool
    def get_weather(city: str) -> str:
        """Tell the weather."""
        calls.append(city)
        return "sun"

    agent = Agent(
        name="weather",
        instructions="You tell the weather.",
        model=model,
        tools=[get_weather],
        model_settings=ModelSettings(tool_choice="required"),
    )
    done = await Runner.run(agent, "Weather in 'Porto'?", max_turns=4)
    sales = Agent(name="sales", instructions="You sell.", model=model)
    triage = Agent(name="triage", instructions="You route.", model=model, handoffs=[handoff(sales)])
    handed = await Runner.run(triage, "I want to buy.", max_turns=4)
    streamed = Runner.run_streamed(agent, "Weather in 'Lima'?", max_turns=4)
    async for _ in streamed.stream_events():
        pass
    return {
        "answer": done.final_output,
        "calls": calls,
        "last_agent": handed.last_agent.name,
        "handed": handed.final_output,
        "streamed": streamed.final_output,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
