"""Checkpoints on the worker: signed with its first key, verified with any of its keys.

A session drafts a checkpoint, and `sign_checkpoint` signs it. `open_checkpoint` verifies a token from which a session
is to be started, and `put_context` puts its context into that session. Both can be repeated, also under the id of a
session that an earlier restore has started.
"""

from __future__ import annotations

import hmac
import json
import re
import time
from base64 import urlsafe_b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError
from temporalio import activity
from temporalio.client import WorkflowExecutionDescription
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from clew.session.handle import SessionHandle
from clew.session.transport import INTERRUPTED, make_input
from clew_activities.archive import Archive
from clew_activities.archive.archive_errors import translate_archive_errors, translate_refusals
from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.thread_source import Threads, get_own_session, query_session
from clew_activities.heartbeats import send_heartbeats
from clew_activities.model.model_table import NO_OWN_MODELS, OwnModels, choose_policy
from clew_activities.tools.mcp.mcp_settings import McpUnavailable
from clew_activities.tools.mcp.mcp_tools import McpTools, UnknownMcpTool
from clew_activities.tools.registry import Registry
from clew_workflows.contract import WORKFLOW_TYPE, ContextOperation, EntriesQuery, SessionConfig, Snapshot
from clew_workflows.contract.content import iterate_blobs
from clew_workflows.contract.errors import (
    ArchiveUnavailable,
    CheckpointUnavailable,
    NewerVersion,
    RequestReused,
    TokenExpired,
    TokenForeign,
    TokenKey,
    TokenLegacy,
    TokenMalformed,
    TokenMismatch,
    TokenSignature,
    TokenVersion,
)
from clew_workflows.contract.limits import MAX_TOKEN_BYTES
from clew_workflows.contract.names import DELETED_WORKFLOW
from clew_workflows.contract.outputs import OperationReceipt
from clew_workflows.contract.payloads import OperationPayload
from clew_workflows.contract.policy import resolve
from clew_workflows.encryption import parse_keys
from clew_workflows.protocol import CheckpointSignature, OpenCheckpoint, OpenedCheckpoint, SignCheckpoint
from clew_workflows.session.checkpoints import (
    FORMAT,
    RESTORE_MEMO,
    compute_fingerprint,
    encode_base64url,
    list_fingerprinted,
    list_restore_operations,
    make_op_id,
    make_signed_part,
)

VARIABLE = "CLEW_CHECKPOINT_KEYS"
NO_KEYS = f"the worker has no key for checkpoints: set {VARIABLE} to kid:key, where key is 32 random bytes in base64"


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a worker. The first one signs, every one verifies. The repr shows none of them.

    Attributes:
        by_kid: The keys by their ids.
    """

    by_kid: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def get_signing_key(self) -> tuple[str, bytes]:
        """Return the id and the bytes of the key that signs.

        Raises:
            CheckpointUnavailable: The worker has no key.
        """
        if not self.by_kid:
            raise CheckpointUnavailable(NO_KEYS)
        return next(iter(self.by_kid.items()))


class Checkpoint(BaseModel):
    """The payload of a token.

    Attributes:
        v: Version of the format.
        session_id: The session that the checkpoint was made of.
        context_ref: The lane of the context.
        at_seq: Seq up to which the context was built.
        context: The context.
        config: The session's configuration.
        namespace: The Temporal namespace it was made in.
        fingerprint: Hash of the tools' schemas and of the model's policy.
        iat: When it was signed, in seconds since the epoch.
        exp: When it expires, in seconds since the epoch.
        kid: Id of the key that signed it.
    """

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


class CheckpointActivities:
    """Signs and verifies checkpoints with the worker's keys, for its Temporal namespace."""

    def __init__(
        self,
        keys: Keys,
        registry: Registry,
        archive: Archive,
        namespace: str,
        mcp_tools: McpTools,
        *,
        own_models: OwnModels = NO_OWN_MODELS,
        blobs: Blobs | None = None,
    ) -> None:
        self._keys = keys
        self._registry = registry
        self._threads = Threads(archive)
        self._blobs = blobs or Blobs(archive)
        self._namespace = namespace
        self._mcp_tools = mcp_tools
        self._own_models = own_models

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

    @activity.defn(name="open_checkpoint")
    async def open_checkpoint(self, request: OpenCheckpoint) -> OpenedCheckpoint:
        """Verify a token, and give the session to start the blobs that it names. Returns its configuration.

        A token that the session has been restored from may have expired since.
        """
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            payload = verify_token(request.token, self._keys, self._namespace, None)
            restored = await self._find_restored(request, payload)
            if restored == "done":
                return OpenedCheckpoint(config={}, restored=restored)
            verify_token(request.token, self._keys, self._namespace, int(time.time()))
            config = await read_config(payload, self._registry, self._mcp_tools, self._own_models)
            if restored == "other":
                raise _make_refusal(request.session_id)
            await self._copy_blobs(payload, request.session_id)
        return OpenedCheckpoint(config=config, restored=restored)

    @activity.defn(name="put_context")
    async def put_context(self, request: OpenCheckpoint) -> dict[str, Any]:
        """Put the checkpoint's context into its lane of the session that was started for it. It can be repeated.

        Several callers may restore the same token to the same session: each operation is applied once.
        """
        async with send_heartbeats(), translate_archive_errors(damage_is_final=True):
            payload = verify_token(request.token, self._keys, self._namespace, None)
            if await self._find_restored(request, payload) in ("no", "other", "deleted"):
                raise _make_refusal(request.session_id)
            for operation in list_restore_operations(payload, make_op_id(request.token)):
                await _apply_operation(request.session_id, operation)
        return {}

    async def _find_restored(
        self, request: OpenCheckpoint, payload: Mapping[str, Any]
    ) -> Literal["no", "begun", "done", "deleted", "other"]:
        """Find how far a session was restored from a token. `other`: it is another session."""
        op_id = make_op_id(request.token)
        last_id = list_restore_operations(payload, op_id)[-1]["op_id"]
        location = await self._threads.look_up(request.session_id)
        if location:
            async for entry in self._threads.read_forward(location, EntriesQuery(kind="ai_context_operation")):
                # A fork of a restored session has the operation of that one.
                is_own = entry.refs.get("session_id") == request.session_id
                if is_own and entry.read(OperationPayload).op_id == last_id:
                    return "done"
        newest = await _describe(request.session_id)
        if newest and await _was_started_for(newest, op_id):
            return "begun"
        if location:
            return "other"
        return "deleted" if newest and newest.workflow_type == DELETED_WORKFLOW else "no"

    async def _copy_blobs(self, payload: dict[str, Any], session_id: str) -> None:
        """Copy the blobs that a checkpoint's context names from its session's archive to that of a new session.

        Raises:
            UnknownBlob: The archive of the checkpoint's session was deleted, or has lost a blob.
        """
        named = list(iterate_blobs(message["content"] for message in payload["context"]["messages"]))
        if named:
            source = await self._blobs.find_family(payload["session_id"])
            await self._blobs.copy(source, await self._blobs.find_family(session_id), named)


