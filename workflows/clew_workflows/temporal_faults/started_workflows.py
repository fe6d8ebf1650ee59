"""A handle does not say whether the call has started its workflow: read the server's answer.

With the conflict policy `USE_EXISTING`, `start_workflow` returns a handle of a workflow that runs already, or of a
new one. The server's answer says which, and is only in a private attribute of the handle.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#started_workflows.
Can go: when a `WorkflowHandle` has a public way to tell.
"""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowHandle


def has_started(handle: WorkflowHandle[Any, Any]) -> bool:
    """Whether the call that returned this handle has started its workflow. If not, it was running already."""
    response = handle._start_workflow_response
    return response is not None and response.started
