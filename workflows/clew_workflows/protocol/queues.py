"""Task queues: a deployment's own, which clients know, and one each for model calls and for tool calls.

A worker's slots belong to a queue, not to an activity type. With queues of their own, hanging model calls take no
slot from tools, and neither take one from the short activities that every session needs (`prepare`, `archive`,
`thaw`, …), which stay on the deployment's own queue.
"""

from __future__ import annotations


def name_model_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's model calls. One may wait minutes for the network."""
    return f"{task_queue}-models"


def name_tool_queue(task_queue: str) -> str:
    """Name the task queue of a deployment's tool calls. A tool may take any time and any resource."""
    return f"{task_queue}-tools"
