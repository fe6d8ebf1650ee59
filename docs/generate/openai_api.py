"""Which fields of the requests of OpenAI's API are served."""

from __future__ import annotations

from collections.abc import Mapping

from clew.serve.openai.fields import CHAT, RESPONSES, Support

_ORDER: tuple[Support, ...] = ("served", "differs", "refused")


def list_responses_fields() -> list[list[str]]:
    """List the fields of the Responses API: name, whether it is served, how."""
    return _list(RESPONSES)


def list_chat_fields() -> list[list[str]]:
    """List the fields of Chat Completions."""
    return _list(CHAT)


def _list(fields: Mapping[str, tuple[Support, str]]) -> list[list[str]]:
    rows = sorted(fields.items(), key=lambda row: (_ORDER.index(row[1][0]), row[0]))
    return [[f"`{name}`", support, note] for name, (support, note) in rows]
