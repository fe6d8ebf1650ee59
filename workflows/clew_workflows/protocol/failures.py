"""The failure of an effect."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from clew_workflows.protocol._value import Value


class Failure(Value):
    """Why an effect failed.

    Attributes:
        type: A word that callers can compare: an error type of the contract, or a worker's own.
        message: The reason, for people.
        retryable: The same request may succeed later.
        details: Further values; each type has its own.
    """

    type: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = Field(default={})
