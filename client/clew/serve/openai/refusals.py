"""Errors in the form of this API, so that its clients raise their own exceptions and retry what should be retried."""

from __future__ import annotations

import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from clew.serve.error_words import Reader
from clew.serve.problems import (
    MAX_PART_CHARACTERS,
    MAX_PARTS,
    Problem,
    find_reader,
    find_status,
    make_body,
    make_headers,
)
from clew_workflows.contract.errors import Busy, ClewError, EmptyContent, find_word

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


class ModelNotFound(Problem):
    """No worker has the agent, or the provider of the model."""

    type = "model_not_found"
    status = HTTPStatus.NOT_FOUND


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


def find_deepest(error: ValidationError, body: Any) -> ErrorDetails:
    """Find the problem that lies deepest in a body: of a union's alternatives, the one that fits best."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    return max(problems, key=lambda problem: len(_find_path(problem, body)))


def _find_path(problem: ErrorDetails, body: Any) -> list[int | str]:
    """Find the path of a problem in a body. What a union tried is no part of it."""
    path: list[int | str] = []
    at: Any = body
    last = len(problem["loc"]) - 1
    for number, part in enumerate(problem["loc"]):
        if _has_member(at, part):
            at = at[part]
            path.append(part)
        elif number == last and problem["type"] == "missing":
            path.append(part)
    # The problem is the field that chooses among the alternatives.
    return [*path, "type"] if problem["type"].startswith("union_tag") else path


def _has_member(value: Any, part: int | str) -> bool:
    if isinstance(value, Mapping):
        return part in value
    return isinstance(value, list | tuple) and isinstance(part, int) and part < len(value)


def translate_validation_error(error: ValidationError, body: Any) -> InvalidValue:
    """Translate what is wrong with a request's body. The message does not repeat a value."""
    problem = find_deepest(error, body)
    path = _find_path(problem, body)[:MAX_PARTS]
    param = "".join(
        f"[{part}]" if isinstance(part, int) else f".{str(part)[:MAX_PART_CHARACTERS]}" for part in path
    ).lstrip(".")
    match problem["type"]:
        case "extra_forbidden":
            return UnknownParameter(f"Unknown parameter: '{param}'.", param=param)
        case "missing":
            return MissingParameter(f"Missing required parameter: '{param}'.", param=param)
    return InvalidValue(f"Invalid value for '{param}': {problem['msg'][:200]}.", param=param)


_FIELDS: Mapping[str, tuple[str, str]] = {
    "agent": ("model", "model"),
    "content": ("input", "messages"),
    "context_policy": ("instructions", "messages"),
    "external_tools": ("tools", "tools"),
    "metadata": ("metadata", "metadata"),
    "model": ("model", "model"),
    "model_options": ("", ""),
    "model_options.max_output_tokens": ("max_output_tokens", "max_completion_tokens"),
    "model_options.reasoning_effort": ("reasoning.effort", "reasoning_effort"),
    "model_options.verbosity": ("text.verbosity", "verbosity"),
    "output_schema": ("text.format.schema", "response_format.json_schema.schema"),
    "replies": ("input", "messages"),
    "snapshot": ("input", "messages"),
}
"""The fields of the contract that are made of fields of Responses, and of Chat Completions. Of the members of a
content, a policy, a schema and a snapshot no caller knows."""
_OPAQUE = ("content", "context_policy", "metadata", "output_schema", "replies", "snapshot")
_CONTRACT_PATH = re.compile(r"([a-z_]+(?:\.[A-Za-z0-9_]+)*): ")


def find_param(error: ClewError, *, is_chat: bool) -> tuple[str, str] | None:
    """Find the path in the contract with which a refusal begins, and the caller's own; None: it has none."""
    path = found[1] if (found := _CONTRACT_PATH.match(str(error))) else ""
    if isinstance(error, EmptyContent):
        return "", _FIELDS["content"][is_chat]
    name = next((name for name in (path, path.partition(".")[0]) if name in _FIELDS), None)
    if name is None or isinstance(error, Problem):
        return None
    own = _FIELDS[name][is_chat]
    rest = [] if name in _OPAQUE else path[len(name) :].split(".")[1:]
    if name == "external_tools" and is_chat and rest:
        rest.insert(1, "function")
    for part in rest:
        own += f"[{part}]" if part.isdigit() else f".{part}"
    return path, own.lstrip(".")


def make_error_body(error: ClewError, reader: Reader, *, is_chat: bool = False) -> dict[str, Any]:
    """Make the body of an error. It names the caller's own field, and not the contract's."""
    body: dict[str, Any] = make_body(error, reader)["error"]
    if body["param"] == "agent":
        # An agent is a model of this API.
        body["param"] = "model"
    if body["param"] is None and (named := find_param(error, is_chat=is_chat)):
        path, body["param"] = named
        if path and body["message"].startswith(f"{path}: "):
            body["message"] = f"Invalid value for '{body['param']}': {body['message'].removeprefix(f'{path}: ')}"
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
    body = make_error_body(error, find_reader(request), is_chat=request.url.path.startswith("/v1/chat/"))
    request.state.problem = find_word(error)
    return JSONResponse(body, find_status(error), make_error_headers(error))
