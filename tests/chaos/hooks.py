"""The hooks of the workers. The oracle asks the same functions what they refuse."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from clew.hooks import (
    CheckedAnswer,
    CheckedMessage,
    CheckedToolCall,
    Refuse,
    check_answer,
    check_message,
    check_tool_call,
)
from tests.chaos.model import SECRET, find_behaviour

FAILURE_SHARE = 0.02
"""Share of the checks of calls and answers that fail, and are repeated."""


def is_refused(text: str) -> bool:
    """Whether the hooks refuse a message, or fail for it at every attempt."""
    return find_behaviour(text) in ("rude", "unchecked")


def is_refused_call(tool: str, arguments: Mapping[str, Any]) -> bool:
    """Whether the hooks refuse a call."""
    cents = arguments.get("cents")
    return tool == "charge" and isinstance(cents, int) and cents % 4 == 0


@check_message
async def check_tone(message: CheckedMessage) -> None:
    """Refuse messages, and fail for some."""
    if is_refused(message.text):
        raise Refuse("be kind") if find_behaviour(message.text) == "rude" else RuntimeError("the filter is down")


@check_tool_call
def check_price(call: CheckedToolCall) -> None:
    """Refuse some charges."""
    _fail_at_times()
    if is_refused_call(call.name, call.arguments):
        raise Refuse("it is too much")


@check_answer
async def check_secrets(answer: CheckedAnswer) -> None:
    """Refuse answers that have the secret."""
    _fail_at_times()
    if SECRET in answer.text:
        raise Refuse("it has a secret")


def _fail_at_times() -> None:
    if random.random() < FAILURE_SHARE:
        raise RuntimeError("the filter is slow to start")
