"""Every handler's decoder, arguments as a client sends them, and the refusals that come of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue

from clew.contract import MessageInput, SessionConfig
from clew.errors import (
    Refusal,
)
from clew_workflows.shell import ingress

Args = Sequence[RawValue]
CONFIG = SessionConfig(model="openai:gpt-4o")
START = {"config": {"model": "openai:gpt-4o"}}
SWITCH = {"op_id": "o", "context_ref": "draft", "operation": {"type": "switch"}}
JSON_PLAIN = {"encoding": b"json/plain"}

DECODERS: dict[str, Callable[[Args], Any]] = {
    "start": lambda args: ingress.decode_start("s-1", args),
    "message": lambda args: ingress.decode_update("message", args, CONFIG),
    "await_request": lambda args: ingress.decode_update("await_request", args, CONFIG),
    "submit_input": lambda args: ingress.decode_update("submit_input", args, CONFIG),
    "submit_context_operation": lambda args: ingress.decode_update("submit_context_operation", args, CONFIG),
    "configure": lambda args: ingress.decode_update("configure", args, CONFIG),
    "cancel_request": lambda args: ingress.decode_update("cancel_request", args, CONFIG),
    "resolve_approval": lambda args: ingress.decode_update("resolve_approval", args, CONFIG),
    "submit_tool_result": lambda args: ingress.decode_update("submit_tool_result", args, CONFIG),
    "checkpoint": lambda args: ingress.decode_update("checkpoint", args, CONFIG),
    "steer": lambda args: ingress.decode_signal("steer", args, CONFIG),
    "inject": lambda args: ingress.decode_signal("inject", args, CONFIG),
    "modify_context": lambda args: ingress.decode_signal("modify_context", args, CONFIG),
    "cancel": lambda args: ingress.decode_signal("cancel", args, CONFIG),
    "close": lambda args: ingress.decode_signal("close", args, CONFIG),
    "close_session": lambda args: ingress.decode_update("close_session", args, CONFIG),
    "context": lambda args: ingress.decode_query("context", args),
    "transcript": lambda args: ingress.decode_query("transcript", args),
    "entries": lambda args: ingress.decode_query("entries", args),
    "follow": lambda args: ingress.decode_query("follow", args),
    "window": lambda args: ingress.decode_query("window", args),
}
VALID: dict[str, dict[str, Any]] = {
    "start": START,
    "message": {"content": "hello"},
    "await_request": {"request_id": "r"},
    "submit_input": {"kind": "inject", "content": "hello"},
    "submit_context_operation": SWITCH,
    "configure": {},
    "cancel_request": {},
    "resolve_approval": {"tool_call_id": "tool-1", "decision": "approve"},
    "submit_tool_result": {"tool_call_id": "tool-1", "content": [None]},
    "checkpoint": {},
    "steer": {"content": "hello"},
    "inject": {"content": "hello"},
    "modify_context": SWITCH,
    "cancel": {},
    "close": {},
    "close_session": {},
    "context": {},
    "transcript": {},
    "entries": {},
    "follow": {},
    "window": {"token_budget": 1},
}
OPTIONAL = (
    "cancel_request",
    "checkpoint",
    "cancel",
    "close",
    "close_session",
    "context",
    "transcript",
    "entries",
    "follow",
)


def make_raw(data: bytes, metadata: dict[str, bytes] | None = None) -> RawValue:
    return RawValue(Payload(metadata=JSON_PLAIN if metadata is None else metadata, data=data))


def make_arguments(*values: Any) -> list[RawValue]:
    """Arguments as a client sends them; bytes are taken as they are."""
    return [make_raw(value if isinstance(value, bytes) else json.dumps(value).encode()) for value in values]


def decode_message(arguments: Args, config: SessionConfig) -> MessageInput:
    command = ingress.decode_update("message", arguments, config)
    assert isinstance(command, MessageInput)
    return command


def decode_refusal(name: str, arguments: Args) -> Refusal:
    """Have a decoder refuse some arguments; assert that the refusal has a word and a short message."""
    with pytest.raises(Refusal) as caught:
        DECODERS[name](arguments)
    refusal = caught.value
    assert 5 < len(str(refusal).encode()) < 1000
    error = ingress.make_application_error(refusal)
    assert (error.type, error.non_retryable) == (refusal.type, True)
    return refusal
