"""JSON, compressed: what a session writes to its own history and archive, and nothing that a caller may send."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic_core import from_json, to_json

MAX_INFLATED_BYTES = 16 * 1024 * 1024
"""Largest JSON that is unpacked, in bytes. What Clew packs has about half of it at most: 6 MB of a lane's messages,
or 2 MB of them with a session's queues, outcomes and configuration."""


class Packed(BaseModel):
    """A JSON value, as JSON that was compressed with zlib and written in base64."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    zlib: str

    @classmethod
    def pack(cls, value: Any) -> Packed:
        """A JSON value, compressed."""
        return cls(zlib=b64encode(zlib.compress(to_json(value), 6)).decode())

    @property
    def value(self) -> Any:
        """What was compressed.

        Raises:
            ValueError: it is damaged, or inflates to more than `MAX_INFLATED_BYTES`.
        """
        return from_json(inflate(b64decode(self.zlib), MAX_INFLATED_BYTES))


def inflate(data: bytes, max_bytes: int) -> bytes:
    """Decompress a whole zlib stream, holding at most one byte more than `max_bytes` of it.

    Raises:
        ValueError: the stream is damaged, cut short or followed by something else, or inflates to more.
    """
    stream = zlib.decompressobj()
    try:
        inflated = stream.decompress(data, max_bytes + 1)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if len(inflated) > max_bytes:
        raise ValueError(f"it inflates to more than {max_bytes} bytes")
    if not stream.eof or stream.unused_data:
        raise ValueError("it is not one whole compressed value")
    return inflated
