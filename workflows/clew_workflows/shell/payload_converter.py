"""A data converter that passes references to external storage on unread, so that no payload fails a workflow task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter


# The SDK checks for such references before any converter or codec of ours sees the payload. These two methods are not
# public; the SDK's version is pinned, and a test sends every kind of reference.
@dataclass(frozen=True)
class _WithoutExternalStorage(DataConverter):
    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


def make_tolerant(converter: DataConverter) -> DataConverter:
    """Make a converter that treats a reference to external storage like any other payload.

    Any caller can write such a reference into a signal. Where no external storage is configured the SDK fails the
    workflow task that reads it, again and again; the session itself refuses the signal and goes on.
    """
    if converter.external_storage is not None or isinstance(converter, _WithoutExternalStorage):
        return converter
    return _WithoutExternalStorage(**{f.name: getattr(converter, f.name) for f in fields(DataConverter) if f.init})
