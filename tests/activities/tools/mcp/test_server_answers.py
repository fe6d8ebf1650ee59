"""Answers of servers with odd things in them: the rest is kept, and valid in every version of the protocol."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCResponse
from mcp_types.methods import SERVER_RESULTS, parse_server_result

from clew_activities.tools.mcp.mcp_tools import make_catalog, make_result_pieces, make_result_text
from clew_activities.tools.mcp.server_answers import make_tools_result, mend_result, read_message, read_tools

VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")
ODD: tuple[Any, ...] = (None, "", "odd", 0, 7, -1.5, True, False, [], [None], {}, {"odd": None}, "\n", "x" * 500)
PART = {"type": "text", "text": "kept"}
RESULTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {"listChanged": True}, "resources": {}},
        "serverInfo": {"name": "odd", "version": "1", "title": "Odd"},
        "instructions": "none",
    },
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": {"resources": {"subscribe": True}}},
    "tools/call": {
        "content": [
            {**PART, "annotations": {"audience": ["user"], "priority": 1}},
            {"type": "image", "data": "AA==", "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "a:b", "text": "of it", "mimeType": "text/plain"}},
            {"type": "resource_link", "uri": "a:b", "name": "b", "size": 1},
        ],
        "structuredContent": {"a": 1},
        "isError": False,
        "resultType": "complete",
        "_meta": {"a": 1},
    },
    "resources/read": {"contents": [{"uri": "a:b", "text": "kept"}, {"uri": "a:c", "blob": "AA=="}], "ttlMs": 5},
}
TOOLS: dict[str, Any] = {
    "tools": [
        {
            "name": "one",
            "title": "One",
            "description": "The first.",
            "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}},
            "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True, "title": "One"},
            "execution": {"taskSupport": "optional"},
            "icons": [{"src": "data:,"}],
        },
        {"name": "two", "inputSchema": {"type": "object"}},
    ],
    "nextCursor": "next",
    "ttlMs": 0,
}


def _list_places(value: Any) -> Iterator[tuple[Any, Any]]:
    """List the members of a JSON value, and of its members, each as its holder and its key."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in items:
        yield value, key
        yield from _list_places(member)


def _make_odd(value: Any, generator: random.Random, changes: int) -> Any:
    """Copy a JSON value with some members replaced by odd ones, or left out."""
    changed = copy.deepcopy(value)
    for _ in range(changes):
        holder, key = generator.choice(list(_list_places(changed)) or [({}, "")])
        if isinstance(holder, dict) and generator.random() < 0.2:
            holder.pop(key, None)
        else:
            holder[key] = copy.deepcopy(generator.choice(ODD))
    return changed


@pytest.mark.parametrize("method", RESULTS)
def test_a_mended_result_is_valid_in_every_version(method: str) -> None:
    generator = random.Random(38)
    for number in range(400):
        result = _make_odd(RESULTS[method], generator, 1 + number % 4)
        for version in VERSIONS:
            if (method, version) not in SERVER_RESULTS:
                continue
            mended = mend_result(method, copy.deepcopy(result), version)
            if method == "server/discover" and not isinstance(result.get("supportedVersions"), list):
                continue
            parsed = parse_server_result(method, version, mended)
            if method == "tools/call":
                fields = parsed.model_dump(mode="json", by_alias=True, exclude_none=True)
                make_result_pieces(fields)
                make_result_text(fields)
                if PART in [
                    {key: part.get(key) for key in PART} if isinstance(part, dict) else part
                    for part in (result.get("content") if isinstance(result.get("content"), list) else ())
                ]:
                    assert PART in mended["content"]


@pytest.mark.slow
def test_a_page_of_odd_tools_is_valid_in_every_version() -> None:
    """A tool that has nothing odd is kept, and one that is left out has a reason."""
    generator = random.Random(8)
    for number in range(500):
        result = _make_odd(TOOLS["tools"][0], generator, 1 + number % 4)
        for version in VERSIONS:
            page = read_tools({"tools": [TOOLS["tools"][1], result]}, version)
            parse_server_result("tools/list", version, make_tools_result(page))
            catalog = make_catalog("s", page.tools, 5, page.problems)
            assert "two" in catalog.tools
            assert len(catalog.tools) == 2 or catalog.problems or result.get("name") == "two"


def test_a_result_that_is_not_odd_stays_as_it_is() -> None:
    content = [PART, *RESULTS["tools/call"]["content"][1:3]]
    result = {"content": content, "structuredContent": {"a": None}, "isError": True}
    for version in VERSIONS:
        assert mend_result("tools/call", result, version).items() >= result.items()
        page = read_tools(TOOLS, version)
        assert [tool["inputSchema"] for tool in page.tools] == [tool["inputSchema"] for tool in TOOLS["tools"]]
        assert (page.cursor, page.problems, page.ignored) == ("next", {}, [])


@pytest.mark.parametrize(
    ("message", "result"),
    [
        ({"id": 1, "result": {"a": 1}}, {"a": 1}),
        ({"jsonrpc": "2.0", "id": 1, "result": {"a": 1}, "error": None}, {"a": 1}),
        ({"jsonrpc": "1.0", "id": "1", "result": {"a": 1}}, {"a": 1}),
        ({"jsonrpc": "2.0", "id": 1, "result": "text"}, {"result": "text"}),
        ({"jsonrpc": "2.0", "id": 1, "result": None}, {"result": None}),
        ({"jsonrpc": "2.0", "id": 1, "result": {"a": "half: \ud83d"}}, {"a": "half: ?"}),
    ],
)
def test_a_response_that_is_nearly_one_is_read(message: dict[str, Any], result: dict[str, Any]) -> None:
    read = read_message(json.dumps(message).encode())
    assert isinstance(read, JSONRPCResponse)
    assert read.result == result


@pytest.mark.parametrize("error", ["away", {"message": "away"}, {"code": "E1", "message": "away"}, {"code": 1.5}, []])
def test_an_error_that_is_nearly_one_is_read(error: Any) -> None:
    read = read_message(json.dumps({"jsonrpc": "2.0", "id": 1, "error": error}))
    assert isinstance(read, JSONRPCError)
    assert isinstance(read.error.code, int)


@pytest.mark.parametrize("line", [b"hello", b"", b"7", b"{}", b'{"level": "info"}', b"[" * 100_000, b"\xff"])
def test_what_is_no_message_is_none(line: bytes) -> None:
    assert read_message(line) is None
    assert isinstance(read_message(b'{"jsonrpc": "2.0", "method": "a"}'), JSONRPCNotification)


@pytest.mark.parametrize("levels", [200, 400])
def test_what_is_nested_too_deep_costs_no_message(levels: int) -> None:
    """A tool whose schema has so many levels is left out later, and the other tools of its list stay."""
    deep = b'{"not": ' * levels + b"{}" + b"}" * levels
    line = b'{"jsonrpc": "2.0", "id": 1, "result": {"tools": [{"name": "deep", "inputSchema": ' + deep + b"}]}}"
    message = read_message(line)
    assert message is not None
    assert read_message(message.model_dump_json(by_alias=True, exclude_unset=True)) == message
