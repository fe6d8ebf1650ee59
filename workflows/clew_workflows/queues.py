"""Task queues: a deployment's own, which clients know, and one each for model calls and for tool calls.

Where workers serve sessions and model calls, a model call is first on the deployment's own queue: Temporal hands it
to the worker that schedules it, with the end of the workflow task (eager execution), and dispatches nothing. A worker
that has no room for it declines it, and it goes to the queue of model calls.

A provider whose calls are limited has a queue of its own: Temporal limits the rate of a queue.

A worker's slots belong to a queue, not to an activity type. With queues of their own, hanging model calls take no
slot from tools, and neither take one from the short activities that every session needs (`prepare`, `archive`,
`thaw`, …), which stay on the deployment's own queue. Its workers have slots beside those for declinable calls.
"""

from __future__ import annotations

from collections.abc import Collection


def name_model_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's model calls. One may wait minutes for the network."""
    return f"{task_queue}-models"


def name_provider_queue(task_queue: str, provider: str) -> str:
    """Name the task queue that a provider's calls have if their rate is limited."""
    return f"{name_model_queue(task_queue)}-{provider}"


def choose_model_queue(task_queue: str, model: str, limited: Collection[str], *, direct: bool = False) -> str:
    """Choose the task queue of a call of a model.

    Args:
        task_queue: The deployment's own.
        model: `provider:model`.
        limited: The providers with a queue of their own.
        direct: A worker of the deployment's own queue may make the call.
    """
    provider = model.partition(":")[0]
    if provider in limited:
        return name_provider_queue(task_queue, provider)
    return task_queue if direct else name_model_queue(task_queue)


def name_tool_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's tool calls. A tool may take any time and any resource."""
    return f"{task_queue}-tools"
