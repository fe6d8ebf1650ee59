"""The numbers that the pages name are the constants' values."""

from __future__ import annotations

import pytest

from clew.contract import MAX_TOOL_RESULT_BYTES
from clew.tools.definition import EXTERNAL_TIMEOUT_SECONDS
from clew_activities.providers.redaction import SHORTEST
from docs.generate import DOCS


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("tools.md", f"`limits.max_tool_result_bytes` ({MAX_TOOL_RESULT_BYTES // 1024} KiB by default)"),
        ("configuration.md", f"less than {SHORTEST} characters"),
        ("tools.md", f"`timeout_seconds` ({EXTERNAL_TIMEOUT_SECONDS / 3600:g} hours by default)"),
        ("extending.md", f"less than {SHORTEST} characters"),
    ],
)
def test_a_page_names_the_constants_value(page: str, text: str) -> None:
    """A changed default fails this test until the page has the new value."""
    assert text in " ".join((DOCS / page).read_text(encoding="utf-8").split())
