"""The context of a tool call, which a tool receives if it declares a parameter of this type."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The call that a tool serves. A tool that declares a parameter of this type receives it.

    Attributes:
        session_id: The session's id, which is the workflow's id.
        request_id: The request in whose run the model called the tool.
        tool_call_id: The id of the call, unique in the session's thread.
        idempotency_key: The same for every attempt of the call, and different for other calls: pass it to services
            that have effects.
        attempt: The number of the attempt, from 1 on.
    """

    session_id: str
    request_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    _report: Callable[[str], None] = field(repr=False, default=lambda _progress: None)

    def heartbeat(self, progress: str) -> None:
        """Report progress. Clew itself reports that the tool is alive."""
        self._report(progress)
