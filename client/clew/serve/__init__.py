"""A service over HTTP for callers that do not write Temporal code. It is nothing but a client of Temporal.

| module | content |
|---|---|
| `app` | `make_app`: the application, its settings, errors, health, metrics and access log |
| `access` | keys, tenants, rate limits, and what a request may reach |
| `problems` | the status and the body of each error |
| `streams` | server-sent events |
| `sessions`, `blobs` | the routes `/v1/sessions/…` |
"""

from clew.serve.access import Key, Keys
from clew.serve.app import ServeSettings, make_app

__all__ = ["Key", "Keys", "ServeSettings", "make_app"]
