"""The checkpoints' activities: signing what a session holds ready, and making a session of a token."""

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
    """Signs checkpoints and verifies them, with the worker's keys and for its Temporal namespace."""

    def __init__(self, keys: Keys, tools: Tools, archive: Archive, namespace: str) -> None:
        self._keys = keys
        self._tools = tools
        self._archive = archive
        self._namespace = namespace

    @activity.defn(name="sign_checkpoint")
    async def sign_checkpoint(self, asked: SignCheckpoint) -> CheckpointSignature:
        """The signature of what the session holds ready, and what was signed beside it."""
        async with send_heartbeats(), _refusing():
            self._keys.get_signing_key()
            draft = await query_session(get_own_session(), "checkpoint", {"number": asked.number})
            return sign_payload(
                draft["payload"],
                fingerprint=compute_fingerprint(draft["fingerprinted"]),
                namespace=self._namespace,
                keys=self._keys,
                now=int(time.time()),
                expires_seconds=asked.expires_seconds,
            )

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, asked: OpenCheckpoint) -> OpenedCheckpoint:
        """The configuration of a checkpoint, if it is good and its session can be made here and now."""
        async with send_heartbeats(), _refusing():
            payload = verify_token(asked.token, self._keys, self._namespace, int(time.time()))
            config = self._checked_config(payload)
            async with translate_archive_errors():
                head = await self._archive.read_head(asked.session_id)
            if head is not None:
                raise InvalidInput(f"there is a session {asked.session_id!r} already")
        return OpenedCheckpoint(config=config)

    @activity.defn(name="put_context")
    async def put_context(self, asked: OpenCheckpoint) -> dict[str, Any]:
        """Put the checkpoint's context under its lane in the session that was started for it; it may be repeated."""
        op_id = make_op_id(asked.token)
        async with send_heartbeats(), _refusing():
            payload = verify_token(asked.token, self._keys, self._namespace, None)
            lane = payload["context_ref"]
            await self._operate(asked.session_id, make_restore_operation(payload, op_id))
            if lane != DEFAULT_LANE:
                switch = {"type": "switch", "reason": "restore"}
                await self._operate(
                    asked.session_id, {"op_id": f"{op_id}-switch", "context_ref": lane, "operation": switch}
                )
        return {}

    def _checked_config(self, payload: dict[str, Any]) -> dict[str, Any]:
        """The configuration under which a session made today shows its model what the checkpoint's would have."""
        config = SessionConfig.model_validate(payload["config"], strict=False)
        unknown = [name for name in config.tools if name not in self._tools]
        if unknown:
            raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
        specs = [self._tools[name].spec for name in config.tools]
        policy = resolve(agent=config.context_policy or choose_policy(config.model))
        if compute_fingerprint(list_fingerprinted(config, policy, specs)) != str(payload["fingerprint"]):
            raise TokenMismatch("the schemas of the tools, or the model's policy, are not those of the checkpoint")
        return dict(payload["config"])

    async def _operate(self, session_id: str, operation: dict[str, Any]) -> None:
        session = activity.client().get_workflow_handle(session_id)
        try:
            await session.execute_update("submit_context_operation", operation)
        except WorkflowUpdateFailedError as error:
            word = error.cause.type if isinstance(error.cause, ApplicationError) else None
            final = word != "archive_unavailable"
            raise ApplicationError(str(error.cause), type=word or "internal", non_retryable=final) from error


@asynccontextmanager
async def _refusing() -> AsyncIterator[None]:
    """Refusals in the words that travel; no attempt after this one would end otherwise."""
    try:
        yield
    except Refusal as refusal:
        raise ApplicationError(str(refusal), type=refusal.type, non_retryable=True) from refusal
