"""Tools that run elsewhere: in another worker, with a person or a program, or declared as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clew.tools.definition import (
    DEFAULT_TIMEOUT_SECONDS,
    RequiresApproval,
    ToolDefinition,
    check_temporal_name,
    make_spec,
)
from clew_workflows.contract.messages import ToolSpec

# External tools: a call waits until a program or a person sends its result to the session.


EXTERNAL_TIMEOUT_SECONDS = 24 * 3600.0
"""Time that a call of an external tool waits, where the tool sets none."""


class ExternalTool(ToolDefinition):
    """A tool without code: its calls wait for `Session.submit_tool_result`, from any program with Temporal's API.

    `timeout_seconds` is the time that a call waits. After that the model reads that it timed out.
    """


def external_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    *,
    timeout_seconds: float = EXTERNAL_TIMEOUT_SECONDS,
    requires_approval: RequiresApproval = False,
) -> ExternalTool:
    """Make a tool whose results come from outside: a webhook, another system, a person.

    Args:
        name: The name of the tool.
        description: What the tool does, for the model.
        parameters: The JSON Schema of the arguments, an object. Arguments are validated before a call waits.
        timeout_seconds: The longest time that a call waits, in seconds. After that the model is told that it timed
            out.
        requires_approval: Whether a person must approve each call before it waits for its result; `round`: before any
            call of its reply begins.

    Raises:
        TypeError: The name, the parameters or the timeout are out of bounds.
    """
    return ExternalTool(
        make_spec(name, description, parameters), timeout_seconds=timeout_seconds, requires_approval=requires_approval
    )


# Remote tools: a call is an activity of another Temporal worker, in any language, with nothing of Clew's in it.


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
        timeout_seconds: The longest time of one attempt, in seconds. After that the model is told that it timed out.
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


# Declarations: remote and external tools as JSON objects.


class _Declaration(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    name: str
    description: str = ""
    parameters: dict[str, Any]
    requires_approval: RequiresApproval = False


class _External(_Declaration):
    external: Literal[True]
    timeout_seconds: float = EXTERNAL_TIMEOUT_SECONDS


class _Remote(_Declaration):
    task_queue: str
    activity: str | None = None
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    retries: int = 0
    idempotent: bool = True


def make_tool(declaration: Mapping[str, Any]) -> RemoteTool | ExternalTool:
    """Make a tool from its JSON form. Absent fields have the defaults of `remote_tool` and `external_tool`.

    An external tool: `{"name", "description", "parameters", "external": true, "timeout_seconds",
    "requires_approval"}`. A remote tool: `{"name", "description", "parameters", "task_queue", "activity",
    "timeout_seconds", "retries", "idempotent", "requires_approval"}`.

    Raises:
        TypeError: The object is neither, or a field is out of bounds.
    """
    name = str(declaration.get("name", "?"))[:100]
    if ("external" in declaration) == ("task_queue" in declaration):
        raise TypeError(f"tool {name!r}: a tool in JSON has either 'external': true, or a 'task_queue'")
    try:
        if "external" in declaration:
            return external_tool(**_External.model_validate({**declaration}).model_dump(exclude={"external"}))
        return remote_tool(**_Remote.model_validate({**declaration}).model_dump())
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)[:3]
        lines = (f"{'.'.join(map(str, problem['loc']))[:100]}: {problem['msg'][:200]}" for problem in problems)
        raise TypeError(f"tool {name!r}: {'; '.join(lines)}") from None
