"""The base of every input, and the refusal of one that is not valid."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from clew_workflows.contract.errors import InvalidInput, Refusal
from clew_workflows.contract.messages import find_data_url

# The base of every input: strict, so that a misspelt field is refused and not dropped.


M = TypeVar("M", bound=BaseModel)

INVALID_OPERATION = "invalid_operation"
"""The type of a problem of a context operation, beside those of its fields."""


def _refuse_data(text: str) -> str:
    if data := find_data_url(text):
        raise PydanticCustomError(
            "data_url",
            "it holds a data URL ({data}): sessions take text only, so send a description or a link",
            {"data": data},
        )
    return text


MessageText = Annotated[str, AfterValidator(_refuse_data)]
"""The text of a message, without data URLs of 1 000 characters or more."""


class Input(BaseModel):
    """An input of the contract. An unknown field, a wrong type or a value out of range is refused.

    Attributes:
        operation_refusal: The refusal of one whose `operation` is not valid.
    """

    operation_refusal: ClassVar[type[Refusal]] = InvalidInput

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


def set_fields(lower: M, upper: M) -> M:
    """Return a value with the fields that another one sets. The set fields are those of both."""
    return lower.model_copy(update={name: getattr(upper, name) for name in upper.model_fields_set})


# The refusal of an input that does not have its type: the client and the session raise the same one.


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
