"""Checkpoints: a lane's context and the session's configuration, as a signed token that a new session continues from.

    rt2.<base64url of the payload>.<base64url of the HMAC-SHA256 of all before this dot>

The payload is JSON with sorted keys and without white space (not RFC 8785, which would round integers beyond 2^53):
`{v: 2, session_id, context_ref, at_seq, context, config, namespace, fingerprint, iat, exp, kid}`. It holds a context
and no thread. Workers hold the keys and sign; this module is pure.
"""

from __future__ import annotations

import hashlib
import json
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from clew_workflows.contract import CheckpointInput, ContextOperation, SessionConfig
from clew_workflows.contract.errors import Archived, Busy, InvalidOperation, TooLarge, UnknownLane
from clew_workflows.contract.limits import MAX_TOKEN_BYTES
from clew_workflows.contract.messages import ToolSpec, compute_digest
from clew_workflows.contract.names import selects
from clew_workflows.contract.payloads import ConfigPayload, OperationPayload, UserMessage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.protocol import CheckpointSignature, ResolvedAgent
from clew_workflows.session.requests import find_agent_policy
from clew_workflows.session.state import State
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from clew_workflows.values import Format

FORMAT = Format("checkpoint", 2)
PREFIX = f"rt{FORMAT.version}"
RESTORE_MEMO = "clew_restore"
"""The memo field of a session that was started to be restored: the id of the first operation."""
# Base64 makes four bytes of three. The signature and the fields that a worker adds take less than 1000 bytes.
_MAX_PAYLOAD_BYTES = MAX_TOKEN_BYTES * 3 // 4 - 1_000


@dataclass(frozen=True, slots=True)
class CheckpointDraft:
    """A checkpoint before it is signed.

    Attributes:
        payload: The payload, as JSON.
        fingerprinted: The value that the fingerprint is computed from.
    """

    payload: str
    fingerprinted: dict[str, Any]


def check_checkpoint(state: State, thread: Thread, command: CheckpointInput) -> None:
    """Refuse a checkpoint that cannot be made of the session in its present state.

    Raises:
        Busy: A run is active, a request waits, or the session is being prepared.
        ContextOverflow: The context does not fit the policy's budget.
        InvalidOperation: The context cannot be put under a lane again.
        TooLarge: The checkpoint is larger than an input of a session, or than a token, may be.
        UnknownLane: The thread has no such lane.
    """
    if not state.at_rest:
        raise Busy("a request is running or waits: wait for it, or cancel it")
    lane = command.context_ref or state.context_ref
    if lane != state.context_ref and thread.get_lane(lane) is None:
        raise UnknownLane(f"the thread has no lane {lane!r}")
    # What is in the archive is fetched before the checkpoint is made.
    with suppress(Archived):
        draft_checkpoint(state, thread, lane, thread.last_seq)


def draft_checkpoint(state: State, thread: Thread, context_ref: str, at_seq: int) -> CheckpointDraft:
    """Draft the checkpoint of a lane at a seq.

    Raises:
        Archived: The context needs entries that are in the archive alone.
        ContextOverflow: The context does not fit the policy's budget.
        InvalidOperation: The context cannot be put under a lane again.
        TooLarge: The checkpoint is larger than an input of a session, or than a token, may be.
    """
    config = _make_config(state)
    # The new session has no thread that cleared tool results and media could be read from.
    policy = ContextPolicy(clear_tool_results=None, clear_media=None)
    projected = build_context(thread, context_ref=context_ref, at_seq=at_seq, policy=policy, standalone=True)
    context = _make_snapshot(projected, thread, context_ref, at_seq)
    payload = {
        "v": FORMAT.version,
        "session_id": state.session_id,
        "context_ref": context_ref,
        "at_seq": at_seq,
        "context": context,
        "config": config,
    }
    text = _dump(payload)
    try:
        operation = ContextOperation.model_validate_json(
            to_json(make_restore_operation(payload, "restore-" + "0" * 64))
        )
    except ValidationError as error:
        raise InvalidOperation(f"the context cannot be put under a lane again: {str(error)[:300]}") from None
    room = state.settings.config.limits.max_message_bytes
    if (size := len(to_json(operation.model_dump(exclude_unset=True)))) > room or len(
        text.encode()
    ) > _MAX_PAYLOAD_BYTES:
        raise TooLarge(f"the checkpoint has {size} bytes: a session takes {room} at once, a token {MAX_TOKEN_BYTES}")
    tools = [
        tool.spec
        for tool in state.settings.tools or ()
        if any(selects(name, tool.spec["name"]) for name in state.settings.config.tools)
    ]
    return CheckpointDraft(
        text, list_fingerprinted(state.settings.config, state.settings.policy, tools, state.settings.agent)
    )


