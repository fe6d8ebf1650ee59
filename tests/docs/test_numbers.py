"""The numbers that the pages name are the constants' values."""

from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped]

from clew.cli.history_import import MAX_FILE_BYTES
from clew.cli.reach import WORKER_SECONDS
from clew.cli.serve import DRAIN_SECONDS
from clew.contract import ContextPolicy, SessionConfig
from clew.contract.limits import (
    MAX_KEYWORD_CHARACTERS,
    MAX_MESSAGE_BYTES,
    MAX_NAMED_CALLS,
    MAX_SUBAGENT_DEPTH,
    MAX_TOOL_RESULT_BYTES,
    MAX_TOOLS,
    MAX_TOOLS_BYTES,
    MAX_WEBHOOKS,
)
from clew.report.making import MAX_ENTRIES as REPORT_ENTRIES
from clew.serve import mcp_server, mcp_sessions
from clew.serve.access import RELOAD_SECONDS
from clew.serve.application import AWAY_SECONDS
from clew.serve.gate import REVOKE_SECONDS
from clew.serve.openai.turns import IDLE_SECONDS
from clew.serve.service_settings import MAX_MCP_SESSIONS
from clew.serve.sessions import MAX_WAIT_SECONDS
from clew.serve.streams import HEARTBEAT_SECONDS
from clew.serve.worker_watch import ACCEPT_SECONDS
from clew.testing.stack import PATIENCE_SECONDS
from clew.tools.definition import DEFAULT_TIMEOUT_SECONDS, EXTERNAL_TIMEOUT_SECONDS
from clew_activities.archive.blob_store import MAX_CACHED_BYTES
from clew_activities.heartbeats import (
    BEATS_PER_SECOND,
    CHECK_SECONDS,
    LONG_SHOWN_SECONDS,
    MAX_CHECK_SECONDS,
    SHOWN_SECONDS,
)
from clew_activities.model import call_model
from clew_activities.model.load_media import MAX_SENDING_BYTES
from clew_activities.providers.redaction import SHORTEST
from clew_activities.providers.reply import MAX_MEDIA
from clew_activities.tools.os_threads import DEFAULT
from clew_activities.tools.stored_results import MAX_STORED_BYTES
from clew_activities.webhook_sending import ATTEMPT_SECONDS, MAX_SECRET_BYTES, MAX_WAIT, MIN_SECRET_BYTES
from clew_activities.worker.assembly import STUCK_SECONDS, WORKFLOW_TASKS
from clew_activities.worker.environment import GRACE, Capacity
from clew_activities.worker.process import END_SECONDS
from clew_audit.codec_server import COOKIE_SECONDS
from clew_workflows.contract.limits import MAX_CHUNK_BYTES, UPLOAD_SECONDS
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT, WORKERS_PER_TOOL_CALL, TimeLimits
from clew_workflows.host.retries import (
    ATTEMPTS_BEFORE_FALLBACK,
    HOOK_RETRIES,
    PATIENT,
    TIME_BEFORE_FALLBACK,
    TIME_FOR_FIRST_CONTACT,
)
from clew_workflows.host.runtime import FULL
from clew_workflows.host.services import CHANGE_TIMEOUT, DELIVERY_TIME, DeliverWebhook
from clew_workflows.protocol import HOOK_SECONDS, RolloverThresholds
from clew_workflows.session.runs import MAX_CORRECTIONS
from clew_workflows.session.state import MAX_KNOWN_COMMANDS, MAX_SEALS
from deploy.local_cluster import COMPOSE
from deploy.servers.programs import read_go_version
from docs.generate import DOCS

_SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
_TEMPORAL, _POSTGRESQL, _SEAWEEDFS = (
    _SERVICES[name]["image"].partition(":")[2] for name in ("temporal", "postgresql", "s3")
)
_SHARDS = _SERVICES["temporal"]["environment"]["NUM_HISTORY_SHARDS"]
_CHART = yaml.safe_load((DOCS.parent / "deploy/chart/values.yaml").read_text())
_STOPS = {name: kind["graceSeconds"] for name, kind in _CHART["workers"].items()}
_FIELDS = SessionConfig.model_fields
_NUMBERS = {3: "three"}
_TURNS = 10_000_000 / 86_400
"""Turns a second of the example of sizing."""
_LOST_SECONDS = f"{HEARTBEAT_TIMEOUT.total_seconds():g} seconds"
_RETRIES = DeliverWebhook.retries
_WAITS = [_RETRIES.initial_interval.total_seconds() * _RETRIES.backoff_coefficient**times for times in range(3)]
assert _RETRIES.maximum_interval == MAX_WAIT
_MAX_WAIT = f"{MAX_WAIT.total_seconds() / 3600:g} hours"
_LISTS_SECONDS = f"{TimeLimits().lists_interval.total_seconds():g} seconds"