def read_keys(env: Mapping[str, str]) -> Keys:
    """Read the keys in `CLEW_CHECKPOINT_KEYS`, `kid:base64key` separated by commas; none if it is not set.

    Raises:
        ValueError: The value has another form. The message does not repeat it: it may hold a key.
    """
    return Keys(parse_keys(VARIABLE, env.get(VARIABLE, "")))


def sign_payload(
    payload: str, *, fingerprint: str, namespace: str, keys: Keys, now: int, expires_seconds: int
) -> CheckpointSignature:
    """Sign the payload of a checkpoint.

    Raises:
        CheckpointUnavailable: The worker has no key.
    """
    kid, key = keys.get_signing_key()
    stamp = CheckpointSignature(
        namespace=namespace, fingerprint=fingerprint, iat=now, exp=now + expires_seconds, kid=kid, signature=""
    )
    return stamp.model_copy(update={"signature": _compute_signature(make_signed_part(payload, stamp), key)})


def verify_token(token: str, keys: Keys, namespace: str, now: int | None) -> dict[str, Any]:
    """Verify a token. Returns its payload, a `Checkpoint` as plain JSON. If `now` is None its age is not checked.

    Raises:
        CheckpointUnavailable: The worker has no key.
        TokenExpired: Its time is over.
        TokenForeign: It was made in another namespace.
        TokenKey: The worker does not have the key that signed it.
        TokenLegacy: It holds a thread instead of a context.
        TokenMalformed: It is not a token, or its payload is not a checkpoint.
        TokenSignature: Its signature does not match.
        TokenVersion: It is of another version.
    """
    keys.get_signing_key()
    signed, signature, payload = _split_token(token)
    kid = payload.get("kid")
    if not isinstance(kid, str) or kid not in keys.by_kid:
        raise TokenKey("the checkpoint was signed with a key that the worker does not have")
    if not hmac.compare_digest(_compute_signature(signed, keys.by_kid[kid]).encode(), signature.encode()):
        raise TokenSignature("the checkpoint's signature does not match: it was changed, or signed elsewhere")
    if "thread" in payload:
        raise TokenLegacy("the checkpoint holds a thread: make a new one, which holds a context")
    upgraded: dict[str, Any] = FORMAT.upgrade(payload, _check_version(payload.get("v")))
    try:
        checkpoint = Checkpoint.model_validate_json(json.dumps(upgraded))
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        path = ".".join(map(str, first["loc"]))
        raise TokenMalformed(f"the checkpoint's payload cannot be used: {path}: {first['msg']}"[:500]) from None
    if checkpoint.namespace != namespace:
        raise TokenForeign(
            f"the checkpoint was made in the namespace {checkpoint.namespace[:100]!r}, not {namespace!r}"
        )
    if now is not None and now >= checkpoint.exp:
        raise TokenExpired("the checkpoint's time is over: make a new one, with a longer expires_seconds")
    return upgraded


