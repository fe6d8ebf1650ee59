"""Errors over HTTP: the status of each of Clew's errors, by the table of words, and the body that tells it.

A body is `{"error": {"type", "message", "param", "code"}}`: the form of OpenAI's errors. `code` is the contract's
word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from http import HTTPStatus
from itertools import islice
from math import ceil
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from clew.serve.error_words import TENANT, WORDS, Reader, make_reader
from clew_workflows.contract.errors import ClewError, find_word

# Python 3.13 has given it another name.
TOO_LARGE = HTTPStatus(413)

MAX_PARTS = 12
"""Most parts of the path of a field that an error names."""
MAX_PART_CHARACTERS = 50
DRAIN_MESSAGE = "the process is about to end: repeat the request"
RETRY_SECONDS = 2
"""Seconds after which a caller may repeat what failed because a server, a worker or the archive was away."""


class Problem(ClewError):
    """An error of the HTTP service itself.

    Attributes:
        type: Its word.
        status: Its status.
        message: The reason, and what to do.
        param: The field or the parameter that it is about.
        retry_seconds: When the request may be repeated; None: a repetition does not help.
    """

    type = "invalid_request"
    status = HTTPStatus.BAD_REQUEST

    def __init__(self, message: str, *, param: str | None = None, retry_seconds: float | None = None) -> None:
        super().__init__(message)
        self.message, self.param, self.retry_seconds = message, param, retry_seconds


class InvalidParameter(Problem):
    """A parameter is not valid."""

    type = "invalid_input"


class Unauthorized(Problem):
    """The request has no key, or one that is not known."""

    type = "unauthorized"
    status = HTTPStatus.UNAUTHORIZED


class Forbidden(Problem):
    """The key does not permit it."""

    type = "forbidden"
    status = HTTPStatus.FORBIDDEN


class NoRoute(Problem):
    """The service has no such path."""

    type = "not_found"
    status = HTTPStatus.NOT_FOUND


class WrongMethod(Problem):
    """The path does not take the method."""

    type = "method_not_allowed"
    status = HTTPStatus.METHOD_NOT_ALLOWED


class BodyTooLarge(Problem):
    """The body has more bytes than the path takes."""

    type = "too_large"
    status = TOO_LARGE


class RateLimited(Problem):
    """The key has sent too many requests."""

    type = "rate_limited"
    status = HTTPStatus.TOO_MANY_REQUESTS


class QuotaExceeded(Problem):
    """The tenant has as many open sessions as the key permits."""

    type = "quota_exceeded"
    status = HTTPStatus.TOO_MANY_REQUESTS


class Draining(Problem):
    """The process is about to end: another one takes the request."""

    type = "draining"
    status = HTTPStatus.SERVICE_UNAVAILABLE


class Internal(Problem):
    """The service has failed. Its log has more."""

    type = "internal"
    status = HTTPStatus.INTERNAL_SERVER_ERROR


PROBLEMS: Mapping[int, type[Problem]] = {
    problem.status: problem
    for problem in (Problem, Unauthorized, Forbidden, NoRoute, WrongMethod, BodyTooLarge, RateLimited, Internal)
}
"""The problems by their statuses, for errors that the web framework raises."""


def find_status(error: ClewError) -> HTTPStatus:
    """Find the status of an error: that of its word, or of its base's."""
    if isinstance(error, Problem):
        return error.status
    words = (find_word(cls) for cls in type(error).__mro__ if issubclass(cls, ClewError))
    return HTTPStatus(next(WORDS[word][0] for word in words if word in WORDS))


def find_retry_seconds(error: ClewError) -> int | None:
    """Find the seconds after which the request may be repeated; None: a repetition does not help."""
    if isinstance(error, Problem):
        return None if error.retry_seconds is None else max(ceil(error.retry_seconds), 1)
    waits = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS)
    return RETRY_SECONDS if find_status(error) in waits else None


def name_field(path: Iterable[int | str]) -> str | None:
    """Name the field that is not valid by its path; None: it is the whole."""
    return ".".join(str(part)[:MAX_PART_CHARACTERS] for part in islice(path, MAX_PARTS)) or None


def describe_invalid(error: RequestValidationError) -> tuple[str, str | None]:
    """Describe parameters that are not valid, without their values: the message, and the parameter."""
    first = error.errors()[0]
    param = name_field(first["loc"][1:])
    return f"{param or 'the request'}: {first['msg'][:200]}", param


def find_reader(request: Request) -> Reader:
    """Find the reader of the answer to a request: without a known key one that reads nothing of the inside."""
    key = getattr(request.state, "key", None)
    return make_reader(key.tenant, is_operator=key.operator) if key else TENANT


def make_body(error: ClewError, reader: Reader) -> dict[str, Any]:
    """Make the body that tells an error to a reader."""
    word = find_word(error)
    # The service's own errors are about the request.
    message = reader.name_sessions(str(error)) if isinstance(error, Problem) else reader.tell_error(error, word)
    # A text of the caller's may be in it, and be no valid Unicode.
    message = message.encode(errors="replace").decode()
    return {"error": {"type": word, "message": message, "param": getattr(error, "param", None), "code": word}}


def make_headers(error: ClewError) -> dict[str, str]:
    """Make the headers of an error's response."""
    headers = {"Cache-Control": "no-store"}
    if (seconds := find_retry_seconds(error)) is not None:
        headers["Retry-After"] = str(seconds)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return headers


def make_response(request: Request, error: ClewError, status: int | None = None) -> JSONResponse:
    """Make the response that tells an error. `status`: another one than the error's own."""
    body = make_body(error, find_reader(request))
    request.state.problem = body["error"]["type"]
    return JSONResponse(body, find_status(error) if status is None else status, make_headers(error))
