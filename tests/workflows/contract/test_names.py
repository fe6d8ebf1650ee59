"""The names of the tools of MCP servers."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_workflows.contract.names import find_server, is_selected, is_server_name, make_tool_name, selects

SERVERS = st.text("ab0_-", min_size=1, max_size=32).filter(is_server_name)


@given(SERVERS, SERVERS, st.text(min_size=1, max_size=150), st.text(min_size=1, max_size=150))
def test_two_tools_have_two_names(server: str, other: str, tool: str, another: str) -> None:
    """Every name is one that providers accept, names its server, and is that of no other tool."""
    name = make_tool_name(server, tool)
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name)
    assert find_server(name) == server
    assert (make_tool_name(other, another) == name) == ((server, tool) == (other, another))
    assert selects(f"mcp:{server}/{tool}", name) == selects(f"mcp:{server}/*", name) is True


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
