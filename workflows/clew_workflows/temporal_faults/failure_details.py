"""Details of a failure that cannot be decoded fail the workflow task: drop them.

The activity of a remote tool may fail with any details. The SDK decodes them while it hands the failure to the
workflow, and an error there fails the workflow task again and again, instead of the activity's call.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/failure_details.md.
Can go: when `DefaultFailureConverter` returns a failure whose details are malformed.
"""

from __future__ import annotations

from temporalio.api.failure.v1 import Failure
from temporalio.converter import DefaultFailureConverter, PayloadConverter


class TolerantFailureConverter(DefaultFailureConverter):
    """Drops details of failures that cannot be decoded."""

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
