"""The updates, signals and queries of a session: their names, their inputs, and descriptions for people.

`ingress` decodes by these tables, the Temporal UI lists them (`serve_metadata`), and the contract's page
is made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, Generic, TypeVar

from temporalio import workflow
from temporalio.api.sdk.v1 import WorkflowDefinition, WorkflowInteractionDefinition, WorkflowMetadata

from clew_workflows.contract import (
    ApprovalInput,
    AwaitRequestInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ContextQuery,
    EntriesQuery,
    FollowQuery,
    ForkedInput,
    HibernateInput,
    LateResultInput,
    MessageInput,
    MoveInput,
    SteerInput,
    SubagentResultInput,
    SubmitInput,
    SummarizeInput,
    ToolResultInput,
    TranscriptQuery,
    WindowQuery,
)
from clew_workflows.protocol import DraftQuery
from clew_workflows.session.commands import Command

Query = ContextQuery | TranscriptQuery | EntriesQuery | FollowQuery | WindowQuery | DraftQuery
"""The input of a query."""
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Handler(Generic[T_co]):
    """An update, a signal or a query.

    Attributes:
        input: The type of its argument; `NoneType`: it has none.
        description: Its effect or its answer, in one sentence.
        example: An argument, as JSON; empty where most callers send none.
        is_bare: It may come without an argument: all fields of its input are optional.
        is_internal: Clew alone sends it.
    """

    input: type[T_co]
    description: str
    example: str = ""
    is_bare: bool = False
    is_internal: bool = False


_STEER = '{"content": "Use the newest numbers."}'
_SWITCH = '{"op_id": "my-switch", "context_ref": "draft", "operation": {"type": "switch"}}'

UPDATES: dict[str, Handler[Command]] = {
    "message": Handler(
        MessageInput,
        "Send a message; the answer is the outcome of its request, or `running` after a long wait.",
        '{"content": "What is the total?"}',
    ),
    "await_request": Handler(
        AwaitRequestInput, "Wait again for the outcome of a request.", '{"request_id": "my-request"}'
    ),
    "submit_input": Handler(
        SubmitInput,
        "Steer the active run by a message of the user, or inject one of a program.",
        '{"kind": "steer", "content": "Use the newest numbers."}',
    ),
    "submit_context_operation": Handler(
        ContextOperation, "Replace, switch or expand a lane; pin or unpin its messages.", _SWITCH
    ),
    "configure": Handler(ConfigureInput, "Change the configuration.", '{"model": "openai:gpt-4o"}'),
    "cancel_request": Handler(CancelInput, "Cancel the active run, or drop a queued request.", is_bare=True),
    "resolve_approval": Handler(
        ApprovalInput, "Approve or deny a tool call.", '{"tool_call_id": "tool00001", "decision": "approve"}'
    ),
    "submit_tool_result": Handler(
        ToolResultInput, "Answer an external tool call.", '{"tool_call_id": "tool00001", "content": "42"}'
    ),
    "summarize": Handler(SummarizeInput, "Have a summary of a lane written.", is_bare=True),
    "checkpoint": Handler(
        CheckpointInput, "Return a lane's context and the configuration as a signed token.", is_bare=True
    ),
    "hibernate": Handler(
        HibernateInput,
        "Archive the session and end the workflow; the session can be opened again.",
        is_bare=True,
    ),
    "close_session": Handler(
        CloseInput, "Cancel the active run, archive the session and end the workflow.", is_bare=True
    ),
}
"""The updates, by name."""

SIGNALS: dict[str, Handler[Command | SteerInput]] = {
    "steer": Handler(SteerInput, "Steer the active run by a message of the user.", _STEER),
    "inject": Handler(SteerInput, "Inject a message of a program into the active run.", _STEER),
    "modify_context": Handler(
        ContextOperation, "Replace, switch or expand a lane; pin or unpin its messages.", _SWITCH
    ),
    "cancel": Handler(CancelInput, "Cancel the active run, or drop a queued request.", is_bare=True),
    "close": Handler(CloseInput, "Cancel the active run, archive the session and end the workflow.", is_bare=True),
    "move": Handler(
        MoveInput,
        "Move to the current version of the workers once no call is in flight, if the session is on another one.",
        is_bare=True,
    ),
    "forked": Handler(ForkedInput, "Record a fork.", is_internal=True),
    "late_result": Handler(LateResultInput, "Take the result of a tool call whose run has ended.", is_internal=True),
    "subagent_result": Handler(SubagentResultInput, "Take the result of a subagent.", is_internal=True),
}
"""The signals, by name. A refused signal becomes an `input` entry."""

QUERIES: dict[str, Handler[Query | None]] = {
    "status": Handler(NoneType, "The session's status and configuration."),
    "context": Handler(ContextQuery, "The context of a past, the current or a future model call.", is_bare=True),
    "transcript": Handler(TranscriptQuery, "The messages of a lane, unabridged.", is_bare=True),
    "window": Handler(WindowQuery, "The newest messages that fit a number of tokens.", is_bare=True),
    "entries": Handler(EntriesQuery, "The entries of the thread, in pages.", is_bare=True),
    "follow": Handler(FollowQuery, "The entries from a seq on, and the status after them.", is_bare=True),
    "carried": Handler(NoneType, "The state to archive.", is_internal=True),
    "followed": Handler(
        NoneType, "How many queries `follow` came since the newest call was scheduled.", is_internal=True
    ),
    "checkpoint": Handler(DraftQuery, "A drafted checkpoint to sign.", is_internal=True),
}
"""The queries, by name."""


# The answer to Temporal's own metadata query: what the Temporal UI shows on a session's page and in its menus.
#
# The SDK would list the dynamic handlers, through which everything passes the one door, under an empty name. It would
# also have the details composed at every commit; here they are composed when somebody looks at them.


METADATA_QUERY = "__temporal_workflow_metadata"


def serve_metadata(describe: Callable[[], str]) -> None:
    """Answer the metadata query of this workflow run. `describe` composes its current details."""
    workflow_type = workflow.info().workflow_type
    # Without annotations, which the SDK would evaluate for each session.
    workflow.set_query_handler(METADATA_QUERY, lambda: _make_metadata(workflow_type, describe()))


def _make_metadata(workflow_type: str, details: str) -> WorkflowMetadata:
    definition = WorkflowDefinition(
        type=workflow_type,
        query_definitions=_list_interactions(QUERIES),
        signal_definitions=_list_interactions(SIGNALS),
        update_definitions=_list_interactions(UPDATES),
    )
    return WorkflowMetadata(definition=definition, current_details=details)


def _list_interactions(handlers: Mapping[str, Handler[Any]]) -> list[WorkflowInteractionDefinition]:
    return [
        WorkflowInteractionDefinition(name=name, description=_describe(handler))
        for name, handler in sorted(handlers.items())
        if not handler.is_internal
    ]


def _describe(handler: Handler[Any]) -> str:
    return f"{handler.description} Example: {handler.example}" if handler.example else handler.description
