"""Errors in the form of this API, so that its clients raise their own exceptions and retry what should be retried."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import ValidationError

from clew.serve.problems import (
    MAX_PART_CHARACTERS,
    MAX_PARTS,
    PROBLEMS,
    Problem,
    describe_invalid,
    find_status,
    find_tenant,
    find_word,
    make_body,
    make_headers,
)
from clew_workflows.contract.errors import Busy, ClewError

_TYPES = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
}
"""The types of errors by their statuses. Others are `invalid_request_error` or, the service's, `server_error`."""
_CODES = {
    "busy": "conversation_locked",
    "unauthorized": "invalid_api_key",
    "rate_limited": "rate_limit_exceeded",
    "queue_full": "rate_limit_exceeded",
}
"""The API's codes for words of the contract. The others are codes themselves."""


class InvalidValue(Problem):
    """A field of the request cannot be used.

    Attributes:
        type: The API's code.
    """

    type = "invalid_value"


class MissingParameter(InvalidValue):
    """The request lacks a field."""

    type = "missing_required_parameter"


class UnknownParameter(InvalidValue):
    """The API has no such field."""

    type = "unknown_parameter"


class UnsupportedParameter(InvalidValue):
    """The API has the field, and Clew does not serve it."""

    type = "unsupported_parameter"


class UnsupportedValue(InvalidValue):
    """Clew serves the field, and not with this value."""

    type = "unsupported_value"


class NotStored(Problem):
    """There is no such response, or the caller did not want it to be stored."""

    type = "not_found"
    status = HTTPStatus.NOT_FOUND


class RequestEnded(Problem):
    """A request has ended without an answer. The session has retried what can be retried.

    Attributes:
        type: The API's code.
        status: Its status.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.type = code
        self.status = _ENDINGS.get(code, HTTPStatus.INTERNAL_SERVER_ERROR)


_ENDINGS = {
    "rate_limit_exceeded": HTTPStatus.TOO_MANY_REQUESTS,
    "invalid_prompt": HTTPStatus.BAD_REQUEST,
    "cancelled": HTTPStatus.CONFLICT,
}


def translate_validation_error(error: ValidationError) -> InvalidValue:
    """Translate what is wrong with a request's body. The message does not repeat a value."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    # What a union tried is no part of the path.
    path = [part for part in problem["loc"] if isinstance(part, int) or str(part).isidentifier()][:MAX_PARTS]
    param = "".join(
        f"[{part}]" if isinstance(part, int) else f".{str(part)[:MAX_PART_CHARACTERS]}" for part in path
    ).lstrip(".")
    match problem["type"]:
        case "extra_forbidden":
            return UnknownParameter(f"Unknown parameter: '{param}'.", param=param)
        case "missing":
            return MissingParameter(f"Missing required parameter: '{param}'.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {problem['msg'][:200]}.", param=param)


def make_error_body(error: ClewError, tenant: str | None = None) -> dict[str, Any]:
    """Make the body of an error."""
    body: dict[str, Any] = make_body(error, tenant=tenant)["error"]
    status, word = find_status(error), find_word(error)
    kind = _TYPES.get(
        status, "invalid_request_error" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "server_error"
    )
    return {"error": {**body, "type": kind, "code": _CODES.get(word, word)}}


def make_error_headers(error: ClewError) -> dict[str, str]:
    """Make the headers of an error. The official clients repeat each 409 and 5xx unless a header says otherwise."""
    status, headers = find_status(error), make_headers(error)
    if isinstance(error, RequestEnded) or status in (HTTPStatus.CONFLICT, HTTPStatus.INTERNAL_SERVER_ERROR):
        headers["x-should-retry"] = "true" if isinstance(error, Busy) else "false"
    return headers


def make_error_response(request: Request, error: ClewError) -> JSONResponse:
    """Make the response that tells an error."""
    body = make_error_body(error, find_tenant(request))
    request.state.problem = find_word(error)
    return JSONResponse(body, find_status(error), make_error_headers(error))


class OpenAIRoute(APIRoute):
    """A route whose errors have the form of this API."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def answer_or_refuse(request: Request) -> Response:
            try:
                return await answer(request)
            except ClewError as error:
                return make_error_response(request, error)
            except RequestValidationError as error:
                message, param = describe_invalid(error)
                return make_error_response(request, InvalidValue(message, param=param))
            except HTTPException as error:
                problem = PROBLEMS.get(error.status_code, Problem)(str(error.detail))
                return make_error_response(request, problem)

        return answer_or_refuse