def _separate(number: int) -> str:
    """Write a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("tools.md", f"`limits.max_tool_result_bytes` ({MAX_TOOL_RESULT_BYTES // 1024} KiB by default)"),
        ("configuration.md", f"less than {SHORTEST} characters"),
        ("models.md", f"less than {SHORTEST} characters"),
        ("models.md", f"a context of {ContextPolicy().max_input_tokens:,} tokens".replace(",", " ")),
        ("content.md", f"Clew keeps the first {MAX_MEDIA} images and recordings of a reply"),
        ("content.md", f"({UPLOAD_SECONDS // 60} minutes by default, `expires_seconds` sets it)"),
        ("content.md", f"a chunk of at most {MAX_CHUNK_BYTES:,} bytes".replace(",", " ")),
        ("tools.md", f"`timeout_seconds` ({EXTERNAL_TIMEOUT_SECONDS / 3600:g} hours by default)"),
        ("tools.md", f"| `timeout_seconds` | {DEFAULT_TIMEOUT_SECONDS:g} |"),
        ("tools.md", f"up to {MAX_STORED_BYTES // 2**20} MiB"),
        ("tools.md", f"While {DEFAULT.max_abandoned} such calls of a tool run"),
        ("tools.md", f"the newest {MAX_KNOWN_COMMANDS:,} values of `request_id`".replace(",", " ")),
        ("tools.md", f"at most {MAX_TOOLS} tools and {MAX_TOOLS_BYTES // 1024} KiB of schemas"),
        ("agents.md", f"{call_model.SILENCE_BEFORE_FALLBACK / 60:g} minutes of silence".replace("2", "two")),
        (
            "agents.md",
            f"{ATTEMPTS_BEFORE_FALLBACK} times within {TIME_BEFORE_FALLBACK.seconds} seconds".replace("3", "three"),
        ),
        ("agents.md", f"remembers an outage for {call_model.AWAY_SECONDS / 60:g} minutes"),
        ("agents.md", f"{MAX_SUBAGENT_DEPTH} deep".replace("5", "five")),
        ("guardrails.md", f"over {HOOK_SECONDS} seconds"),
        ("guardrails.md", f"{HOOK_RETRIES.maximum_attempts} times in all".replace("3", "three")),
        ("client.md", f"every {SHOWN_SECONDS:g} s at first, later every {LONG_SHOWN_SECONDS:g} s"),
        ("client.md", f"{MAX_CORRECTIONS} times at most".replace("3", "three")),
        ("testing.md", f"`patience_seconds` ({PATIENCE_SECONDS:g} by default)"),
        ("extending.md", f"less than {SHORTEST} characters"),
        ("deployment.md", f"Temporal {_TEMPORAL} with all services in one process and {_SHARDS} history shards"),
        ("deployment.md", f"PostgreSQL {_POSTGRESQL}, which"),
        ("deployment.md", f"SeaweedFS {_SEAWEEDFS}."),
        ("../CHANGELOG.md", f"The compose file has Temporal {_TEMPORAL} and SeaweedFS {_SEAWEEDFS}"),
        ("deployment.md", f"needs Go {read_go_version()} or later"),
        ("../CONTRIBUTING.md", f"needs Go {read_go_version()} or later"),
        ("deployment.md", f"have `CLEW_GRACE_SECONDS` to finish: **{GRACE.total_seconds():g} seconds by default**"),
        ("deployment.md", f"**{_STOPS['sessions']} seconds for sessions, {_STOPS['models']} for models, "),
        ("deployment.md", f" {_STOPS['tools']} for tools** (`graceSeconds`)"),
        ("deployment.md", f"on at most {WORKERS_PER_TOOL_CALL} workers"),
        ("deployment.md", f"The process ends at most {END_SECONDS:g} seconds after the grace time"),
        ("deployment.md", f"stuck in the worker's cache for {STUCK_SECONDS:g} seconds"),
        ("deployment.md", f"{_FIELDS['request_timeout_seconds'].default // 60} minutes by default"),
        ("sizing.md", f"A worker runs at most {WORKFLOW_TASKS} workflow tasks at the same time"),
        ("sizing.md", f"rolls over** at {_separate(RolloverThresholds().events)} events"),
        ("sizing.md", f"keeps {MAX_CACHED_BYTES // 2**20} MiB of blobs in memory"),
        ("sizing.md", f"at most {MAX_SENDING_BYTES // 2**20} MiB of base64"),
        ("sizing.md", f"at most {BEATS_PER_SECOND} a second together"),
        ("sizing.md", f"every {CHECK_SECONDS:g} to {MAX_CHECK_SECONDS:g} seconds, which is no action"),
        (
            "sizing.md",
            f"A worker runs up to {_separate(Capacity().model_calls)} model calls at once (`CLEW_MODEL_CALLS`)",
        ),
        ("sizing.md", f"| 10 000 000 / 86 400 | {_TURNS:.0f} |"),
        ("sizing.md", f"| 3 * 10 000 000 / 86 400 | {3 * _TURNS:.0f} |"),
        ("sizing.md", f"| 347 * 0.02 | {3 * _TURNS * 0.02:.0f} |"),
        ("sizing.md", f"| 347 * 3 | {_separate(round(3 * _TURNS * 3))} |"),
        ("runbook.md", f"does not answer within {WORKER_SECONDS:g} seconds"),
        ("runbook.md", f"the call fails after {TIME_FOR_FIRST_CONTACT.total_seconds():g} seconds"),
        ("runbook.md", f"has killed {_NUMBERS[WORKERS_PER_TOOL_CALL]} workers"),
        ("runbook.md", f"At {_NUMBERS[round(FULL)]} times a"),
        ("runbook.md", f"far above {_separate(RolloverThresholds().events)} events"),
        ("runbook.md", f"… {PATIENT.maximum_interval.total_seconds():g} seconds" if PATIENT.maximum_interval else ""),
        ("data.md", f"takes longer than {CHANGE_TIMEOUT.total_seconds():g} seconds"),
        ("security.md", f"less than {SHORTEST} characters"),
        ("security.md", f"the newest {_separate(MAX_SEALS)} inputs"),
        ("security.md", f"a cookie for {COOKIE_SECONDS // 3600} hours"),
        ("queues.md", f"A worker has {_separate(Capacity().model_calls)} slots for model calls"),
        ("../CHANGELOG.md", f"A worker has at most {WORKFLOW_TASKS} workflow tasks at the same time"),
        ("../README.md", f"notices a dead worker after {_LOST_SECONDS} without a heartbeat"),
        ("how-it-works.md", f"The server notices after {_LOST_SECONDS}."),
        ("serve.md", f"when the Temporal server has been away for {AWAY_SECONDS:g} seconds"),
        ("serve.md", f"stops working within {RELOAD_SECONDS + REVOKE_SECONDS:g} seconds"),
        ("serve.md", f"`wait` has at most {MAX_WAIT_SECONDS} seconds"),
        ("serve.md", f"a missing worker is reported within {ACCEPT_SECONDS:g} seconds"),
        ("serve.md", f"A comment comes every {HEARTBEAT_SECONDS:g} seconds"),
        ("serve.md", f"wait longer than {HEARTBEAT_SECONDS:g} seconds"),
        ("serve.md", f"`--drain-seconds` ({DRAIN_SECONDS:g} by default)"),
        ("mcp-server.md", f"the newest {mcp_server.MAX_LISTED} sessions of the tenant"),
        ("mcp-server.md", f"the messages of its newest {mcp_server.MAX_ENTRIES} entries"),
        ("mcp-server.md", f"at most {MAX_MCP_SESSIONS:,} MCP sessions".replace(",", " ")),
        ("mcp-server.md", {4: "a quarter of them for one key"}[mcp_sessions.MAX_SHARE]),
        ("mcp-server.md", {3600.0: "ends after an hour without a request"}[mcp_sessions.IDLE_SECONDS]),
        ("serve-openai.md", {86_400.0: "up to a day later"}[EXTERNAL_TIMEOUT_SECONDS]),
        ("serve-openai.md", {3600: "hibernate after an hour"}[IDLE_SECONDS]),
        ("webhooks.md", "after {:g} seconds, {:g}, {:g} and so on".format(*_WAITS)),
        ("webhooks.md", f"up to {_MAX_WAIT}, for {DELIVERY_TIME.days} days"),
        ("webhooks.md", f"sets the next wait, up to {_MAX_WAIT}"),
        ("webhooks.md", f"An attempt lasts {ATTEMPT_SECONDS:g} seconds"),
        ("webhooks.md", f"{MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64"),
        ("webhooks.md", f"at most {MAX_NAMED_CALLS}."),
        ("webhooks.md", {8: "An agent or a session has at most eight webhooks."}[MAX_WEBHOOKS]),
        ("sessions.md", f"cut to {MAX_KEYWORD_CHARACTERS} characters"),
        ("sessions.md", f"has lasted {_LISTS_SECONDS}"),
        ("command-line.md", f"A file has at most {MAX_FILE_BYTES // 2**20} MiB"),
        ("command-line.md", f"its messages {MAX_MESSAGE_BYTES // 1024} KiB"),
        ("looking.md", f"the newest {REPORT_ENTRIES:,} entries".replace(",", " ")),
    ],
)
def test_a_page_names_the_constants_value(page: str, text: str) -> None:
    """A changed default fails this test until the page has the new value."""
    assert text in " ".join((DOCS / page).read_text(encoding="utf-8").split())
