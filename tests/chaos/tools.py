"""The tools and the agents of the sessions.

Each attempt of a call writes its effect to a file outside of Clew before it answers.
"""

from __future__ import annotations

import json
import os
import time

from clew import Agent, ContextPolicy, ToolContext, tool
from clew.tools import external_tool
from tests.chaos.model import FIRST, SECOND, SPARE

EFFECTS = "CHAOS_EFFECTS"
"""The environment variable with the path of the file."""
RETRIES = 2
"""Retries of the tools that have any."""


def _record(name: str, context: ToolContext) -> None:
    """Append one line: an append of less than a page is atomic, and the file outlives a killed process."""
    effect = {
        "tool": name,
        "key": context.idempotency_key,
        "session": context.session_id,
        "call": context.tool_call_id,
        "attempt": context.attempt,
    }
    file = os.open(os.environ[EFFECTS], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps(effect).encode() + b"\n")
    finally:
        os.close(file)


@tool
def note(text: str, context: ToolContext) -> str:
    """Write a note. It may be written again."""
    _record("note", context)
    return f"noted {text}"


@tool(idempotent=False)
def charge(cents: int, context: ToolContext) -> str:
    """Charge a card. It must not be charged twice."""
    _record("charge", context)
    return f"charged {cents}"


@tool(idempotent=False, requires_approval=True)
def wire(cents: int, context: ToolContext) -> str:
    """Wire money, once a person has approved it."""
    _record("wire", context)
    return f"wired {cents}"


@tool(retries=RETRIES)
def flaky(text: str, context: ToolContext) -> str:
    """Fail at first."""
    _record("flaky", context)
    if context.attempt == 1:
        raise RuntimeError("not yet")
    return f"done {text}"


@tool(timeout_seconds=20)
def nap(seconds: float, context: ToolContext) -> str:
    """Take some time, and report the progress."""
    _record("nap", context)
    for tenth in range(10):
        context.report("sleeping", tenth / 10)
        time.sleep(min(seconds, 10) / 10)
    return "awake"


@tool
def big(kilobytes: int, context: ToolContext) -> str:
    """Answer a text that is stored, and truncated for the model."""
    _record("big", context)
    return "\n".join(f"line {number} of {kilobytes} KB" for number in range(kilobytes * 50))


order = external_tool(
    "order",
    "Order an item from the warehouse.",
    {"type": "object", "properties": {"item": {"type": "string"}}, "required": ["item"]},
    timeout_seconds=600,
)


helper = Agent("helper", model=SECOND, tools=[note, charge], request_timeout_seconds=90)
boss = Agent(
    "boss",
    model=FIRST,
    fallbacks=[SPARE],
    system_prompt="You lead.",
    tools=[note, charge, wire, flaky, nap, big, order, helper.as_tool(timeout_seconds=120)],
    context_policy=ContextPolicy(max_input_tokens=3000, reserve_output_tokens=100),
    request_timeout_seconds=120,
    on_busy="queue",
)
