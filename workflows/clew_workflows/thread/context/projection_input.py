"""The input of a projection."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """Everything that a context depends on.

    Attributes:
        thread: The thread to project.
        policy: The policy in force, with all levels overlaid.
        pending: Messages that are shown after the history and are not in the thread.
        system: The system prompt.
        tools: The tool schemas.
        selected_tools: The names of `tools`, if they are some of the session's; None: they are all.
        context_ref: The lane.
        at_seq: The newest entry that the projection reads; None: the newest of the thread.
        provider: The provider whose `provider_data` the messages keep.
        output_schema: The JSON Schema that the answer must meet. Only the digest depends on it.
        system_tokens: Recorded tokens of the system prompt; None: they are counted.
        tools_tokens: Recorded tokens of the tool schemas; None: they are counted.
        encoding: The encoding that counts what has no recorded count.
        request_must_fit: Whether the current run and pinned groups are required; if not, they are windowed like the
            rest of the history.
        standalone: Whether the context is for a model that cannot read this thread with `read_result`.
    """

    thread: Thread
    policy: ContextPolicy
    pending: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    selected_tools: tuple[str, ...] | None = None
    context_ref: str = DEFAULT_LANE
    at_seq: int | None = None
    provider: str | None = None
    output_schema: dict[str, Any] | None = None
    system_tokens: int | None = None
    tools_tokens: int | None = None
    encoding: str = "o200k_base"
    request_must_fit: bool = True
    standalone: bool = False
