"""The reference of limits, from the constants of the code."""

from __future__ import annotations

from collections.abc import Sequence

from clew.agents import MAX_VERSION_CHARACTERS
from clew.contract import SessionConfig
from clew.contract.limits import MAX_MESSAGE_BYTES, MAX_SYSTEM_PROMPT_BYTES, MAX_TOKEN_BYTES, MAX_TOOL_RESULT_BYTES
from clew.schedules import MAX_ID_CHARACTERS
from clew.tools.definition import DEFAULT_TIMEOUT_SECONDS, EXTERNAL_TIMEOUT_SECONDS, MAX_TIMEOUT_SECONDS
from clew_activities.providers import reply
from clew_activities.telemetry.metrics import MAX_LABEL_VALUES
from clew_activities.tools.mcp.transports import MAX_MESSAGE_BYTES as MAX_MCP_BYTES
from clew_activities.tools.stored_results import MAX_STORED_BYTES
from clew_activities.worker.assembly import WORKFLOW_TASKS
from clew_activities.worker.environment import GRACE
from clew_workflows.contract.limits import (
    MAX_METADATA_BYTES,
    MAX_METADATA_NAMES,
    MAX_SCHEMA_BYTES,
    MAX_SCHEMA_DEPTH,
    MAX_SUBAGENT_DEPTH,
    MAX_SUBSCHEMAS,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    MAX_WAITERS,
    WAIT_SECONDS,
)
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from clew_workflows.host.retries import HOOK_RETRIES
from clew_workflows.host.runtime import FULL, PRESSING, SPENT
from clew_workflows.protocol import HOOK_SECONDS, RolloverThresholds
from clew_workflows.session.requests import MAX_OUTCOMES
from clew_workflows.session.state import MAX_KNOWN_OPS, MAX_WAITING, MAX_WAITING_BYTES
from clew_workflows.session.tool_rounds import MAX_PATTERN_BYTES, MAX_PATTERNS
from clew_workflows.temporal_faults.updates_in_flight import MAX_AWAITING, MAX_SENDING
from docs.generate.tables import separate, table

KIB, MIB = 1024, 1024 * 1024
_FIELDS = SessionConfig.model_fields


def find_largest(field: str) -> int:
    """Find the largest value that a field of the configuration takes."""
    (largest,) = [bound.le for bound in _FIELDS[field].metadata if hasattr(bound, "le")]
    return int(largest)


def list_input_limits() -> Sequence[tuple[str, str, str]]:
    """List what callers and models may send: the limit, its value, and what happens beyond it."""
    return (
        (
            "an input of a session, as JSON",
            f"{MAX_MESSAGE_BYTES // KIB} KiB (`limits.max_message_bytes` lowers it)",
            "`too_large`; the client checks it, too",
        ),
        ("a system prompt", f"{MAX_SYSTEM_PROMPT_BYTES // KIB} KiB", "`too_large`"),
        ("metadata", f"{MAX_METADATA_NAMES} names, {MAX_METADATA_BYTES // KIB} KiB", "`too_large`"),
        (
            "a JSON Schema",
            f"{MAX_SCHEMA_BYTES // KIB} KiB, {MAX_SCHEMA_DEPTH} levels, {separate(MAX_SUBSCHEMAS)} subschemas",
            "`invalid_input`; a tool with such a schema is not loaded",
        ),
        (
            "the patterns in the schema of a tool's arguments",
            f"{MAX_PATTERNS}, each {MAX_PATTERN_BYTES // 1_000_000} MB when it is compiled",
            "the tool is not loaded",
        ),
        (
            "the schemas of a session's tools",
            f"{MAX_TOOLS} tools, {MAX_TOOLS_BYTES // KIB} KiB",
            "`invalid_input`; requests fail with `too_large`",
        ),
        ("a label `version` of an agent", f"{MAX_VERSION_CHARACTERS} characters", "the agent is not loaded"),
        ("an id of a schedule", f"{MAX_ID_CHARACTERS} characters", "`invalid_input`"),
        (
            "inputs, queued messages, context operations that wait",
            f"{MAX_WAITING} and {MAX_WAITING_BYTES // KIB} KiB of each",
            "`queue_full`; a signal leaves an entry",
        ),
        ("a checkpoint", f"{MAX_TOKEN_BYTES // KIB} KiB", "`too_large`"),
        (
            "a model's reply",
            f"{reply.TEXT_LIMIT // KIB} KiB of text, {reply.THINKING_LIMIT // KIB} KiB of thinking, "
            f"{reply.MAX_TOOL_CALLS} tool calls, {reply.ARGUMENTS_LIMIT // KIB} KiB of arguments together",
            "the text is truncated and says so; further calls are left out, and the text says how many; a call whose "
            "arguments do not fit is invalid",
        ),
        (
            "a tool result in a context",
            f"{MAX_TOOL_RESULT_BYTES // KIB} KiB (`limits.max_tool_result_bytes` lowers it)",
            "the rest is stored; the model can read it with `read_result`",
        ),
        ("a stored tool result", f"{MAX_STORED_BYTES // MIB} MiB", "the rest is dropped, and the result says so"),
        (
            "a message of an MCP server",
            f"{MAX_MCP_BYTES // MIB} MiB",
            "the call ends with an error that the model reads",
        ),
        ("subagents above each other", f"{MAX_SUBAGENT_DEPTH}", "the model reads an error"),
    )


