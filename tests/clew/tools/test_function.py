"""Function tools: plain functions, and what a model and a worker know of them."""

from __future__ import annotations

import enum
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import date
from typing import Annotated, Any, Literal, NotRequired, Optional, assert_type

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from typing_extensions import TypedDict

from clew import Tool, ToolContext, tool
from clew.tools.function import split_docstring
from clew_workflows.contract.messages import canonicalize

# Tools: plain functions, and what a model and a worker know of them.


CONTEXT = ToolContext(
    session_id="s", request_id="r", tool_call_id="tool00001", idempotency_key="s/tool00001", attempt=1
)


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


class Item(BaseModel):
    """A line of an order."""

    model_config = ConfigDict(strict=True)

    name: str = Field(description="what is ordered")
    count: int = 1
    due: date | None = None
    parts: list[Item] = []


class Point(TypedDict):
    x: float
    y: NotRequired[float]


def parameters(made: Tool[..., Any]) -> dict[str, Any]:
    return made.spec["parameters"]


def test_the_schema_is_the_signature() -> None:
    """Types, defaults, descriptions and bounds as the annotations give them; nothing else is allowed in."""

    @tool
    def search(
        query: Annotated[str, Field(description="what to look for", min_length=1)],
        limit: Annotated[int, Field(ge=1, le=50)] = 10,
        unit: Unit = Unit.METRE,
        *,
        sort: Literal["asc", "desc"] | None = None,
        tags: Optional[list[str]] = None,  # noqa: UP045 - users write it so
    ) -> str:
        """Look something up.

        In the catalogue.
        """
        return query

    assert search.spec["name"] == "search"
    assert search.spec["description"] == "Look something up.\n\nIn the catalogue."
    schema = parameters(search)
    assert (schema["type"], schema["required"], schema["additionalProperties"]) == ("object", ["query"], False)
    assert schema["properties"]["query"] == {"type": "string", "description": "what to look for", "minLength": 1}
    assert schema["properties"]["limit"] == {"type": "integer", "default": 10, "minimum": 1, "maximum": 50}
    assert schema["properties"]["unit"]["default"] == "m"
    assert schema["properties"]["sort"]["default"] is None
    assert list(schema["properties"]) == ["query", "limit", "unit", "sort", "tags"]
    assert "title" not in schema
    assert all("title" not in property_ for property_ in schema["properties"].values())
    assert search.bind({"query": "a"}, CONTEXT) == {
        "query": "a",
        "limit": 10,
        "unit": Unit.METRE,
        "sort": None,
        "tags": None,
    }


def test_models_and_typed_dicts_are_parameters_too() -> None:
    """Nested, recursive and strict ones: what a model sends is JSON, and is read as JSON."""

    @tool
    def order(item: Item, at: Point, extra: list[Item] = []) -> None:  # noqa: B006 - pydantic copies it
        """Order something."""

    assert parameters(order)["$defs"]["Item"]["properties"]["name"]["description"] == "what is ordered"
    sent = {"item": {"name": "a", "due": "2026-03-01", "parts": [{"name": "b"}]}, "at": {"x": 1}}
    bound = order.bind(sent, CONTEXT)
    assert bound["item"] == Item(name="a", due=date(2026, 3, 1), parts=[Item(name="b")])
    assert bound["at"] == {"x": 1.0}
    bound["extra"].append(1)
    assert order.bind(sent, CONTEXT)["extra"] == []
    with pytest.raises(ValidationError):
        order.bind({"item": {"name": "a", "count": "2"}, "at": {"x": 1}}, CONTEXT)


@pytest.mark.parametrize(
    "arguments", [{}, {"a": "x"}, {"a": None}, {"a": 1, "b": 2}, {"a": 1.5}, {"A": 1}, {"argument_a": 1}, {"a": [1]}]
)
def test_arguments_that_are_not_of_the_signature_are_refused(arguments: dict[str, Any]) -> None:
    """By pydantic's error, which says where."""

    @tool
    def once(a: int) -> int:
        return a

    with pytest.raises(ValidationError):
        once.bind(arguments, CONTEXT)


NAMES = "_private __dunder self_ model_config model_fields schema json copy dict validate args kwargs cls name"


def test_parameters_may_be_called_anything() -> None:
    """Also what a pydantic model's own attributes are called, and with an underscore in front."""
    names = NAMES.split()
    namespace: dict[str, Any] = {}
    exec(f"def odd({', '.join(f'{name}: int' for name in names)}): return locals()", namespace)
    odd = tool(namespace["odd"])
    arguments = {name: number for number, name in enumerate(names)}
    assert parameters(odd)["required"] == names
    assert odd.bind(arguments, CONTEXT) == arguments
    assert odd.function(**odd.bind(arguments, CONTEXT)) == arguments


