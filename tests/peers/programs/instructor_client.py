"""instructor as a client of a service: typed answers."""

import asyncio
import json
import os
import sys
from typing import Any

import instructor
from openai import AsyncOpenAI
from pydantic import BaseModel

BASE_URL, API_KEY, MODEL = os.environ["BASE_URL"], os.environ["API_KEY"], os.environ["MODEL"]


class City(BaseModel):
    """A city."""

    name: str


async def run(_api: str) -> dict[str, Any]:
    """instructor: a typed answer by a forced tool, and by a JSON Schema."""
    client = AsyncOpenAI(base_url=BASE_URL, api_key=API_KEY, max_retries=0)
    seen = {}
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        patched = instructor.from_openai(client, mode=mode)
        made = await patched.chat.completions.create(
            model=MODEL, response_model=City, messages=[{"role": "user", "content": "Which? 'Porto'"}], max_retries=0
        )
        seen[mode.name] = made.name
    return seen


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
