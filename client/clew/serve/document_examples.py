"""Examples for the OpenAPI document: of each operation a body, an answer and an event, as far as it has them.

They are of one chat: a customer asks for a refund, which a person approves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Example:
    """The example of an operation.

    Attributes:
        body: The body of the request.
        answer: The body of the response with the status 200.
        other: That of the response with another status.
        event: The data of an event of the stream.
    """

    body: Any = None
    answer: Any = None
    other: Any = None
    event: Any = None


_DIGEST = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
_AT = "2026-11-29T09:30:00.000Z"
_USAGE = {"input_tokens": 412, "output_tokens": 38, "cached_input_tokens": 0, "model_calls": 2, "cost_usd": 0.0002}
_REFUND = {"tool_call_id": "call-7", "name": "refund", "arguments": {"order_id": 1234}}
_BLOB = {
    "digest": _DIGEST,
    "media_type": "image/png",
    "bytes": 48213,
    "name": "receipt.png",
    "width": 800,
    "height": 600,
}
_QUESTION = {"role": "user", "content": "Please refund order 1234."}
_REPLY = {"role": "assistant", "content": "Order 1234 was paid back."}
_ENTRY = {
    "seq": 5,
    "id": "e-5",
    "kind": "ai_message",
    "at": _AT,
    "payload": {**_REPLY, "context_ref": "main", "request_id": "msg-93", "run_id": "run-1"},
    "refs": {"session_id": "chat-1", "request_id": "msg-93", "run_id": "run-1", "call_id": "call-2"},
    "tokens": 9,
}
_OUTCOME = {
    "request_id": "msg-93",
    "run_id": "run-1",
    "status": "completed",
    "termination_reason": "final_answer",
    "answer_seq": 5,
    "last_seq": 6,
    "iterations": 2,
    "usage": _USAGE,
    "session_id": "chat-1",
    "answer": "Order 1234 was paid back.",
}
_META = {
    "basis_rev": 7,
    "basis_last_seq": 6,
    "pending_count": 0,
    "truncated": False,
    "estimated_tokens": 61,
    "summary_used": False,
    "needs_summary": False,
    "entries_included": 4,
    "entries_total": 4,
    "policy_hash": "5d41402abc4b2a76",
    "digest": _DIGEST,
}
_CONTEXT = {
    "messages": [{"role": "system", "content": "You help with orders."}, _QUESTION, _REPLY],
    "tool_spec": [
        {
            "name": "refund",
            "description": "Pay an order back.",
            "parameters": {
                "type": "object",
                "properties": {"order_id": {"type": "integer"}},
                "required": ["order_id"],
            },
        }
    ],
    "meta": _META,
}
_STATUS = {
    "session_id": "chat-1",
    "status": "awaiting_approval",
    "request_id": "msg-93",
    "run_id": "run-1",
    "active_context_ref": "main",
    "iteration": 1,
    "rev": 4,
    "projection_cursor_seq": 3,
    "pending_operations": [],
    "pending_inputs": 0,
    "queued_messages": 0,
    "queued_request_ids": [],
    "pending_config": [],
    "pending_approvals": [_REFUND],
    "pending_external_calls": [],
    "subagents": [],
    "usage": {**_USAGE, "model_calls": 1},
    "model": "openai:gpt-4o-mini",
    "config": {"agent": "support"},
    "metadata": {"user": "ada", "tenant": "acme"},
    "first_live_seq": 0,
    "closed": False,
}
_TEXT = {
    "type": "text",
    "request_id": "msg-93",
    "run_id": "run-1",
    "call_id": "call-2",
    "attempt": 1,
    "offset": 11,
    "text": "was paid back.",
}
_SCHEDULED = {
    "scheduled_at": "2026-11-29T06:00:00Z",
    "started_at": "2026-11-29T06:00:00Z",
    "request_id": "clew-service-scheduled-acme:daily-2026-11-29T06:00:00Z",
}
_ROW = {
    "schedule_id": "daily",
    "paused": False,
    "times": ["0 6 * * *"],
    "next_at": "2026-11-30T06:00:00Z",
    "last": _SCHEDULED,
}
_SCHEDULE = {
    **_ROW,
    "session_prefix": "report",
    "config": {"agent": "reporter"},
    "message": {"content": "Report on yesterday."},
    "overlap": "skip",
    "pause_on_failure": False,
    "time_zone": "Europe/Berlin",
    "runs": 1,
    "skipped": 0,
    "missed": 0,
    "catch_up_seconds": 31_536_000,
    "created_at": "2026-11-28T12:00:00Z",
    "next": ["2026-11-30T06:00:00Z"],
    "recent": [_SCHEDULED],
    "running": [],
}
_PAUSED = {**_SCHEDULE, "paused": True, "note": "The reports are late."}
_UI_QUESTION = {"id": "msg-93", "role": "user", "parts": [{"type": "text", "text": "Please refund order 1234."}]}
_UI_CHUNK = {"type": "text-delta", "id": "call-2", "delta": "was paid back."}
_AG_UI_INPUT = {"threadId": "chat-1", "runId": "run-1", "messages": [{"id": "msg-93", **_QUESTION}]}
_AG_UI_EVENT = {"type": "TEXT_MESSAGE_CONTENT", "messageId": "call-2", "delta": "was paid back."}
_ITEM = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "Order 1234 was paid back.", "annotations": [], "logprobs": []}],
}
_RESPONSE = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1_795_944_600,
    "status": "completed",
    "model": "support",
    "output": [_ITEM],
    "error": None,
    "incomplete_details": None,
    "instructions": None,
    "metadata": {},
    "previous_response_id": None,
    "usage": {"input_tokens": 412, "output_tokens": 38, "total_tokens": 450},
}
_ITEMS = {"object": "list", "data": [_ITEM], "first_id": "msg_1", "last_id": "msg_1", "has_more": False}
_CONVERSATION = {
    "id": "chat-1",
    "object": "conversation",
    "created_at": 1_795_944_600,
    "metadata": {"topic": "refund"},
}
_DELTA = {"type": "response.output_text.delta", "sequence_number": 7, "item_id": "msg_1", "delta": "was paid back."}
_MODEL = {"id": "support", "object": "model", "created": 0, "owned_by": "clew"}
_COMPLETION = {"id": "chatcmpl-1", "created": 1_795_944_600, "model": "support"}

PARAMETERS: Mapping[str, Any] = {
    "session_id": "chat-1",
    "request_id": "msg-93",
    "tool_call_id": "call-7",
    "digest": _DIGEST,
    "upload_id": "up-1",
    "schedule_id": "daily",
    "chat_id": "chat-1",
    "agent": "support",
    "response_id": "resp_1",
    "conversation_id": "chat-1",
    "item_id": "msg_1",
    "model": "support",
    "Idempotency-Key": "msg-93",
    "Last-Event-ID": 6,
}
"""Examples of the parameters, by their names."""

REFUSED: Mapping[str, Any] = {
    "error": {
        "type": "not_found",
        "message": "there is no session 'chat-1': open it with an agent or a model",
        "param": None,
        "code": "not_found",
    }
}
"""The example of an error."""

EXAMPLES: Mapping[str, Example] = {
    "checkLife": Example(answer={"status": "ok"}),
    "checkReadiness": Example(answer={"status": "ok"}, other={"status": "not ready", "reason": "draining"}),
    # Sessions.
    "createSession": Example({"agent": "support"}, {"session_id": "s-4f1c0a7e", "ignored": {}}),
    "openSession": Example(
        {"agent": "support", "metadata": {"user": "ada"}}, {"session_id": "chat-1", "ignored": {}}
    ),
    "listSessions": Example(
        answer={
            "sessions": [
                {
                    "session_id": "chat-1",
                    "status": "idle",
                    "agent": "support",
                    "user": "ada",
                    "tags": [],
                    "metadata": {"user": "ada"},
                    "archived": False,
                    "active_at": _AT,
                }
            ],
            "has_more": False,
        }
    ),
    "readStatus": Example(answer=_STATUS),
    "configure": Example({"metadata": {"user": "ada", "tags": "refund"}}, {"status": "applied", "seq": 7}),
    "deleteSession": Example(answer={"deleted_segments": 1, "deleted_subagents": 0}),
    "closeSession": Example({"reason": "The customer has left."}, {"last_seq": 8}),
    "hibernate": Example({}, {"last_seq": 8}),
    # Messages.
    "sendMessage": Example(
        {"content": "Please refund order 1234."},
        _OUTCOME,
        other={"session_id": "chat-1", "request_id": "msg-93", "status": "running"},
    ),
    "readMessages": Example(answer={"messages": [_QUESTION, _REPLY]}),
    "readRequest": Example(answer=_OUTCOME),
    "followRequest": Example(event=_TEXT),
    "cancelRequest": Example({"reason": "The customer has left."}, {"request_id": "msg-93", "cancelled": True}),
    "cancel": Example({}, {"request_id": "msg-93", "cancelled": True}),
    "steer": Example({"content": "Order 1235, sorry."}, {"input_id": "in-1", "request_id": "msg-93", "position": 0}),
    "inject": Example(
        {"content": "The bank is closed until noon.", "source": "bank"},
        {"input_id": "in-2", "request_id": "msg-93", "position": 1},
    ),
    "listWaitingCalls": Example(answer={"calls": [{"session_id": "chat-1", "needs": "approval", "call": _REFUND}]}),
    "decide": Example({"decision": "approve", "by": "grace"}, {"tool_call_id": "call-7", "decision": "approve"}),
    "submitToolResult": Example({"content": {"shown": "Rome"}}, {"tool_call_id": "call-8", "seq": 9}),
    # What a model sees.
    "readContext": Example(answer=_CONTEXT),
    "readWindow": Example(answer={"messages": [_QUESTION, _REPLY], "meta": _META}),
    "preview": Example({"pending": [{"role": "user", "content": "And order 1235?"}]}, _CONTEXT),
    "modifyContext": Example(
        {"operation": {"type": "pin", "seqs": [1]}}, {"op_id": "op-1", "status": "applied", "seq": 7}
    ),
    "summarize": Example({"from_seq": 0, "to_seq": 6}, {"seq": 7, "from_seq": 0, "to_seq": 6, "tokens": 120}),
    "listWindows": Example(
        answer={
            "entries": 7,
            "first_at": _AT,
            "last_at": _AT,
            "calls": [],
            "timeline": {
                "lanes": ["main"],
                "active": [{"lane": "main", "first_seq": 0, "last_seq": 6}],
                "runs": [],
                "operations": [],
            },
        }
    ),
    # Copies, and the thread.
    "fork": Example({"at_seq": 4}, {"session_id": "fork-1b2c3d4e", "ignored": {}}),
    "makeCheckpoint": Example({}, {"token": "clew1.eyJzZXNzaW9uIjoi…"}),
    "restore": Example({"token": "clew1.eyJzZXNzaW9uIjoi…", "session_id": "chat-2"}, {"session_id": "chat-2"}),
    "readEntries": Example(answer={"entries": [_ENTRY], "next_seq": 6}),
    "followSession": Example(event={"type": "entry", "request_id": "msg-93", "seq": 5, "entry": _ENTRY}),
    "makeReportPage": Example(answer="<!doctype html><html>…</html>"),
    # Agents and files.
    "listAgents": Example(
        answer={"agents": [{"name": "support", "version": "3f2a9c1b", "model": "openai:gpt-4o-mini"}]}
    ),
    "putBlob": Example("the bytes of the file", {"blob": _BLOB}),
    "listBlobs": Example(answer={"blobs": [{"blob": _BLOB, "type": "image", "seq": 1}]}),
    "getBlob": Example(answer="the bytes of the file"),
    "startUpload": Example(
        {"bytes": 48213, "media_type": "image/png", "name": "receipt.png"},
        {
            "upload_id": "up-1",
            "url": "https://store.example.com/uploads/up-1?signature=…",
            "method": "PUT",
            "headers": {"Content-Length": "48213"},
            "expires_at": _AT,
        },
    ),
    "finishUpload": Example(answer={"blob": _BLOB}),
    # Schedules.
    "createSchedule": Example(
        {
            "schedule_id": "daily",
            "message": {"content": "Report on yesterday."},
            "session_prefix": "report",
            "config": {"agent": "reporter"},
            "cron": "0 6 * * *",
            "time_zone": "Europe/Berlin",
        },
        _SCHEDULE,
    ),
    "listSchedules": Example(answer={"schedules": [_ROW]}),
    "readSchedule": Example(answer=_SCHEDULE),
    "changeSchedule": Example({"cron": "0 6 * * *"}, _SCHEDULE),
    "deleteSchedule": Example(answer=_ROW),
    "pauseSchedule": Example({"note": "The reports are late."}, _PAUSED),
    "resumeSchedule": Example({}, _SCHEDULE),
    "triggerSchedule": Example({"overlap": "allow_all"}, _SCHEDULE),
    # User interfaces.
    "sendChat": Example({"id": "chat-1", "messages": [_UI_QUESTION], "agent": "support"}, event=_UI_CHUNK),
    "resumeChat": Example(event=_UI_CHUNK),
    "listChat": Example(answer=[_UI_QUESTION]),
    "runSession": Example(_AG_UI_INPUT, event=_AG_UI_EVENT),
    "runNamedAgent": Example(_AG_UI_INPUT, event=_AG_UI_EVENT),
    # OpenAI's APIs.
    "createResponse": Example({"model": "support", "input": "Please refund order 1234."}, _RESPONSE, event=_DELTA),
    "getResponse": Example(answer=_RESPONSE, event=_DELTA),
    "cancelResponse": Example(answer={**_RESPONSE, "status": "cancelled", "output": []}),
    "deleteResponse": Example(answer={"id": "resp_1", "object": "response", "deleted": True}),
    "listInputItems": Example(answer=_ITEMS),
    "createConversation": Example({"metadata": {"topic": "refund"}}, _CONVERSATION),
    "getConversation": Example(answer=_CONVERSATION),
    "updateConversation": Example({"metadata": {"topic": "refund"}}, _CONVERSATION),
    "deleteConversation": Example(answer={"id": "chat-1", "object": "conversation.deleted", "deleted": True}),
    "listConversationItems": Example(answer=_ITEMS),
    "createConversationItems": Example({"items": [{"type": "message", **_QUESTION}]}, _ITEMS),
    "getConversationItem": Example(answer=_ITEM),
    "deleteConversationItem": Example(answer=_CONVERSATION),
    "createChatCompletion": Example(
        {"model": "support", "messages": [_QUESTION]},
        {
            **_COMPLETION,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": _REPLY, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 412, "completion_tokens": 38, "total_tokens": 450},
        },
        event={
            **_COMPLETION,
            "object": "chat.completion.chunk",
            "choices": [{"index": 0, "delta": {"content": "was paid back."}, "finish_reason": None}],
        },
    ),
    "listModels": Example(answer={"object": "list", "data": [_MODEL]}),
    "getModel": Example(answer=_MODEL),
}
"""The examples, by the ids of the operations."""
