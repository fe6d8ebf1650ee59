"""Provider requests in the form of the contract, to compare with rebuilt contexts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from clew_workflows.contract.messages import Message, list_call_ids


def decode_request(body: dict[str, Any], context: Sequence[Message] = ()) -> dict[str, Any]:
    """Convert the body of a provider's request to the form of the contract.

    `context`: the rebuilt context, whose tool calls have the session's ids. A request has those, or the provider's.
    """
    messages: list[dict[str, Any]] = []
    calls_by_id: dict[str, dict[str, Any]] = {}
    calling = [message for message in context if message.get("tool_calls")]
    for wire_message in body["messages"]:
        message: dict[str, Any] = {"role": wire_message["role"], "content": wire_message["content"] or ""}
        if wire_calls := wire_message.get("tool_calls"):
            known: Message | None = calling.pop(0) if calling else None
            ids = list_call_ids(known) if known else [call["id"] for call in wire_calls]
            for call_id, call in zip(ids, wire_calls, strict=True):
                arguments = json.loads(call["function"]["arguments"])
                calls_by_id[call["id"]] = {"id": call_id, "name": call["function"]["name"], "arguments": arguments}
            message["tool_calls"] = [calls_by_id[call["id"]] for call in wire_calls]
            if known and (data := known.get("provider_data")):
                message["provider_data"] = data
                own_ids = [call["id"] for call in data.get("calls", [])]
                assert [call["id"] for call in wire_calls] in (own_ids, ids)
        if wire_message["role"] == "tool":
            call = calls_by_id[wire_message["tool_call_id"]]
            message |= {"tool_call_id": call["id"], "name": call["name"]}
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
