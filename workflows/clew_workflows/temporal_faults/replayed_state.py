"""A replay shows nothing of the workflow that it has replayed: read the workflow before it is evicted.

`Replayer` answers whether a history can be replayed, and takes no queries. At the end it evicts the workflow, which
cancels its tasks, and with them goes the state that the history has led to.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#replayed_state.
Can go: when the replayer answers queries, or hands out the replayed workflow.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowInstance, WorkflowInstanceDetails

from clew_workflows.temporal_faults.private_parts import WorkflowActivation, WorkflowActivationCompletion


class ObservedRunner(UnsandboxedWorkflowRunner):
    """Runs workflow code without a sandbox: a sandbox imports its own copy, which an observer cannot read."""

    def __init__(self, observe: Callable[[], AbstractContextManager[None]], note_end: Callable[[], None]) -> None:
        """Observe a workflow.

        Args:
            observe: Makes the context in which each activation runs.
            note_end: Called before the workflow is evicted.
        """
        super().__init__()
        self._observe = observe
        self._note_end = note_end

    def create_instance(self, det: WorkflowInstanceDetails) -> WorkflowInstance:
        """Make an observed instance."""
        instance = super().create_instance(det)
        activate = instance.activate

        def activate_observed(act: WorkflowActivation) -> WorkflowActivationCompletion:
            if any(job.HasField("remove_from_cache") for job in act.jobs):
                self._note_end()
            with self._observe():
                return activate(act)

        instance.activate = activate_observed  # type: ignore[method-assign]
        return instance
