"""Task queues: a deployment's own, which clients know, and two beside it for what may take long.

Temporal gives a worker a task for any free slot of a queue, before it is known which activity that will be. Only
what has a queue of its own has slots of its own: however many model calls hang, there is room for tools, and for what
every session needs at once (`prepare`, `archive`, `thaw`, …), which stays on the deployment's own queue.
"""

from __future__ import annotations


def name_model_queue(task_queue: str) -> str:
    """Where model calls wait for a worker of a deployment: they wait on the network, for minutes at worst."""
    return f"{task_queue}-models"


def name_tool_queue(task_queue: str) -> str:
    """Where tool calls wait for a worker of a deployment: nobody knows what a tool does."""
    return f"{task_queue}-tools"
