"""litellm as a client of a service: a completion, a stream, and a history with a tool."""

import asyncio
import json
import os
import sys
from typing import Any

import litellm

BASE_URL, API_KEY, MODEL = os.environ["BASE_URL"], os.environ["API_KEY"], os.environ["MODEL"]


async def run(_api: str) -> dict[str, Any]:
    """litellm: a completion, a stream, and a history that ends with a tool's result."""
    common: dict[str, Any] = {"model": f"openai/{MODEL}", "api_base": BASE_URL, "api_key": API_KEY}
    user = {"role": "user", "content": "Hi"}
    made = await litellm.acompletion(messages=[user], **common)
    stream = await litellm.acompletion(messages=[user], stream=True, **common)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    call = {"id": "x1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    history = [user, {"role": "assistant", "content": None, "tool_calls": [call]}]
    told = await litellm.acompletion(
        messages=[*history, {"role": "tool", "tool_call_id": "x1", "content": "3"}], **common
    )
    return {
        "answer": made.choices[0].message.content,
        "streamed": text,
        "told": told.choices[0].message.content,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(asyncio.run(run(sys.argv[1]))) + "\n")
