"""Threads as they would be under another configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from clew.contract.payloads import ConfigPayload
from clew.contract.policy import ContextPolicy
from clew.model.messages import ToolSpec
from clew.thread.entries import Entry
from clew.thread.thread import Thread


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What a model is sent beside the messages, and what decides which messages it is sent.

    Attributes:
        model: The model, as `provider:name`.
        system_prompt: The system prompt.
        tools: The schemas of the tools.
        policy: The context policy, complete.
    """

    model: str
    system_prompt: str | None
    tools: Sequence[ToolSpec]
    policy: ContextPolicy


def reconfigure(thread: Thread, settings: ModelSettings) -> Thread:
    """Copy a complete thread, as if the settings had been in force from its beginning on.

    What a single request has set, and the system prompt of a snapshot, stay in force.
    """
    return Thread(_change(entry, settings) if entry.kind == "config" else entry for entry in thread)


def _change(entry: Entry, settings: ModelSettings) -> Entry:
    payload = replace(
        entry.read(ConfigPayload),
        model=settings.model,
        system_prompt=settings.system_prompt,
        tools=list(settings.tools),
        context_policy=settings.policy.model_dump(mode="json"),
        tokens=None,
    )
    return replace(entry, payload=payload.as_dict())
