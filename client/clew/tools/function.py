"""Function tools: Python functions that a model may call, with a schema made from their signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, ParamSpec, Protocol, TypeVar, Unpack, get_type_hints, overload

import docstring_parser
from docstring_parser import DocstringStyle
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import to_json

from clew.content import Media
from clew.tools.definition import ToolDefinition, ToolSettings, check_name, check_temporal_name, make_spec
from clew_workflows.contract.content import BlobReader, ReadsBlobs
from clew_workflows.contract.schemas import check_arguments

# The context of a tool call, which a tool receives if it declares a parameter of this type.


class CallBlobs(BlobReader, Protocol):
    """Reads the blobs of the session of a call, and finds those of its request."""

    async def list_media(self) -> list[Media]:
        """List the media of the request's messages, from any event loop."""
        ...

    def list_media_sync(self) -> list[Media]:
        """List them, and block the thread meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class ToolContext(ReadsBlobs):
    """The call that a tool serves. A tool that declares a parameter of this type receives it.

    The model does not see the parameter. A unit test can make one.

    Attributes:
        session_id: The session's id, which is the workflow's id.
        request_id: The request in whose run the model called the tool.
        tool_call_id: The id of the call, unique in the session's thread.
        idempotency_key: The same for every attempt of the call, and different for other calls: pass it to services
            that have effects.
        attempt: The number of the attempt, from 1 on.
        agent: The name of the session's agent; None: it has none.
        metadata: The session's metadata, those of its agent included.
        request_metadata: The metadata of the message that the run serves.

    Example:
        @tool(idempotent=False)
        def refund(order_id: int, context: ToolContext) -> str:
            return bank.refund(order_id, customer=context.metadata["user"], key=context.idempotency_key)
    """

    session_id: str
    request_id: str
    tool_call_id: str
    idempotency_key: str
    attempt: int
    agent: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    request_metadata: Mapping[str, str] = field(default_factory=dict)
    _report: Callable[[str, float | None], None] = field(repr=False, default=lambda _text, _fraction: None)
    _blobs: CallBlobs | None = field(repr=False, compare=False, default=None)

    def report(self, text: str, fraction: float | None = None) -> None:
        """Report the progress of the call, which viewers of the session get. The newest report counts.

        Args:
            text: What the tool is doing; its first 1 000 characters are kept.
            fraction: The part of the work that is done, from 0 to 1.

        Example:
            context.report("asking the bank", 0.2)
        """
        self._report(text, fraction)

    async def list_media(self) -> list[Media]:
        """List the images, recordings and files of the user's messages to this request, oldest first.

        `read_blob` reads them. A tool that returns one shows it to the model again.

        Raises:
            ArchiveUnavailable: The thread cannot be read at present.

        Example:
            receipt = (await context.list_media())[-1]
            data = await context.read_blob(receipt)
        """
        return [] if self._blobs is None else await self._blobs.list_media()

    def list_media_sync(self) -> list[Media]:
        """List them as `list_media` does, in a function that is not async. It blocks the thread.

        Example:
            receipt = context.list_media_sync()[-1]
        """
        return [] if self._blobs is None else self._blobs.list_media_sync()


# Descriptions of arguments, from the docstring of a function: in Google's, NumPy's or Sphinx's style.


_GOOGLE = re.compile(r"(Args|Arguments|Params|Parameters|Keyword Args|Keyword Arguments|Other Parameters):\s*")
_NUMPY = re.compile(r"(Parameters|Params|Arguments|Args|Other Parameters|Other Params|Other Args|Keyword Args)\s*")
_UNDERLINE = re.compile(r"-{2,}\s*")
_FIELD = re.compile(r"[:@](param|parameter|arg|argument|key|keyword|type)\s.*:.*", re.DOTALL)


def split_docstring(docstring: str, parameters: Collection[str]) -> tuple[str, dict[str, str]]:
    """Split a docstring into the description of a tool and those of its arguments.

    The part about the arguments leaves the tool's description. Where none of the parameters is described, the
    description is the docstring.

    Args:
        docstring: The docstring, without its indentation.
        parameters: The names of the function's parameters.
    """
    try:
        parsed = docstring_parser.parse(docstring)
    except docstring_parser.ParseError:
        return docstring, {}
    descriptions = {
        param.arg_name: " ".join(param.description.split())
        for param in parsed.params
        if param.arg_name in parameters and param.description
    }
    if not descriptions:
        return docstring, {}
    lines = docstring.splitlines()
    match parsed.style:
        case DocstringStyle.GOOGLE:
            kept = _drop_sections(lines, _GOOGLE)
        case DocstringStyle.NUMPYDOC:
            kept = _drop_numpy(lines)
        case _:
            kept = _drop_sections(lines, _FIELD)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip(), descriptions


def _drop_sections(lines: Sequence[str], title: re.Pattern[str]) -> list[str]:
    """Drop the sections whose first line matches, each up to the next line that is not indented."""
    kept: list[str] = []
    within = False
    for line in lines:
        if line and not line[0].isspace():
            within = title.fullmatch(line) is not None
        if not within:
            kept.append(line)
    return kept


def _drop_numpy(lines: Sequence[str]) -> list[str]:
    """Drop the sections of arguments, each up to the next underlined title."""
    kept: list[str] = []
    within = False
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line and _UNDERLINE.fullmatch(following):
            within = _NUMPY.fullmatch(line) is not None
        if not within:
            kept.append(line)
    return kept


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
        name: str | None = None,
        task_queue: str | None = None,
        **settings: Unpack[ToolSettings],
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
        super().__init__(make_spec(name, description, schema), **settings)

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
    task_queue: str | None = None,
    **settings: Unpack[ToolSettings],
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    function: Callable[P, R] | None = None,
    /,
    *,
    name: str | None = None,
    task_queue: str | None = None,
    **settings: Unpack[ToolSettings],
) -> Tool[P, R] | Callable[[Callable[P, R]], Tool[P, R]]:
    """Make a function a tool. A sync function runs in its own thread; an async one must not block the event loop.

    The model reads the function's docstring; what it says of the arguments, in Google's, NumPy's or Sphinx's style,
    describes them in the schema. The parameters' annotations make the schema, and a model's arguments are validated
    against them.

    Args:
        function: The function, if the decorator is used without arguments.
        name: The name of the tool; the function's own by default.
        task_queue: The task queue of the workers that run the function,
            `clew worker --serve tools --task-queue NAME`; None: that of the session. The session's workers need the
            module, too, for the schema.
        settings: The settings of the calls (`ToolSettings`). **A call may run twice** unless `idempotent=False`.

    Returns:
        The tool, which can still be called as the function. What the function returns is the result: a text, a value
        that pydantic can turn into JSON, an `Image`, an `Audio`, a `File`, or a list with some of these.

    Raises:
        TypeError: A parameter has no annotation or a type without a JSON Schema, is positional-only, `*args` or
            `**kwargs`; or the name, the timeout, the retries or the task queue are out of bounds.

    Example:
        @tool(timeout_seconds=10, idempotent=False)
        def refund(order_id: int, context: ToolContext) -> str:
            return bank.refund(order_id, idempotency_key=context.idempotency_key)
    """

    def make_tool(decorated: Callable[P, R]) -> Tool[P, R]:
        return Tool(decorated, name=name, task_queue=task_queue, **settings)

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
