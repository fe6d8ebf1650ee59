"""The worker: it serves sessions on a task queue, with the models, the tools and the store of its environment.

| module | content |
|---|---|
| `environment` | `WorkerSettings`: what a worker is made from, read once from the environment variables |
| `assembly` | `make_worker`: every workflow and activity, on the task queues that they are polled from |
| `plugin` | `ClewPlugin`: sessions on a team's own worker |
| `observability` | log lines without secrets, metrics, the depth of the task queues, traces |
| `health` | the health port: `/live` and `/ready` |
| `process` | the command line, and the process from its start to its end |
"""

from clew_activities.worker.assembly import SessionWorker, make_worker, make_workflow_sandbox
from clew_activities.worker.environment import Capacity, WorkerSettings, check_model
from clew_activities.worker.plugin import ClewPlugin
from clew_activities.worker.process import main

__all__ = [
    "Capacity",
    "ClewPlugin",
    "SessionWorker",
    "WorkerSettings",
    "check_model",
    "main",
    "make_worker",
    "make_workflow_sandbox",
]
