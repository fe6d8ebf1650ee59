"""The recorded histories, and the payloads of their events."""

from __future__ import annotations

import base64
from typing import Any

from tests.support.corpus import NEXT, read_corpus


def list_payloads(value: Any) -> list[str]:
    """List the decoded payloads of a history."""
    if isinstance(value, list):
        return [payload for item in value for payload in list_payloads(item)]
    if not isinstance(value, dict):
        return []
    own = [base64.b64decode(value["data"]).decode()] if isinstance(value.get("data"), str) else []
    return own + [payload for item in value.values() for payload in list_payloads(item)]


HISTORIES = read_corpus(NEXT).histories
