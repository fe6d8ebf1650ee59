"""Declarations: remote and external tools as JSON objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from clew.tools.definition import DEFAULT_TIMEOUT_SECONDS, RequiresApproval
from clew.tools.external import EXTERNAL_TIMEOUT_SECONDS, ExternalTool, external_tool
from clew.tools.remote import RemoteTool, remote_tool


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
