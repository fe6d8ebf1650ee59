"""The private parts of temporalio that the workarounds use, and the check that this version of it has them."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from temporalio import workflow
from temporalio.client import Client
from temporalio.converter import DataConverter
from temporalio.worker import Worker

from clew_workflows.contract.errors import ClewError

WORKING_VERSIONS = ">=1.35,<1.36"
"""The versions of temporalio whose private parts are known."""


class UnsupportedTemporal(ClewError):
    """This version of temporalio lacks parts that Clew needs to work around its faults.

    Attributes:
        missing: The missing parts.
    """

    def __init__(self, *missing: str) -> None:
        self.missing = missing
        super().__init__(
            f"temporalio {version('temporalio')} lacks {', '.join(missing)}, by which Clew works around faults of "
            f"Temporal: install a version that works, 'temporalio{WORKING_VERSIONS}'"
        )


try:
    from temporalio.bridge.proto.workflow_activation import WorkflowActivation
    from temporalio.bridge.proto.workflow_completion import WorkflowActivationCompletion
except ImportError as error:
    raise UnsupportedTemporal(f"temporalio.bridge.proto ({error})") from error

__all__ = ["UnsupportedTemporal", "WorkflowActivation", "WorkflowActivationCompletion", "check_private_parts"]

_FIELDS: dict[Any, tuple[str, ...]] = {
    WorkflowActivation: (
        *("run_id", "history_length", "history_size_bytes", "is_replaying", "timestamp", "jobs.remove_from_cache"),
        *("jobs.signal_workflow", "jobs.fire_timer", "jobs.query_workflow.query_id"),
        "jobs.do_update.protocol_instance_id",
    ),
    WorkflowActivationCompletion: (
        *("failed.failure.message", "failed.failure.application_failure_info.type"),
        *("successful.commands.upsert_workflow_search_attributes", "successful.commands.modify_workflow_properties"),
        *("successful.commands.start_timer.seq", "successful.commands.cancel_timer.seq"),
        *("successful.commands.schedule_activity.seq", "successful.commands.request_cancel_activity.seq"),
        *("successful.commands.update_response.protocol_instance_id", "successful.commands.update_response.accepted"),
        "successful.commands.update_response.rejected",
    ),
}
"""The fields of the bridge's messages that `query_ahead`, `short_activations` and `replayed_state` read."""


def check_private_parts(client: Client, worker: Worker) -> None:
    """Check that everything is there that the workarounds use of temporalio. Nothing is called or changed.

    Args:
        client: Any client.
        worker: The worker that is about to start.

    Raises:
        UnsupportedTemporal: A part is missing.
    """
    if missing := [*_list_missing_attributes(client, worker), *_list_missing_fields()]:
        raise UnsupportedTemporal(*missing)


def _list_missing_attributes(client: Client, worker: Worker) -> Iterator[str]:
    handle = client.get_workflow_handle("none")
    converter = DataConverter.default.payload_converter
    is_wrapped = not isinstance(converter, DataConverter.default.payload_converter_class)
    owners: list[tuple[Any, tuple[str, ...]]] = [
        (handle, ("_start_workflow_response",)),  # started_workflows
        (handle.get_update_handle("none"), ("_known_outcome",)),  # refused_updates
        # storage_references
        (DataConverter.default, ("_decode_reference_payload_sequence", "_external_retrieve_payload_sequence")),
        (converter if is_wrapped else None, ("_inner_payload_converter",)),  # wrapped_converter
        (worker, ("_bridge_worker", "_workflow_worker")),
        (getattr(worker, "_bridge_worker", None), ("request_workflow_eviction",)),  # query_ahead
        # deadlock_timeout, stuck_workflows. A worker without workflows has none.
        (getattr(worker, "_workflow_worker", None), ("_deadlock_timeout_seconds", "_could_not_evict_count")),
    ]
    # task_commands
    if not hasattr(workflow, "_Runtime"):
        yield "workflow._Runtime"
    for owner, names in owners:
        if owner is not None:
            yield from (f"{type(owner).__name__}.{name}" for name in names if not hasattr(owner, name))


def _list_missing_fields() -> Iterator[str]:
    for message, paths in _FIELDS.items():
        for path in paths:
            descriptor = message.DESCRIPTOR
            for name in path.split("."):
                field = descriptor.fields_by_name.get(name) if descriptor else None
                if field is None:
                    yield f"{message.__name__}.{path}"
                    break
                descriptor = field.message_type
