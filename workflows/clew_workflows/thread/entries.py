"""Entries: the records that a thread consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import SkipValidation
from typing_extensions import TypedDict

from clew_workflows.contract.messages import Message
from clew_workflows.contract.outputs import TranscriptMessage
from clew_workflows.contract.payloads import (
    KINDS,
    AppliedReplace,
    AssistantMessage,
    EntryKind,
    MessagePayload,
    OperationPayload,
    Payload,
    Recipe,
    SummaryPayload,
    SummaryRecipe,
    ToolMessage,
    UserMessage,
    read_lane,
    read_payload,
)
from clew_workflows.contract.tokens import Encoding

DEFAULT_LANE = "default"

P = TypeVar("P", bound=Payload)


class Refs(TypedDict, total=False):
    """The ids of what an entry belongs to. Which of them it has depends on its kind.

    Attributes:
        session_id: The session.
        request_id: The request.
        run_id: The run.
        call_id: The model call: the one that returned the reply or called the tool, or the first one that reads the
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


class _ParsedPayload:
    """Holds an entry's payload once it is parsed: not a field, so it is neither serialized nor compared."""

    __slots__ = ("_body",)
    _body: Payload


@dataclass(frozen=True, slots=True)
class Entry(_ParsedPayload):
    """One record of a thread, never changed and never removed.

    Attributes:
        seq: The entry's number in the thread, from 0 on.
        id: Unique in the thread.
        kind: The kind of entry, which determines the type of the payload.
        at: When it was committed: ISO 8601 in UTC with milliseconds.
        payload: The content, as JSON. `body` and `read` return it as a type.
        refs: The ids of the session, request, run and calls that the entry belongs to.
        tokens: Tokens of the entry in a context, counted once under the session's encoding.
    """

    seq: int
    id: str
    kind: EntryKind
    at: str
    payload: Mapping[str, Any]
    refs: SkipValidation[Refs]
    tokens: int

    def as_dict(self) -> dict[str, Any]:
        """The entry as a JSON object."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Entry:
        """Parse an entry.

        Raises:
            ValueError: A field is missing, or the kind is unknown.
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
        """The payload in the type of the entry's kind, for code that handles several kinds. It is parsed once.

        Raises:
            ValueError: The payload does not have the type of the entry's kind.
        """
        try:
            return self._body
        except AttributeError:
            object.__setattr__(self, "_body", read_payload(self.kind, self.payload))
            return self._body

    def read(self, payload_type: type[P]) -> P:
        """Return the payload in a type that the caller expects.

        Raises:
            TypeError: The payload has another type.
            ValueError: The payload does not have the type of the entry's kind.
        """
        body = self.body
        if not isinstance(body, payload_type):
            raise TypeError(f"entry {self.seq} holds a {type(body).__name__}, not a {payload_type.__name__}")
        return body

    @property
    def lane(self) -> str | None:
        """The lane that the entry belongs to; None for kinds that belong to no lane."""
        return read_lane(self.payload)

    @property
    def lane_tokens(self) -> int:
        """The entry's tokens in the sum of its lane. A late result adds none: it replaces one that is counted."""
        body = self.body
        return 0 if isinstance(body, ToolMessage) and body.late else self.tokens

    @property
    def message(self) -> Message:
        """The message of an `ai_message` entry, as contexts have it."""
        return self.read(MessagePayload).message

    @property
    def transcript_message(self) -> TranscriptMessage:
        """The message of an `ai_message` entry, as transcripts have it: with its seq, and what contexts lack."""
        body = self.read(MessagePayload)
        shown: dict[str, Any] = {}
        if isinstance(body, UserMessage):
            shown = {"refs": body.refs}
        elif isinstance(body, AssistantMessage):
            shown = {"provider_calls": body.provider_calls, "citations": body.citations}
        shown = {name: value for name, value in shown.items() if value}
        return {**body.message, "seq": self.seq, **shown}  # type: ignore[typeddict-item]

    @property
    def recipe(self) -> Recipe | None:
        """The recipe of the model call; None: the entry is not a model's reply."""
        body = self.body
        return body.recipe if isinstance(body, AssistantMessage) else None

    @property
    def summary_recipe(self) -> SummaryRecipe | None:
        """The recipe of the summary that the entry has, also of a compaction; None: it has none."""
        match self.body:
            case (
                SummaryPayload(recipe=SummaryRecipe() as recipe)
                | OperationPayload(operation=AppliedReplace(recipe=SummaryRecipe() as recipe))
            ):
                return recipe
            case _:
                return None

    @property
    def summary(self) -> SummaryPayload | None:
        """The summary that a model has written, also that of a compaction; None: the entry has none.

        Raises:
            ValueError: The payload does not have the type of the entry's kind, or lacks the range of a compaction.
        """
        match self.body:
            case SummaryPayload() as summary:
                return summary
            case OperationPayload(summary=summary):
                return summary
            case _:
                return None


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry before it is committed: without `seq`, `id` and `at`.

    Attributes:
        payload: The payload that the entry will have.
        refs: The refs that the entry will have.
        tokens: The entry's tokens without its media, where they have been counted; the payload then records those of
            its parts.
    """

    payload: Payload
    refs: Refs = field(default_factory=Refs)
    tokens: int | None = None

    @property
    def kind(self) -> EntryKind:
        """The kind of the entry."""
        return self.payload.entry_kind

    def commit(self, seq: int, entry_id: str, at: str, encoding: Encoding) -> Entry:
        """Make the entry, and count its tokens if that has not been done. Its media are counted here alone."""
        counted, tokens = self.payload.count(encoding) if self.tokens is None else (self.payload, self.tokens)
        counted, media_tokens = counted.count_media(encoding)
        entry = Entry(seq, entry_id, counted.entry_kind, at, counted.as_dict(), self.refs, tokens + media_tokens)
        object.__setattr__(entry, "_body", counted)
        return entry
