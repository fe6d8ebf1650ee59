"""What Temporal Cloud charges for, by kind: tests count it on a server, and the page about costs is made of it."""

from __future__ import annotations

TURN = {"update": 1, "activity": 1, "search attributes": 1}
"""A turn with one model call: its message, the call, and what lists show of it."""
SESSION = {"workflow started": 1, "update": 2, "activity": 3, "search attributes": 3, "query": 2}
"""A session of one turn, from its start until it is archived."""
