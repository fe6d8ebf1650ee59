"""The base of all values that workflows and activities exchange."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, SerializerFunctionWrapHandler, model_serializer

from clew.outcomes import Usage


class Value(BaseModel):
    """A value of the protocol: frozen; fields of newer workers are ignored.

    Its JSON omits a field that is empty by default and is empty: None, False, 0, an empty text or list. The history
    has the JSON of each model call, most of whose fields are empty. Other defaults are written: a later release may
    change them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    @model_serializer(mode="wrap", when_used="json")
    def _omit_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        fields = type(self).model_fields
        return {name: value for name, value in values.items() if value or getattr(self, name) != fields[name].default}


def _dump_usage(usage: Usage) -> dict[str, Any]:
    return usage.model_dump(mode="json", exclude_defaults=True)


ReportedUsage = Annotated[Usage, PlainSerializer(_dump_usage, when_used="json")]
"""The usage of a model call. Its JSON omits what is at its default: nothing was used."""
