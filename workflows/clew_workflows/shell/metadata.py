"""The answer to Temporal's own metadata query: what the Temporal UI shows on a session's page and in its menus.

The SDK would list the dynamic handlers, through which everything passes the one door, under an empty name. It would
also have the details composed at every commit; here they are composed when somebody looks at them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from temporalio import workflow
from temporalio.api.sdk.v1 import WorkflowDefinition, WorkflowInteractionDefinition, WorkflowMetadata

from clew_workflows.shell.handlers import QUERIES, SIGNALS, UPDATES, Handler

METADATA_QUERY = "__temporal_workflow_metadata"


def serve_metadata(describe: Callable[[], str]) -> None:
    """Answer the metadata query of this workflow run. `describe` composes its current details."""
    workflow_type = workflow.info().workflow_type

    def answer() -> WorkflowMetadata:
        definition = WorkflowDefinition(
            type=workflow_type,
            query_definitions=_list_interactions(QUERIES),
            signal_definitions=_list_interactions(SIGNALS),
            update_definitions=_list_interactions(UPDATES),
        )
        return WorkflowMetadata(definition=definition, current_details=describe())

    workflow.set_query_handler(METADATA_QUERY, answer)


def _list_interactions(handlers: Mapping[str, Handler[Any]]) -> list[WorkflowInteractionDefinition]:
    return [
        WorkflowInteractionDefinition(name=name, description=_describe(handler))
        for name, handler in sorted(handlers.items())
        if not handler.is_internal
    ]


def _describe(handler: Handler[Any]) -> str:
    return f"{handler.description} Example: {handler.example}" if handler.example else handler.description