def _split_token(token: str) -> tuple[str, str, dict[str, Any]]:
    """Split a token into the signed text, the signature and the payload, without verifying them."""
    if len(token) > MAX_TOKEN_BYTES:
        raise TokenMalformed(f"the token has more than {MAX_TOKEN_BYTES} characters")
    match = re.fullmatch(r"rt(\d{1,9})\.(?:[A-Za-z0-9_-]+\.)*[A-Za-z0-9_-]+", token, re.ASCII)
    if match is None:
        raise TokenMalformed("this is not a checkpoint's token, which is rt2, a payload and a signature, with dots")
    _check_version(int(match[1]))
    try:
        prefix, body, signature = token.split(".")
        payload = json.loads(urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    except (ValueError, RecursionError):
        raise TokenMalformed("the token is incomplete: its payload cannot be decoded") from None
    if not isinstance(payload, dict):
        raise TokenMalformed("the token's payload is not a JSON object")
    return f"{prefix}.{body}", signature, payload


def _check_version(version: object) -> int:
    try:
        return FORMAT.check(version, "the checkpoint")
    except (NewerVersion, ValueError) as error:
        raise TokenVersion(str(error)) from None


def _compute_signature(signed: str, key: bytes) -> str:
    return encode_base64url(hmac.digest(key, signed.encode(), "sha256"))


async def read_config(
    payload: dict[str, Any], registry: Registry, mcp_tools: McpTools, own_models: OwnModels = NO_OWN_MODELS
) -> dict[str, Any]:
    """Read the configuration of a checkpoint.

    Raises:
        CheckpointUnavailable: An MCP server of the session's tools cannot be used at present.
        TokenMismatch: A session of that configuration would show its model other tools or another policy.
    """
    config = SessionConfig.model_validate(payload["config"], strict=False)
    agent = registry.agents.get(config.agent or "")
    if config.agent is not None:
        if agent is None:
            raise TokenMismatch(f"the worker has no agent {config.agent!r}, which the checkpoint's session had")
        config = agent.config.overlay(config)
    try:
        remote = (await mcp_tools.select_all(config.tools)).tools
    except UnknownMcpTool as error:
        raise TokenMismatch(f"the checkpoint's session had other tools: {error}") from None
    except McpUnavailable as error:
        raise CheckpointUnavailable(str(error)) from None
    unknown = [name for name in config.tools if name not in registry.tools and name not in remote]
    if unknown:
        raise TokenMismatch(f"the worker has no tool {unknown[0]!r}, which the checkpoint's session had")
    selected = [
        tool for name in config.tools for tool in (remote[name] if name in remote else [registry.tools[name]])
    ]
    specs = list({tool.name: tool.spec for tool in selected}.values())
    policy = resolve(agent=config.context_policy or choose_policy(config.model or "", own_models))
    if compute_fingerprint(list_fingerprinted(config, policy, specs, agent)) != str(payload["fingerprint"]):
        raise TokenMismatch(
            "the agent, the tools' schemas or the model's policy have changed since the checkpoint was made"
        )
    return dict(payload["config"])


async def _was_started_for(newest: WorkflowExecutionDescription, op_id: str) -> bool:
    """Whether a session that was not interrupted was started to be restored by that operation."""
    if newest.workflow_type != WORKFLOW_TYPE or newest.status in INTERRUPTED:
        return False
    # A rollover does not keep the memo field.
    first_id = newest.raw_description.workflow_execution_info.first_run_id
    first = await _describe(newest.id, first_id) if first_id and first_id != newest.run_id else newest
    return bool(first and (await first.memo()).get(RESTORE_MEMO) == op_id)


async def _describe(session_id: str, run_id: str | None = None) -> WorkflowExecutionDescription | None:
    try:
        return await activity.client().get_workflow_handle(session_id, run_id=run_id).describe()
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
        return None


async def _apply_operation(session_id: str, operation: dict[str, Any]) -> None:
    session = SessionHandle(activity.client(), session_id, activity.info().task_queue)
    try:
        await session.call("submit_context_operation", make_input(ContextOperation, operation), OperationReceipt)
    except ArchiveUnavailable as error:
        raise ApplicationError(error.message, type=error.type) from error


def _make_refusal(session_id: str) -> RequestReused:
    return RequestReused(f"session_id: a session {session_id!r} exists already: restore under another id")
