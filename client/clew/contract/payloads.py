"""What each kind of entry holds."""

from clew_workflows.contract.payloads import *  # noqa: F403
from clew_workflows.contract.payloads import __all__  # noqa: F401
