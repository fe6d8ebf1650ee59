"""The base of every input: strict, so that a misspelt field is refused and not dropped."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Input(BaseModel):
    """An input of the contract. An unknown field, a wrong type or a value out of range is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
