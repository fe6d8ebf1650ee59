"""The base of every input, and the refusal of one that is not valid."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import PydanticCustomError

from clew_workflows.contract.content import Part, has_no_source
from clew_workflows.contract.errors import InvalidInput, InvalidOperation, Refusal
from clew_workflows.contract.invalid import MOST_PROBLEMS, explain, list_problems
from clew_workflows.contract.limits import MAX_PARTS, MIN_DATA_CHARACTERS
from clew_workflows.contract.messages import find_data_url
from clew_workflows.contract.schemas import check_schema


class Explained:
    """A model whose refusals name the fields that it has, also where it is made in Python."""

    # Type checkers know the parameters of each class from its fields.
    if not TYPE_CHECKING:

        def __init__(self, **fields: Any) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise explain(error, type(self)) from None

        # pydantic would call another `__init__` than its own in each validation.
        __init__.__pydantic_base_init__ = True


class Input(Explained, BaseModel):
    """An input of the contract. An unknown field, a wrong type or a value out of range is refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def overlay(self, upper: Self | None) -> Self:
        """Return this value with the fields that `upper` sets. The set fields are those of both."""
        if upper is None:
            return self
        return self.model_copy(update={name: getattr(upper, name) for name in upper.model_fields_set})


def _refuse_data(text: str) -> str:
    if len(text) >= MIN_DATA_CHARACTERS and (data := find_data_url(text)):
        raise PydanticCustomError(
            "data_url",
            "it holds a data URL ({data}): store the bytes as a blob, and send a part that names it",
            {"data": data},
        )
    return text


def _check_parts(parts: list[Part]) -> list[Part]:
    for part in parts:
        if part["type"] == "text":
            _refuse_data(part["text"])
    return _check_sources(parts)


def _check_sources(parts: list[Part]) -> list[Part]:
    for number, part in enumerate(parts):
        if has_no_source(part):
            raise PydanticCustomError(
                "image_source",
                "part {number} is an image with {what}: name the blob that PutBlob has answered, or a url",
                {"number": number, "what": "both a blob and a url" if "blob" in part else "neither a blob nor a url"},
            )
    return parts


def validate_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Check that a JSON Schema is within the bounds of `clew_workflows.contract.schemas`."""
    try:
        check_schema(schema)
    except ValueError as error:
        raise PydanticCustomError("json_schema", "{reason}", {"reason": str(error)}) from None
    return schema


MessageText = Annotated[str, AfterValidator(_refuse_data)]
"""A text without data URLs of 1 000 characters or more."""


def _find_form(content: object) -> str | None:
    """Find which form of a content a value has: a problem of the other form is none of the caller's."""
    return "text" if isinstance(content, str) else "parts" if isinstance(content, list) else None


_FORM = Discriminator(
    _find_form, custom_error_type="content", custom_error_message="a content is a text, or a list of parts"
)
_Parts = Annotated[list[Part], Field(min_length=1, max_length=MAX_PARTS)]
MessageContent = Annotated[
    Annotated[MessageText, Tag("text")] | Annotated[_Parts, AfterValidator(_check_parts), Tag("parts")], _FORM
]
"""The content of a message: a text, or at most 100 parts; no text has a data URL of 1 000 characters or more."""
ResultContent = Annotated[
    Annotated[str, Tag("text")] | Annotated[_Parts, AfterValidator(_check_sources), Tag("parts")], _FORM
]
"""The content of a tool's result: a text, or at most 100 parts."""

INVALID_OPERATION = "invalid_operation"
"""The type of a problem of a context operation, beside those of its fields."""


def translate_validation_error(model: type[BaseModel], error: ValidationError) -> Refusal:
    """Translate a validation error to a refusal that names the problems; long names and texts are truncated.

    The client and the session raise the same one: `InvalidOperation` if the first problem is one of a context
    operation, else `InvalidInput`.
    """
    problems = list_problems(error, model)
    first = problems[0]
    in_operation = first.path[:1] == ("operation",) and "operation" in model.model_fields
    refusal = InvalidOperation if in_operation or first.type == INVALID_OPERATION else InvalidInput
    return refusal("; ".join(map(str, problems[:MOST_PROBLEMS])))
