"""The base of all tools: the schema that models read, and the settings of calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from typing_extensions import TypedDict

from clew_workflows.contract.messages import ToolSpec, canonicalize
from clew_workflows.contract.schemas import check_schema

DEFAULT_TIMEOUT_SECONDS = 60.0
"""The timeout of one attempt, where the tool sets none."""
EXTERNAL_TIMEOUT_SECONDS = 24 * 3600.0
"""The time that a call waits for a program or a person, where the tool sets none."""
MAX_TIMEOUT_SECONDS = 30 * 86400.0
"""Longest timeout of a tool: the longest time of a request."""
MAX_RETRIES = 1000
"""Most retries of a tool call."""
MAX_TEMPORAL_NAME = 200
"""Longest name of a task queue or an activity, in characters."""


RequiresApproval = bool | Literal["round"]
"""Whether a person must approve each call of a tool. `round`: the other calls of the reply wait for that, too."""


class WaitSettings(TypedDict, total=False):
    """The settings of calls that wait for a program or a person.

    Attributes:
        timeout_seconds: The longest time that a call waits, in seconds; by default a day. After that the model reads
            that it timed out.
        requires_approval: Whether each call waits, however long, until a person approves or denies it; `round`: the
            other calls of its reply wait, too.
    """

    timeout_seconds: float
    requires_approval: RequiresApproval


class ToolSettings(WaitSettings, total=False):
    """The settings of a tool's calls.

    Attributes:
        timeout_seconds: The longest time of one attempt, in seconds; 60 by default, at most 30 days. After that the
            model reads that it timed out.
        retries: The most repetitions of an attempt that raised an exception, before the model reads the error; 0 by
            default, at most 1 000. A timeout is not repeated. Needs `idempotent`.
        idempotent: Whether a call may run again after its worker died; **by default it may**. If not, the call is not
            repeated: the model reads that it is in doubt, with its idempotency key. Set it to false for what moves
            money or sends mail.
    """

    retries: int
    idempotent: bool


class ToolDefinition:
    """A tool that sessions can have: its schema for models, and the settings of its calls.

    `Tool`, `RemoteTool` and `ExternalTool` say how a call is carried out.

    Attributes:
        name: The name of the tool.
        spec: The name, the description and the JSON Schema of the parameters, as models read them.
        timeout_seconds: The time for one attempt of a call.
        retries: The most repetitions of an attempt that failed.
        idempotent: Whether a call may run again when it is not known whether it has run.
        requires_approval: Whether a person must approve each call; `round`: before any call of its reply begins.
        default_timeout_seconds: The time for one attempt of a tool of this kind, unless it names its own.
    """

    default_timeout_seconds: ClassVar[float] = DEFAULT_TIMEOUT_SECONDS
    """The timeout of a tool that sets none."""

    def __init__(
        self,
        spec: ToolSpec,
        *,
        timeout_seconds: float | None = None,
        retries: int = 0,
        idempotent: bool = True,
        requires_approval: RequiresApproval = False,
    ) -> None:
        self.name = spec["name"]
        check_name(self.name)
        timeout_seconds = self.default_timeout_seconds if timeout_seconds is None else timeout_seconds
        # Temporal limits both numbers.
        if not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS or retries not in range(MAX_RETRIES + 1):
            raise TypeError(
                f"tool {self.name!r}: the timeout is more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds, "
                f"retries are from 0 to {MAX_RETRIES}"
            )
        if retries and not idempotent:
            raise TypeError(f"tool {self.name!r}: a tool that is not idempotent cannot be retried")
        try:
            canonicalize(spec)
        except ValueError as error:
            raise TypeError(f"tool {self.name!r} has no JSON Schema: {error}") from error
        try:
            check_schema(spec["parameters"])
        except ValueError as error:
            message = f"the parameters of tool {self.name!r} are not valid JSON Schema or too costly to validate"
            raise TypeError(f"{message}: {error}") from error
        self.spec = spec
        self.timeout_seconds = timeout_seconds
        self.retries = retries
        self.idempotent = idempotent
        self.requires_approval: RequiresApproval = requires_approval

    def __repr__(self) -> str:
        return f"<tool {self.name}>"


def make_spec(name: str, description: str, parameters: Mapping[str, Any]) -> ToolSpec:
    """Make the spec of a tool whose parameters come as JSON Schema.

    Raises:
        TypeError: The parameters are not the schema of an object.
    """
    if parameters.get("type") != "object":
        raise TypeError(f"tool {name!r}: the parameters are a JSON Schema with the type 'object'")
    return {"name": name, "description": description, "parameters": {**parameters}}


def check_name(name: str) -> None:
    """Check the name of a tool.

    Raises:
        TypeError: The name has other characters than ASCII letters, digits, `_` and `-`, or not 1 to 64 of them.
    """
    if not name.replace("_", "").replace("-", "").isalnum() or not name.isascii() or len(name) > 64:
        raise TypeError(f"a tool's name has 1 to 64 letters, digits, '_' or '-', not {name!r}")


def check_temporal_name(tool: str, field: str, name: str) -> None:
    """Check the name of a task queue or an activity.

    Raises:
        TypeError: The name is empty, too long, or has characters that cannot be printed.
    """
    if not 0 < len(name) <= MAX_TEMPORAL_NAME or not name.isprintable() or name.startswith("/_sys"):
        raise TypeError(f"tool {tool!r}: {field} has 1 to {MAX_TEMPORAL_NAME} printable characters, not {name!r}")
