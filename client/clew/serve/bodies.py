"""Bodies of requests: types of the contract, validated in their JSON form, as a session validates them.

What a body costs is bounded before anything is made of it: its bytes and its values while it comes, then its texts. A
large one is read in a thread. Keys share the threads, and the bytes that are held at a time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from clew.serve.problems import BodyTooLarge, InvalidParameter, name_field
from clew.serve.shares import Shares
from clew_workflows.contract.limits import MAX_MESSAGE_BYTES
from clew_workflows.contract.validation import translate_validation_error

M = TypeVar("M", bound=BaseModel)
P = ParamSpec("P")
T = TypeVar("T")

SMALL_BYTES = 32_768
"""A body of so many bytes is read at once, without a share."""
MAX_TEXT_CHARACTERS = 4 * MAX_MESSAGE_BYTES
"""Longest text of a body that is no file, in characters. No session takes a longer one."""
MAX_TEXTS_CHARACTERS = 8_000_000
"""Most characters of all texts of a body that are no files."""
FILE_FIELDS = frozenset({"data", "file_data", "image_url", "result", "url"})
"""The fields that hold files: in base64, or as addresses with the bytes in them."""

_MODEL = "clew_body"
"""The attribute of a dependency that reads a body: the model of the body."""


def read_body(model: type[M]) -> Any:
    """Make the dependency of a parameter that is the body, for the metadata of `Annotated`.

    An empty body is an empty object. Validation in Python's own form, which FastAPI does, would refuse lists for the
    tuples of the contract's types, and accept texts that are not valid Unicode.
    """

    async def read(request: Request) -> M:
        body = await receive_body(request)
        return await work_on(request, len(body), parse_body, model, body)

    return depend_on_body(read, model)


async def receive_body(request: Request) -> bytearray:
    """Receive a body, which may be large: the request does not keep it."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
    return body


def make_shares() -> Shares:
    """Make the shares of the work on large bodies: a place for each of two keys."""
    return Shares(2, 1)


async def work_on(request: Request, size: int, function: Callable[P, T], /, *args: P.args, **options: P.kwargs) -> T:
    """Call a function of a body of so many bytes: in a thread, when its key has a place, if it is large."""
    if size <= SMALL_BYTES:
        return function(*args, **options)
    shares: Shares = request.app.state.body_work
    async with shares.hold(request.state.key.hash):
        return await asyncio.to_thread(function, *args, **options)


def measure_body(request: Request) -> int:
    """Measure a body that was received, in bytes. One that came without its length counts as large."""
    return int(request.headers.get("content-length", SMALL_BYTES + 1))


def depend_on_body(read: Callable[..., Any], model: type[BaseModel]) -> Any:
    """Make the dependency of a parameter that a function reads of the body, which the model describes."""
    setattr(read, _MODEL, model)
    return Depends(read)


def parse_body(model: type[M], body: bytes | bytearray) -> M:
    """Parse a body.

    Raises:
        BodyTooLarge: It has a text that no session takes.
        InvalidParameter: It is not valid. The message does not repeat a value.
        Refusal: The contract has another word for what is wrong.
    """
    check_body(body)
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        refusal = translate_validation_error(model, error)
        if refusal.type != InvalidParameter.type:
            raise refusal from None
        loc = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
        raise InvalidParameter(refusal.message, param=name_field(loc)) from None


def check_body(body: bytes | bytearray) -> None:
    """Check the texts of a body, if it is long enough to have too long a one. What is no JSON is refused elsewhere.

    Raises:
        BodyTooLarge: One is longer than sessions take, or all together are.
    """
    if len(body) > MAX_TEXT_CHARACTERS:
        with suppress(ValueError):
            check_texts(from_json(body))


def check_texts(body: Any) -> None:
    """Check that the texts of a body are such as sessions take. What stands in a field of files may be larger.

    Raises:
        BodyTooLarge: One is longer, or all together are.
    """
    characters, left = 0, [("", body)]
    while left:
        field, value = left.pop()
        if isinstance(value, dict):
            left += value.items()
        elif isinstance(value, list):
            left += ((field, part) for part in value)
        elif isinstance(value, str) and not (field in FILE_FIELDS or value.startswith("data:")):
            characters += len(value)
            if len(value) > MAX_TEXT_CHARACTERS or characters > MAX_TEXTS_CHARACTERS:
                raise BodyTooLarge(
                    f"no session takes a text of more than {MAX_TEXT_CHARACTERS} characters, or texts of more than "
                    f"{MAX_TEXTS_CHARACTERS}: send a file as a blob",
                    param=field or None,
                )


class ValueCounter:
    """Counts the values of a JSON text that comes in pieces, without parsing it.

    Attributes:
        values: The commas and the beginnings of lists and objects so far. What stands in texts does not count.
    """

    def __init__(self) -> None:
        self.values = 0
        self._is_in_text = False
        self._is_escaped = False

    def take(self, piece: bytes) -> None:
        """Take the next piece."""
        if not piece:
            return
        if self._is_escaped:
            piece = piece[1:]
        # These escapes alone matter. A backslash that is left at the end escapes the first byte of the next piece.
        plain = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        self._is_escaped = plain.endswith(b"\\")
        parts = plain.split(b'"')
        outside = b"".join(parts[1 if self._is_in_text else 0 :: 2])
        self.values += sum(map(outside.count, (b",", b"[", b"{")))
        self._is_in_text ^= len(parts) % 2 == 0


def find_model(dependant: Dependant) -> type[BaseModel] | None:
    """Find the model of the body that a route reads with `read_body`; None: it reads none."""
    return next(_find_models(dependant), None)


def _find_models(dependant: Dependant) -> Iterator[type[BaseModel]]:
    call: Callable[..., Any] | None = dependant.call
    if call is not None and hasattr(call, _MODEL):
        yield getattr(call, _MODEL)
    for dependency in dependant.dependencies:
        yield from _find_models(dependency)
