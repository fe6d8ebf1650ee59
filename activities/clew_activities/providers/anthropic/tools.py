"""The tools that Anthropic runs itself: how a request declares them, and what a reply has of their calls. Pure.

The types are those of platform.claude.com/docs/en/agents-and-tools/tool-use/tool-reference. None of them needs a beta
header. The newest web tools would run code that filters what they find; `allowed_callers` keeps the model as their
only caller, so that each search is a call of its own in the reply, with its sources.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clew_activities.providers.anthropic.models import Generation
from clew_activities.providers.options import describe_provider_tools
from clew_activities.providers.reply import CALL_TEXT_LIMIT, DraftDecoder, get_member, read_string
from clew_workflows.contract.messages import Source

SERVER_USE = "server_tool_use"
MOST_PAGE_TOKENS = 50_000
"""Most tokens of a page that `web_fetch` reads. A reply keeps its blocks only up to their limit."""

_DIRECT = {"allowed_callers": ["direct"]}
_PAGE = {"max_content_tokens": MOST_PAGE_TOKENS}
_TYPES: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "basic": {
        "web_search": {"type": "web_search_20250305"},
        "web_fetch": {"type": "web_fetch_20250910", **_PAGE},
        "code_execution": {"type": "code_execution_20250825"},
    },
    "newest": {
        "web_search": {"type": "web_search_20260318", **_DIRECT},
        "web_fetch": {"type": "web_fetch_20260318", **_PAGE, **_DIRECT},
        "code_execution": {"type": "code_execution_20260521"},
    },
    "none": {},
}

_TOOLS = {
    "web_search": "web_search",
    "web_fetch": "web_fetch",
    "code_execution": "code_execution",
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
}
"""Clew's names of the tools, by the API's."""

RESULTS = frozenset(f"{name}_tool_result" for name in _TOOLS)
"""The types of the blocks that hold results."""

_INPUTS = ("query", "url", "code", "command")


def choose_provider_tools(
    names: Sequence[str], generation: Generation, taken: Collection[str], model: str
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Choose the declarations of the provider's tools, and say why others are left out.

    `taken`: the names of the session's tools, which the API wants to be unique.
    """
    types = _TYPES[generation.tools]
    offered, left_out = describe_provider_tools(list(dict.fromkeys(names)), types, model)
    declared = []
    for name in offered:
        if name in taken:
            left_out[name] = "a tool of the session has its name"
        else:
            declared.append({"name": name, **types[name]})
    return declared, left_out


def list_open_uses(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """List the calls without a result among blocks, by their ids."""
    answered = {block.get("tool_use_id") for block in blocks if block.get("type") in RESULTS}
    uses = {str(block.get("id")): block for block in blocks if block.get("type") == SERVER_USE}
    return {use_id: block for use_id, block in uses.items() if use_id not in answered}


@dataclass
class ServerCalls:
    """The calls of a reply, which are recorded once their results arrive.

    Attributes:
        open: The calls without a result, by their ids. Those of a paused reply come from the request.
    """

    open: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def take_use(self, block: Mapping[str, Any]) -> None:
        """Take a call."""
        self.open[read_string(block.get("id"))] = block

    def take_result(self, block: Mapping[str, Any], draft: DraftDecoder) -> None:
        """Record the call that a result answers."""
        use = self.open.pop(read_string(block.get("tool_use_id")), {})
        kind = read_string(block.get("type"))
        name = read_string(use.get("name")) or kind.removesuffix("_tool_result")
        content = block.get("content")
        draft.add_provider_call(
            _TOOLS.get(name, name),
            input=_describe_input(use.get("input")),
            output=_find_output(content),
            sources=_list_sources(content),
            error=_find_error(content),
        )

    def drop_open(self, draft: DraftDecoder) -> None:
        """Record the calls without a result, of a reply that has ended without them."""
        for use in self.open.values():
            name = read_string(use.get("name"))
            draft.add_provider_call(
                _TOOLS.get(name, name), input=_describe_input(use.get("input")), error="no result"
            )
        self.open = {}


def _describe_input(value: object) -> str:
    for name in _INPUTS:
        if text := read_string(get_member(value, name)):
            return text
    return json.dumps(value)[:CALL_TEXT_LIMIT] if isinstance(value, dict) and value else ""


def _list_sources(content: object) -> list[Source]:
    """List the pages of a result: those that a search has found, or the one that was read."""
    if isinstance(content, list):
        return [_make_source(one.get("url"), one.get("title")) for one in content if isinstance(one, dict)]
    url = get_member(content, "url")
    return [_make_source(url, get_member(get_member(content, "content"), "title"))] if url else []


def _make_source(url: object, title: object) -> Source:
    return {"url": read_string(url), "title": read_string(title)}


def _find_output(content: object) -> str:
    """Find what code has written, or the file that was looked at."""
    texts = [read_string(get_member(content, name)) for name in ("stdout", "stderr")]
    if any(texts):
        return "\n".join(text.rstrip("\n") for text in texts if text)
    lines = get_member(content, "lines")
    if isinstance(lines, list):
        return "\n".join(map(read_string, lines))
    return read_string(get_member(content, "content"))


def _find_error(content: object) -> str | None:
    if code := read_string(get_member(content, "error_code")):
        return code
    code = get_member(content, "return_code")
    return f"exit code {code}" if isinstance(code, int) and code else None
