"""A service over HTTP for callers that do not write Temporal code. It is nothing but a client of Temporal.

| module | content |
|---|---|
| `app` | `make_app`: the application, its settings, errors, health, metrics and access log |
| `access` | keys, tenants, rate limits, and what a request may reach |
| `problems` | the status and the body of each error |
| `streams` | server-sent events |
| `bodies`, `answers` | bodies of requests and of answers: the contract's types |
| `document` | the OpenAPI document, and a page of it |
| `sessions`, `blobs` | the routes `/v1/sessions/…` |
| `openai` | the OpenAI API: Responses, Conversations, Chat Completions, Models |
| `ui_streams`, `ui_messages` | the routes for `useChat` and AG-UI, and the chunks of the former |
| `mcp_server` | the MCP server: agents as tools, sessions as resources |
| `mcp_sessions` | the sessions of MCP clients whose protocol has them |
| `running`, `tracing` | the process of `clew serve`: its end, its log and its traces |
"""

from clew.serve.access import Key, Keys
from clew.serve.app import make_app
from clew.serve.settings import ServeSettings

__all__ = ["Key", "Keys", "ServeSettings", "make_app"]
