"""Temporal's search attributes of sessions: their names, their types and the form of their values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

from clew.contract.lists import SessionSummary

AttributeType = Literal["Keyword", "KeywordList", "Int", "Double", "Datetime"]
AttributeValue = str | int | float | tuple[str, ...]
MAX_KEYWORD_CHARACTERS = 255
"""Most characters of a keyword: the columns of Temporal's SQL stores have as many."""
MAX_KEYWORD_BYTES = 1_000
"""Most bytes of a keyword as JSON. The server accepts 2 048 bytes of an attribute."""
MAX_TAGS_BYTES = 1_800
"""Most bytes of the tags as JSON."""

SEARCH_ATTRIBUTES: Mapping[str, AttributeType] = {
    "ClewAgent": "Keyword",
    "ClewModel": "Keyword",
    "ClewStatus": "Keyword",
    "ClewUser": "Keyword",
    "ClewTags": "KeywordList",
    "ClewTokens": "Int",
    "ClewCostUsd": "Double",
    "ClewLastActive": "Datetime",
    "ClewParent": "Keyword",
}
"""The types of the search attributes, as `clew setup-namespace` registers them."""


def make_attributes(summary: SessionSummary) -> dict[str, AttributeValue]:
    """Make the values of a session's search attributes. A session without a value has no such attribute."""
    texts = {
        "ClewAgent": summary.agent,
        "ClewModel": summary.model,
        "ClewStatus": summary.status,
        "ClewUser": summary.user,
        "ClewParent": summary.parent,
    }
    values: dict[str, AttributeValue] = {name: cut_keyword(text) for name, text in texts.items() if text}
    if summary.active_at:
        values["ClewLastActive"] = summary.active_at
    if tags := cut_tags(summary.tags):
        values["ClewTags"] = tags
    if summary.tokens is not None:
        values["ClewTokens"] = summary.tokens
    if summary.cost_usd is not None:
        # Sums of floats have noise that lists would show.
        values["ClewCostUsd"] = round(summary.cost_usd, 6)
    return {name: value for name, value in values.items() if value != ""}


@lru_cache(maxsize=1024)
def cut_keyword(text: str) -> str:
    """Cut a text to a keyword that each visibility store of Temporal takes and can be queried for.

    It is short, and has no control characters, quotation marks and backslashes: no query finds these.
    """
    text = "".join(filter(_is_usable, text))[:MAX_KEYWORD_CHARACTERS]
    while len(json.dumps(text)) > MAX_KEYWORD_BYTES:
        text = text[:-1]
    return text


def _is_usable(character: str) -> bool:
    return character.isprintable() and character not in '"\\'


def cut_tags(tags: tuple[str, ...]) -> tuple[str, ...]:
    """Cut tags to keywords, and leave out the last ones if they are too many."""
    kept: list[str] = []
    for tag in dict.fromkeys(map(cut_keyword, tags)):
        if tag and len(json.dumps([*kept, tag])) <= MAX_TAGS_BYTES:
            kept.append(tag)
    return tuple(kept)
