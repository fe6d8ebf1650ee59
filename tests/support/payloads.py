"""Complete payloads for the kinds of entries whose fields do not matter to most tests."""

from __future__ import annotations

from typing import Any

from clew.contract.payloads import EntryKind

OTHER_PAYLOADS: dict[EntryKind, dict[str, Any]] = {
    "error": {"type": "timeout", "message": "no answer within 900 seconds", "details": {}},
    "run": {
        "event": "finished",
        "status": "completed",
        "termination_reason": "final_answer",
        "usage": {"input_tokens": 7, "output_tokens": 1, "cached_input_tokens": 0, "model_calls": 1},
        "iterations": 1,
    },
    "input": {"event": "rejected", "kind": "steer", "reason": "empty_content", "content": ""},
    "approval": {"tool_call_id": "tool00001", "decision": "approve"},
    "fork": {"event": "forked_to", "session_id": "s-2", "fork_seq": 3},
    "session": {"event": "hibernated"},
}


def make_recipe(basis_seq: int, **fields: Any) -> dict[str, Any]:
    """Make the recipe of a model call; `fields` replace its defaults."""
    return {
        "context_ref": "default",
        "basis_seq": basis_seq,
        "model": "openai:gpt-4o",
        "model_options": {},
        "policy_hash": "",
        "digest": "",
        "input_tokens": 0,
        "usage": {},
        "attempt": 1,
        "stop_reason": "stop",
    } | fields
