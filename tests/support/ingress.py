"""Every handler's decoder, arguments as a client sends them, and the refusals that come of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import NoneType
from typing import Any

import pytest
from temporalio.common import RawValue

from clew.contract import MessageInput, SessionConfig
from clew.errors import Refusal
from clew_workflows.host import ingress
from clew_workflows.host.handlers import QUERIES, SIGNALS, UPDATES, Handler
from tests.support.hostile_input import make_raw

Args = Sequence[RawValue]
CONFIG = SessionConfig(model="openai:gpt-4o")
START = {"config": {"model": "openai:gpt-4o"}}
SWITCH = {"op_id": "o", "context_ref": "draft", "operation": {"type": "switch"}}


def _list_for_callers(handlers: Mapping[str, Handler[Any]]) -> list[str]:
    """List the handlers that callers send an argument to."""
    return [name for name, handler in handlers.items() if handler.input is not NoneType and not handler.is_internal]


DECODERS: dict[str, Callable[[Args], Any]] = {
    "start": lambda args: ingress.decode_start("s-1", args),
    **{name: partial(ingress.decode_update, name, config=CONFIG) for name in _list_for_callers(UPDATES)},
    **{name: partial(ingress.decode_signal, name, config=CONFIG) for name in _list_for_callers(SIGNALS)},
    **{name: partial(ingress.decode_query, name) for name in _list_for_callers(QUERIES)},
}
VALID: dict[str, dict[str, Any]] = {
    "start": START,
    "message": {"content": "hello"},
    "await_request": {"request_id": "r"},
    "submit_input": {"kind": "inject", "content": "hello"},
    "submit_context_operation": SWITCH,
    "configure": {},
    "cancel_request": {},
    "resolve_approval": {"tool_call_id": "tool00001", "decision": "approve"},
    "submit_tool_result": {"tool_call_id": "tool00001", "content": [None]},
    "summarize": {},
    "checkpoint": {},
    "hibernate": {},
    "steer": {"content": "hello"},
    "inject": {"content": "hello"},
    "modify_context": SWITCH,
    "cancel": {},
    "close": {},
    "move": {},
    "close_session": {},
    "context": {},
    "transcript": {},
    "entries": {},
    "follow": {},
    "window": {"token_budget": 1},
}
OPTIONAL = tuple(name for name, handler in (QUERIES | SIGNALS | UPDATES).items() if handler.is_bare)


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
