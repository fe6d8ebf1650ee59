"""Tools: functions that a model may call, with a schema made from their signature.

@tool
def lookup_order(order_id: str) -> dict[str, str]:
'''Where an order is and when it arrives.'''
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from clew.contract.schemas import check_arguments, check_schema
from clew.model.canonical import canonicalize
from clew.model.messages import ToolSpec

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_TIMEOUT_SECONDS = 60.0
"""Timeout of one attempt of a tool that sets none."""
MAX_TIMEOUT_SECONDS = 30 * 86400.0
"""Longest timeout of a tool: the longest time of a request."""
MAX_RETRIES = 1000
"""Most retries of a tool call."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The call that a tool serves. A tool that declares a parameter of this type receives it.

    Attributes:
        session_id: The session's id, which is the workflow's id.
        request_id: The request in whose run the model called the tool.
        tool_call_id: The id of the call, unique in the session's thread.
        idempotency_key: The same for every attempt of the call, and different for other calls: pass it to services
            that have effects.
        attempt: The number of the attempt, from 1 on.
    """

    session_id: str
    request_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    _report: Callable[[str], None] = field(repr=False, default=lambda _progress: None)

    def heartbeat(self, progress: str) -> None:
        """Report progress. Clew itself reports that the tool is alive."""
        self._report(progress)


class Tool(Generic[P, R]):
    """A function with its schema for models and its settings for workers. Calling it calls the function."""

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None,
        timeout_seconds: float,
        retries: int,
        idempotent: bool,
        requires_approval: bool,
    ) -> None:
        self.function = function
        self.name: str = name if name else getattr(function, "__name__", "")
        if (
            not self.name.replace("_", "").replace("-", "").isalnum()
            or not self.name.isascii()
            or len(self.name) > 64
        ):
            raise TypeError(f"a tool's name has 1 to 64 letters, digits, '_' or '-', not {self.name!r}")
        # Temporal limits both numbers.
        if not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS or retries not in range(MAX_RETRIES + 1):
            raise TypeError(
                f"tool {self.name!r}: the timeout is more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds, "
                f"retries are from 0 to {MAX_RETRIES}"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"tool {self.name!r}: it is a generator, and a model reads the value that a tool returns")
        self.timeout_seconds = timeout_seconds
        if retries and not idempotent:
            raise TypeError(f"tool {self.name!r}: a tool that is not idempotent cannot be retried")
        self.retries = retries
        self.idempotent = idempotent
        self.requires_approval = requires_approval
        self.is_async = inspect.iscoroutinefunction(function)
        try:
            self._context_parameter, self._arguments = _make_arguments_model(self.name, function)
            self.spec: ToolSpec = {
                "name": self.name,
                "description": inspect.getdoc(function) or "",
                "parameters": _make_schema(self._arguments),
            }
            canonicalize(self.spec)
        except (PydanticUserError, NameError, ValueError) as error:
            raise TypeError(f"tool {self.name!r} has no JSON Schema: {error}") from error
        try:
            check_schema(self.spec["parameters"])
        except ValueError as error:
            raise TypeError(f"tool {self.name!r} has parameters that are too costly to validate: {error}") from error

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Validate the JSON arguments of a call and return them as keyword arguments.

        Raises:
            pydantic.ValidationError: the arguments do not match the signature.
            ValueError: the validation would take too long.
        """
        check_arguments(arguments, self.spec["parameters"])
        values = self._arguments.model_validate_json(to_json(arguments))
        bound: dict[str, Any] = {
            str(field.alias): getattr(values, name) for name, field in type(values).model_fields.items()
        }
        if self._context_parameter:
            bound[self._context_parameter] = context
        return bound


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    name: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    retries: int = 0,
    idempotent: bool = True,
    requires_approval: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    retries: int = 0,
    idempotent: bool = True,
    requires_approval: bool = False,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool. A sync function runs in its own thread; an async one must not block the event loop.

    The model reads the function's docstring. The parameters' annotations make the schema, and a model's arguments are
    validated against them.

    Args:
        function: The function, if the decorator is used without arguments.
        name: The name of the tool; the function's own by default.
        timeout_seconds: The longest time of one attempt, in seconds. After that the model reads of the timeout.
        retries: The most repetitions of an attempt that raised, before the model reads the error.
        idempotent: Whether a call may run again after its worker died. If not, the call is not repeated: the model
            reads that it is in doubt, with its idempotency key.
        requires_approval: Whether each call waits, however long, until a person approves or denies it.

    Raises:
        TypeError: a parameter has no annotation or a type without a JSON Schema, is positional-only, `*args` or
            `**kwargs`; or the name, the timeout or the retries are out of bounds.
    """

    def make_tool(decorated: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            decorated,
            name=name,
            timeout_seconds=timeout_seconds,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
        )

    return make_tool if function is None else make_tool(function)


class _Untitled(GenerateJsonSchema):
    """Makes schemas without titles, which repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        return False


def _make_arguments_model(name: str, function: Callable[..., Any]) -> tuple[str | None, type[BaseModel]]:
    """Return the name of the parameter that takes the context, if any, and a model of all other parameters."""
    hints = get_type_hints(function, include_extras=True)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: {parameter} cannot be passed by name, so no model can pass it")
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} needs an annotation")
        if hints[parameter.name] in (ToolContext, ToolContext | None):
            if context_parameter:
                raise TypeError(f"tool {name!r}: one parameter takes the context, not {parameter.name!r} too")
            context_parameter = parameter.name
            continue
        if isinstance(parameter.default, FieldInfo):
            # A plain call of the function would pass the field as the value.
            raise TypeError(f"tool {name!r}: write {parameter.name}: Annotated[..., Field(...)]")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The prefix avoids the names of a pydantic model's own attributes.
        fields[f"argument_{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    return context_parameter, create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _make_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema(schema_generator=_Untitled)
    del schema["title"]
    return schema
