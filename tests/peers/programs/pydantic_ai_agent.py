"""pydantic-ai as a client of a service: a tool, and a typed answer."""

import asyncio
import json
import os
import sys
from typing import Any

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider

BASE_URL, API_KEY, MODEL = os.environ["BASE_URL"], os.environ["API_KEY"], os.environ["MODEL"]


class City(BaseModel):
    """A city."""

    name: str


async def run(api: str) -> dict[str, Any]:
    """pydantic-ai: a tool and a typed answer."""
    provider = OpenAIProvider(base_url=BASE_URL, api_key=API_KEY)
    model = (OpenAIResponsesModel if api == "responses" else OpenAIChatModel)(MODEL, provider=provider)
    calls: list[str] = []
    agent = Agent(model, instructions="Be brief.")

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Tell the weather."""
        calls.append(city)
        return "sun"

    first = await agent.run("Weather in 'Porto'?")
    second = await Agent(model, output_type=City).run("Which? 'Porto'")
    return {"answer": first.output, "calls": calls, "city": second.output.name}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
