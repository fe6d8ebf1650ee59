"""A reference to external storage fails every workflow task that reads it: read it like any other payload.

Any caller can write such a reference into a signal. A worker without external storage raises at it before any
converter or codec sees the payload, and fails the workflow task again and again: the workflow can do nothing more.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/storage_references.md.
Can go: when a data converter without external storage decodes such a payload, or refuses it without failing the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from temporalio.api.common.v1 import Payload
from temporalio.converter import DataConverter


def pass_on_references(converter: DataConverter) -> DataConverter:
    """Make a converter that treats a reference to external storage like any other payload, if it has no storage."""
    if converter.external_storage is not None or isinstance(converter, _WithoutExternalStorage):
        return converter
    return _WithoutExternalStorage(**{f.name: getattr(converter, f.name) for f in fields(DataConverter) if f.init})


@dataclass(frozen=True)
class _WithoutExternalStorage(DataConverter):
    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)
