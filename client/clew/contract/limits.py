"""The limits of inputs and answers."""

from clew_workflows.contract.limits import *  # noqa: F403
