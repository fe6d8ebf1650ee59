"""The values that workflows and activities exchange and store: their base, compressed JSON, durable formats."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, PlainSerializer, SerializerFunctionWrapHandler, model_serializer
from pydantic_core import from_json, to_json

from clew_workflows.contract.errors import NewerVersion
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
"""The usage of a model call. Its JSON omits the fields at their defaults."""


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


# Durable formats: each has one version number, which is in the data.
#
# A change that an older reader would misread raises the version. The reader of a format then gets a step that makes a
# value of the new version from one of the version before, so that every released version stays readable.
# `CONTRIBUTING.md` says which changes raise a version.


Step = Callable[[Any], Any]
"""Makes a value of a version from one of the version before. Pure."""


@dataclass(frozen=True, slots=True)
class Format:
    """A durable format.

    Attributes:
        name: What is stored in it, for messages.
        version: The version that is written, and the newest that is read.
        steps: The upgrades to `version`, one a version, the oldest first. Values of older versions are not read.
    """

    name: str
    version: int = 1
    steps: tuple[Step, ...] = ()

    def check(self, version: object, subject: str | None = None) -> int:
        """Check that values of a version can be read. Returns the version.

        Args:
            version: The number in the data.
            subject: What has it, for messages; None: the format's name.

        Raises:
            NewerVersion: A newer version of Clew has written it.
            ValueError: It is not a version that was ever read here.
        """
        subject = subject or self.name
        if not isinstance(version, int) or isinstance(version, bool) or version < self.version - len(self.steps):
            raise ValueError(f"{subject} is of version {version!r:.50}, the versions are {self._versions}")
        if version > self.version:
            raise NewerVersion(
                f"{subject} is of version {version}, and this version of Clew reads {self._versions}: upgrade the "
                "worker or the client that reads it"
            )
        return version

    def upgrade(self, value: Any, version: int) -> Any:
        """Make a value of the newest version from one of a version that `check` has accepted."""
        for step in self.steps[len(self.steps) - (self.version - version) :]:
            value = step(value)
        return value

    @property
    def _versions(self) -> str:
        oldest = self.version - len(self.steps)
        return f"{oldest} to {self.version}" if self.steps else f"{self.version}"