def test_the_context_is_given_and_never_asked_for() -> None:
    """A parameter of its type is no part of the schema; where it stands and what it is called is free."""

    @tool
    def first(context: ToolContext, a: int) -> str:
        return context.idempotency_key

    @tool
    def last(a: int, *, ctx: ToolContext | None = None) -> str:
        return ctx.idempotency_key if ctx else "called as a function"

    for made in (first, last):
        assert list(parameters(made)["properties"]) == ["a"]
        assert made.function(**made.bind({"a": 1}, CONTEXT)) == "s/tool00001"
        with pytest.raises(ValidationError):
            made.bind({"a": 1, "context": {}}, CONTEXT)
    assert last(1) == "called as a function"


def test_a_tool_without_parameters() -> None:
    """An empty object, and nothing but that."""

    @tool
    def now() -> str:
        return "now"

    assert parameters(now) == {"type": "object", "properties": {}, "additionalProperties": False}
    assert now.spec["description"] == ""
    assert now.bind({}, CONTEXT) == {}


async def test_a_tool_is_still_the_function() -> None:
    """Called as ever, sync or async, by position or by name; types included."""

    @tool
    def add(a: int, b: int = 2) -> int:
        """The sum."""
        return a + b

    @tool(name="later-add", timeout_seconds=5, retries=2)
    async def add_later(a: int, b: int) -> int:
        return a + b

    assert_type(add(1), int)
    assert_type(await add_later(1, 2), int)
    assert (add(1), add(1, b=5), await add_later(1, 2)) == (3, 6, 3)
    assert (add.is_async, add_later.is_async) == (False, True)
    assert (add.name, add.timeout_seconds, add.retries) == ("add", 60, 0)
    assert (add_later.name, add_later.timeout_seconds, add_later.retries) == ("later-add", 5, 2)
    assert repr(add_later) == "<tool later-add>"
    with pytest.raises(TypeError):
        add("1", 2, 3)  # type: ignore[call-arg, arg-type]  # pyright: ignore


def test_a_wrapped_function_keeps_its_signature() -> None:
    """What other decorators made with `functools.wraps` is described as what it wraps."""

    def traced(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return wrapper

    @tool
    @traced
    def add(a: int, b: int) -> int:
        """The sum."""
        return a + b

    assert add.spec["description"] == "The sum."
    assert list(parameters(add)["properties"]) == ["a", "b"]
    assert add.function(**add.bind({"a": 1, "b": 2}, CONTEXT)) == 3


def test_every_schema_can_be_hashed() -> None:
    """It becomes part of the thread and of every context's digest."""

    @tool
    def odd(a: float = 1e300, b: int = 2**80, c: str = "\U0001f43b", d: tuple[int, str] = (1, "x")) -> None: ...

    assert canonicalize(odd.spec)


def positional(a: int, /) -> None: ...
def variadic(*values: int) -> None: ...
def keywords(**values: int) -> None: ...
def bare(a) -> None: ...  # type: ignore[no-untyped-def]
def with_a_field(a: int = Field(description="x")) -> None: ...
def with_a_callable(a: Callable[[int], int]) -> None: ...
def with_nan(a: float = float("nan")) -> None: ...
def with_the_unknown(a: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821  # pyright: ignore
def with_two_contexts(a: ToolContext, b: ToolContext) -> None: ...
def with_context_in_a_list(a: list[ToolContext]) -> None: ...
def with_a_broken_docstring() -> None: ...
def generator(a: int) -> Iterator[int]:
    yield a


async def async_generator(a: int) -> AsyncIterator[int]:
    yield a


with_a_broken_docstring.__doc__ = "\ud800"


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (positional, "cannot be passed by name"),
        (variadic, "cannot be passed by name"),
        (keywords, "cannot be passed by name"),
        (bare, "'a' needs an annotation"),
        (with_a_field, "write a: Annotated"),
        (with_a_callable, "has no JSON Schema"),
        (with_nan, "has no JSON Schema"),
        (with_the_unknown, "'Nowhere' is not defined"),
        (with_two_contexts, "'b' too"),
        (with_context_in_a_list, "has no JSON Schema"),
        (with_a_broken_docstring, "has no JSON Schema"),
        (generator, "it is a generator"),
        (async_generator, "it is a generator"),
        (lambda: 1, "not '<lambda>'"),
        (functools.partial(print, "a"), "a tool's name"),
    ],
)
def test_what_cannot_be_a_tool_is_a_type_error_at_once(function: Callable[..., Any], reason: str) -> None:
    """The decorator raises the error, not the first call; the message says what is wrong."""
    with pytest.raises(TypeError, match=reason):
        tool(function)


@pytest.mark.parametrize("name", ["a b", "a.b", "ä", "a" * 65, "tool!", "-_-", " ", "a\n", "1/2"])
def test_a_name_is_one_that_every_provider_takes(name: str) -> None:
    with pytest.raises(TypeError, match="a tool's name"):
        tool(name=name)(with_nan)


def len_of(text: str) -> int:
    return len(text)


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf"), 1e300, 30 * 86400 + 1])
def test_a_timeout_is_one_that_temporal_can_hold(seconds: float) -> None:
    with pytest.raises(TypeError, match="timeout"):
        tool(timeout_seconds=seconds)(len_of)


@pytest.mark.parametrize("retries", [-1, 1001, 2**40, 0.5])
def test_retries_are_a_number_that_temporal_can_hold(retries: int) -> None:
    with pytest.raises(TypeError, match="retries"):
        tool(retries=retries)(len_of)


