"""The media of messages: the blobs that a command names, and their limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from clew_workflows.contract import (
    ContextOperation,
    LateResultInput,
    MessageInput,
    Replace,
    SubmitInput,
    ToolResultInput,
)
from clew_workflows.contract.content import Blob, Content, Part, iterate_blobs, list_media, read_parts
from clew_workflows.contract.errors import TooLarge, UnsupportedContent
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BLOB_BYTES
from clew_workflows.protocol import RunTool
from clew_workflows.session.state import Counters, Decision, State


def list_contents(command: object) -> tuple[Content, ...]:
    """List the contents of messages that a command has."""
    match command:
        case MessageInput():
            return (command.content, *(reply.content for reply in command.replies or ()))
        case SubmitInput():
            return (command.content,)
        case ContextOperation(operation=Replace(result_context=snapshot)) if snapshot:
            return tuple(message.content for message in snapshot.messages)
        case ToolResultInput(content=content) if parts := read_parts(content):
            return (parts,)
        case LateResultInput(content=content):
            return (content,)
        case _:
            return ()


def may_have_media(command: object) -> bool:
    """Whether a command has contents that are not only a text."""
    if isinstance(command, MessageInput | SubmitInput | LateResultInput | ToolResultInput):
        return not all(isinstance(content, str) for content in (command.content, *list_contents(command)))
    return isinstance(command, ContextOperation)


def list_blobs(command: object) -> tuple[Blob, ...]:
    """List the blobs that a command names, each description once."""
    blobs: list[Blob] = []
    for blob in iterate_blobs(list_contents(command)):
        if blob not in blobs:
            blobs.append(blob)
    return tuple(blobs)


def check_kinds(contents: Iterable[Content]) -> None:
    """Check that parts are of the kind that the types of their blobs have.

    Raises:
        UnsupportedContent: An image or a recording has a blob of another type.
    """
    for content in contents:
        for part in list_media(content):
            _check_kind(part)


def _check_kind(part: Part) -> None:
    if part["type"] == "text" or (blob := part.get("blob")) is None:
        return
    kind, media_type = part["type"], blob["media_type"]
    is_svg = media_type.startswith("image/svg")
    if (kind in ("image", "audio") and not media_type.startswith(f"{kind}/")) or is_svg:
        raise UnsupportedContent(f"a part of the type {kind!r} cannot have a blob of the type {media_type}")


def check_limits(state: State, command: object) -> None:
    """Check the sizes of the blobs that a command names against the limits of the session.

    Raises:
        TooLarge: A blob, those of a message, or those of the session are larger than their limit.
    """
    limits = state.settings.config.limits
    largest = limits.max_blob_bytes or MAX_BLOB_BYTES
    most = limits.max_message_blob_bytes or MAX_MESSAGE_BLOB_BYTES
    for content in list_contents(command):
        sizes = {blob["digest"]: blob["bytes"] for blob in iterate_blobs((content,))}
        if sizes and max(sizes.values()) > largest:
            raise TooLarge(f"a blob has {max(sizes.values())} bytes, at most {largest} are taken (max_blob_bytes)")
        if (size := sum(sizes.values())) > most:
            raise TooLarge(
                f"the blobs of a message have {size} bytes, at most {most} are taken (max_message_blob_bytes)"
            )
    total = state.counters.media_bytes + measure(command)
    if limits.max_session_blob_bytes is not None and total > limits.max_session_blob_bytes:
        raise TooLarge(
            f"the blobs of the session's messages would have {total} bytes, at most {limits.max_session_blob_bytes} "
            "are taken (max_session_blob_bytes)"
        )


def check_result(state: State, call: RunTool, content: Content) -> None:
    """Check the parts of a remote result: their kinds, and the sizes of their blobs.

    Raises:
        TooLarge: A blob, or those of the result, are larger than their limit.
        UnsupportedContent: An image or a recording has a blob of another type.
    """
    check_kinds((content,))
    check_limits(state, ToolResultInput(tool_call_id=call.tool_call_id, content=content))


def count_content(counters: Counters, content: Content) -> Counters:
    """Count the blobs of a result or a reply towards the limit of the session."""
    size = 0 if isinstance(content, str) else _sum_bytes(iterate_blobs((content,)))
    return replace(counters, media_bytes=counters.media_bytes + size) if size else counters


def measure(command: object) -> int:
    """Measure the blobs that a command names, in bytes; each digest once."""
    return _sum_bytes(list_blobs(command))


def _sum_bytes(blobs: Iterable[Blob]) -> int:
    """Sum the bytes of blobs; each digest counts once."""
    return sum({blob["digest"]: blob["bytes"] for blob in blobs}.values())


def count(decision: Decision, command: object) -> Decision:
    """Count the blobs of an accepted command towards the limit of the session."""
    # A result is counted where it is committed.
    if isinstance(command, ToolResultInput) or not (size := measure(command)):
        return decision
    counters = decision.state.counters
    counters = replace(counters, media_bytes=counters.media_bytes + size)
    return replace(decision, state=replace(decision.state, counters=counters))
