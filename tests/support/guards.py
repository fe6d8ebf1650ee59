"""Hooks for tests: each refuses what names it."""

from __future__ import annotations

from clew.hooks import (
    CheckedAnswer,
    CheckedMessage,
    CheckedToolCall,
    Refuse,
    check_answer,
    check_message,
    check_tool_call,
)


@check_message
async def refuse_rude(message: CheckedMessage) -> None:
    """Refuse messages with `rude`, and fail for those with `broken`."""
    if "broken" in message.text:
        raise RuntimeError("the filter is down")
    if "rude" in message.text:
        raise Refuse(f"{message.kind} is rude")


@check_tool_call
def refuse_large(call: CheckedToolCall) -> None:
    """Refuse sums of large numbers."""
    if call.name == "add" and call.arguments["a"] > 100:
        raise Refuse("too large")


@check_answer
async def refuse_secret(answer: CheckedAnswer) -> None:
    """Refuse answers with `secret`."""
    if "secret" in answer.text:
        raise Refuse("it has a secret")
