"""The fairness key of a session: while calls wait for workers, the server takes those of each key in turn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

KEY_CHARACTERS = 32
"""Characters of a key. Temporal takes 64 bytes."""


def find_fairness_key(session_id: str, metadata: Mapping[str, str], inherited: str | None = None) -> str:
    """Find the fairness key of a session: that of its metadata's `tenant`, or else of its `user`.

    A session that has neither shares the key that it was started with (`inherited`), as a subagent does, or else has
    one of its own.
    """
    owner = metadata.get("tenant") or metadata.get("user")
    return make_fairness_key(owner) if owner else inherited or make_fairness_key(session_id)


def make_fairness_key(owner: str) -> str:
    """Make the fairness key of a tenant, a user or a session: a digest, since the server and its UI show it."""
    return hashlib.sha256(owner.encode()).hexdigest()[:KEY_CHARACTERS]
