"""Payloads that every session refuses, schemas that are slow, and an assertion that the session still works."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.api.enums.v1 import EventType, TimeoutType, WorkflowTaskFailedCause
from temporalio.api.history.v1 import HistoryEvent
from temporalio.common import RawValue

from tests.support.stack import Stack

JSON_PLAIN = {"encoding": b"json/plain"}
REFERENCE = {"encoding": b"json/protobuf", "messageType": b"temporal.api.sdk.v1.ExternalStorageReference"}


def make_raw(data: bytes, metadata: Mapping[str, bytes] = JSON_PLAIN) -> RawValue:
    """Make a payload of arbitrary bytes, as any client could send it."""
    return RawValue(Payload(metadata=metadata, data=data))


MALFORMED: dict[str, Sequence[RawValue]] = {
    "no argument": (),
    "three arguments": (make_raw(b'{"content":"a"}'), make_raw(b"1"), make_raw(b"null")),
    "null": (make_raw(b"null"),),
    "nothing": (make_raw(b"", {"encoding": b"binary/null"}),),
    "a string": (make_raw(b'"hello"'),),
    "no JSON": (make_raw(b"{content"),),
    "no UTF-8": (make_raw(b'{"content":"\xff\xfe"}'),),
    "an unknown encoding": (make_raw(b"\x00\x01", {"encoding": b"application/x-unheard-of"}),),
    "encrypted": (make_raw(b"gibberish", {"encoding": b"binary/encrypted"}),),
    "protobuf": (make_raw(b"{}", {"encoding": b"json/protobuf"}),),
    "a reference to a store": (make_raw(b"{}", {"encoding": b"json/external-storage-reference"}),),
    "a reference to a driver": (make_raw(b"{}", REFERENCE),),
    "a marked reference": (make_raw(b"{}", {"encoding": b"x", "__temporal_external_storage_reference": b"true"}),),
    "no metadata": (make_raw(b"{}", {}),),
    "a lone surrogate": (make_raw(b'{"content":"\\ud83d","reason":"\\ud83d"}'),),
    "an unknown field": (make_raw(b'{"content":"a","surprise":1}'),),
    "deep nesting": (make_raw(b'{"output_schema":' + b"[" * 5000 + b"]" * 5000 + b"}"),),
    "not a number": (make_raw(b'{"content":"a","output_schema":{"x":NaN}}'),),
    "too large": (make_raw(b'{"content":"' + b"a" * 300_000 + b'"}'),),
}
Schema = dict[str, Any]
SLOW: Schema = {"items": {"allOf": [{"pattern": f"(?!z)[ab]*a[ab]{{{n}}}c"} for n in range(800, 850)]}}
"""A schema within the size limits whose regular expressions are slow."""
SLOW_ANSWER = json.dumps(["ab" * 50_000])
"""An answer whose validation against `SLOW` exceeds the time limit."""


def make_chain(definitions: int, link: Callable[[Schema], Schema]) -> Schema:
    """Make definitions that each refer to the next one; `link` wraps the reference."""
    chain = {f"d{i}": link({"$ref": f"#/$defs/d{i + 1}"}) for i in range(definitions)}
    return {"$ref": "#/$defs/d0", "$defs": chain | {f"d{definitions}": {"type": "string"}}}


async def assert_unharmed(stack: Stack, session_id: str) -> None:
    """Assert that the session still answers, and that none of its workflow tasks has failed."""
    assert await stack.clew.session(session_id).ask("still there?") == "fine"
    history = await stack.clew.temporal.get_workflow_handle(session_id).fetch_history()
    harm = [event for event in history.events if is_harm(event)]
    assert not harm, harm


def is_harm(event: HistoryEvent) -> bool:
    """Whether a workflow task failed or timed out after a worker had started it.

    A task that no worker started in time only shows a busy machine: the server dispatches it again. It does so
    too where an event arrived while a task was ending the workflow (`UnhandledCommand`).
    """
    if event.event_type == EventType.EVENT_TYPE_WORKFLOW_TASK_TIMED_OUT:
        timeout = event.workflow_task_timed_out_event_attributes.timeout_type
        return timeout != TimeoutType.TIMEOUT_TYPE_SCHEDULE_TO_START
    if event.event_type != EventType.EVENT_TYPE_WORKFLOW_TASK_FAILED:
        return False
    cause = event.workflow_task_failed_event_attributes.cause
    return cause != WorkflowTaskFailedCause.WORKFLOW_TASK_FAILED_CAUSE_UNHANDLED_COMMAND
