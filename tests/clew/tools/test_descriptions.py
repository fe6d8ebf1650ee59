"""Descriptions of arguments in docstrings."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from clew import ToolContext, tool
from clew.tools.function import split_docstring

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
