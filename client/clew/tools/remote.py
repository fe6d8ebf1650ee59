"""Tools that run elsewhere: in another worker, with a person or a program, or declared as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Required, Unpack

from pydantic import ConfigDict, TypeAdapter, ValidationError, with_config

from clew.tools.definition import (
    EXTERNAL_TIMEOUT_SECONDS,
    ToolDefinition,
    ToolSettings,
    WaitSettings,
    check_temporal_name,
    make_spec,
)
from clew_workflows.contract.invalid import describe_problems
from clew_workflows.contract.messages import ToolSpec

# External tools: a call waits until a program or a person sends its result to the session.


class ExternalTool(ToolDefinition):
    """A tool without code: its calls wait for `Session.submit_tool_result`, from any program with Temporal's API.

    `timeout_seconds` is the time that a call waits. After that the model reads that it timed out.
    """

    default_timeout_seconds = EXTERNAL_TIMEOUT_SECONDS


def external_tool(
    name: str,
    description: str,
    parameters: Mapping[str, Any],
    **settings: Unpack[WaitSettings],
) -> ExternalTool:
    """Make a tool whose results come from outside: a webhook, another system, a person.

    Args:
        name: The name of the tool.
        description: What the tool does, for the model.
        parameters: The JSON Schema of the arguments, an object. Arguments are validated before a call waits.
        settings: How calls wait (`WaitSettings`): a day by default.

    Raises:
        TypeError: The name, the parameters or the timeout are out of bounds.

    Example:
        parameters = {"type": "object", "properties": {"item": {"type": "string"}}}
        order = external_tool("order", "Order an item.", parameters)
    """
    return ExternalTool(make_spec(name, description, parameters), **settings)


# Remote tools: a call is an activity of another Temporal worker, in any language, with nothing of Clew's in it.


class RemoteTool(ToolDefinition):
    """A tool that a worker of your own runs, as one activity for each call.

    Attributes:
        task_queue: The task queue that the worker polls.
        activity: The name of the activity.
    """

    def __init__(self, spec: ToolSpec, *, task_queue: str, activity: str, **settings: Unpack[ToolSettings]) -> None:
        super().__init__(spec, **settings)
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
    **settings: Unpack[ToolSettings],
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
        settings: The settings of the calls (`ToolSettings`).

    Raises:
        TypeError: The name, the parameters, the task queue, the activity, the timeout or the retries are out of
            bounds.

    Example:
        weather = remote_tool(
            "weather",
            "The weather in a city.",
            {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
            task_queue="weather",
        )
    """
    spec = make_spec(name, description, parameters)
    return RemoteTool(spec, task_queue=task_queue, activity=name if activity is None else activity, **settings)


# Declarations: remote and external tools as JSON objects.


_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


@with_config(_STRICT)
class _External(WaitSettings, total=False):
    name: Required[str]
    description: str
    parameters: Required[dict[str, Any]]
    external: Required[Literal[True]]


@with_config(_STRICT)
class _Remote(ToolSettings, total=False):
    name: Required[str]
    description: str
    parameters: Required[dict[str, Any]]
    task_queue: Required[str]
    activity: str | None


_external: TypeAdapter[Any] = TypeAdapter(_External)
_remote: TypeAdapter[Any] = TypeAdapter(_Remote)


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
            fields: dict[str, Any] = {"description": "", **_external.validate_python({**declaration})}
            del fields["external"]
            return external_tool(**fields)
        fields = {"description": "", **_remote.validate_python({**declaration})}
        return remote_tool(**fields)
    except ValidationError as error:
        kind = _External if "external" in declaration else _Remote
        raise TypeError(f"tool {name!r}: {describe_problems(error, kind)}") from None
