"""Fairness keys: which sessions share one, and what it shows."""

from __future__ import annotations

import pytest

from clew_workflows.contract.config import find_fairness_key, make_fairness_key


@pytest.mark.parametrize(
    ("metadata", "owner"),
    [
        ({"tenant": "acme", "user": "ada"}, "acme"),
        ({"user": "ada"}, "ada"),
        ({"tenant": "", "user": "ada"}, "ada"),
        ({"title": "Lamps"}, "session-1"),
        ({}, "session-1"),
    ],
)
def test_a_session_has_the_key_of_its_tenant_or_its_user_or_its_own(metadata: dict[str, str], owner: str) -> None:
    """A tenant comes before a user. Without either, each session is on its own."""
    assert find_fairness_key("session-1", metadata) == make_fairness_key(owner)


def test_an_inherited_key_is_used_where_there_is_neither_tenant_nor_user() -> None:
    """So a subagent shares the key of its parent."""
    inherited = make_fairness_key("parent")
    assert find_fairness_key("child", {}, inherited) == inherited
    assert find_fairness_key("child", {"user": "ada"}, inherited) == make_fairness_key("ada")


@pytest.mark.parametrize("owner", ["ada", "ada@example.com", "é" * 2000])
def test_a_key_is_short_and_does_not_show_its_owner(owner: str) -> None:
    """Temporal takes 64 bytes, and shows them."""
    key = make_fairness_key(owner)
    assert len(key.encode()) == 32
    assert owner not in key