def list_fingerprinted(
    config: SessionConfig, policy: ContextPolicy, tools: list[ToolSpec], agent: ResolvedAgent | None = None
) -> dict[str, Any]:
    """List what a checkpoint's fingerprint covers: all that shapes a model's input beside context and prompt.

    The prompt is the agent's present one, as in other sessions. A pinned session needs the same version of the agent.
    """
    return {
        **({"agent": agent.version} if agent and config.pin else {}),
        "model": config.model,
        "model_options": config.model_options.model_dump(mode="json", exclude_none=True),
        "encoding": config.encoding,
        "context_policy": policy.model_dump(mode="json", exclude_defaults=True),
        "tools": tools,
    }


def compute_fingerprint(fingerprinted: Mapping[str, Any]) -> str:
    """Compute the fingerprint of a resolved configuration."""
    return compute_digest(fingerprinted)


def make_op_id(token: str) -> str:
    """Make the id of the operation that restores a token: equal for equal tokens, so that a retry repeats it."""
    return f"restore-{hashlib.sha256(token.encode()).hexdigest()}"


def make_restore_operation(payload: Mapping[str, Any], op_id: str) -> dict[str, Any]:
    """Make the context operation that puts a checkpoint's context under its lane."""
    origin = {"session_id": payload["session_id"], "at_seq": payload["at_seq"]}
    operation = {"type": "replace", "reason": "restore", "result_context": payload["context"], "meta": origin}
    return {"op_id": op_id, "context_ref": payload["context_ref"], "operation": operation}


def list_restore_operations(payload: Mapping[str, Any], op_id: str) -> list[dict[str, Any]]:
    """List the context operations that restore a checkpoint. The last one completes the restore."""
    operations, lane = [make_restore_operation(payload, op_id)], payload["context_ref"]
    if lane != DEFAULT_LANE:
        switch = {"type": "switch", "reason": "restore"}
        operations.append({"op_id": f"{op_id}-switch", "context_ref": lane, "operation": switch})
    return operations


def make_signed_part(payload: str, signed: CheckpointSignature) -> str:
    """Make the part of a token that is signed: all but the signature."""
    stamp = signed.model_dump(exclude={"signature"})
    body = _dump(json.loads(payload) | stamp)
    return f"{PREFIX}.{encode_base64url(body.encode())}"


def encode_base64url(data: bytes) -> str:
    """Encode bytes in base64url, without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _make_config(state: State) -> dict[str, Any]:
    """Make the configuration with which a new session continues as this one would."""
    config = state.settings.own
    if state.settings.own_policy is not None:
        policy = find_agent_policy(state.settings).overlay(state.settings.own_policy)
        config = config.model_copy(update={"context_policy": policy})
    value: dict[str, Any] = json.loads(config.model_dump_json(exclude_unset=True))
    return value


def _make_snapshot(projected: Projection, thread: Thread, context_ref: str, at_seq: int) -> dict[str, Any]:
    """Convert a context to the snapshot of a `replace`: without prompt messages, the summary as a user's message."""
    config = thread.find_config(at_seq)
    assert config is not None
    system = [message for message in projected.messages if message["role"] == "system"]
    summarized = projected.meta.summary_used and config.read(ConfigPayload).policy.summary_role == "system"
    prompt = system[0]["content"] if len(system) > int(summarized) else None
    messages: list[Any] = (
        _add_refs(projected, thread, context_ref, at_seq) if projected.blocks else projected.messages
    )
    remaining = messages if prompt is None else messages[1:]
    messages = [{**message, "role": "user"} if message["role"] == "system" else message for message in remaining]
    own = config.read(ConfigPayload).prompt
    return {"messages": messages} | ({"system_prompt": prompt or ""} if prompt != own else {})


def _add_refs(projected: Projection, thread: Thread, context_ref: str, at_seq: int) -> list[dict[str, Any]]:
    """List a context's messages with their callers' refs, which contexts do not show."""
    anchor = thread.find_anchor(context_ref, at_seq)
    snapshot = anchor.read(OperationPayload).snapshot if anchor else None
    stored: list[Mapping[str, Any]] = [*snapshot.messages] if snapshot else []
    messages: list[dict[str, Any]] = []
    for block in projected.blocks:
        for number, message in enumerate(block.messages):
            refs = None
            if number < len(block.seqs):
                body = thread[block.seqs[number]].body
                refs = body.refs if isinstance(body, UserMessage) else None
            elif message["role"] == "user":
                same = (one["role"] == "user" and one["content"] == message["content"] for one in stored)
                if (index := next((index for index, is_same in enumerate(same) if is_same), None)) is not None:
                    refs, stored = stored[index].get("refs"), stored[index + 1 :]
            messages.append({**message, "refs": refs} if refs else {**message})
    return messages
