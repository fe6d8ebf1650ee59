"""Hooks: a team's own checks of messages, tool calls and answers, in the modules of a worker's `CLEW_HOOKS`."""

from clew_workflows.contract.hooks import (
    CheckedAnswer,
    CheckedMessage,
    CheckedToolCall,
    Hook,
    Refuse,
    check_answer,
    check_message,
    check_tool_call,
)

__all__ = [
    "CheckedAnswer",
    "CheckedMessage",
    "CheckedToolCall",
    "Hook",
    "Refuse",
    "check_answer",
    "check_message",
    "check_tool_call",
]
