"""Checkpoint tokens on the worker: signed with its newest key, verified with any of them. Pure."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from base64 import b64decode, urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clew.contract import MAX_TOKEN_BYTES, SessionConfig, Snapshot
from clew.errors import (
    CheckpointUnavailable,
    TokenExpired,
    TokenForeign,
    TokenKey,
    TokenLegacy,
    TokenMalformed,
    TokenSignature,
    TokenVersion,
)
from clew_workflows.core.checkpoints import PREFIX, VERSION, encode_base64url, make_signed_part
from clew_workflows.protocol import CheckpointSignature

VARIABLE = "CLEW_CHECKPOINT_KEYS"
MIN_KEY_BYTES = 32
NO_KEYS = f"the worker has no key for checkpoints: set {VARIABLE} to kid:key, the key being 32 random bytes in base64"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a worker by their ids. The first one signs, every one verifies. Its repr shows none."""

    by_kid: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def get_signing_key(self) -> tuple[str, bytes]:
        """The key that signs, and its id.

        Raises:
            CheckpointUnavailable: there is none.
        """
        if not self.by_kid:
            raise CheckpointUnavailable(NO_KEYS)
        return next(iter(self.by_kid.items()))


class Checkpoint(BaseModel):
    """The payload of a token that was verified."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    v: Literal[2]
    session_id: str
    context_ref: str
    at_seq: int
    context: Snapshot
    config: SessionConfig
    namespace: str
    fingerprint: str
    iat: int
    exp: int
    kid: str


def read_keys(env: Mapping[str, str]) -> Keys:
    """The keys that `CLEW_CHECKPOINT_KEYS` holds, `kid:base64key` separated by commas; none where it is not set.

    Raises:
        ValueError: it holds something else. What it holds is not repeated: it may be a key.
    """
    keys: dict[str, bytes] = {}
    for number, pair in enumerate(filter(None, map(str.strip, env.get(VARIABLE, "").split(","))), 1):
        kid, _, key = pair.partition(":")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", kid) or kid in keys:
            raise ValueError(
                f"{VARIABLE}: key {number} needs an id of its own, letters, digits, '_' and '-', and ':'"
            )
        try:
            keys[kid] = b64decode(key, validate=True)
        except ValueError:
            raise ValueError(f"{VARIABLE}: key {number} is not base64") from None
        if len(keys[kid]) < MIN_KEY_BYTES:
            raise ValueError(f"{VARIABLE}: key {number} has less than {MIN_KEY_BYTES} bytes")
    return Keys(keys)


def sign_payload(
    payload: str, *, fingerprint: str, namespace: str, keys: Keys, now: int, expires_seconds: int
) -> CheckpointSignature:
    """What makes a checkpoint's token of its payload.

    Raises:
        CheckpointUnavailable: there is no key.
    """
    kid, key = keys.get_signing_key()
    stamp = CheckpointSignature(
        namespace=namespace, fingerprint=fingerprint, iat=now, exp=now + expires_seconds, kid=kid, signature=""
    )
    return stamp.model_copy(update={"signature": _signature(make_signed_part(payload, stamp), key)})


def verify_token(token: str, keys: Keys, namespace: str, now: int | None) -> dict[str, Any]:
    """The payload of a token, a `Checkpoint` as plain JSON; its age does not matter where `now` is None.

    Raises:
        Refusal: `checkpoint_unavailable`, or the `token_*` that says what is wrong.
    """
    keys.get_signing_key()
    signed, signature, payload = _parts(token)
    kid = payload.get("kid")
    if not isinstance(kid, str) or kid not in keys.by_kid:
        raise TokenKey("the checkpoint was signed with a key that the worker does not have")
    if not hmac.compare_digest(_signature(signed, keys.by_kid[kid]).encode(), signature.encode()):
        raise TokenSignature("the checkpoint's signature does not match: it was changed, or signed elsewhere")
    if "thread" in payload:
        raise TokenLegacy("the checkpoint holds a thread: make a new one, which holds a context")
    if payload.get("v") != VERSION:
        raise TokenVersion(f"the checkpoint is of version {payload.get('v')!r:.50}, this worker takes {VERSION}")
    try:
        checkpoint = Checkpoint.model_validate_json(json.dumps(payload))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TokenMalformed(f"the checkpoint's payload cannot be used: {where}: {first['msg']}"[:500]) from None
    if checkpoint.namespace != namespace:
        raise TokenForeign(
            f"the checkpoint was made in the namespace {checkpoint.namespace[:100]!r}, not {namespace!r}"
        )
    if now is not None and now >= checkpoint.exp:
        raise TokenExpired("the checkpoint's time is over: make a new one, with a longer expires_seconds")
    return payload


def make_op_id(token: str) -> str:
    """The same for every attempt to restore a token, and for no other token."""
    return f"restore-{hashlib.sha256(token.encode()).hexdigest()}"


def _parts(token: str) -> tuple[str, str, dict[str, Any]]:
    """What was signed, the signature, and the payload, which nothing is known about yet."""
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenMalformed(f"the token has more than {MAX_TOKEN_BYTES} characters")
    form = re.fullmatch(r"rt(\d{1,9})\.(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+", token, re.ASCII)
    if form is None:
        raise TokenMalformed("this is no checkpoint's token: rt2, a payload and a signature, with dots between them")
    if f"rt{form[1]}" != PREFIX:
        raise TokenVersion(f"the checkpoint is of version rt{form[1]}, this worker takes {PREFIX}")
    try:
        _, body, signature = token.split(".")
        payload = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, RecursionError):
        raise TokenMalformed("the token is not whole: its payload cannot be read") from None
    if not isinstance(payload, dict):
        raise TokenMalformed("the token's payload is no object")
    return f"{PREFIX}.{body}", signature, payload


def _signature(signed: str, key: bytes) -> str:
    return encode_base64url(hmac.digest(key, signed.encode(), "sha256"))
