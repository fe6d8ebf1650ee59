"""The base of what travels between workflows and activities."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Value(BaseModel):
    """A value of the protocol: frozen, and open to fields of newer workers."""

    model_config = ConfigDict(frozen=True, extra="ignore")
