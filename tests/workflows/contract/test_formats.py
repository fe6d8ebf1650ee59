"""Versions of durable formats."""

from __future__ import annotations

from typing import Any

import pytest

from clew.errors import NewerVersion
from clew_workflows.contract.formats import Format


def rename(value: dict[str, Any]) -> dict[str, Any]:
    return {"text": value["content"]}


def add_size(value: dict[str, Any]) -> dict[str, Any]:
    return {**value, "size": len(value["text"])}


LETTER = Format("letter", 4, (rename, add_size))
"""A format whose versions 2, 3 and 4 are read."""


@pytest.mark.parametrize(
    ("version", "value"), [(2, {"content": "hi"}), (3, {"text": "hi"}), (4, {"text": "hi", "size": 2})]
)
def test_each_version_becomes_the_newest(version: int, value: dict[str, Any]) -> None:
    """A value takes the steps from its version to the newest, and no other; the newest takes none."""
    assert LETTER.upgrade(value, LETTER.check(version)) == {"text": "hi", "size": 2}


def test_a_newer_version_is_refused_by_both_numbers() -> None:
    """The refusal names the version in the data, those that are read, and the way out."""
    with pytest.raises(NewerVersion, match=r"^letter is of version 5, and .* reads 2 to 4: upgrade"):
        LETTER.check(5)
    with pytest.raises(NewerVersion, match=r"^letters/7 is of version 2, and this version of Clew reads 1: upgrade"):
        Format("letter").check(2, "letters/7")


@pytest.mark.parametrize("version", [1, 0, -1, None, "4", 4.0, True, [4]])
def test_what_is_no_version_is_no_newer_one(version: object) -> None:
    """A number that was never written, and what is no number, are damage."""
    with pytest.raises(ValueError, match="the versions are 2 to 4"):
        LETTER.check(version)
