"""External tools: a call waits until a program or a person sends its result to the session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from clew.tools.definition import RequiresApproval, ToolDefinition, make_spec

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
        timeout_seconds: The longest time that a call waits, in seconds. After that the model reads of the timeout.
        requires_approval: Whether a person must approve each call before it waits for its result; `round`: before any
            call of its reply begins.

    Raises:
        TypeError: The name, the parameters or the timeout are out of bounds.
    """
    return ExternalTool(
        make_spec(name, description, parameters), timeout_seconds=timeout_seconds, requires_approval=requires_approval
    )
