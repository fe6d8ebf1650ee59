"""The base of all values that workflows and activities exchange."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import from_json, to_json

from clew_workflows.contract.outcomes import Usage


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


# Compressed JSON, for values that a session writes to its own history and archive. No caller may send it.


MAX_INFLATED_BYTES = 16 * 1024 * 1024
"""Largest JSON that is unpacked, in bytes. Clew packs at most about half as much: 6 MB of a lane's messages, or 2 MB
of messages with a session's queues, outcomes and configuration."""


class Packed(BaseModel):
    """A JSON value, compressed.

    Attributes:
        zlib: The JSON text, compressed with zlib and encoded in base64.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    zlib: str

    @classmethod
    def pack(cls, value: Any) -> Packed:
        """Compress a JSON value."""
        return cls(zlib=b64encode(zlib.compress(to_json(value), 6)).decode())

    @property
    def value(self) -> Any:
        """The JSON value.

        Raises:
            ValueError: The data is damaged, or inflates to more than `MAX_INFLATED_BYTES`.
        """
        return from_json(inflate(b64decode(self.zlib), MAX_INFLATED_BYTES))


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Decompress a complete zlib stream. At most `max_bytes` + 1 bytes are held in memory.

    Raises:
        ValueError: The stream is damaged, truncated or followed by other bytes, or inflates to more than `max_bytes`.
    """
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(inflated) > max_bytes:
        raise ValueError(f"it inflates to more than {max_bytes} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is not one complete compressed value")
    return inflated
