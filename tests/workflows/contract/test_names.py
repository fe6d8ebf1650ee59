"""The names of the tools of MCP servers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_workflows.contract.names import (
    find_server,
    is_selected,
    is_server_name,
    make_tool_name,
    rewrite_name,
    selects,
)

SERVERS = st.text("ab0_-", min_size=1, max_size=32).filter(is_server_name)


@given(SERVERS, SERVERS, st.text(min_size=1, max_size=150), st.text(min_size=1, max_size=150))
def test_two_tools_have_two_names(server: str, other: str, tool: str, another: str) -> None:
    """Every name is one that providers accept, names its server, and is that of no other tool."""
    name = make_tool_name(server, tool)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert find_server(name) == server
    assert (make_tool_name(other, another) == name) == ((server, tool) == (other, another))
    assert selects(f"mcp:{server}/{tool}", name) == selects(f"mcp:{server}/*", name) is True


VALID = re.compile(r"[A-Za-z0-9_-]+")
SHORT = st.text("aA.b_- 2()", max_size=12)


@st.composite
def draw_names(draw: st.DrawFn) -> list[str]:
    """Draw names of which some are those that others would be changed to."""
    names = draw(st.lists(SHORT | SHORT.map(lambda name: name * 8), max_size=8))
    made = [rewrite_name(name, VALID, limit, mark=mark) for name in names for limit in (64, 20) for mark in "_-"]
    made += [rewrite_name(name, VALID, 64, set(names)) for name in made]
    return draw(st.lists(st.sampled_from((*names, *made)), max_size=12)) if names else []


@given(draw_names(), st.sampled_from("_-"), st.sampled_from((64, 20)))
def test_no_two_names_become_one_and_none_changes_when_another_is_added(
    names: list[str], mark: str, limit: int
) -> None:
    taken: list[str] = []
    for name in names:
        taken.append(rewrite_name(name, VALID, limit, taken, mark=mark))
        # Alone it is the same, but for a name that is there already.
        assert taken[-1] == rewrite_name(name, VALID, limit, mark=mark) or rewrite_name(
            name, VALID, limit, mark=mark
        ) in set(taken[:-1])
    assert len(set(taken)) == len(names)
    assert all(VALID.fullmatch(name) and len(name) <= limit for name in taken)


@given(st.lists(SHORT, unique=True))
def test_different_names_become_different_names_whatever_others_there_are(names: list[str]) -> None:
    assert len({rewrite_name(name, VALID, 20) for name in names}) == len(names)


def test_a_name_that_may_not_begin_as_it_does_begins_otherwise() -> None:
    """The new name is as long as names may be, so that as much as possible of the old one is left."""
    name = rewrite_name("1" * 30, re.compile(r"[A-Za-z_][A-Za-z0-9_-]*"), 20)
    assert re.fullmatch(r"_1{10}_[0-9a-f]{8}", name)


def test_a_name_that_looks_like_a_changed_one_is_changed() -> None:
    """Else it could be that of another. Every version of Clew makes the same names."""
    assert rewrite_name("add", VALID, 64) == "add"
    changed = rewrite_name("a.b", VALID, 64)
    assert changed == "a_b_2e7336dc"
    assert rewrite_name(changed, VALID, 64) != changed


@pytest.mark.parametrize("name", ["", "a__b", "_a", "a_", "a b", "a/b", "x" * 33, "ä"])
def test_a_server_name_leaves_no_doubt_where_it_ends(name: str) -> None:
    assert not is_server_name(name)


def test_an_approval_may_name_one_tool_of_all() -> None:
    """Where the session has all tools of a server, each may be named, and the other way round."""
    assert is_selected("mcp:s/t", ("mcp:s/*",))
    assert is_selected("mcp:s/*", ("mcp:s/t",))
    assert not is_selected("mcp:s/t", ("mcp:s/u", "mcp:r/*", "t"))
    assert is_selected("add", ("add",))
    assert not is_selected("mcp__s__t", ("mcp:s/*",))
    assert find_server("mcp__s") is None
    assert find_server("add") is None
