"""An MCP server that misbehaves in the way that its tool is named. `python bad_mcp_server.py [mute|stubborn]`.

It needs nothing but Python, so that it starts at once. Its process id is in the file that BAD_MCP_PID names.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

NOTIFICATION = '{"jsonrpc": "2.0", "method": "notifications/message", "params": {"level": "info", "data": 1}}\n'
SCHEMAS: dict[str, dict[str, Any]] = {
    "costly": {"type": "object", "properties": {"a": {"$dynamicRef": "#x"}}},
    "number": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
}
NAMES = (
    "hang",
    "lose",
    "die",
    "flood",
    "chatter",
    "babble",
    "repeat",
    "show",
    "number",
    "costly",
    "a name with spaces",
)


def behave(tool: str, arguments: dict[str, Any]) -> Any:
    """Misbehave, or return the result."""
    out = sys.stdout
    match tool:
        case "hang":
            time.sleep(1000)
        case "die":
            os._exit(3)
        case "flood":
            while True:
                out.write("x" * 65536)
        case "chatter":
            while True:
                out.write(NOTIFICATION)
        case "babble":
            out.write("hello\n" * 1000)
            out.flush()
            time.sleep(1000)
        case "repeat":
            return {"content": [{"type": "text", "text": os.environ.get("MCP_SECRET", "")}]}
        case "show":
            return {"content": [{"type": "text", "text": "look:"}, arguments["part"]]}
    return {"content": [{"type": "text", "text": json.dumps(arguments)}]}


def serve() -> None:
    loses_calls = False
    for line in sys.stdin:
        request = json.loads(line)
        if "id" not in request:
            continue
        result: Any
        if request["method"] == "tools/call":
            # As a server does whose tools wait for a lock that one of them has kept.
            loses_calls = loses_calls or request["params"]["name"] == "lose"
            if loses_calls:
                continue
        match request["method"]:
            case "initialize":
                result = {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "bad", "version": "1"},
                }
            case "tools/list":
                tools = [{"name": name, "inputSchema": SCHEMAS.get(name, {"type": "object"})} for name in NAMES]
                result = {"tools": tools}
            case "ping":
                result = {}
            case _:
                result = behave(request["params"]["name"], request["params"].get("arguments") or {})
        sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    if path := os.environ.get("BAD_MCP_PID"):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
    if "stubborn" in sys.argv:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "mute" not in sys.argv:
        serve()
    while "stubborn" in sys.argv or "mute" in sys.argv:
        time.sleep(1000)
