"""The checkpoints' activities: signing a session's draft of a checkpoint, and restoring a session from a token."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from temporalio import activity
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from clew.contract import SessionConfig
from clew.contract.policy import resolve
from clew.errors import InvalidInput, Refusal, TokenMismatch
from clew.thread.entries import DEFAULT_LANE
from clew_activities.archive import Archive
from clew_activities.archive_activities import translate_archive_errors
from clew_activities.checkpoint_tokens import Keys, make_op_id, sign_payload, verify_token
from clew_activities.heartbeat import send_heartbeats
from clew_activities.model_table import choose_policy
from clew_activities.session_queries import get_own_session, query_session
from clew_activities.tools import Tools
from clew_workflows.core.checkpoints import compute_fingerprint, list_fingerprinted, make_restore_operation
from clew_workflows.protocol import CheckpointSignature, OpenCheckpoint, OpenedCheckpoint, SignCheckpoint


class CheckpointActivities:
    """Signs and verifies checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(self, keys: Keys, tools: Tools, archive: Archive, namespace: str) -> None:
        self._keys = keys
        self._tools = tools
        self._archive = archive
        self._namespace = namespace

    @activity.defn(name="sign_checkpoint")
    async def sign_checkpoint(self, request: SignCheckpoint) -> CheckpointSignature:
        """Sign the session's draft. Returns the signature and the other signed fields."""
        async with send_heartbeats(), _translate_refusals():
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

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, request: OpenCheckpoint) -> OpenedCheckpoint:
        """Verify a token. Returns the configuration of the session to start."""
        async with send_heartbeats(), _translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, int(time.time()))
            config = self._read_config(payload)
            async with translate_archive_errors():
                head = await self._archive.read_head(request.session_id)
            if head is not None:
                raise InvalidInput(f"session {request.session_id!r} exists already: restore under another id")
        return OpenedCheckpoint(config=config)

    @activity.defn(name="put_context")
    async def put_context(self, request: OpenCheckpoint) -> dict[str, Any]:
        """Put the checkpoint's context into its lane of the session that was started for it. It can be repeated."""
        op_id = make_op_id(request.token)
        async with send_heartbeats(), _translate_refusals():
            payload = verify_token(request.token, self._keys, self._namespace, None)
            lane = payload["context_ref"]
            await self._operate(request.session_id, make_restore_operation(payload, op_id))
            if lane != DEFAULT_LANE:
                switch = {"type": "switch", "reason": "restore"}
                await self._operate(
                    request.session_id, {"op_id": f"{op_id}-switch", "context_ref": lane, "operation": switch}
                )
        return {}

    def _read_config(self, payload: dict[str, Any]) -> dict[str, Any]:
        """Read the configuration of a checkpoint.

        Raises:
            TokenMismatch: a session of that configuration would show its model other tools or another policy.
        """
        config = SessionConfig.model_validate(payload["config"], strict=False)
        unknown = [name for name in config.tools if name not in self._tools]
        if unknown:
            raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
        specs = [self._tools[name].spec for name in config.tools]
        policy = resolve(agent=config.context_policy or choose_policy(config.model))
        if compute_fingerprint(list_fingerprinted(config, policy, specs)) != str(payload["fingerprint"]):
            raise TokenMismatch("the tools' schemas or the model's policy have changed since the checkpoint was made")
        return dict(payload["config"])

    async def _operate(self, session_id: str, operation: dict[str, Any]) -> None:
        session = activity.client().get_workflow_handle(session_id)
        try:
            await session.execute_update("submit_context_operation", operation)
        except WorkflowUpdateFailedError as error:
            error_type = error.cause.type if isinstance(error.cause, ApplicationError) else None
            is_final = error_type != "archive_unavailable"
            raise ApplicationError(str(error.cause), type=error_type or "internal", non_retryable=is_final) from error


@asynccontextmanager
async def _translate_refusals() -> AsyncIterator[None]:
    """Raise refusals as application errors with their wire types. They are final: a retry is refused, too."""
    try:
        yield
    except Refusal as refusal:
        raise ApplicationError(str(refusal), type=refusal.type, non_retryable=True) from refusal
