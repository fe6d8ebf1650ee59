"""Entries: the facts a thread is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import SkipValidation
from typing_extensions import TypedDict

from clew.contract.payloads import (
    KINDS,
    AssistantMessage,
    EntryKind,
    MessagePayload,
    Payload,
    Recipe,
    read_lane,
    read_payload,
)
from clew.model.messages import Message
from clew.model.tokens import Encoding

DEFAULT_LANE = "default"

P = TypeVar("P", bound=Payload)


class Refs(TypedDict, total=False):
    """The ids of what an entry belongs to. Which of them it has depends on its kind.

    Attributes:
        session_id: The session.
        request_id: The request.
        run_id: The run.
        call_id: The model call: the one that gave a reply, that asked for a tool, or that is the first to read an
            input.
        iteration: The number of the model call in its run.
        parent_call_id: The model call before it in the run.
        tool_call_id: The tool call.
        source: Where an input came from.
        summary_id: The summary.
    """

    session_id: str
    request_id: str
    run_id: str
    call_id: str
    iteration: int
    parent_call_id: str
    tool_call_id: str
    source: str
    summary_id: str


class _Read:
    """What an entry remembers of its payload: no field of it, so that it neither travels nor is compared."""

    __slots__ = ("_body",)
    _body: Payload


@dataclass(frozen=True, slots=True)
class Entry(_Read):
    """One fact, never changed and never removed.

    Attributes:
        seq: Its place in the thread, from 0 on.
        id: Unique in the thread.
        kind: What it tells of; it says what the payload holds.
        at: When it was committed: ISO 8601 in UTC with milliseconds.
        payload: What it holds, as it travels. `body` and `read` give it in types.
        refs: What it belongs to: `request_id`, `run_id`, `call_id`, and so on.
        tokens: What it costs in a context, counted once under the session's encoding.
    """

    seq: int
    id: str
    kind: EntryKind
    at: str
    payload: Mapping[str, Any]
    refs: SkipValidation[Refs]
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
    def body(self) -> Payload:
        """The payload in the type of its kind: for code that tells kinds apart. It is read once.

        Raises:
            ValueError: an entry of the kind does not hold this.
        """
        try:
            return self._body
        except AttributeError:
            object.__setattr__(self, "_body", read_payload(self.kind, self.payload))
            return self._body

    def read(self, held: type[P]) -> P:
        """The payload, where its type is known.

        Raises:
            TypeError: the entry is of another kind.
            ValueError: an entry of the kind does not hold this.
        """
        body = self.body
        if not isinstance(body, held):
            raise TypeError(f"entry {self.seq} holds a {type(body).__name__} and no {held.__name__}")
        return body

    @property
    def lane(self) -> str | None:
        """The lane it belongs to, where its kind belongs to one."""
        return read_lane(self.payload)

    @property
    def lane_tokens(self) -> int:
        """What the entry adds to what its lane has said: a late result takes the place of one that is counted."""
        body = self.body
        return 0 if isinstance(body, MessagePayload) and body.is_late else self.tokens

    @property
    def message(self) -> Message:
        """An `ai_message` as a context shows it."""
        return self.read(MessagePayload).message

    @property
    def recipe(self) -> Recipe | None:
        """What a model was shown for the entry, where that is its reply."""
        body = self.body
        return body.recipe if isinstance(body, AssistantMessage) else None


@dataclass(frozen=True, slots=True)
class Draft:
    """A fact about to be committed: what a decision knows of it before it has a place, a time and an id.

    Attributes:
        payload: What the entry will hold.
        refs: What it belongs to.
    """

    payload: Payload
    refs: Refs = field(default_factory=Refs)

    @property
    def kind(self) -> EntryKind:
        """The kind of the entry."""
        return self.payload.entry_kind

    def commit(self, seq: int, entry_id: str, at: str, encoding: Encoding) -> Entry:
        """The entry, counted."""
        counted, tokens = self.payload.count(encoding)
        entry = Entry(seq, entry_id, self.kind, at, counted.as_json(), self.refs, tokens)
        object.__setattr__(entry, "_body", counted)
        return entry
