"""The base of every input: strict, so that a misspelt field is refused and not dropped."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ConfigDict

M = TypeVar("M", bound=BaseModel)


class Input(BaseModel):
    """An input of the contract. An unknown field, a wrong type or a value out of range is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def set_fields(lower: M, upper: M) -> M:
    """Return a value with the fields that another one sets. The set fields are those of both."""
    return lower.model_copy(update={name: getattr(upper, name) for name in upper.model_fields_set})
