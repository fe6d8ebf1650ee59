"""Entries: the facts a thread is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from clew.model.canonical import canonical
from clew.model.messages import Message, ToolCall
from clew.model.pieces import split
from clew.model.tokens import Encoding

EntryKind = Literal[
    "config",
    "ai_message",
    "ai_context_operation",
    "summary",
    "error",
    "run",
    "input",
    "approval",
    "fork",
    "session",
]
KINDS: tuple[str, ...] = get_args(EntryKind)

DEFAULT_LANE = "default"
EDITED = "[a person changed this call before it ran; its arguments were {}]\n"
"""Stands before the result of a call that was approved with other arguments than the model's."""
MAX_EDITED_CHARACTERS = 1000
"""Characters of the changed arguments that the model reads; the whole of them is in the thread."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One fact, never changed and never removed.

    `at` is ISO 8601 in UTC with milliseconds. `refs` correlates (`request_id`, `run_id`, `call_id`, ...).
    `tokens` is what the entry costs in a context, counted once under the session's encoding.
    """

    seq: int
    id: str
    kind: EntryKind
    at: str
    payload: Mapping[str, Any]
    refs: Mapping[str, Any]
    tokens: int

    def as_json(self) -> dict[str, Any]:
        """The entry as it travels."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        """The entry of its JSON form.

        Raises:
            ValueError: the value is not an entry.
        """
        try:
            entry = cls(**{name: value[name] for name in cls.__slots__})
        except KeyError as error:
            raise ValueError(f"an entry needs {error}") from None
        if entry.kind not in KINDS:
            raise ValueError(f"unknown kind of entry {entry.kind!r}")
        return entry

    @property
    def lane(self) -> str | None:
        """The lane it belongs to, where its kind belongs to one."""
        return self.payload.get("context_ref")

    @property
    def said_tokens(self) -> int:
        """What the entry adds to what its lane has said: a late result takes the place of one that is counted."""
        return 0 if self.payload.get("late") else self.tokens

    @property
    def message(self) -> Message:
        """An `ai_message` as a context shows it."""
        return message_of(self.payload)


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact about to be committed: what a decision knows of it before it has a place, a time and an id."""

    kind: EntryKind
    payload: Mapping[str, Any]
    refs: Mapping[str, Any] = field(default_factory=dict)

    def counted(self, encoding: Encoding) -> tuple[Mapping[str, Any], int]:
        """The payload to store and its tokens.

        Configurations and snapshots keep the counts of their parts, and longer tool results those of their pieces.
        """
        payload = self.payload
        match self.kind:
            case "ai_message":
                tokens = encoding.message(message_of(payload))
                if note := edit_note(payload):
                    payload = {**payload, "note_tokens": encoding.count(note)}
                if payload["role"] == "tool" and len(pieces := split(payload["content"])) > 1:
                    payload = {**payload, "pieces": [encoding.count(piece) for piece in pieces]}
                return payload, tokens
            case "summary":
                return payload, encoding.message(summary_message(payload["content"], "system"))
            case "config":
                counts = {
                    "system_prompt": encoding.system(system_prompt_of(payload)),
                    "tools": encoding.tools(payload["tools"]),
                }
                return {**payload, "tokens": counts}, sum(counts.values())
            case "ai_context_operation" if snapshot := payload["operation"].get("result_context"):
                counted = {
                    **snapshot,
                    "tokens": [encoding.message(message) for message in snapshot["messages"]],
                    "system_prompt_tokens": encoding.system(snapshot.get("system_prompt")),
                }
                operation = {**payload["operation"], "result_context": counted}
                return {**payload, "operation": operation}, sum(counted["tokens"])
            case _:
                return payload, 0


def message_of(payload: Mapping[str, Any]) -> Message:
    """The message in an `ai_message` payload: what a model may see of it.

    What a provider wants back goes along only where it is wanted: with tool calls, whose results the same
    provider will be shown beside it.
    """
    message: Message = {"role": payload["role"], "content": edit_note(payload) + payload["content"]}
    if calls := payload.get("tool_calls"):
        message["tool_calls"] = calls
        if data := payload.get("provider_data"):
            message["provider_data"] = data
    if payload["role"] == "tool":
        message["tool_call_id"] = payload["tool_call_id"]
        if name := payload.get("name"):
            message["name"] = name
    return message


def edit_note(payload: Mapping[str, Any]) -> str:
    """What stands before a tool's result where a person has changed the call; nothing where nobody has."""
    arguments = payload.get("edited_arguments")
    if arguments is None:
        return ""
    text = canonical(arguments).decode()
    if len(text) > MAX_EDITED_CHARACTERS:
        text = f"{text[:MAX_EDITED_CHARACTERS]}…"
    return EDITED.format(text)


def summary_message(content: str, role: Literal["system", "user"]) -> Message:
    """What a summary looks like in a context."""
    return {"role": role, "content": f"Summary of earlier conversation:\n{content}"}


def system_prompt_of(config: Mapping[str, Any]) -> str | None:
    """The system prompt of a `config` payload: the policy's, where it has one, before the session's."""
    return config["context_policy"].get("system_prompt") or config.get("system_prompt")


def call_ids(message: Message) -> list[str]:
    """The ids of the tool calls that a message asks for, in order."""
    calls: list[ToolCall] = message.get("tool_calls", [])
    return [call["id"] for call in calls]
