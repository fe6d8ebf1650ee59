"""The wire contract: the inputs that other programs send to a session, and its answers."""

from clew_workflows.contract import *  # noqa: F403
from clew_workflows.contract import __all__  # noqa: F401
