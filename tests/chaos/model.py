"""The scripted model: the second word of the newest user message says what it does.

Each of its texts names the model that was called, and the image that the newest message has.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from hashlib import sha256
from http import HTTPStatus
from typing import Any

from pydantic import BaseModel

from clew.local import Reply, ToolCall

FIRST, SECOND, SPARE = "chaos:first", "chaos:second", "spare:third"
"""The models. The spare one is never down, and nothing fails on the way to it."""
SUMMARY = "They spoke of thread and labyrinths."
SECRET = "the way out"
"""A text that the hooks refuse in answers."""
_COMPLAINT = "Your answer is not of the form asked for"


class Verdict(BaseModel):
    """The form of structured answers.

    Attributes:
        read: The number of messages that the model has read.
        by: The model.
    """

    read: int
    by: str


def find_behaviour(text: str) -> str:
    """Find the word that says what the model does; empty: the text is not a message of a caller."""
    return text.partition(": ")[2].partition(" ")[0]


async def reply_as_instructed(body: dict[str, Any]) -> Reply:
    """Reply as the newest user message instructs."""
    messages, model = body["messages"], body["model"]
    newest, image = _read_newest(messages)
    if newest.startswith(_COMPLAINT):
        return Reply(_make_verdict(body, is_formed="never" not in str(messages[-2]["content"])))
    name, colon, words = newest.partition(": ")
    if not colon:
        return Reply(SUMMARY)
    number, has_results = sum(name.encode()), messages[-1]["role"] == "tool"
    behaviour = words.partition(" ")[0]
    offered = {tool["function"]["name"] for tool in body.get("tools") or ()}
    if not has_results or behaviour == "loop":
        calls = tuple(call for call in _make_calls(behaviour, name, number) if call.name in offered | {"nobody"})
        if calls:
            return Reply("at once" if number % 2 else "", tool_calls=calls)
    signature = f"(by {model})"
    match behaviour:
        case "break":
            return Reply("no", status=HTTPStatus.BAD_REQUEST)
        case "down" if not SPARE.endswith(model):
            return Reply("no", status=HTTPStatus.SERVICE_UNAVAILABLE)
        case "slow":
            return Reply(f"{name} took its time. " * 20 + signature, tokens_per_second=30)
        case "leak":
            return Reply(f"{name}: here is {SECRET} {signature}")
        case "form":
            return Reply(_make_verdict(body, is_formed=True))
        case "misform":
            return Reply("soon" if number % 2 else "never")
        case "look":
            return Reply(f"{name} shows {image} {signature}")
    await asyncio.sleep(number % 5 / 50)
    return Reply(f"{name} was read among {len(messages)} messages {signature}")


def _read_newest(messages: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Read the newest user message: the text, and the digest of the image behind it; None: there is none.

    After a run that failed, its message and the next one are sent as one.
    """
    content: Any = next((m["content"] for m in reversed(messages) if m["role"] == "user"), "")
    parts: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text, image = "", None
    for part in parts:
        if part["type"] == "text":
            text, image = part["text"].rpartition("\n\n")[2], None
        else:
            image = sha256(b64decode(part["image_url"]["url"].partition(",")[2])).hexdigest()
    return text, image


def _make_verdict(body: dict[str, Any], *, is_formed: bool) -> str:
    verdict = {"read": len(body["messages"]), "by": f"(by {body['model']})"}
    return json.dumps(verdict) if is_formed else f"never {verdict}"


def _make_calls(behaviour: str, name: str, number: int) -> tuple[ToolCall, ...]:
    match behaviour:
        case "note" | "flaky":
            return (ToolCall(behaviour, {"text": name}),)
        case "charge" | "wire":
            return (ToolCall(behaviour, {"cents": number}),)
        case "both":
            return (
                ToolCall("note", {"text": name}),
                ToolCall("charge", {"cents": number}),
                ToolCall("nap", {"seconds": 1}),
            )
        case "order":
            return (ToolCall("order", {"item": name}), ToolCall("charge", {"cents": number}))
        case "nap":
            return (ToolCall("nap", {"seconds": number % 9}),)
        case "big":
            return (ToolCall("big", {"kilobytes": 200}),)
        case "loop":
            return (ToolCall("note", {"text": name}),)
        case "odd":
            return (ToolCall("nobody", {}), ToolCall("charge", '{"cents": '), ToolCall("note", {"number": "x"}))
        case "delegate":
            return (ToolCall("helper", {"task": f"{name}-task: {('charge', 'note', 'say')[number % 3]} please"}),)
        case _:
            return ()
