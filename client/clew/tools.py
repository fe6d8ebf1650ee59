"""Tools: plain functions that a model may call, with their schema taken from their signature.

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
MAX_TIMEOUT_SECONDS = 30 * 86400.0
"""As long as a request may take."""
MAX_RETRIES = 1000


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may know of the call it serves: declare a parameter of this type to receive it.

    Attributes:
        session_id: The session, which is the workflow's id.
        request_id: The request in whose run the model asked.
        tool_call_id: This call, unique in the session's thread.
        idempotency_key: The same for every attempt of this call, and for no other call: hand it to what has effects.
        attempt: 1 for the first.
    """

    session_id: str
    request_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    _report: Callable[[str], None] = field(repr=False, default=lambda _progress: None)

    def heartbeat(self, progress: str) -> None:
        """Say how far the work has come, for those who watch. That the tool is alive is reported without this."""
        self._report(progress)


class Tool(Generic[P, R]):
    """A function with what a model and a worker need to know of it. Called as ever, it is the function."""

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
        # Both become numbers of Temporal's, which has no room for just any.
        if not 0 < timeout_seconds <= MAX_TIMEOUT_SECONDS or retries not in range(MAX_RETRIES + 1):
            raise TypeError(
                f"tool {self.name!r}: the timeout is more than 0 and at most {MAX_TIMEOUT_SECONDS:.0f} seconds, "
                f"retries are from 0 to {MAX_RETRIES}"
            )
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"tool {self.name!r}: it yields, and a model reads what a tool returns")
        self.timeout_seconds = timeout_seconds
        if retries and not idempotent:
            raise TypeError(f"tool {self.name!r}: what is not idempotent cannot be retried")
        self.retries = retries
        self.idempotent = idempotent
        self.requires_approval = requires_approval
        self.is_async = inspect.iscoroutinefunction(function)
        try:
            self._context_parameter, self._arguments = _arguments_model(self.name, function)
            self.spec: ToolSpec = {
                "name": self.name,
                "description": inspect.getdoc(function) or "",
                "parameters": _schema(self._arguments),
            }
            canonicalize(self.spec)
        except (PydanticUserError, NameError, ValueError) as error:
            raise TypeError(f"tool {self.name!r} has no JSON Schema: {error}") from error
        try:
            check_schema(self.spec["parameters"])
        except ValueError as error:
            raise TypeError(f"tool {self.name!r} has parameters that are too costly to validate: {error}") from error

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function itself."""
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"<tool {self.name}>"

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """The keyword arguments of a call, validated as the JSON that they are.

        Raises:
            pydantic.ValidationError: the arguments are not what the signature asks for.
            ValueError: validating them would take too long.
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
    """Make a function a tool. It may be sync (it runs in a thread of its own) or async.

    Its docstring is what the model reads of it; its parameters' annotations make the schema, and what a model
    sends is validated against them. An async tool must not block: it shares the worker's event loop.

    Args:
        function: The function, where the decorator is used bare.
        name: What the model calls it by; the function's own name unless given.
        timeout_seconds: How long one attempt may take. After that the model reads that it took too long.
        retries: How often an attempt that raised is repeated before the model reads the error.
        idempotent: Whether a call may run again where its worker died. If not, it is never silently run twice: the
            model reads that the call is in doubt, and under which idempotency key.
        requires_approval: Whether each call waits, however long, until somebody approves or denies it.

    Raises:
        TypeError: the signature cannot be a tool's: a parameter without an annotation, or of a type that has no
            JSON Schema, `*args`, `**kwargs`; or the name, the timeout or the retries are out of bounds.
    """

    def make(decorated: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            decorated,
            name=name,
            timeout_seconds=timeout_seconds,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
        )

    return make if function is None else make(function)


class _Untitled(GenerateJsonSchema):
    """Titles repeat the names, and a model pays for every token of them."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        return False


def _arguments_model(name: str, function: Callable[..., Any]) -> tuple[str | None, type[BaseModel]]:
    """The parameter that takes the context, where there is one, and the model of all the others."""
    hints = get_type_hints(function, include_extras=True)
    context_parameter: str | None = None
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise TypeError(f"tool {name!r}: {parameter} cannot be given by name, so no model can give it")
        if parameter.name not in hints:
            raise TypeError(f"tool {name!r}: parameter {parameter.name!r} needs an annotation")
        if hints[parameter.name] in (ToolContext, ToolContext | None):
            if context_parameter:
                raise TypeError(f"tool {name!r}: one parameter takes the context, not {parameter.name!r} too")
            context_parameter = parameter.name
            continue
        if isinstance(parameter.default, FieldInfo):
            # Called as the function that it is, it would get the field for a value.
            raise TypeError(f"tool {name!r}: write {parameter.name}: Annotated[..., Field(...)]")
        default = ... if parameter.default is parameter.empty else parameter.default
        # Under a name of its own, since parameters may be called what a model's attributes are called.
        fields[f"argument_{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
    return context_parameter, create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema(schema_generator=_Untitled)
    del schema["title"]
    return schema
