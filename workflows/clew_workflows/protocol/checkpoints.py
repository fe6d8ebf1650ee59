"""Checkpoints, which workers sign and verify."""

from __future__ import annotations

from typing import Any

from clew_workflows.protocol._value import Value


class SignCheckpoint(Value):
    """Sign a checkpoint that the session has drafted.

    Attributes:
        number: The number of the draft; the worker fetches it by query.
        expires_seconds: Seconds from signing until the checkpoint expires.
    """

    number: int
    expires_seconds: int


class DraftQuery(Value):
    """The query for a draft that is to be signed.

    Attributes:
        number: The number of the draft.
    """

    number: int


class CheckpointSignature(Value):
    """The fields that a worker adds to a checkpoint.

    Attributes:
        namespace: The worker's namespace.
        fingerprint: A digest over the configuration as it was resolved.
        iat: When it was signed, in seconds since 1970.
        exp: When it expires, in seconds since 1970.
        kid: The id of the key.
        signature: The HMAC-SHA256 in base64url.
    """

    namespace: str
    fingerprint: str
    iat: int
    exp: int
    kid: str
    signature: str


class OpenCheckpoint(Value):
    """Verify a checkpoint.

    Attributes:
        token: The checkpoint.
        session_id: The id of the session that will continue from it.
    """

    token: str
    session_id: str


class OpenedCheckpoint(Value):
    """A verified checkpoint.

    Attributes:
        config: The new session's configuration, as `AgentSession` takes it.
    """

    config: dict[str, Any]
