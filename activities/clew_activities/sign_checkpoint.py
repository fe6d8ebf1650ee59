"""The activity `sign_checkpoint`: signs a session's draft of a checkpoint."""

from __future__ import annotations

import time

from temporalio import activity

from clew_activities.checkpoint_tokens import Keys, sign_payload
from clew_activities.error_translation import translate_refusals
from clew_activities.heartbeat import send_heartbeats
from clew_activities.session_queries import get_own_session, query_session
from clew_workflows.core.checkpoints import compute_fingerprint
from clew_workflows.protocol import CheckpointSignature, SignCheckpoint


class SigningActivities:
    """Signs checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(self, keys: Keys, namespace: str) -> None:
        self._keys = keys
        self._namespace = namespace

    @activity.defn(name="sign_checkpoint")
    async def sign_checkpoint(self, request: SignCheckpoint) -> CheckpointSignature:
        """Sign the session's draft. Returns the signature and the other signed fields."""
        async with send_heartbeats(), translate_refusals():
            self._keys.get_signing_key()
            draft = await query_session(get_own_session(), "checkpoint", {"number": request.number})
            return sign_payload(
                draft["payload"],
                fingerprint=compute_fingerprint(draft["fingerprinted"]),
                namespace=self._namespace,
                keys=self._keys,
                now=int(time.time()),
                expires_seconds=request.expires_seconds,
            )
