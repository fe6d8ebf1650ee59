"""What a worker does with payloads that it cannot decrypt, and with those that are not encrypted.

A codec that raises an error fails the workflow task, and the server repeats the task for ever. So callers' inputs
reach the session with a mark, and the session refuses them.
"""

from __future__ import annotations

from collections.abc import Sequence

from temporalio.api.common.v1 import Payload
from temporalio.converter import (
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)

from clew_workflows.encryption.codec import ACTIVITY, KIND_FIELD, identify

UNDECODABLE = b"clew/undecodable"
"""The encoding of a payload that the worker cannot decrypt; its data is the reason."""
PLAIN_FIELD = "clew-plain"
"""The metadata that marks a payload which came unencrypted, though the worker encrypts."""

SEAL_FIELD = "clew-seal"
"""The metadata with the id of an encrypted payload."""
FOREIGN_FIELD = "clew-foreign"
"""The metadata that marks a payload which was encrypted as the text of an activity."""
_MARKS = (PLAIN_FIELD, SEAL_FIELD, FOREIGN_FIELD)


class AdmittingCodec(PayloadCodec, WithSerializationContext):
    """A worker's codec: it marks the inputs of workflows that the codec inside it cannot decode.

    What activities get and return is decoded by the codec inside alone. Its error fails the attempt of the activity,
    or the workflow task, and another worker may have the key.

    Attributes:
        accepts_plain: Whether sessions accept inputs that are not encrypted.
    """

    def __init__(self, codec: PayloadCodec, *, accepts_plain: bool, marks: bool = False) -> None:
        self._codec = codec
        self.accepts_plain = accepts_plain
        self._marks = marks

    def with_context(self, context: SerializationContext) -> AdmittingCodec:
        """Return the codec of one workflow's or one activity's payloads."""
        codec = self._codec
        if isinstance(codec, WithSerializationContext):
            codec = codec.with_context(context)
        marks = isinstance(context, WorkflowSerializationContext)
        if codec is self._codec and marks == self._marks:
            return self
        return AdmittingCodec(codec, accepts_plain=self.accepts_plain, marks=marks)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode the payloads."""
        return await self._codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode the payloads; those of a workflow are marked where that is not possible."""
        if not self._marks:
            return await self._codec.decode(payloads)
        return [await self._admit(payload) for payload in payloads]

    async def _admit(self, payload: Payload) -> Payload:
        try:
            (decoded,) = await self._codec.decode([payload])
        except Exception as error:
            return Payload(metadata={"encoding": UNDECODABLE}, data=str(error)[:500].encode())
        marked = Payload()
        marked.CopyFrom(decoded)
        # A caller may not write these marks.
        if marked.metadata.get("encoding") == UNDECODABLE:
            marked.metadata["encoding"] = b"unknown"
        for mark in _MARKS:
            marked.metadata.pop(mark, None)
        if not self.accepts_plain and decoded == payload:
            marked.metadata[PLAIN_FIELD] = b"1"
        if seal := identify(payload):
            marked.metadata[SEAL_FIELD] = seal.encode()
            if payload.metadata.get(KIND_FIELD) == ACTIVITY:
                marked.metadata[FOREIGN_FIELD] = b"1"
        return marked
