"""Servers whose lists, results, sessions and versions are odd: one odd thing costs nothing around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import mcp_types as types
import pytest
from fastapi import Response

from clew_activities.tools.mcp import mcp_connection
from clew_activities.tools.mcp.mcp_settings import McpUnavailable
from clew_activities.tools.mcp.mcp_tools import UnknownMcpTool
from tests.support.odd_mcp_server import NEW, OLD, OddServer, Refusal, make_error, make_tool, use_server
from tests.support.waiting import PATIENCE_SECONDS

ListPage = Callable[[Any], Any]
NAMES = ("one", "two", "three")


def _number_pages(*cursors: Any, empty: bool = False) -> ListPage:
    """Make a list with a tool on each page, which these cursors lead to; `empty`: empty pages are between them."""

    def list_page(cursor: Any) -> Any:
        known = [None, *cursors]
        if cursor not in known or type(cursor) is not type(known[known.index(cursor)]):
            raise Refusal(types.INVALID_PARAMS, f"no page {cursor!r}")
        number = known.index(cursor)
        following = known[number + 1] if number + 1 < len(known) else None
        is_empty = empty and number % 2 == 0 and following is not None
        tools = [] if is_empty else [make_tool(NAMES[number // 2 if empty else number])]
        return {"tools": tools} if following is None else {"tools": tools, "nextCursor": following}

    return list_page


def _count_on(cursor: Any) -> Any:
    """List the tools, and a further cursor for ever."""
    number = int(cursor or 0)
    tools = [make_tool(NAMES[number])] if number < len(NAMES) else []
    return {"tools": tools, "nextCursor": str(number + 1)}


def _repeat_all(cursor: Any) -> Any:
    """List all tools on each of endless pages."""
    return {"tools": [make_tool(name) for name in NAMES], "nextCursor": f"{cursor}x"}


def _repeat_cursor(cursor: Any) -> Any:
    tools = [make_tool(name) for name in (NAMES[:2] if cursor is None else NAMES[2:])]
    return {"tools": tools, "nextCursor": "again"}


def _end_empty(cursor: Any) -> Any:
    """Write an empty text for no cursor, and refuse it."""
    if cursor == "":
        raise Refusal(types.INTERNAL_ERROR, "no such page")
    return {"tools": [make_tool(name) for name in NAMES], "nextCursor": ""}


def _restart_at_empty(cursor: Any) -> Any:
    """Write an empty text for no cursor, and begin again with it."""
    return {"tools": [make_tool(name) for name in NAMES], "nextCursor": ""}


def _refuse_numbers(cursor: Any) -> Any:
    """Send numbers, and take texts alone."""
    if cursor is not None and not isinstance(cursor, str):
        raise Refusal(types.INVALID_PARAMS, "cursor: a text is expected")
    number = int(cursor or 0)
    return {"tools": [make_tool(NAMES[number])], "nextCursor": number + 1 if number < 2 else False}


def _fail_later(cursor: Any) -> Any:
    if cursor is not None:
        raise Refusal(types.INTERNAL_ERROR, "the database is away")
    return {"tools": [make_tool(name) for name in NAMES], "nextCursor": "next"}


def _break_later(cursor: Any) -> Any:
    if cursor is not None:
        return {"nextCursor": "next"} if cursor == "empty" else {"tools": 7}
    return {"tools": [make_tool(name) for name in NAMES], "nextCursor": "empty"}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    "list_page",
    [
        _number_pages("a", "b"),
        _number_pages("a", "b", "c", "d", empty=True),
        _number_pages("", "b"),
        _number_pages(7, 8),
        _number_pages({"page": 2}, ["x"]),
        _number_pages(1.5, True),
        _refuse_numbers,
        _count_on,
        _repeat_all,
        _repeat_cursor,
        _end_empty,
        _restart_at_empty,
        _fail_later,
        _break_later,
    ],
)
async def test_a_list_ends_with_all_tools_whatever_the_cursors_are(version: str, list_page: ListPage) -> None:
    async with use_server(OddServer(version, list_page)) as tools, asyncio.timeout(PATIENCE_SECONDS):
        assert [tool.tool for tool in await tools.select("mcp:odd/*")] == list(NAMES)


async def test_a_page_that_never_comes_ends_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tools of the pages before are there, and the log says what is missing."""
    monkeypatch.setattr(mcp_connection, "LIST_SECONDS", 0.2)
    released = asyncio.Event()
    server = OddServer(list_page=_repeat_all)
    answer = server.answer

    async def hang(request: Any) -> Response:
        if (await request.json()).get("params", {}).get("cursor"):
            await released.wait()
        return await answer(request)

    server.answer = hang  # type: ignore[method-assign]
    async with use_server(server) as tools:
        assert [tool.tool for tool in await tools.select("mcp:odd/*")] == list(NAMES)
        released.set()