def list_time_limits() -> Sequence[tuple[str, str, str]]:
    """List the limits of requests, calls and waits."""
    iterations, timeout = _FIELDS["max_iterations"].default, _FIELDS["request_timeout_seconds"].default
    return (
        (
            "model calls of a run",
            f"{iterations} (`max_iterations`, up to {separate(find_largest('max_iterations'))})",
            "the request ends as completed with `max_iterations`",
        ),
        (
            "time of a request",
            f"{timeout // 60} minutes (`request_timeout_seconds`, up to "
            f"{find_largest('request_timeout_seconds') // 86400} days)",
            "it fails with `timeout`",
        ),
        (
            "tokens and cost of a session",
            "none (`limits.max_total_tokens`, `limits.max_cost_usd`)",
            "the call that exceeds one is the last; requests fail with `token_limit` or `cost_limit`",
        ),
        (
            "a tool call",
            f"{DEFAULT_TIMEOUT_SECONDS:g} seconds (`timeout_seconds`, up to {MAX_TIMEOUT_SECONDS / 86400:g} days)",
            "the model reads the timeout as the result",
        ),
        (
            "a call of an external tool or of an agent",
            f"{EXTERNAL_TIMEOUT_SECONDS / 3600:g} hours (`timeout_seconds`, up to {MAX_TIMEOUT_SECONDS / 86400:g} days)",
            "the model reads the timeout as the result",
        ),
        (
            "hooks of one point",
            f"{HOOK_SECONDS} seconds, {HOOK_RETRIES.maximum_attempts} attempts",
            "the request fails with `hook_failed`",
        ),
        (
            "a silent worker",
            f"{HEARTBEAT_TIMEOUT.total_seconds():g} seconds",
            "its calls count as lost, and another worker repeats those that may be repeated",
        ),
        (
            "running calls of a worker that stops",
            f"{GRACE.total_seconds():g} seconds (`CLEW_GRACE_SECONDS`)",
            "they are cancelled, and another worker repeats those that may be repeated",
        ),
    )


def list_session_limits() -> Sequence[tuple[str, str, str]]:
    """List the limits of a session and of a worker."""
    rollover = RolloverThresholds()
    return (
        (
            "callers that wait for requests of one session",
            f"{MAX_WAITERS}",
            "more are answered at once that the request is running; the client asks again",
        ),
        (
            "updates of one session at the same time",
            f"{MAX_AWAITING + MAX_SENDING} of one client; 10 in all, by the server's `history.maxInFlightUpdates`",
            f"they wait for their turn; after {WAIT_SECONDS} seconds `WorkerUnavailable`: send it again with the same id",
        ),
        (
            f"a wait of one caller, once {_name(MAX_WAITERS)} wait",
            f"{WAIT_SECONDS} seconds",
            "it gives way to the next one: clients go on waiting by themselves",
        ),
        (
            "remembered outcomes, inputs' receipts",
            f"the newest {separate(MAX_OUTCOMES)} of each",
            "an older `request_id` starts a new request",
        ),
        ("remembered operations", f"the newest {MAX_KNOWN_OPS}", "an older `op_id` is applied again"),
        (
            "a history, in events, bytes, updates, signals",
            f"{separate(rollover.events)}, {rollover.bytes // 1_000_000} MB, {rollover.updates}, "
            f"{separate(rollover.signals)} (`CLEW_ROLLOVER_…`)",
            f"the session rolls over when no run is active, at {PRESSING} times a limit in the middle of one",
        ),
        (
            "the same while the archive cannot be written",
            f"{FULL:g} times as much",
            f"new messages are refused with `archive_unavailable` until it can; at {SPENT} times a limit accepted "
            "messages wait, too",
        ),
        (
            "workflow tasks of a worker at the same time",
            f"{WORKFLOW_TASKS}",
            "the others wait on the server",
        ),
        (
            "values of one label of a worker's metrics",
            f"{MAX_LABEL_VALUES}",
            "later ones are counted as `other`",
        ),
    )


def make_page() -> str:
    """Make the page."""
    columns = ("limit", "value", "beyond it")
    return (
        "# Limits\n\n"
        "Each input is checked before it is accepted, so that no caller can stop a session. No input within these "
        "limits fails a workflow task. The values are those of the code.\n\n"
        "## Inputs and replies\n\n"
        f"{table(columns, list_input_limits())}\n"
        "## Requests, calls and time\n\n"
        f"{table(columns, list_time_limits())}\n"
        "## Sessions and workers\n\n"
        f"{table(columns, list_session_limits())}\n"
        "There is no limit for a customer or a user over all their sessions: [costs](../costs.md) says how to build one. "
        "Temporal's own limits (51 200 events, 50 MB, 2 000 updates, 10 000 signals and 10 updates in flight of a "
        "workflow) are far above these.\n"
    )


def _name(number: int) -> str:
    return {6: "six"}.get(number, str(number))
