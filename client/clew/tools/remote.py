"""Remote tools: a call is an activity of another Temporal worker, in any language, with nothing of Clew's in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.model.messages import ToolSpec
from clew.tools.definition import (
    DEFAULT_TIMEOUT_SECONDS,
    RequiresApproval,
    ToolDefinition,
    check_temporal_name,
    make_spec,
)


class RemoteTool(ToolDefinition):
    """A tool that a worker of your own runs, as one activity for each call.

    Attributes:
        task_queue: The task queue that the worker polls.
        activity: The name of the activity.
    """

    def __init__(
        self,
        spec: ToolSpec,
        *,
        task_queue: str,
        activity: str,
        timeout_seconds: float,
        retries: int,
        idempotent: bool,
        requires_approval: RequiresApproval,
    ) -> None:
        super().__init__(
            spec,
            timeout_seconds=timeout_seconds,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
        )
        check_temporal_name(self.name, "task_queue", task_queue)
        check_temporal_name(self.name, "activity", activity)
        self.task_queue = task_queue
        self.activity = activity


def remote_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    *,
    task_queue: str,
    activity: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    retries: int = 0,
    idempotent: bool = True,
    requires_approval: RequiresApproval = False,
) -> RemoteTool:
    """Make a tool whose calls are activities of another Temporal worker.

    The activity's single argument is the JSON object of the arguments, its result any JSON value. Its activity id is
    the id of the tool call: workflow id and activity id together are the same for every attempt of a call, and
    different for other calls.

    Args:
        name: The name of the tool.
        description: What the tool does, for the model.
        parameters: The JSON Schema of the arguments, an object. Arguments are validated before a call is scheduled.
        task_queue: The task queue that the worker polls.
        activity: The name of the activity; the tool's name by default.
        timeout_seconds: The longest time of one attempt, in seconds. After that the model reads of the timeout.
        retries: The most repetitions of an attempt that failed, before the model reads the error.
        idempotent: Whether a call may run again after its worker died. If not, the call is not repeated: the model
            reads that it is in doubt.
        requires_approval: Whether each call waits, however long, until a person approves or denies it; `round`: the
            other calls of its reply wait, too.

    Raises:
        TypeError: The name, the parameters, the task queue, the activity, the timeout or the retries are out of
            bounds.
    """
    return RemoteTool(
        make_spec(name, description, parameters),
        task_queue=task_queue,
        activity=name if activity is None else activity,
        timeout_seconds=timeout_seconds,
        retries=retries,
        idempotent=idempotent,
        requires_approval=requires_approval,
    )
