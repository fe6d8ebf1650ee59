"""Messages: their canonical JSON, and the data that they do not hold."""

from __future__ import annotations

import base64
import json
import struct
import time
from hashlib import sha256
from http import HTTPStatus
from typing import Any

import pytest
import rfc8785
from hypothesis import given, reject
from hypothesis import strategies as st
from pydantic_core import to_json

from clew_workflows.contract.messages import (
    Citation,
    canonicalize,
    compute_digest,
    find_data_url,
    list_cited_pages,
    replace_data,
)
from tests.support.images import DATA_URL, PARTS, PNG
from tests.support.reference import canonical_json

# The canonical form: RFC 8785, and values without one.


def nested(depth: int, value: Any = 0, kind: str = "list") -> Any:
    """A value inside so many containers."""
    for _ in range(depth):
        value = [value] if kind == "list" else {"a": value}
    return value


def test_the_example_of_the_rfc() -> None:
    """RFC 8785, 3.2.2: numbers, strings and literals in their one form."""
    text = r"""{
        "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
        "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
        "literals": [null, true, false]
    }"""
    assert (
        canonicalize(json.loads(text))
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_the_order_of_keys_of_the_rfc() -> None:
    """RFC 8785, 3.2.3: keys are in the order of their UTF-16 code units."""
    keys = ["€", "\r", "\ufb33", "1", "😀", "\x80", "ö"]
    ordered = ["\r", "1", "\x80", "ö", "€", "😀", "\ufb33"]
    assert list(json.loads(canonicalize(dict.fromkeys(keys, 0)))) == ordered


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_the_numbers_of_the_rfc(bits: str, text: str) -> None:
    """RFC 8785, appendix B: each double has one shortest form."""
    assert canonicalize(struct.unpack(">d", bytes.fromhex(bits))[0]).decode() == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (2**53 - 1, "9007199254740991"),
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**63), "-9223372036854776000"),
        (10**21, "1e+21"),
        (True, "true"),
    ],
)
def test_integers_are_doubles(number: int, text: str) -> None:
    """An integer that no double holds exactly is the double nearest to it, wherever it stands."""
    assert canonicalize({"a": [number]}).decode() == f'{{"a":[{text}]}}'


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        "\ud800",
        {"\udfff": 1},
        10**400,
        b"bytes",
        {1: "key"},
        {"set"},
        object(),
        nested(100_000),
        nested(100_000, kind="dict"),
        nested(100_000, 2**60),
        [2**60, nested(100_000)],
        [2**60, "\ud800"],
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_json(value: Any) -> None:
    """A value without a canonical form raises ValueError and no other error, beside a large integer too."""
    for container in (value, [value], {"a": value}):
        with pytest.raises(ValueError):  # noqa: PT011 - which of its kinds is not promised
            canonicalize(container)


@pytest.mark.parametrize("kind", ["list", "dict"])
@pytest.mark.parametrize("leaf", [0, 2**60])
def test_the_depth_is_the_same_everywhere(kind: str, leaf: int) -> None:
    """Two hundred levels can be written and no more, however deep the caller's own stack is."""

    def deep_in_calls(calls: int) -> None:
        if calls:
            deep_in_calls(calls - 1)
            return
        assert canonicalize(nested(200, leaf, kind))
        with pytest.raises(ValueError, match="200 levels"):
            canonicalize(nested(201, leaf, kind))

    deep_in_calls(0)
    deep_in_calls(200)


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abcé", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(_json)
def test_agrees_with_sorted_compact_json(value: Any) -> None:
    """Without fractions and far keys the form is compact JSON with sorted keys, and reads back equal."""
    assert canonicalize(value).decode() == canonical_json(value)
    assert json.loads(canonicalize(value)) == value


_any_json: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats() | st.text() | st.sampled_from(HTTPStatus),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text("aé€\ufb33😀\n", max_size=3) | st.sampled_from([1, None]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(_any_json)
def test_agrees_with_the_library(value: Any) -> None:
    """`canonicalize` writes any value as the library for RFC 8785 writes it, and refuses what the library refuses."""
    try:
        expected = rfc8785.dumps(value)
    except rfc8785.IntegerDomainError:
        reject()
    except rfc8785.CanonicalizationError:
        with pytest.raises(ValueError, match=r"."):
            canonicalize(value)
    else:
        assert canonicalize(value) == expected


@given(st.dictionaries(st.text("abc", max_size=3), st.integers(0, 9)))
def test_order_does_not_matter(value: dict[str, int]) -> None:
    """Two objects that differ in the order of their keys have one digest: SHA-256 over the form."""
    turned = dict(reversed(value.items()))
    assert compute_digest(value) == compute_digest(turned) == sha256(canonical_json(value).encode()).hexdigest()


# Texts without the data that programs write as text.


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


def test_a_page_that_is_cited_twice_is_listed_once() -> None:
    """In the order of the citations, with the first title that one of them has."""
    citations: list[Citation] = [
        {"url": "https://b.example", "start": 0, "end": 1},
        {"url": "https://a.example", "title": "A"},
        {"url": "https://b.example", "title": "B", "quote": "b"},
        {"url": "https://b.example", "title": "Another"},
    ]
    assert list_cited_pages(citations) == [
        {"url": "https://b.example", "title": "B"},
        {"url": "https://a.example", "title": "A"},
    ]