async def test_the_tools_after_the_most_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(mcp_connection, "MAX_TOOLS", 2)
    async with use_server(OddServer(list_page=_number_pages("a", "b"))) as tools:
        assert [tool.tool for tool in await tools.select("mcp:odd/*")] == ["one", "two"]
        with pytest.raises(UnknownMcpTool, match="over 2 tools"):
            await tools.select("mcp:odd/three")
    assert "MCP server 'odd': tool 'three' is left out" in caplog.text


UNUSABLE = [
    {"name": "broken"},
    {"name": "broken", "inputSchema": None},
    {"name": "broken", "inputSchema": "object"},
    {"name": "broken", "inputSchema": {"type": "string"}},
    {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": 7}}},
    {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"type": "text"}}}},
    {"name": "broken", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "https://h/x.json"}}}},
]


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize("broken", [*UNUSABLE, {"inputSchema": {"type": "object"}}, {"name": 7}, 7, None, "tool"])
async def test_a_tool_that_cannot_be_used_costs_no_other(
    version: str, broken: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is left out with a line in the log, and its name is refused with the reason."""
    server = OddServer(version, lambda _: {"tools": [make_tool("one"), broken, make_tool("two")]})
    async with use_server(server) as tools:
        assert [tool.tool for tool in await tools.select("mcp:odd/*")] == ["one", "two"]
        assert "is left out" in caplog.text
        if isinstance(broken, dict) and broken.get("name") == "broken":
            with pytest.raises(UnknownMcpTool, match="'mcp:odd/broken' cannot be used: "):
                await tools.select("mcp:odd/broken")
        (one,) = await tools.select("mcp:odd/one")
        assert await tools.call(one, {}) == ("done", False)


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    "field",
    [
        {"description": 7},
        {"annotations": "read-only"},
        {"annotations": {"readOnlyHint": "false", "idempotentHint": []}},
        {"execution": []},
        {"title": {}, "icons": 7, "_meta": "x", "outputSchema": 7, "unknown": [None]},
        {"inputSchema": {}},
        {"inputSchema": {"type": "object", "properties": None, "required": None, "$schema": None}},
    ],
)
async def test_a_field_that_cannot_be_used_costs_no_tool(version: str, field: dict[str, Any]) -> None:
    """Hints that are no booleans permit nothing."""
    async with use_server(OddServer(version, lambda _: {"tools": [make_tool("one", **field)]})) as tools:
        (one,) = await tools.select("mcp:odd/*")
        assert not one.idempotent
        assert one.spec["parameters"] == {"type": "object"}
        assert await tools.call(one, {}) == ("done", False)


TEXT = {"type": "text", "text": "kept"}


@pytest.mark.parametrize("version", [OLD, NEW])
@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"content": [{"type": "text"}, TEXT]}, "text: Field required"),
        ({"content": [7, None, TEXT, "also kept"]}, "also kept"),
        ({"content": [{"type": "video", "data": "AA=="}, TEXT]}, "'video'"),
        ({"content": [{"type": 7}, TEXT]}, "its type is '7'"),
        ({"content": [{"type": "image", "data": 7}, TEXT]}, "left out: image"),
        ({"content": [{"type": "resource", "resource": {"uri": "a:b"}}, TEXT]}, "left out: resource"),
        ({"content": [{"type": "resource", "resource": {"text": "of it"}}, TEXT]}, "of it"),
        ({"content": [{"type": "resource_link"}, TEXT]}, "left out: resource_link"),
        ({"content": [{**TEXT, "annotations": {"audience": 7}, "_meta": "x"}]}, "kept"),
        ({"content": [{"text": "kept"}]}, "kept"),
        ({"content": TEXT}, "kept"),
        ({"content": "kept"}, "kept"),
        ({"content": [TEXT], "structuredContent": [1, 2]}, "[1,2]"),
        ({"content": None, "structuredContent": {"kept": 1}}, '"kept":1'),
        ({"toolResult": "kept"}, '{"toolResult":"kept"}'),
        ({"content": [TEXT], "isError": "no", "_meta": 7, "resultType": 7}, "kept"),
        ("kept", "kept"),
        (["kept"], '["kept"]'),
    ],
)
async def test_a_part_of_a_result_that_cannot_be_used_costs_no_other(version: str, result: Any, text: str) -> None:
    """The model reads all others, and that it is left out, and never an error of a call that has run."""
    async with use_server(OddServer(version, call=lambda _: result)) as tools:
        (one,) = await tools.select("mcp:odd/one")
        read, is_error = await tools.call(one, {})
        assert (text in read, "kept" in read, is_error) == (True, True, False)


@pytest.mark.parametrize(
    "ended",
    [
        lambda: Response(status_code=404),
        lambda: make_error(None, -32001, "Session not found", 404),
        lambda: make_error("server-error", -32600, "Session has expired", 404),
        lambda: make_error(None, -32000, "Bad Request: No valid session ID provided", 400),
    ],
)
async def test_a_call_of_a_session_that_has_ended_is_repeated_once(ended: Callable[[], Response]) -> None:
    """It has not run: another session begins, whatever the tool does."""
    ran: list[Any] = []

    def run(params: Any) -> Any:
        ran.append(params)
        return {"content": [TEXT]}

    server = OddServer(call=run, ended=ended)
    async with use_server(server) as tools:
        (one,) = await tools.select("mcp:odd/one")
        server.sessions.clear()
        assert await tools.call(one, {}) == ("kept", False)
        assert (len(ran), server.methods.count("tools/call")) == (1, 2)


async def test_a_call_is_repeated_once_only() -> None:
    """A server whose sessions end at once is not asked for ever. A call that failed otherwise is not repeated."""
    server = OddServer()
    async with use_server(server) as tools:
        (one,) = await tools.select("mcp:odd/one")
        server.sessions = _NoSessions()
        with pytest.raises(McpUnavailable):
            await tools.call(one, {})
        assert server.methods.count("tools/call") <= 2
        server.sessions = set()
        server.methods.clear()

        def fail(_: Any) -> Any:
            raise Refusal(-32000, "the session of the database is not there")

        server.call = fail
        with pytest.raises(McpUnavailable, match="database"):
            await tools.call(one, {})
        assert server.methods.count("tools/call") == 1


class _NoSessions(set[str]):
    def __contains__(self, _: object) -> bool:
        return False


SCHEMA = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "deep": {"type": "object", "properties": {"n": {"type": "integer", "x-mcp-header": "N"}}},
    },
}


async def test_a_server_of_the_newest_protocol_alone_is_used() -> None:
    """It refuses `initialize`, and requests without the protocol's headers, those of arguments among them."""
    server = OddServer(NEW, lambda _: {"tools": [make_tool("one", inputSchema=SCHEMA)]})
    async with use_server(server) as tools:
        (one,) = await tools.select("mcp:odd/one")
        assert await tools.call(one, {"region": "Île ", "deep": {"n": 3}}) == ("done", False)
        assert await tools.call(one, {}) == ("done", False)
        assert "initialize" not in server.methods
        # The worker has lost the connection, or learns late that the headers have changed.
        await tools._servers["odd"].close()
        assert await tools.call(one, {"region": "b"}) == ("done", False)
        changed = {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Place"}}}
        server.list_page = lambda _: {"tools": [make_tool("one", inputSchema=changed)]}
        assert await tools.call(one, {"region": "b"}) == ("done", False)


async def test_a_tool_whose_headers_are_not_valid_is_left_out() -> None:
    """In the protocol that has them; the older ones know no such keyword."""
    bad = {"type": "object", "properties": {"a": {"type": "number", "x-mcp-header": "A B"}}}
    listed = [make_tool("one"), make_tool("bad", inputSchema=bad)]
    for version, names in ((NEW, ["one"]), (OLD, ["one", "bad"])):
        async with use_server(OddServer(version, lambda _: {"tools": listed})) as tools:
            assert [tool.tool for tool in await tools.select("mcp:odd/*")] == names


async def test_a_server_that_is_slow_to_answer_the_first_question_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken as an older one, says that it is not, and is asked again."""
    monkeypatch.setattr(mcp_connection, "PROBE_SECONDS", 0.1)
    server = OddServer(NEW)
    answer = server.answer
    released = asyncio.Event()

    async def be_slow(request: Any) -> Response:
        method = (await request.json())["method"]
        if method == "initialize":
            released.set()
            data = {"supported": [NEW], "requested": OLD}
            error = {"code": types.UNSUPPORTED_PROTOCOL_VERSION, "message": "no", "data": data}
            return Response(
                types.JSONRPCError(jsonrpc="2.0", id=None, error=types.ErrorData(**error)).model_dump_json(),
                400,
                media_type="application/json",
            )
        await released.wait()
        return await answer(request)

    server.answer = be_slow  # type: ignore[method-assign]
    async with use_server(server) as tools:
        assert await tools.select("mcp:odd/*")