def test_a_tool_may_run_again_and_needs_nobodys_word_unless_it_says_so() -> None:
    """Both are for the worker and the session: a model reads the same of the tool either way."""

    def pay(amount: int) -> None:
        """Move money."""

    plain, careful = tool(pay), tool(idempotent=False, requires_approval=True)(pay)
    assert (plain.idempotent, plain.requires_approval) == (True, False)
    assert (careful.idempotent, careful.requires_approval) == (False, True)
    assert careful.spec == plain.spec
    assert tool(requires_approval=True)(pay).idempotent
    assert not tool(idempotent=False)(pay).requires_approval


def test_what_must_not_run_twice_is_not_retried() -> None:
    """The contradiction is told where it is written."""

    def pay(amount: int) -> None: ...

    with pytest.raises(TypeError, match="tool 'pay': a tool that is not idempotent cannot be retried"):
        tool(idempotent=False, retries=1)(pay)
    assert tool(idempotent=False, retries=0)(pay).retries == 0


@pytest.mark.parametrize("name", ["a", "A-1_b", "9", "a" * 64])
def test_the_names_that_there_may_be(name: str) -> None:
    def nothing() -> None: ...

    assert tool(name=name)(nothing).spec["name"] == name


# Descriptions of arguments in docstrings.


GOOGLE = """Look up the weather.

    It is a forecast.

    Args:
        city: The city, as
            people call it.
        days (int): How many days. Defaults to 3.
        context: Not for the model.

    Returns:
        The weather, a day a line.

    Raises:
        LookupError: There is no such city.
"""
NUMPY = """Look up the weather.

    It is a forecast.

    Parameters
    ----------
    city : str
        The city, as
        people call it.
    days : int, optional
        How many days. Defaults to 3.
    context : ToolContext
        Not for the model.

    Returns
    -------
    str
        The weather, a day a line.
"""
SPHINX = """Look up the weather.

    It is a forecast.

    :param city: The city, as
        people call it.
    :param int days: How many days. Defaults to 3.
    :type city: str
    :param context: Not for the model.
    :returns: The weather, a day a line.
"""


def describe(docstring: str) -> tuple[str, dict[str, Any]]:
    """The description of a tool with a docstring, and those of its arguments."""

    def weather(city: str, context: ToolContext, days: int = 3) -> str:
        return city * days

    weather.__doc__ = docstring
    spec = tool(weather).spec
    properties = spec["parameters"]["properties"]
    return spec["description"], {name: schema.get("description") for name, schema in properties.items()}


@pytest.mark.parametrize(
    ("docstring", "rest"),
    [
        (
            GOOGLE,
            "Returns:\n    The weather, a day a line.\n\nRaises:\n    LookupError: There is no such city.",
        ),
        (NUMPY, "Returns\n-------\nstr\n    The weather, a day a line."),
        (SPHINX, ":returns: The weather, a day a line."),
    ],
    ids=["Google", "NumPy", "Sphinx"],
)
def test_arguments_are_described_by_the_docstring(docstring: str, rest: str) -> None:
    """Their part leaves the tool's description; the other parts stay."""
    description, arguments = describe(docstring)
    assert arguments == {"city": "The city, as people call it.", "days": "How many days. Defaults to 3."}
    assert description == f"Look up the weather.\n\nIt is a forecast.\n\n{rest}"


def test_a_description_in_the_annotation_wins() -> None:
    """The docstring describes the others."""

    @tool
    def weather(city: Annotated[str, Field(description="from the annotation", min_length=1)], days: int) -> str:
        """Look up the weather.

        Args:
            city: From the docstring.
            days: How many days.
        """
        return city * days

    properties = weather.spec["parameters"]["properties"]
    assert properties["city"] == {"description": "from the annotation", "minLength": 1, "type": "string"}
    assert properties["days"] == {"description": "How many days.", "type": "integer"}
    assert weather.spec["description"] == "Look up the weather."


@pytest.mark.parametrize(
    "docstring",
    [
        "Look up.",
        "Note: of city.\n\nUsage:\n    weather(city)",
        "Look up.\n\nArgs:\n    town: Another.",
        "",
        "Look up.\n\n:param town: No.",
    ],
)
def test_a_docstring_that_describes_no_argument_stays(docstring: str) -> None:
    """Without descriptions of parameters the model reads the docstring unchanged, with all of its sections."""
    description, arguments = describe(docstring)
    assert (description, arguments) == (docstring, {"city": None, "days": None})


LINES = st.lists(
    st.sampled_from(
        ["Args:", "    city: x", ":param city: y", "city : z", "Parameters", "----", "", "text", "@param"]
    )
    | st.text(max_size=20)
)


@given(LINES)
def test_any_docstring_is_read(lines: list[str]) -> None:
    """A docstring that is odd makes odd descriptions, and no error."""
    description, descriptions = split_docstring("\n".join(lines), ["city"])
    assert set(descriptions) <= {"city"}
    assert descriptions or description == "\n".join(lines)
