"""Data converters that pass on unread what they cannot decode, so that no payload fails a workflow task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, get_args

from pydantic import BaseModel
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import (
    CompositePayloadConverter,
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    DefaultPayloadConverter,
    PayloadConverter,
)

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.encryption import AdmittingCodec, admit_payloads
from clew_workflows.host.ingress import REFUSES_PLAIN, KeyMissing, QueryRefused
from clew_workflows.temporal_faults.failure_details import TolerantFailureConverter
from clew_workflows.temporal_faults.storage_references import pass_on_references


class SharedPayloadConverter(PydanticPayloadConverter):
    """The SDK's converter for pydantic's types. All instances of a process have the same validators.

    The SDK makes an instance for each workflow, and for each payload where the codec depends on the workflow. Each
    would build the validators of all its types anew, and keep them.
    """

    def __init__(self) -> None:
        CompositePayloadConverter.__init__(self, *_CONVERTERS)


_CONVERTERS = tuple(PydanticPayloadConverter().converters.values())


class EncryptingFailureConverter(TolerantFailureConverter):
    """Moves messages and stack traces to where the codec encrypts them, too.

    Those of refused queries stay readable, since the server drops the other place, and those that name a missing key.
    """

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)
        self._readable = TolerantFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an exception to a failure."""
        if isinstance(exception, QueryRefused | KeyMissing | UnknownKey):
            self._readable.to_failure(exception, payload_converter, failure)
            failure.stack_trace = ""
        else:
            super().to_failure(exception, payload_converter, failure)


def make_tolerant(converter: DataConverter) -> DataConverter:
    """Make a converter that fails no workflow task: a session itself refuses what it cannot read, and goes on."""
    converter = admit_payloads(converter)
    if converter.payload_converter_class is PydanticPayloadConverter:
        converter = replace(converter, payload_converter_class=SharedPayloadConverter)
    if isinstance(converter.payload_codec, AdmittingCodec) and not converter.payload_codec.accepts_plain:
        kind = converter.payload_converter_class
        converter = replace(converter, payload_converter_class=type(kind.__name__, (kind,), {REFUSES_PLAIN: True}))
    if converter.failure_converter_class is DefaultFailureConverter:
        converter = replace(converter, failure_converter_class=TolerantFailureConverter)
    if converter.failure_converter_class is DefaultFailureConverterWithEncodedAttributes:
        converter = replace(converter, failure_converter_class=EncryptingFailureConverter)
    return pass_on_references(converter)


class SessionPayloadConverter(PayloadConverter):
    """Encodes and decodes Clew's own types with pydantic, and every other value with a team's converter.

    Attributes:
        team_class: The class of the team's converter.
    """

    team_class: ClassVar[type[PayloadConverter]] = DefaultPayloadConverter

    def __init__(self) -> None:
        self._own = SharedPayloadConverter()
        self._team = self.team_class()

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Encode each value."""
        return [
            payload
            for value in values
            for payload in (self._own if _is_own(type(value)) else self._team).to_payloads([value])
        ]

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """Decode each payload."""
        hints: Sequence[type | None] = type_hints or [None] * len(payloads)
        values: list[Any] = []
        for payload, hint in zip(payloads, hints, strict=False):
            converter = self._own if _is_own(hint) else self._team
            values += converter.from_payloads([payload], [hint] if hint else None)
        return values


def make_shared(converter: DataConverter) -> DataConverter:
    """Make a converter for a worker that serves sessions and a team's own workflows.

    The team's values are encoded as before. Sessions are given no payload that fails a workflow task.
    """
    own = converter.payload_converter_class
    if not issubclass(own, (PydanticPayloadConverter, SessionPayloadConverter)):
        shared = type("SharedPayloadConverter", (SessionPayloadConverter,), {"team_class": own})
        converter = replace(converter, payload_converter_class=shared)
    return make_tolerant(converter)


def _is_own(hint: object) -> bool:
    """Whether a type is a pydantic model of Clew, or a union or a list of them."""
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return hint.__module__.partition(".")[0] in ("clew", "clew_workflows", "clew_activities")
    return any(map(_is_own, get_args(hint)))
