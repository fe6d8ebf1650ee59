"""The functions of `clew.operators`, imported at the first use: the extra `worker` may be missing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from clew.cli.reach import Misconfigured

if TYPE_CHECKING:
    from clew.operators import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        return getattr(require_worker_extra(), name)


def require_worker_extra() -> Any:
    """Import `clew.operators`.

    Raises:
        Misconfigured: The extra `worker` is not installed.
    """
    try:
        from clew import operators  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        if error.name != "clew.operators":
            raise
        raise Misconfigured(str(error)) from error
    return operators
