"""The table of limits in `docs/sizing.md` has the values of the code."""

from __future__ import annotations

import pytest

from clew.contract import SessionConfig
from clew.contract.limits import MAX_MESSAGE_BYTES, MAX_SYSTEM_PROMPT_BYTES, MAX_TOKEN_BYTES, MAX_TOOL_RESULT_BYTES
from clew.tools.definition import DEFAULT_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS
from clew_activities.providers import reply
from clew_activities.tools.mcp.transports import MAX_MESSAGE_BYTES as MAX_MCP_BYTES
from clew_activities.tools.stored_results import MAX_STORED_BYTES
from clew_workflows.contract.limits import (
    MAX_METADATA_BYTES,
    MAX_METADATA_NAMES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SUBAGENT_DEPTH,
    MAX_SUBSCHEMAS,
    MAX_TOOLS_BYTES,
    MAX_WAITERS,
    WAIT_SECONDS,
)
from clew_workflows.host.retries import HOOK_RETRIES
from clew_workflows.host.runtime import FULL, PRESSING, SPENT
from clew_workflows.protocol import HOOK_SECONDS, RolloverThresholds
from clew_workflows.session.messages_taken import MAX_RECEIPTS
from clew_workflows.session.requests import MAX_OUTCOMES
from clew_workflows.session.state import MAX_KNOWN_OPS, MAX_WAITING, MAX_WAITING_BYTES
from clew_workflows.session.tool_rounds import MAX_PATTERN_BYTES, MAX_PATTERNS
from clew_workflows.temporal_faults.updates_in_flight import MAX_AWAITING, MAX_SENDING
from docs.generate import DOCS

KIB, MIB = 1024, 1024 * 1024
_FIELDS = SessionConfig.model_fields
_ROLLOVER = RolloverThresholds()


def separate(number: int) -> str:
    """Write a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def find_largest(field: str) -> int:
    """Find the largest value that a field of the configuration takes."""
    (largest,) = [bound.le for bound in _FIELDS[field].metadata if hasattr(bound, "le")]
    return int(largest)


ROWS = {
    "an input of a session, as JSON": f"{MAX_MESSAGE_BYTES // KIB} KiB",
    "a system prompt": f"{MAX_SYSTEM_PROMPT_BYTES // KIB} KiB",
    "metadata": f"{MAX_METADATA_NAMES} names, {MAX_METADATA_BYTES // KIB} KiB",
    "a JSON Schema": (
        f"{MAX_SCHEMA_BYTES // KIB} KiB, {MAX_SCHEMA_DEPTH} levels, {separate(MAX_SUBSCHEMAS)} subschemas"
    ),
    "the patterns in the schema of a tool's arguments": f"{MAX_PATTERNS}, each {MAX_PATTERN_BYTES // 1_000_000} MB",
    "the schemas of a session's tools": f"128 tools, {MAX_TOOLS_BYTES // KIB} KiB",
    "inputs, queued messages, context operations that wait": f"{MAX_WAITING} and {MAX_WAITING_BYTES // KIB} KiB",
    "callers that wait for requests of one session": f"{MAX_WAITERS}",
    "updates of one session at the same time": f"{MAX_AWAITING + MAX_SENDING} of one client",
    "a wait of one caller, once six wait": f"{WAIT_SECONDS} seconds",
    "model calls of a run": (
        f"{_FIELDS['max_iterations'].default} (`max_iterations`, up to {separate(find_largest('max_iterations'))})"
    ),
    "time of a request": (
        f"{_FIELDS['request_timeout_seconds'].default // 60} minutes (`request_timeout_seconds`, up to "
        f"{find_largest('request_timeout_seconds') // 86400} days)"
    ),
    "a model's reply": (
        f"{reply.TEXT_LIMIT // KIB} KiB of text, {reply.THINKING_LIMIT // KIB} KiB of thinking, "
        f"{reply.MAX_TOOL_CALLS} tool calls, {reply.ARGUMENTS_LIMIT // KIB} KiB of arguments"
    ),
    "a tool result in a context": f"{MAX_TOOL_RESULT_BYTES // KIB} KiB",
    "a stored tool result": f"{MAX_STORED_BYTES // MIB} MiB",
    "a tool call": (
        f"{DEFAULT_TIMEOUT_SECONDS:g} seconds (`timeout_seconds`, up to {MAX_TIMEOUT_SECONDS / 86400:g} days)"
    ),
    "subagents above each other": f"{MAX_SUBAGENT_DEPTH}",
    "a message of an MCP server": f"{MAX_MCP_BYTES // MIB} MiB",
    "a checkpoint": f"{MAX_TOKEN_BYTES // KIB} KiB",
    "remembered outcomes, inputs' receipts": f"the newest {separate(MAX_OUTCOMES)} of each",
    "remembered operations": f"the newest {MAX_KNOWN_OPS}",
    "a history, in events, bytes, updates, signals": (
        f"{separate(_ROLLOVER.events)}, {_ROLLOVER.bytes // 1_000_000} MB, {_ROLLOVER.updates}, "
        f"{separate(_ROLLOVER.signals)}"
    ),
    "the same while the archive cannot be written": f"{FULL:g} times as much",
    "hooks of one point": f"{HOOK_SECONDS} seconds, {HOOK_RETRIES.maximum_attempts} attempts",
}


def read_table() -> dict[str, str]:
    """Read the section's table: the limits with their values."""
    page = (DOCS / "sizing.md").read_text(encoding="utf-8")
    section = page.partition("\n## Limits\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return {name.strip(): value.strip() for name, value, *_ in rows[2:]}


@pytest.mark.parametrize("name", ROWS)
def test_the_table_has_the_codes_limit(name: str) -> None:
    """A constant that changes fails this test until the table has its new value."""
    assert read_table()[name].startswith(ROWS[name])


def test_every_limit_of_the_table_is_checked() -> None:
    """A row without a constant behind it is one that names the caller's own fields."""
    assert read_table().keys() - ROWS.keys() == {"tokens and cost of a session"}


def test_the_table_says_when_a_run_is_not_waited_for() -> None:
    """The multiples at which a session rolls over in the middle of a run, and at which its runs wait."""
    page = " ".join((DOCS / "sizing.md").read_text(encoding="utf-8").split())
    assert f"{PRESSING} times a limit" in page
    assert f"{SPENT} times a limit" in page
    assert MAX_RECEIPTS == MAX_OUTCOMES
