"""A data converter that passes on unread what it cannot decode, so that no payload fails a workflow task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter, DefaultFailureConverter, PayloadConverter


# The SDK checks for such references before any converter or codec of ours sees the payload. These two methods are not
# public; the SDK's version is pinned, and a test sends every kind of reference.
@dataclass(frozen=True)
class _WithoutExternalStorage(DataConverter):
    async def _decode_reference_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)

    async def _external_retrieve_payload_sequence(self, payloads: Sequence[Payload]) -> list[Payload]:
        return list(payloads)


class TolerantFailureConverter(DefaultFailureConverter):
    """Drops details of failures that cannot be decoded: the activity of a remote tool may fail with any."""

    def from_failure(self, failure: Failure, payload_converter: PayloadConverter) -> BaseException:
        """Make the exception of a failure."""
        try:
            return super().from_failure(failure, payload_converter)
        except Exception:
            bare = Failure()
            bare.CopyFrom(failure)
            if bare.HasField("application_failure_info"):
                bare.application_failure_info.ClearField("details")
            if bare.HasField("canceled_failure_info"):
                bare.canceled_failure_info.ClearField("details")
            if bare.HasField("timeout_failure_info"):
                bare.timeout_failure_info.ClearField("last_heartbeat_details")
            return super().from_failure(bare, payload_converter)


def make_tolerant(converter: DataConverter) -> DataConverter:
    """Make a converter that treats a reference to external storage like any other payload, and drops odd details.

    Any caller can write such a reference into a signal. Where no external storage is configured the SDK fails the
    workflow task that reads it, again and again; the session itself refuses the signal and goes on.
    """
    if converter.failure_converter_class is DefaultFailureConverter:
        converter = replace(converter, failure_converter_class=TolerantFailureConverter)
    if converter.external_storage is not None or isinstance(converter, _WithoutExternalStorage):
        return converter
    return _WithoutExternalStorage(**{f.name: getattr(converter, f.name) for f in fields(DataConverter) if f.init})
