"""Function tools: Python functions that a model may call, with a schema made from their signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Generic, ParamSpec, TypeVar, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from clew.contract.schemas import check_arguments
from clew.tools.context import ToolContext
from clew.tools.definition import (
    DEFAULT_TIMEOUT_SECONDS,
    RequiresApproval,
    ToolDefinition,
    check_name,
    check_temporal_name,
    make_spec,
)
from clew.tools.descriptions import split_docstring

P = ParamSpec("P")
R = TypeVar("R")


class Tool(ToolDefinition, Generic[P, R]):
    """A function with its schema for models and its settings for workers. Calling it calls the function.

    Attributes:
        function: The function.
        is_async: Whether it is a coroutine function.
        task_queue: The task queue of the workers that run the function; None: that of the session.
    """

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None,
        timeout_seconds: float,
        retries: int,
        idempotent: bool,
        requires_approval: RequiresApproval,
        task_queue: str | None = None,
    ) -> None:
        name = name or str(getattr(function, "__name__", ""))
        check_name(name)
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(f"tool {name!r}: it is a generator, and a model reads the value that a tool returns")
        if task_queue is not None:
            check_temporal_name(name, "task_queue", task_queue)
        self.function = function
        self.task_queue = task_queue
        self.is_async = inspect.iscoroutinefunction(function)
        try:
            docstring, parameters = inspect.getdoc(function) or "", inspect.signature(function).parameters
            description, descriptions = split_docstring(docstring, parameters)
            self._context_parameter, self._arguments = _make_arguments_model(name, function, descriptions)
            schema = _make_schema(self._arguments)
        except (PydanticUserError, NameError, ValueError) as error:
            raise TypeError(f"tool {name!r} has no JSON Schema: {error}") from error
        super().__init__(
            make_spec(name, description, schema),
            timeout_seconds=timeout_seconds,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
        )

    @property
    def takes_context(self) -> bool:
        """Whether the function takes a `ToolContext`."""
        return self._context_parameter is not None

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function."""
        return self.function(*args, **kwargs)

    def bind(self, arguments: Mapping[str, Any], context: ToolContext) -> dict[str, Any]:
        """Validate the JSON arguments of a call and return them as keyword arguments.

        Raises:
            pydantic.ValidationError: The arguments do not match the signature.
            ValueError: The validation would take too long.
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
    requires_approval: RequiresApproval = False,
    task_queue: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS,
    retries: int = 0,
    idempotent: bool = True,
    requires_approval: RequiresApproval = False,
    task_queue: str | None = None,
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool. A sync function runs in its own thread; an async one must not block the event loop.

    The model reads the function's docstring; what it says of the arguments, in Google's, NumPy's or Sphinx's style,
    describes them in the schema. The parameters' annotations make the schema, and a model's arguments are validated
    against them.

    Args:
        function: The function, if the decorator is used without arguments.
        name: The name of the tool; the function's own by default.
        timeout_seconds: The longest time of one attempt, in seconds. After that the model reads of the timeout.
        retries: The most repetitions of an attempt that raised, before the model reads the error.
        idempotent: Whether a call may run again after its worker died. If not, the call is not repeated: the model
            reads that it is in doubt, with its idempotency key.
        requires_approval: Whether each call waits, however long, until a person approves or denies it; `round`: the
            other calls of its reply wait, too.
        task_queue: The task queue of the workers that run the function,
            `clew worker --serve tools --task-queue NAME`; None: that of the session. The session's workers need the
            module, too, for the schema.

    Raises:
        TypeError: A parameter has no annotation or a type without a JSON Schema, is positional-only, `*args` or
            `**kwargs`; or the name, the timeout, the retries or the task queue are out of bounds.
    """

    def make_tool(decorated: Callable[P, R]) -> Tool[P, R]:
        return Tool(
            decorated,
            name=name,
            timeout_seconds=timeout_seconds,
            retries=retries,
            idempotent=idempotent,
            requires_approval=requires_approval,
            task_queue=task_queue,
        )

    return make_tool if function is None else make_tool(function)


class _Untitled(GenerateJsonSchema):
    """Makes schemas without titles, which repeat the names and cost tokens."""

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ARG002 - pydantic's
        return False


def _make_arguments_model(
    name: str, function: Callable[..., Any], descriptions: Mapping[str, str]
) -> tuple[str | None, type[BaseModel]]:
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
        hint: Any = hints[parameter.name]
        # A description in the annotation wins.
        if parameter.name in descriptions and FieldInfo.from_annotation(hint).description is None:
            hint = Annotated[hint, Field(description=descriptions[parameter.name])]
        # The prefix avoids the names of a pydantic model's own attributes.
        fields[f"argument_{parameter.name}"] = (hint, Field(default, alias=parameter.name))
    return context_parameter, create_model(name, __config__=ConfigDict(extra="forbid"), **fields)


def _make_schema(arguments: type[BaseModel]) -> dict[str, Any]:
    schema = arguments.model_json_schema(schema_generator=_Untitled)
    del schema["title"]
    return schema
