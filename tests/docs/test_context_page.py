"""The page about contexts names the policy's fields and defaults as they are."""

from __future__ import annotations

import json
import re

import pytest

from clew.contract import ContextPolicy
from docs.generate import DOCS

FIELDS = (DOCS / "context.md").read_text().split("## The fields", 1)[1].split("\n## ", 1)[0]
SHOWN = dict(
    re.findall(r"`(\w+)`(?: \(`?([^`)]*)`?\))?", " ".join(re.findall(r"^\| (.*?) \|", FIELDS, re.MULTILINE)))
)


def test_the_table_has_every_field_and_no_other() -> None:
    """A field that is added, renamed or taken away changes the page."""
    assert SHOWN.keys() == ContextPolicy.model_fields.keys()


@pytest.mark.parametrize("name", [name for name, default in SHOWN.items() if default])
def test_defaults_are_those_of_the_code(name: str) -> None:
    """Where the table names a default it is the code's."""
    default = ContextPolicy.model_fields[name].default
    assert SHOWN[name] == (default if isinstance(default, str) else json.dumps(default))
