"""Durable formats: each has one version number, which stands in the data.

A change that an older reader would misread raises the version. The reader of a format then gets a step that makes a
value of the new version from one of the version before, so that every released version stays readable.
`docs/upgrading.md` says which changes raise a version.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clew_workflows.contract.errors import NewerVersion

Step = Callable[[Any], Any]
"""Makes a value of a version from one of the version before. Pure."""


@dataclass(frozen=True, slots=True)
class Format:
    """A durable format.

    Attributes:
        name: What is stored in it, for messages.
        version: The version that is written, and the newest that is read.
        steps: The upgrades to `version`, one a version, the oldest first. Values of older versions are not read.
    """

    name: str
    version: int = 1
    steps: tuple[Step, ...] = ()

    def check(self, version: object, subject: str | None = None) -> int:
        """Check that values of a version can be read. Returns the version.

        Args:
            version: The number in the data.
            subject: What has it, for messages; None: the format's name.

        Raises:
            NewerVersion: A newer version of Clew has written it.
            ValueError: It is not a version that was ever read here.
        """
        subject = subject or self.name
        if not isinstance(version, int) or isinstance(version, bool) or version < self.version - len(self.steps):
            raise ValueError(f"{subject} is of version {version!r:.50}, the versions are {self._versions}")
        if version > self.version:
            raise NewerVersion(
                f"{subject} is of version {version}, and this version of Clew reads {self._versions}: upgrade the "
                "worker or the client that reads it"
            )
        return version

    def upgrade(self, value: Any, version: int) -> Any:
        """Make a value of the newest version from one of a version that `check` has accepted."""
        for step in self.steps[len(self.steps) - (self.version - version) :]:
            value = step(value)
        return value

    @property
    def _versions(self) -> str:
        oldest = self.version - len(self.steps)
        return f"{oldest} to {self.version}" if self.steps else f"{self.version}"
