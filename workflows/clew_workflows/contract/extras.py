"""The extras of the package, as errors name them: `name_install` is the command that adds one.

The command works although Clew is on no index: where its message comes from, Clew is installed. pip and uv add the
libraries of the extra to the installed version, and look for no other one.
"""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec


def name_extra(extra: str) -> str:
    """Name the package with an extra, as a shell takes it."""
    return f"'clew[{extra}]'"


def name_install(extra: str) -> str:
    """Name the command that adds an extra to the environment of this process, which need not be activated.

    uv makes environments without pip: their command is uv's.
    """
    python = shlex.quote(sys.executable or "python")
    if find_spec("pip") is None:
        return f"uv pip install {name_extra(extra)} --python {python}"
    return f"{python} -m pip install {name_extra(extra)}"


class ExtraMissing(ValueError):
    """A variable asks for what an extra brings, and the extra is not installed. The message has the command for it.

    Attributes:
        extra: The extra.
    """

    def __init__(self, variable: str, extra: str) -> None:
        """Name the variable that asks for it, and the extra."""
        super().__init__(f"{variable} needs the extra `{extra}`: {name_install(extra)}")
        self.extra = extra
