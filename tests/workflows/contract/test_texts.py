"""Texts without the data that programs write as text."""

from __future__ import annotations

import base64
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from clew_workflows.contract.messages import find_data_url, replace_data
from tests.support.images import DATA_URL, PARTS, PNG


@pytest.mark.parametrize("form", PARTS)
def test_an_image_is_described(form: str) -> None:
    """Its size stands in place of it, and of a data URL also its media type; what is around it stays."""
    text = replace_data(to_json({"before": "é", "part": PARTS[form], "after": [1]}).decode())
    assert text.startswith('{"before":"é"')
    assert text.endswith('"after":[1]}')
    assert f", {len(PNG)} bytes: left out" in text
    assert len(text) < 250
    assert ("[image/png, " in text) == (form == "a data URL")
    assert replace_data(text) == text


@pytest.mark.parametrize(
    "text",
    [
        "plain text",
        "x" * 100_000,
        "ACGT" * 5_000,
        "0123456789abcdef" * 500,
        "-" * 5_000,
        "word " * 5_000,
        "url(data:image/gif;base64,R0lGODlhAQABAAAAACw=)",
        "data:image/svg+xml,%3Csvg%20xmlns='http://www.w3.org/2000/svg'/%3E" * 50,
        base64.encodebytes(PNG[:500]).decode(),
    ],
    ids=range(9),
)
def test_text_stays(text: str) -> None:
    """Also if it is long and without spaces, and an icon within a style sheet."""
    assert replace_data(text) == text
    assert find_data_url(text) is None


def test_only_a_data_url_is_data_for_sure() -> None:
    """It names its type, and the first one is described. Base64 alone may be what the text is about."""
    assert find_data_url(f"look: {DATA_URL} and {DATA_URL}") == f"image/png, {len(PNG)} bytes"
    assert find_data_url(DATA_URL.replace("image/png", "")) == f"data, {len(PNG)} bytes"
    assert find_data_url(DATA_URL.replace("image/png", "text/plain;charset=utf-8")) is not None
    assert find_data_url(PARTS["bare"]) is None


@given(st.text(alphabet="ab/,;:= \n"))
def test_no_text_is_lost(text: str) -> None:
    """A text without data is the same afterwards."""
    assert replace_data(text) == text


def test_a_search_takes_time_by_the_length() -> None:
    """Runs that are almost data, a million characters of them."""
    text = (PARTS["bare"][:999] + " ") * 1_000
    started_at = time.process_time()
    assert replace_data(text) == text
    assert time.process_time() - started_at < 1
