"""The error of a refused update comes only with its result: raise it when the update is sent.

`start_update` returns a handle also for an update that the validator has refused, and raises nothing. Only `result`
does, which would wait for the end of an accepted update; that the outcome is known already is in a private attribute.

Seen in: temporalio 1.35.0.
Reproduction: docs/upstream/no_public_way.md#refused_updates.
Can go: when `start_update` raises, or when a handle says that its outcome is known.
"""

from __future__ import annotations

from typing import Any

from temporalio.client import WorkflowUpdateHandle


async def raise_refusal(update: WorkflowUpdateHandle[Any]) -> None:
    """Raise the error of an update that has failed already. No call to the server is made.

    Raises:
        WorkflowUpdateFailedError: The update was refused, or has failed.
    """
    if has_outcome(update):
        await update.result()


def has_outcome(update: WorkflowUpdateHandle[Any]) -> bool:
    """Whether the outcome of an update came with the answer to its start: `result` calls no server then."""
    return update._known_outcome is not None
