"""The base of every input: strict, so that a misspelt field is refused and not dropped."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

from clew.errors import InvalidInput, Refusal
from clew.model.texts import find_data_url

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
