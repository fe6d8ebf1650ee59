"""Why something that a session wanted could not be done."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from clew_workflows.protocol._value import Value


class Failure(Value):
    """Why something could not be done, in a form that a caller can act on."""

    type: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = Field(default={})
