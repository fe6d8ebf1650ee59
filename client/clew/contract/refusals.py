"""The refusal of an input that its type cannot take: the same for a client, before it travels, and for a session."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from clew.contract.operations import INVALID_OPERATION, ContextOperation
from clew.errors import InvalidInput, InvalidOperation, Refusal

_PROBLEMS = 3
"""Problems of an input that its refusal names."""


def translate_validation_error(model: type[BaseModel], error: ValidationError) -> Refusal:
    """What is wrong with an input, in words; names that came from outside are cut short.

    `InvalidOperation` where the first problem is one of a context operation, else `InvalidInput`.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    words = []
    for problem in problems[:_PROBLEMS]:
        place = ".".join(str(part)[:50] for part in problem["loc"][:6])
        words.append(f"{place}: {problem['msg'][:200]}" if place else problem["msg"][:200])
    first = problems[0]
    of_operation = first["type"] == INVALID_OPERATION or first["loc"][:1] == ("operation",)
    refused = InvalidOperation if model is ContextOperation and of_operation else InvalidInput
    return refused("; ".join(words))
