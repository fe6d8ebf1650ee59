"""The file of MCP servers: its forms, its variables, and what cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from clew_activities.received_media import NewMedia
from clew_activities.tools.mcp.mcp_settings import HttpSettings, McpUnusable, ProcessSettings, read_mcp_settings
from clew_activities.tools.mcp.mcp_tools import McpTools, make_result_pieces, make_result_text


def read(folder: Path, document: Any, **environ: str) -> Any:
    path = folder / "mcp.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return read_mcp_settings({"CLEW_MCP": str(path), **environ})


def test_variables_come_from_the_worker(tmp_path: Path) -> None:
    """Their values are known as secrets, and no repr shows them. Fields of other programs are ignored."""
    servers = {
        "one": {"command": "npx", "args": ["-y", "x"], "env": {"KEY": "${MY_KEY}"}, "disabled": False},
        "two": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${MY_KEY}"}},
    }
    settings = read(tmp_path, {"mcpServers": servers}, MY_KEY="s3cret-value")
    one, two = settings.servers["one"], settings.servers["two"]
    assert isinstance(one, ProcessSettings)
    assert isinstance(two, HttpSettings)
    assert (one.env, two.headers) == ({"KEY": "s3cret-value"}, {"Authorization": "Bearer s3cret-value"})
    assert settings.secrets == ("s3cret-value",)
    assert "s3cret" not in repr((one, two, settings.secrets and settings))


@pytest.mark.parametrize(
    ("fields", "is_told"),
    [
        ({"command": "no-such-program"}, True),
        ({"command": "/no/such/program"}, True),
        ({"command": "sh", "env": {"PATH": "/no/such/folder"}}, True),
        ({"command": "sh", "cwd": "/no/such/folder"}, True),
        ({"command": "./server", "cwd": "{folder}"}, False),
        ({"command": "./other", "cwd": "{folder}"}, True),
        ({"command": "server", "env": {"PATH": "{folder}"}}, False),
        ({"command": "sh"}, False),
        ({"url": "http://127.0.0.1:9/mcp"}, False),
    ],
)
def test_a_server_whose_program_is_missing_is_told_at_the_start(
    tmp_path: Path, fields: dict[str, Any], is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """A line in the log names it. The worker starts: the other servers can be used."""
    (tmp_path / "server").write_text("#!/bin/sh\n")
    (tmp_path / "server").chmod(0o755)
    document = json.dumps({"mcpServers": {"one": fields}}).replace("{folder}", str(tmp_path))
    McpTools(read(tmp_path, document))
    assert ("MCP server 'one' cannot be started: there is no " in caplog.text) == is_told


def test_no_file_means_no_servers() -> None:
    assert not read_mcp_settings({}).servers


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ("{", "cannot be read"),
        ([], "mcpServers"),
        ({"mcpServers": {"a__b": {"command": "x"}}}, "not the name of a server"),
        ({"mcpServers": {"a": {"command": "x", "url": "y"}}}, "either 'command' or 'url'"),
        ({"mcpServers": {"a": {"command": "s3cret", "args": 1}}}, "args"),
        ({"mcpServers": {"a": {"url": "ftp://s3cret"}}}, "url"),
        ({"mcpServers": {"a": {"url": "http://h", "type": "sse"}}}, "'sse' is not supported"),
        ({"mcpServers": {"a": {"command": "${NOT_SET}"}}}, "NOT_SET is not set"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_without_its_values(tmp_path: Path, document: Any, problem: str) -> None:
    with pytest.raises(McpUnusable, match=problem) as refused:
        read(tmp_path, document)
    assert "CLEW_MCP" in str(refused.value)
    assert "s3cret" not in str(refused.value)


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("result", "shown"),
    [
        ({"content": [text("a"), text("b")]}, "a\nb"),
        ({"content": [text('{"a": 1}')], "structuredContent": {"a": 1}}, '{"a": 1}'),
        ({"content": [text("1"), text("2")], "structuredContent": {"result": [1, 2]}}, "1\n2"),
        ({"content": [text("done")], "structuredContent": {"a": 1}}, 'done\n{"a":1}'),
        ({"content": [], "structuredContent": {"a": 1}}, '{"a":1}'),
        ({"content": [{"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]}, "[audio: audio/wav, 3 bytes]"),
        ({"content": [{"type": "resource", "resource": {"uri": "f:x", "text": "t"}}]}, "t"),
        (
            {"content": [{"type": "resource", "resource": {"uri": "f:x", "blob": "AAA="}}]},
            "[resource f:x: unknown type, 2 bytes]",
        ),
        ({"content": [{"type": "resource_link", "name": "n", "uri": "f:x"}]}, "[link to n: f:x]"),
        ({}, ""),
    ],
)
def test_a_result_becomes_text(result: dict[str, Any], shown: str) -> None:
    assert make_result_text(result) == shown


@pytest.mark.parametrize("uri", ["http://[bad/kept.txt", "//[/kept.txt", "kept.txt", "a://b/kept.txt"])
def test_a_file_whose_uri_is_none_is_read(uri: str) -> None:
    """The name of the file is the last part of whatever the server writes."""
    part = {"type": "resource", "resource": {"uri": uri, "blob": "aGk="}}
    (piece,) = make_result_pieces({"content": [part]}) or []
    assert isinstance(piece, NewMedia)
    assert (piece.data, piece.name) == (b"hi", "kept.txt")
