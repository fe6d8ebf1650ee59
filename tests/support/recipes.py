"""A context made again from the recipe of a reply."""

from __future__ import annotations

import json
from typing import Any


def decoded(body: dict[str, Any]) -> dict[str, Any]:
    """A provider's request as the contract has it: read back from what was on the wire, and from nothing else."""
    messages: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for sent in body["messages"]:
        message = {"role": sent["role"], "content": sent["content"] or ""}
        if calls := sent.get("tool_calls"):
            message["tool_calls"] = [
                {
                    "id": call["id"],
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                for call in calls
            ]
            names |= {call["id"]: call["name"] for call in message["tool_calls"]}
        if sent["role"] == "tool":
            message |= {"tool_call_id": sent["tool_call_id"], "name": names[sent["tool_call_id"]]}
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
