"""The base of all values that workflows and activities exchange."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A value of the protocol: frozen; fields of newer workers are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")
