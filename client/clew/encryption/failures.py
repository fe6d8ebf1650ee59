"""Messages of failures, which workers that encrypt send as payloads."""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DataConverter
from temporalio.exceptions import FailureError


async def read_message(failure: Failure, converter: DataConverter) -> str:
    """Read the message of a failure, and decrypt it if it is encrypted.

    Raises:
        UnknownKey: The process does not have the key.
    """
    if not failure.HasField("encoded_attributes"):
        return failure.message
    copied = Failure()
    copied.CopyFrom(failure)
    error = await converter.decode_failure(copied)
    return error.message if isinstance(error, FailureError) else str(error)
