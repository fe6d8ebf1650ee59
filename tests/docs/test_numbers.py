"""The numbers that the pages name are the constants' values."""

from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped]

from clew.cli.reach import WORKER_SECONDS
from clew.contract import SessionConfig
from clew.contract.limits import MAX_TOOL_RESULT_BYTES
from clew.serve.access import RELOAD_SECONDS
from clew.serve.application import AWAY_SECONDS
from clew.serve.gate import REVOKE_SECONDS
from clew.tools.definition import EXTERNAL_TIMEOUT_SECONDS
from clew_activities.archive.blob_store import MAX_CACHED_BYTES
from clew_activities.heartbeats import BEATS_PER_SECOND, CHECK_SECONDS, MAX_CHECK_SECONDS
from clew_activities.model.load_media import MAX_SENDING_BYTES
from clew_activities.providers.redaction import SHORTEST
from clew_activities.worker.assembly import STUCK_SECONDS, WORKFLOW_TASKS
from clew_activities.worker.environment import GRACE, Capacity
from clew_activities.worker.process import END_SECONDS
from clew_audit.codec_server import COOKIE_SECONDS
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT, WORKERS_PER_TOOL_CALL
from clew_workflows.host.retries import PATIENT, TIME_FOR_FIRST_CONTACT
from clew_workflows.host.runtime import FULL
from clew_workflows.host.services import CHANGE_TIMEOUT
from clew_workflows.protocol import RolloverThresholds
from clew_workflows.session.state import MAX_SEALS
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


def _separate(number: int) -> str:
    """Write a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("tools.md", f"`limits.max_tool_result_bytes` ({MAX_TOOL_RESULT_BYTES // 1024} KiB by default)"),
        ("configuration.md", f"less than {SHORTEST} characters"),
        ("tools.md", f"`timeout_seconds` ({EXTERNAL_TIMEOUT_SECONDS / 3600:g} hours by default)"),
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
        ("deployment.md", f"stuck in its cache for {STUCK_SECONDS:g} seconds"),
        ("deployment.md", f"{_FIELDS['request_timeout_seconds'].default // 60} minutes by default"),
        ("sizing.md", f"A worker runs at most {WORKFLOW_TASKS} workflow tasks at the same time"),
        ("sizing.md", f"rolls over** at {_separate(RolloverThresholds().events)} events"),
        ("sizing.md", f"keeps {MAX_CACHED_BYTES // 2**20} MiB of blobs in memory"),
        ("sizing.md", f"at most {MAX_SENDING_BYTES // 2**20} MiB of base64"),
        ("sizing.md", f"at most {BEATS_PER_SECOND} a second together"),
        ("sizing.md", f"every {CHECK_SECONDS:g} to {MAX_CHECK_SECONDS:g} seconds, which is no action"),
        ("sizing.md", f"A worker takes {_separate(Capacity().model_calls)} (`CLEW_MODEL_CALLS`)"),
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
        ("contract.md", f"or within {_LOST_SECONDS} if the worker is lost"),
        ("serve.md", f"when that has been away for {AWAY_SECONDS:g} seconds"),
        ("serve.md", f"stops working within {RELOAD_SECONDS + REVOKE_SECONDS:g} seconds"),
    ],
)
def test_a_page_names_the_constants_value(page: str, text: str) -> None:
    """A changed default fails this test until the page has the new value."""
    assert text in " ".join((DOCS / page).read_text(encoding="utf-8").split())
