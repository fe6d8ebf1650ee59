"""The tables of the page on the OpenAI API: which fields of its requests are served."""

from __future__ import annotations

from collections.abc import Mapping

from clew.serve.openai.fields import CHAT, RESPONSES, Support
from docs.generate.tables import table

_ORDER: tuple[Support, ...] = ("served", "differs", "refused")


def blocks() -> dict[str, str]:
    """The text of each block, by name."""
    return {"responses_fields": _make_table(RESPONSES), "chat_fields": _make_table(CHAT)}


def _make_table(fields: Mapping[str, tuple[Support, str]]) -> str:
    rows = sorted(fields.items(), key=lambda row: (_ORDER.index(row[1][0]), row[0]))
    return table(("field", "", "how"), ([f"`{name}`", support, note] for name, (support, note) in rows))
