"""What a projection is made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from clew.contract.policy import ContextPolicy
from clew.model.messages import Message, ToolSpec
from clew.thread.entries import DEFAULT_LANE
from clew.thread.thread import Thread


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """All that a context depends on.

    Attributes:
        thread: The facts.
        policy: The policy in force, complete.
        pending: Messages about to be asked that are not in the thread.
        system: The system prompt.
        tools: The tool schemas.
        context_ref: The lane.
        at_seq: Entries after this seq do not exist for the projection; None: all exist.
        provider: The provider whose `provider_data` the messages keep.
        output_schema: The schema that the answer must meet; part of the digest alone.
        system_tokens: The tokens of the system prompt, where they are known.
        tools_tokens: The tokens of the tool schemas, where they are known.
        encoding: What is not counted yet is counted under it.
        request_must_fit: Whether the current request is kept at any price, or windowed like the rest of the history.
        standalone: Whether the context is for a model that cannot read this thread: its `read_result` finds nothing.
    """

    thread: Thread
    policy: ContextPolicy
    pending: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    context_ref: str = DEFAULT_LANE
    at_seq: int | None = None
    provider: str | None = None
    output_schema: dict[str, Any] | None = None
    system_tokens: int | None = None
    tools_tokens: int | None = None
    encoding: str = "o200k_base"
    request_must_fit: bool = True
    standalone: bool = False
