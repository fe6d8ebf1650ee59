"""What is wrong with an input, in words: the form that a text must have, and the fields that an object has.

Every door tells a `ValidationError` by `list_problems` or `describe_problems`: pydantic's own words show a regular
expression where a text has another form, and do not name the fields where one is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

from pydantic import BaseModel, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, core_schema
from typing_extensions import is_typeddict

UNKNOWN_FIELD = "extra_forbidden"
"""The type of the problem that an object has no such field."""
MOST_PROBLEMS = 3
"""Most problems of an input that are named."""
_LEVELS = 12
"""Most levels of a field's path that are named."""
_NAME_CHARACTERS = 50
_MESSAGE_CHARACTERS = 200
"""Most characters of a name in a path, and of pydantic's words about its value."""


@dataclass(frozen=True, slots=True)
class Form:
    """The form of a text, as metadata of its type. A text of another form is refused in words.

    Attributes:
        pattern: The regular expression, for JSON Schemas.
        words: What the text is, as a sentence: it names no value.
    """

    pattern: str
    words: str

    def matches(self, text: str) -> bool:
        """Whether a text has this form."""
        return re.fullmatch(self.pattern, text) is not None

    def _check(self, text: str) -> str:
        if not self.matches(text):
            raise PydanticCustomError("form", "{words}", {"words": self.words})
        return text

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return {**handler(schema), "pattern": self.pattern}


class Problem(NamedTuple):
    """One thing that is wrong with an input.

    Attributes:
        path: The field: names, and numbers of items.
        type: pydantic's word for what is wrong.
        message: What is wrong, in words that repeat no value.
    """

    path: tuple[int | str, ...]
    type: str
    message: str

    def __str__(self) -> str:
        """The path and the words; long names are cut."""
        path = ".".join(str(part)[:_NAME_CHARACTERS] for part in self.path[:_LEVELS])
        return f"{path}: {self.message}" if path else self.message


def list_problems(error: ValidationError, kind: Any) -> list[Problem]:
    """List what is wrong with an input.

    Args:
        error: The error.
        kind: The type that the input was to have, as in an annotation.
    """
    problems = []
    for problem in error.errors(include_url=False, include_context=False, include_input=False):
        path, message = problem["loc"], problem["msg"][:_MESSAGE_CHARACTERS]
        if problem["type"] == UNKNOWN_FIELD and (fields := list_fields(kind, path[:-1])):
            message = describe_unknown_field(str(path[-1]), fields)
        problems.append(Problem(path, problem["type"], message))
    return problems


def describe_problems(error: ValidationError, kind: Any) -> str:
    """Describe what is wrong with an input, which was to have the type `kind`: its first problems, in one line."""
    return "; ".join(map(str, list_problems(error, kind)[:MOST_PROBLEMS]))


def explain(error: ValidationError, kind: type[BaseModel]) -> ValidationError:
    """Make the same error with words for each unknown field, for a caller that made an object in Python."""
    details: list[InitErrorDetails] = []
    for raw, problem in zip(error.errors(include_url=False), list_problems(error, kind), strict=True):
        name: Any = problem.type
        words = PydanticCustomError(name, "{words}", {"words": problem.message})
        details.append({"type": words, "loc": problem.path, "input": raw["input"]})
    return ValidationError.from_exception_data(error.title, details)


def describe_unknown_field(name: str, fields: Iterable[str]) -> str:
    """Say that an object has no field of a name: with the nearest one, and all that there are."""
    fields = list(fields)
    nearest = get_close_matches(name[:_NAME_CHARACTERS].lower(), fields, 1)
    guess = f" (did you mean {nearest[0]}?)" if nearest else ""
    return f"there is no such field{guess}; the fields are {', '.join(fields)}"


def list_fields(kind: Any, path: Sequence[int | str] = ()) -> list[str]:
    """List the fields of the objects that an input of a type has at a path; empty: it has none there."""
    objects = list(_find_objects(kind))
    for part in path:
        # The member of a union that was tried may have the name of a field.
        if len(objects) > 1 and (members := [each for each in objects if _is_member(each, part)]):
            objects = members
        elif owners := [each for each in objects if part in _get_fields(each)]:
            objects = [found for each in owners for found in _find_objects(_get_fields(each)[part])]
        # Else it is the number of an item or the key of a mapping.
    return list(dict.fromkeys(name for each in objects for name in _get_fields(each)))


def _find_objects(annotation: Any) -> Iterator[type]:
    """Find the types with fields in an annotation: models and typed dictionaries."""
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_typeddict(annotation)):
        yield annotation
        return
    if (origin := get_origin(annotation)) is Literal:
        return
    members = get_args(annotation)
    for member in members[:1] if origin is Annotated else members:
        yield from _find_objects(member)


def _get_fields(kind: type) -> dict[Any, Any]:
    """Get the annotations of the fields of a type, by the names that inputs have for them."""
    if issubclass(kind, BaseModel):
        return {field.alias or name: field.annotation for name, field in kind.model_fields.items()}
    return get_type_hints(kind)


def _is_member(kind: type, part: int | str) -> bool:
    """Whether a part of a path names this member of a union: by its class, or by the value that tells it apart."""
    literals = (annotation for annotation in _get_fields(kind).values() if get_origin(annotation) is Literal)
    return kind.__name__ == part or any(part in get_args(literal) for literal in literals)
