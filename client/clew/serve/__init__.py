"""A service over HTTP for callers that do not write Temporal code. It is nothing but a client of Temporal.

| module | content |
|---|---|
| `application`, `service_settings` | `make_app`: the application, with its health and metrics; its settings |
| `access` | keys, tenants, rate limits, and what a request may reach |
| `gate`, `shares` | what each request passes; what keys share, and the share of each |
| `error_words`, `problems` | the words and the status of each error, also those for tenants; its body |
| `worker_watch` | requests to sessions that no worker serves |
| `streams` | server-sent events |
| `bodies`, `answers` | bodies of requests and of answers: the contract's types |
| `document` | the OpenAPI document, and a page of it |
| `sessions`, `blob_routes`, `schedule_routes` | the routes `/v1/sessions/…` and `/v1/schedules/…` |
| `openai` | the OpenAI API: Responses, Conversations, Chat Completions, Models |
| `ui_streams` | the routes for `useChat` and AG-UI; `clew.ag_ui.mapping` makes AG-UI's events |
| `ui_messages` | the chunks of `useChat` |
| `studio` | the studio's pages |
| `mcp_server` | the MCP server: agents as tools, sessions as resources |
| `mcp_sessions` | the sessions of MCP clients whose protocol has them |
| `service_process`, `tracing` | the process of `clew serve`: its end, its log and its traces |
"""

from clew.serve.access import Key, Keys
from clew.serve.application import make_app
from clew.serve.service_settings import ServeSettings

__all__ = ["Key", "Keys", "ServeSettings", "make_app"]
