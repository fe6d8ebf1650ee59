"""Data converters that pass on unread what they cannot decode, so that no payload fails a workflow task."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain, islice, repeat
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

MAX_FAILURE_BYTES = 2200
"""Most bytes of a failure that is retried, unless its details are larger.

While the server waits for the next attempt it keeps 4 KiB of a failure. Of a larger one it drops what is encrypted:
nobody learns why the attempt failed. Encryption adds up to 450 bytes for the details and for each level: each is a
payload that names its workflow.
"""
MAX_CAUSES = 2
"""Causes of such a failure that are kept."""
MIN_MESSAGE_BYTES = 200
"""Bytes of a message that are kept in any case."""
_ENCODED = "Encoded failure"
"""The SDK's message of a failure whose own one is encoded."""


class SharedPayloadConverter(PydanticPayloadConverter):
    """The SDK's converter for pydantic's types. All instances of a process have the same validators.

    The SDK makes an instance for each workflow, and for each payload where the codec depends on the workflow. Each
    would build the validators of all its types anew, and keep them.
    """

    def __init__(self) -> None:
        CompositePayloadConverter.__init__(self, *_CONVERTERS)


_CONVERTERS = tuple(PydanticPayloadConverter().converters.values())


class BoundedFailureConverter(TolerantFailureConverter):
    """Shortens the stack traces, and if need be the messages, of failures that the server would not keep."""

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an exception to a failure."""
        super().to_failure(exception, payload_converter, failure)
        if not isinstance(exception, QueryRefused) and not failure.application_failure_info.non_retryable:
            shorten_failure(failure)


class EncryptingFailureConverter(TolerantFailureConverter):
    """Moves messages and stack traces to where the codec encrypts them, too.

    Those of refused queries stay readable, since the server drops the other place, and those that name a missing key.
    """

    def __init__(self) -> None:
        super().__init__(encode_common_attributes=True)
        self._readable = BoundedFailureConverter()

    def to_failure(self, exception: BaseException, payload_converter: PayloadConverter, failure: Failure) -> None:
        """Convert an exception to a failure."""
        self._readable.to_failure(exception, payload_converter, failure)
        for level, cause in zip(_list_levels(failure), chain(_list_causes(exception), repeat(None)), strict=False):
            if isinstance(cause, QueryRefused | KeyMissing | UnknownKey):
                level.stack_trace = ""
                continue
            if level.message == _ENCODED and level.HasField("encoded_attributes"):
                continue
            attributes = {"message": level.message, "stack_trace": level.stack_trace}
            level.encoded_attributes.CopyFrom(payload_converter.to_payloads([attributes])[0])
            level.message, level.stack_trace = _ENCODED, ""


def shorten_failure(failure: Failure) -> None:
    """Shorten a failure to `MAX_FAILURE_BYTES`: stack traces lose their first lines, then messages their ends.

    What is nearest to the cause of all keeps most of its stack trace, and the failure itself most of its message.
    """
    levels = list(islice(_list_levels(failure), MAX_CAUSES + 1))
    levels[-1].ClearField("cause")
    if failure.ByteSize() <= MAX_FAILURE_BYTES:
        return
    room = MAX_FAILURE_BYTES - failure.ByteSize() + sum(len(level.stack_trace.encode()) for level in levels)
    for level in reversed(levels):
        level.stack_trace = _keep_last_lines(level.stack_trace, room)
        room -= len(level.stack_trace.encode())
    for level in reversed(levels):
        excess, message = failure.ByteSize() - MAX_FAILURE_BYTES, level.message.encode()
        if excess > 0:
            level.message = message[: max(len(message) - excess, MIN_MESSAGE_BYTES)].decode(errors="ignore")


def _keep_last_lines(text: str, most_bytes: int) -> str:
    encoded = text.encode()
    if len(encoded) <= most_bytes:
        return text
    return encoded[-most_bytes:].partition(b"\n")[2].decode(errors="ignore") if most_bytes > 0 else ""


def _list_levels(failure: Failure) -> Iterator[Failure]:
    """List a failure and its causes."""
    yield failure
    while failure.HasField("cause"):
        failure = failure.cause
        yield failure


def _list_causes(exception: BaseException | None) -> Iterator[BaseException]:
    """List an exception and its causes, as the SDK does."""
    while exception is not None:
        yield exception
        exception = exception.__cause__ or (None if exception.__suppress_context__ else exception.__context__)


def make_tolerant(converter: DataConverter) -> DataConverter:
    """Make a converter that fails no workflow task: a session itself refuses what it cannot read, and goes on."""
    converter = admit_payloads(converter)
    if converter.payload_converter_class is PydanticPayloadConverter:
        converter = replace(converter, payload_converter_class=SharedPayloadConverter)
    if isinstance(converter.payload_codec, AdmittingCodec) and not converter.payload_codec.accepts_plain:
        kind = converter.payload_converter_class
        converter = replace(converter, payload_converter_class=type(kind.__name__, (kind,), {REFUSES_PLAIN: True}))
    if converter.failure_converter_class is DefaultFailureConverter:
        converter = replace(converter, failure_converter_class=BoundedFailureConverter)
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
