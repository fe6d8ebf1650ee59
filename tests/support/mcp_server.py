"""An MCP server made with the official package. `python -m tests.support.mcp_server [--port N] [--grown]`.

Without a port it serves on standard input and output, with one on loopback by streamable HTTP. Its list of tools
grows when the tool `grow` is called, or is grown from the start.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
from typing import Any

import mcp_types as types
from mcp.server.mcpserver import Context, Image, MCPServer

from tests.support.media import make_pdf, make_png, make_wav

server = MCPServer("tests")
READ_ONLY = types.ToolAnnotations(read_only_hint=True)


@server.tool(annotations=READ_ONLY)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def fail(reason: str) -> str:
    """Fail."""
    raise RuntimeError(reason)


@server.tool(annotations=READ_ONLY, structured_output=False)
def picture() -> list[Any]:
    """Show a picture."""
    return ["a picture:", Image(data=make_png(12, 11), format="png")]


@server.tool(annotations=READ_ONLY, structured_output=False)
def everything() -> list[Any]:
    """Show one of each."""
    pdf = base64.b64encode(make_pdf(2)).decode()
    return [
        types.AudioContent(type="audio", data=base64.b64encode(make_wav(1)).decode(), mime_type="audio/wav"),
        types.EmbeddedResource(
            type="resource",
            resource=types.BlobResourceContents(
                uri="file:///bills/march%202026.pdf", blob=pdf, mime_type="text/html"
            ),
        ),
        types.EmbeddedResource(
            type="resource", resource=types.TextResourceContents(uri="notes://today", text="buy milk")
        ),
        types.ResourceLink(type="resource_link", name="today", uri="notes://today"),
    ]


@server.tool(annotations=READ_ONLY)
def environment() -> dict[str, str]:
    """Show the variables of the process."""
    return dict(os.environ)


@server.resource("notes://today")
def today() -> str:
    """The notes of today."""
    return "buy milk"


@server.tool(annotations=READ_ONLY, structured_output=False)
def find_notes() -> list[Any]:
    """Find the notes."""
    return [types.ResourceLink(type="resource_link", name="today", uri="notes://today")]


@server.tool(annotations=READ_ONLY)
async def count_slowly(context: Context[Any, Any]) -> str:
    """Count, and report the progress."""
    await context.report_progress(1, 4, "one of them")
    await context.report_progress(2, 4)
    return "counted"


@server.tool()
async def wait() -> str:
    """Wait for ever."""
    await asyncio.Event().wait()
    return ""


def add_tool() -> None:
    server.add_tool(lambda: "new", name="added", description="A new tool.")


@server.tool()
async def grow(context: Context[Any, Any]) -> str:
    """Add a tool to the server."""
    add_tool()
    await context.session.send_tool_list_changed()
    return "grown"


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int)
    parser.add_argument("--grown", action="store_true")
    arguments = parser.parse_args()
    if arguments.grown:
        add_tool()
    if arguments.port:
        server.run("streamable-http", host="127.0.0.1", port=arguments.port)
    else:
        server.run("stdio")
