"""The context of a tool call, which a tool receives if it declares a parameter of this type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        agent: The name of the session's agent; None: it has none.
        metadata: The session's metadata, those of its agent included.
        request_metadata: The metadata of the message that the run serves.
    """

    session_id: str
    request_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    agent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_metadata: Mapping[str, str] = field(default_factory=dict)
    _report: Callable[[str, float | None], None] = field(repr=False, default=lambda _text, _fraction: None)

    def report(self, text: str, fraction: float | None = None) -> None:
        """Report the progress of the call, which viewers of the session get. The newest report counts.

        Args:
            text: What the tool is doing; its first 1 000 characters are kept.
            fraction: The part of the work that is done, from 0 to 1.
        """
        self._report(text, fraction)
