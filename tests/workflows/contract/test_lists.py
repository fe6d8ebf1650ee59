"""Lists of sessions: which sessions meet their filters, and the tags that they have."""

from __future__ import annotations

from typing import Any

import pytest

from clew_workflows.contract.lists import ListSessionsInput, SessionSummary, cut_tags, matches

SESSION = SessionSummary(
    session_id="shop-1", user="ada", status="idle", agent="support", active_at="2026-01-31T12:00:00.000Z"
)


@pytest.mark.parametrize(
    ("filters", "is_listed"),
    [
        ({}, True),
        ({"user": "ada", "status": "idle", "agent": "support", "prefix": "shop-"}, True),
        ({"user": "bob"}, False),
        ({"status": "working"}, False),
        ({"agent": "sales"}, False),
        ({"prefix": "1"}, False),
        ({"since": "2026-01-31T12:00:00.000Z"}, True),
        ({"since": "2026-01-31T12:00:00.001Z"}, False),
    ],
)
def test_a_list_has_the_sessions_that_meet_every_filter(filters: dict[str, Any], is_listed: bool) -> None:
    assert matches(SESSION, ListSessionsInput(**filters)) is is_listed


def test_a_session_has_its_first_tags() -> None:
    """Each once, and as many as an attribute has room for."""
    assert cut_tags(("b", "a", "", "b")) == ("b", "a")
    many = tuple(f"{number:0100}" for number in range(30))
    assert cut_tags(many) == many[:17]
