"""Bodies of requests: types of the contract, validated in their JSON form, as a session validates them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from fastapi import Depends, Request
from fastapi.dependencies.models import Dependant
from pydantic import BaseModel, ValidationError

from clew.serve.problems import InvalidParameter, name_field
from clew_workflows.contract.validation import translate_validation_error

M = TypeVar("M", bound=BaseModel)

_MODEL = "clew_body"
"""The attribute of a dependency that reads a body: the model of the body."""


def read_body(model: type[M]) -> Any:
    """Make the dependency of a parameter that is the body, for the metadata of `Annotated`.

    An empty body is an empty object. Validation in Python's own form, which FastAPI does, would refuse lists for the
    tuples of the contract's types, and accept texts that are not valid Unicode.
    """

    async def read(request: Request) -> M:
        return parse_body(model, await request.body())

    return depend_on_body(read, model)


def depend_on_body(read: Callable[..., Any], model: type[BaseModel]) -> Any:
    """Make the dependency of a parameter that a function reads of the body, which the model describes."""
    setattr(read, _MODEL, model)
    return Depends(read)


def parse_body(model: type[M], body: bytes) -> M:
    """Parse a body.

    Raises:
        InvalidParameter: It is not valid. The message does not repeat a value.
        Refusal: The contract has another word for what is wrong.
    """
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        refusal = translate_validation_error(model, error)
        if refusal.type != InvalidParameter.type:
            raise refusal from None
        loc = error.errors(include_url=False, include_context=False, include_input=False)[0]["loc"]
        raise InvalidParameter(refusal.message, param=name_field(loc)) from None


def find_model(dependant: Dependant) -> type[BaseModel] | None:
    """Find the model of the body that a route reads with `read_body`; None: it reads none."""
    return next(_find_models(dependant), None)


def _find_models(dependant: Dependant) -> Iterator[type[BaseModel]]:
    call: Callable[..., Any] | None = dependant.call
    if call is not None and hasattr(call, _MODEL):
        yield getattr(call, _MODEL)
    for dependency in dependant.dependencies:
        yield from _find_models(dependency)
