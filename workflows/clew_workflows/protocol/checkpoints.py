"""Checkpoints that workers sign and open."""

from __future__ import annotations

from typing import Any

from clew_workflows.protocol._value import Value


class SignCheckpoint(Value):
    """Sign what the session holds ready under a number, as a checkpoint that is good for so many seconds."""

    number: int
    expires_seconds: int


class DraftQuery(Value):
    """Ask the session for what it holds ready to be signed under a number."""

    number: int


class CheckpointSignature(Value):
    """What a worker adds to a checkpoint. `iat` and `exp` are in seconds since 1970; `kid` names the key."""

    namespace: str
    fingerprint: str
    iat: int
    exp: int
    kid: str
    signature: str


class OpenCheckpoint(Value):
    """Verify a checkpoint that a session of this id is to be made of."""

    token: str
    session_id: str


class OpenedCheckpoint(Value):
    """The configuration that a session goes on with from a checkpoint, as `AgentSession` takes it."""

    config: dict[str, Any]
