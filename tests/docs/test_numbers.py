"""The numbers that the pages name are the constants' values."""

from __future__ import annotations

import pytest
import yaml  # type: ignore[import-untyped]

from clew.contract import ContextPolicy
from clew.contract.limits import MAX_TOOL_RESULT_BYTES
from clew.serve.access import RELOAD_SECONDS
from clew.serve.application import AWAY_SECONDS
from clew.serve.gate import REVOKE_SECONDS
from clew.tools.definition import EXTERNAL_TIMEOUT_SECONDS
from clew_activities.providers.redaction import SHORTEST
from clew_activities.providers.reply import MAX_MEDIA
from clew_activities.worker.assembly import WORKFLOW_TASKS
from clew_workflows.contract.limits import MAX_CHUNK_BYTES, UPLOAD_SECONDS
from clew_workflows.host.execution import HEARTBEAT_TIMEOUT
from deploy.local_cluster import COMPOSE
from deploy.servers.programs import read_go_version
from docs.generate import DOCS

_SERVICES = yaml.safe_load(COMPOSE.read_text())["services"]
_TEMPORAL, _POSTGRESQL, _SEAWEEDFS = (
    _SERVICES[name]["image"].partition(":")[2] for name in ("temporal", "postgresql", "s3")
)
_SHARDS = _SERVICES["temporal"]["environment"]["NUM_HISTORY_SHARDS"]
_LOST_SECONDS = f"{HEARTBEAT_TIMEOUT.total_seconds():g} seconds"


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("tools.md", f"`limits.max_tool_result_bytes` ({MAX_TOOL_RESULT_BYTES // 1024} KiB by default)"),
        ("configuration.md", f"less than {SHORTEST} characters"),
        ("models.md", f"less than {SHORTEST} characters"),
        ("models.md", f"a context of {ContextPolicy().max_input_tokens:,} tokens".replace(",", " ")),
        ("content.md", f"A reply keeps up to {MAX_MEDIA} of them"),
        ("content.md", f"({UPLOAD_SECONDS // 60} minutes by default, `expires_seconds` sets it)"),
        ("content.md", f"a chunk of at most {MAX_CHUNK_BYTES:,} bytes".replace(",", " ")),
        ("tools.md", f"`timeout_seconds` ({EXTERNAL_TIMEOUT_SECONDS / 3600:g} hours by default)"),
        ("extending.md", f"less than {SHORTEST} characters"),
        ("deployment.md", f"Temporal {_TEMPORAL} with all services in one process and {_SHARDS} history shards"),
        ("deployment.md", f"PostgreSQL {_POSTGRESQL}, which"),
        ("deployment.md", f"SeaweedFS {_SEAWEEDFS}. |"),
        ("sizing.md", f"Temporal with {_SHARDS} history shards on PostgreSQL"),
        ("../CHANGELOG.md", f"The compose file has Temporal {_TEMPORAL} and SeaweedFS {_SEAWEEDFS}"),
        ("deployment.md", f"needs Go {read_go_version()} or later"),
        ("../CONTRIBUTING.md", f"needs Go {read_go_version()} or later"),
        ("sizing.md", f"a worker has at most {WORKFLOW_TASKS} of them at the same time"),
        ("../CHANGELOG.md", f"A worker has at most {WORKFLOW_TASKS} workflow tasks at the same time"),
        ("sizing.md", f"counts as lost after {_LOST_SECONDS}"),
        ("contract.md", f"or within {_LOST_SECONDS} if the worker is lost"),
        ("serve.md", f"when that has been away for {AWAY_SECONDS:g} seconds"),
        ("serve.md", f"stops working within {RELOAD_SECONDS + REVOKE_SECONDS:g} seconds"),
    ],
)
def test_a_page_names_the_constants_value(page: str, text: str) -> None:
    """A changed default fails this test until the page has the new value."""
    assert text in " ".join((DOCS / page).read_text(encoding="utf-8").split())
