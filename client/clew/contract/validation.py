"""The refusal of an input that does not have its type: the client and the session raise the same one."""

from __future__ import annotations

from pydantic import BaseModel, ValidationError

from clew.contract._input import INVALID_OPERATION, Input
from clew.errors import InvalidInput, Refusal

_PROBLEMS = 3
"""Most problems of an input that its refusal names."""


def translate_validation_error(model: type[BaseModel], error: ValidationError) -> Refusal:
    """Translate a validation error to a refusal that names the problems; long names and texts are truncated.

    It is `InvalidOperation` if the first problem is one of a context operation, else `InvalidInput`.
    """
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    lines = []
    for problem in problems[:_PROBLEMS]:
        path = ".".join(str(part)[:50] for part in problem["loc"][:6])
        lines.append(f"{path}: {problem['msg'][:200]}" if path else problem["msg"][:200])
    first = problems[0]
    of_operation = first["type"] == INVALID_OPERATION or first["loc"][:1] == ("operation",)
    refusal_type = model.operation_refusal if of_operation and issubclass(model, Input) else InvalidInput
    return refusal_type("; ".join(lines))
