"""The worker: it serves sessions on a task queue, with the models, the tools and the store of its environment.

| module | content |
|---|---|
| `assembly` | `make_worker`: every workflow and activity, on the task queues that they are polled from |
| `environment` | the configuration in environment variables, read once at the start: capacity, rate limits, … |
| `parts` | every activity of a worker |
| `plugin` | `ClewPlugin`: sessions on a team's own worker |
| `observability` | log lines without secrets, metrics, the depth of the task queues, traces |
| `health` | the health port: `/live` and `/ready` |
| `process` | the command line, and the process from its start to its end |
"""

from clew_activities.worker.assembly import SessionWorker, make_worker, make_workflow_sandbox
from clew_activities.worker.environment import Capacity, check_model
from clew_activities.worker.plugin import ClewPlugin
from clew_activities.worker.process import main

__all__ = [
    "Capacity",
    "ClewPlugin",
    "SessionWorker",
    "check_model",
    "main",
    "make_worker",
    "make_workflow_sandbox",
]
