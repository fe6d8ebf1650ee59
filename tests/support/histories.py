"""The recorded histories, and what their events hold."""

from __future__ import annotations

import base64
from typing import Any

from temporalio.client import WorkflowHistory

from tests.support.scenarios import FOLDER


def payloads(value: Any) -> list[str]:
    """Every payload within a history, decoded."""
    if isinstance(value, list):
        return [found for item in value for found in payloads(item)]
    if not isinstance(value, dict):
        return []
    own = [base64.b64decode(value["data"]).decode()] if isinstance(value.get("data"), str) else []
    return own + [found for item in value.values() for found in payloads(item)]


HISTORIES = [WorkflowHistory.from_json(file.stem, file.read_text()) for file in sorted(FOLDER.glob("*.json"))]
