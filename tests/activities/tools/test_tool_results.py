"""A tool's result, and its error, is a text that the model reads and that can be stored."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from tests.support.examples import examples
from tests.support.images import PARTS, PNG
from tests.support.model_calls import KIB64, Unspeakable, run_returning


class Order(BaseModel):
    number: int
    due: date


@dataclass
class Place:
    name: str


class Odd:
    def __str__(self) -> str:
        return "an odd thing"


def make_loop() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["itself"] = value
    return value


@pytest.mark.parametrize(
    ("value", "content"),
    [
        ("plain text", "plain text"),
        ("", ""),
        ("wide: \U0001f43b é", "wide: \U0001f43b é"),
        ("control: \x00\x1b\r\n", "control: \x00\x1b\r\n"),
        ("lone: \ud800!", "lone: \ufffd!"),
        ("split: \ud83d\udc3b", "split: \U0001f43b"),
        (None, "null"),
        (True, "true"),
        (12, "12"),
        (2**80, str(2**80)),
        (1.5, "1.5"),
        (float("nan"), "NaN"),
        (Decimal("1.10"), '"1.10"'),
        ({"a": [1, "é", None]}, '{"a":[1,"é",null]}'),
        ({1: "a"}, '{"1":"a"}'),
        ((1, 2), "[1,2]"),
        ({"only"}, '["only"]'),
        (b"bytes", '"bytes"'),
        (Order(number=1, due=date(2026, 1, 2)), '{"number":1,"due":"2026-01-02"}'),
        ([Order(number=1, due=date(2026, 1, 2))], '[{"number":1,"due":"2026-01-02"}]'),
        (Place("Naxos"), '{"name":"Naxos"}'),
        (Path("a/b"), '"a/b"'),
        (Odd(), '"an odd thing"'),
        ({"odd": Odd()}, '{"odd":"an odd thing"}'),
        ((n for n in range(3)), "[0,1,2]"),
        (b"\xff\xfe", "[data, 2 bytes: left out, a model reads text only]"),
        (make_loop(), "{'itself': {...}}"),
        ({"lone": "\ud800"}, "{'lone': '\\ud800'}"),
        ([Unspeakable()], None),
        (Unspeakable(), "a Unspeakable that cannot be shown (ValueError)"),
    ],
)
async def test_every_result_is_text_that_can_be_stored(value: Any, content: str | None) -> None:
    """A string as it is, anything else as JSON, and what is no JSON as Python shows it: never an error."""
    answer = await run_returning(value)
    assert not answer.is_error
    answer.content.encode()
    if content is not None:
        assert answer.content == content


@pytest.mark.parametrize("limit", [256, 300, 4096, KIB64])
@pytest.mark.parametrize("character", ["x", "é", "€", "\U0001f43b", "\x01"])
async def test_a_result_is_truncated_at_its_limit_and_says_so(limit: int, character: str) -> None:
    """One at the limit is complete; a longer one is truncated between characters, and its mark says both sizes."""
    width = len(character.encode())
    text = character * (limit // width)
    assert (await run_returning(text, limit)).content == text
    size = len((text + character).encode())
    answer = await run_returning(text + character, limit)
    kept, _, mark = answer.content.partition("\n[truncated: ")
    assert len(answer.content.encode()) <= limit
    assert set(kept) == {character}
    assert mark == f"the first {len(kept.encode())} of {size} bytes are shown]"
    assert len(kept.encode()) > limit - 120
    assert not answer.is_error


@examples(100)
@given(text=st.text(st.characters(), max_size=400), limit=st.integers(256, 400))
def test_no_result_is_larger_than_its_limit(text: str, limit: int) -> None:
    """The limit holds in bytes, for any characters."""
    answer = asyncio.run(run_returning(text, limit))
    assert len(answer.content.encode()) <= limit


async def test_a_huge_result_is_truncated_like_any_other() -> None:
    answer = await run_returning(["x" * 1000] * 10_000)
    assert len(answer.content.encode()) <= KIB64
    assert answer.content.endswith("of 10030001 bytes are shown]")


@dataclass
class Chart:
    title: str
    image: bytes


@pytest.mark.parametrize(
    "value",
    [
        *(PNG, bytearray(PNG), memoryview(PNG), bytes(len(PNG))),
        *(Chart("sales", PNG), {"images": [PNG, (PNG,)]}, {"lone": "\ud800", "image": PNG}),
        *PARTS.values(),
    ],
    ids=[*("bytes", "bytearray", "memoryview", "zeros", "dataclass", "nested", "lone surrogate"), *PARTS],
)
async def test_what_is_no_text_is_described(value: Any) -> None:
    """The model reads what was left out and how large it is, in some words, and not the data."""
    answer = await run_returning(value)
    assert not answer.is_error
    assert f"{len(PNG)} bytes: left out" in answer.content
    assert len(answer.content) < 300
    assert "PNG" not in answer.content.replace("/png", "")


async def test_bytes_that_are_text_are_a_text() -> None:
    """As JSON writes them."""
    assert (await run_returning("é".encode())).content == '"é"'
