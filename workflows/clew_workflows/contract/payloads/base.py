"""The base of all payloads: frozen, with their JSON form and their count of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, dataclass_transform, get_args

from pydantic import ConfigDict, Field, PlainSerializer, SkipValidation, TypeAdapter
from pydantic.dataclasses import dataclass

from clew_workflows.contract.outcomes import OutcomeError, Output
from clew_workflows.contract.outcomes import Usage as UsageOutput
from clew_workflows.contract.tokens import Encoding

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

Usage = Annotated[UsageOutput, PlainSerializer(Output.as_dict)]
"""Tokens and their cost, as the providers reported them; what was not reported is absent."""
Json = SkipValidation[dict[str, Any]]
"""A JSON object that is stored unchanged."""
RunError = Annotated[OutcomeError, PlainSerializer(Output.as_dict)]
"""Why a request failed."""


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
def stored(cls: type[T]) -> type[T]:
    """Make a class a type of stored values, which ignores fields that a later release wrote.

    The result is a slots dataclass rather than a pydantic model: a thread has tens of thousands of instances, which
    are parsed four times as fast and take a tenth of the memory.
    """
    decorated: Any = dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(extra="ignore"))(cls)
    return cast("type[T]", decorated)


@stored
class Stored:
    """A value within an entry. The JSON omits fields at their defaults."""

    def as_dict(self) -> dict[str, Any]:
        """The value as a JSON object."""
        cls: Any = type(self)
        value: dict[str, Any] = _adapter(cls).serializer.to_python(self, mode="json", exclude_defaults=True)
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Parse a value.

        Raises:
            ValueError: A field is missing or has the wrong type.
        """
        value_type: Any = cls
        parsed: Self = _adapter(value_type).validator.validate_python(value)
        return parsed


@stored
class Payload(Stored):
    """The payload of an entry."""

    entry_kind: ClassVar[EntryKind]

    def count(self, encoding: Encoding) -> tuple[Self, int]:  # noqa: ARG002 - for the kinds that contexts show
        """Count the entry's tokens in a context; returned beside the payload to commit.

        A payload whose parts are shown separately records the counts of its parts.
        """
        return self, 0


@cache
def _adapter(cls: Any) -> TypeAdapter[Any]:
    return TypeAdapter(cls)
