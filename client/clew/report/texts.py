"""The texts of a report: how much of each it has, and whether it has them at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, overload

from clew.report.types import Text

MAX_TEXT_CHARACTERS = 20_000
"""Most characters of one text."""
MAX_CHARACTERS = 4_000_000
"""Most characters of all texts."""


@dataclass(slots=True)
class Texts:
    """Takes the texts of a session into a report. Every text of the conversation passes here.

    Attributes:
        included: Whether the report has texts; if not, it has their lengths.
        room: The characters that the report still has room for.
    """

    included: bool = True
    room: int = MAX_CHARACTERS

    @overload
    def take(self, text: str, most: int = ...) -> Text: ...
    @overload
    def take(self, text: str | None, most: int = ...) -> Text | None: ...
    def take(self, text: str | None, most: int = MAX_TEXT_CHARACTERS) -> Text | None:
        """Take a text, or its first characters, at most `most`; None stays None."""
        if text is None:
            return None
        shown = min(len(text), most, self.room) if self.included else 0
        self.room -= shown
        return Text(content=text[:shown], left_out=len(text) - shown)

    def take_json(self, value: Mapping[str, Any]) -> Text:
        """Take a JSON object: in one line if it is short, else indented."""
        line = json.dumps(value, ensure_ascii=False)
        return self.take(line if len(line) <= 80 else json.dumps(value, ensure_ascii=False, indent=2))
