"""The worker's functions; they need the extra `worker`.

from clew.worker import make_worker

`clew worker --tools my_package.tools` serves sessions; `python -m clew.worker` is the same command.

Raises:
    ImportError: The extra is not installed.
"""

from clew_workflows.contract.extras import name_install

try:
    from clew_activities.worker import (
        Capacity,
        ClewPlugin,
        SessionWorker,
        WorkerSettings,
        check_model,
        main,
        make_worker,
        make_workflow_sandbox,
    )
except ModuleNotFoundError as error:
    message = f"the worker needs its libraries ({error.name} is missing): {name_install('worker')}"
    raise ImportError(message, name=__name__) from error

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

if __name__ == "__main__":
    main()
