"""A model without a key: it speaks OpenAI's protocol on this machine, follows a script, and prints its address.

python model.py
"""

import asyncio
import json

from clew.local import Reply, ToolCall, scripted_model


def script(body):
    """Look the order up, refund it if the customer asks for that, and answer."""
    messages = body["messages"]
    newest = max(at for at, message in enumerate(messages) if message["role"] == "user")
    results = [message["content"] for message in messages[newest:] if message["role"] == "tool"]
    if not results:
        return Reply(tool_calls=[ToolCall("lookup_order", {"order_id": 1234})])
    if "refund" not in messages[newest]["content"]:
        return Reply(f"Your order is {json.loads(results[0])['status']}.")
    if len(results) == 1:
        return Reply(tool_calls=[ToolCall("refund", {"order_id": 1234})])
    return Reply("Done: you get 42.00 EUR back. You may keep the lamp, or give it to somebody.", tokens_per_second=3)


async def main():
    """Serve the script until Ctrl-C."""
    async with scripted_model(script) as model:
        print(model.base_url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
