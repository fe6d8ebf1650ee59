"""What all payloads share: they are frozen, count themselves, and travel as plain JSON."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, dataclass_transform, get_args

from pydantic import ConfigDict, Field, PlainSerializer, SkipValidation, TypeAdapter
from pydantic.dataclasses import dataclass

from clew.model.tokens import Encoding
from clew.outcomes import OutcomeError, Output
from clew.outcomes import Usage as UsageOutput

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

T = TypeVar("T")

Usage = Annotated[UsageOutput, PlainSerializer(Output.as_json)]
"""Tokens and what they cost, as the providers reported them; what was not reported is absent."""
Json = SkipValidation[dict[str, Any]]
"""A JSON object that is kept as it is."""
RunError = Annotated[OutcomeError, PlainSerializer(Output.as_json)]
"""Why a request failed."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def stored(cls: type[T]) -> type[T]:
    """Make a class a type of stored values.

    Instances are slots dataclasses rather than pydantic models: a thread has tens of thousands of them, and they are
    read four times as fast and take a tenth of the memory. Fields that a later release writes are ignored.
    """
    made: Any = dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore"))(cls)
    return cast("type[T]", made)


@stored
class Stored:
    """A value within an entry.

    A field that is at its default is absent in the JSON.
    """

    def as_json(self) -> dict[str, Any]:
        """The value as it travels."""
        cls: Any = type(self)
        value: dict[str, Any] = _adapter(cls).serializer.to_python(self, mode="json", exclude_defaults=True)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The value of its JSON form.

        Raises:
            ValueError: it is no such value.
        """
        this: Any = cls
        read: Self = _adapter(this).validator.validate_python(value)
        return read


@stored
class Payload(Stored):
    """What an entry holds."""

    entry_kind: ClassVar[EntryKind]

    def count(self, encoding: Encoding) -> tuple[Self, int]:  # noqa: ARG002 - for the kinds that contexts show
        """The payload to commit, and what the entry costs in a context, in tokens under an encoding.

        Payloads whose parts are shown separately record the counts of their parts.
        """
        return self, 0


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
