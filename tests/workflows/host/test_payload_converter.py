"""Failures as workers send them: small enough for the server to keep them while it waits for the next attempt."""

from __future__ import annotations

import pytest
from temporalio.api.failure.v1 import Failure
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, WorkflowSerializationContext
from temporalio.exceptions import ApplicationError

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.encryption import Encryption, encrypt_payloads
from clew_workflows.encryption.codec import read_message
from clew_workflows.host.payload_converter import MAX_FAILURE_BYTES, make_tolerant
from tests.support.encrypted import make_encryption

KEPT_BYTES = 4096
"""What the server keeps of a failure that is retried: `history.mutableStateActivityFailureSizeLimitError`."""


def recurse(depth: int, error: Exception) -> None:
    """Raise an error with a long stack trace."""
    if depth:
        recurse(depth - 1, error)
    raise error


def make_error(message: str, *, causes: int = 1, is_final: bool = False) -> ApplicationError:
    """Make an error of an activity as it is raised: with causes, all of them with stack traces."""
    error: Exception | None = None
    for number in range(causes + 1):
        wrapped: Exception = OSError(f"cause {number}: {message}")
        if number == causes:
            wrapped = ApplicationError(message, {"status": 503}, type="overloaded", non_retryable=is_final)
        try:
            try:
                recurse(12, wrapped)
            except (OSError, ApplicationError) as raised:
                raise raised from error
        except (OSError, ApplicationError) as raised:
            error = raised
    assert isinstance(error, ApplicationError)
    return error


def make_converter(encryption: Encryption) -> DataConverter:
    """Make the converter of a worker, for the payloads of one workflow."""
    converter = make_tolerant(encrypt_payloads(pydantic_data_converter, encryption))
    return converter.with_context(WorkflowSerializationContext("default", "s" * 200))


async def convert(converter: DataConverter, error: BaseException) -> Failure:
    """Convert an error as a worker does, encryption included."""
    failure = Failure()
    await converter.encode_failure(error, failure)
    return failure


@pytest.mark.parametrize("kids", [(), ("k1",)])
@pytest.mark.parametrize("causes", [0, 1, 3, 40])
@pytest.mark.parametrize("message", ["the provider is overloaded", "ü" * 2000])
async def test_the_server_keeps_a_failure_that_is_retried(kids: tuple[str, ...], causes: int, message: str) -> None:
    """The type and the beginning of the message are there, whatever the causes say."""
    converter = make_converter(make_encryption(*kids))
    failure = await convert(converter, make_error(message, causes=causes))
    assert failure.ByteSize() <= KEPT_BYTES
    assert failure.application_failure_info.type == "overloaded"
    read = await read_message(failure, converter)
    assert message.startswith(read)
    assert len(read) >= min(len(message), 100)


async def test_the_stack_trace_nearest_to_the_cause_is_kept() -> None:
    """It ends where the error was raised, and begins with a whole line."""
    failure = await convert(make_converter(make_encryption()), make_error("down"))
    assert "raise error" in failure.cause.stack_trace
    assert failure.cause.stack_trace.lstrip().startswith(("File", "recurse", "raise", "^"))
    assert failure.ByteSize() <= MAX_FAILURE_BYTES


@pytest.mark.parametrize("kids", [(), ("k1",)])
async def test_a_final_failure_is_complete(kids: tuple[str, ...]) -> None:
    """The server stores it once, in the history."""
    converter = make_converter(make_encryption(*kids))
    failure = await convert(converter, make_error("ü" * 2000, is_final=True))
    assert await read_message(failure, converter) == "ü" * 2000


async def test_no_message_of_a_cause_is_readable() -> None:
    """The codec encrypts each, but for the name of a key that is missing."""
    converter = make_converter(make_encryption("k1"))
    error = make_error("a secret", causes=3)
    failure = await convert(converter, error)
    assert b"secret" not in failure.SerializeToString()
    named = ApplicationError("a secret")
    named.__cause__ = UnknownKey("it is encrypted with the key 'k2'")
    failure = await convert(converter, named)
    assert b"secret" not in failure.SerializeToString()
    assert failure.cause.message == "it is encrypted with the key 'k2'"


async def test_a_failure_that_is_passed_on_stays_encrypted() -> None:
    """What one process has decoded is encrypted by the next one, with all its causes."""
    converter = make_converter(make_encryption("k1"))
    decoded = await converter.decode_failure(await convert(converter, make_error("a secret")))
    passed_on = await convert(converter, decoded)
    assert b"secret" not in passed_on.SerializeToString()
    assert await read_message(passed_on, converter) == "a secret"
    assert "a secret" in await read_message(passed_on.cause, converter)
