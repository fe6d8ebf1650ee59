"""Provider requests in the form of the contract, to compare with rebuilt contexts."""

from __future__ import annotations

import json
from typing import Any


def decode_request(body: dict[str, Any]) -> dict[str, Any]:
    """Convert the body of a provider's request to the form of the contract."""
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for wire_message in body["messages"]:
        message = {"role": wire_message["role"], "content": wire_message["content"] or ""}
        if calls := wire_message.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                for call in calls
            ]
            names |= {call["id"]: call["name"] for call in message["tool_calls"]}
        if wire_message["role"] == "tool":
            message |= {"tool_call_id": wire_message["tool_call_id"], "name": names[wire_message["tool_call_id"]]}
        messages.append(message)
    form = body.get("response_format")
    return {
        "messages": messages,
        "tool_spec": [
            {name: tool["function"][name] for name in ("name", "description", "parameters")}
            for tool in body.get("tools", [])
        ],
        "output_schema": form["json_schema"]["schema"] if form else None,
    }
