"""Every error that Clew raises."""

from clew_workflows.contract.errors import *  # noqa: F403
from clew_workflows.contract.errors import __all__  # noqa: F401
