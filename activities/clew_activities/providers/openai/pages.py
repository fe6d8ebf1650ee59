"""Reads the pages that servers of Chat Completions name for a reply, and the calls of tools that they ran themselves.

| server | what it sends |
| --- | --- |
| OpenAI's search models, OpenRouter | `annotations` of the type `url_citation` in a message or its deltas |
| Perplexity, xAI | `citations`, a list of URLs, beside the choices; Perplexity also `search_results`, with titles |
| Groq's compound systems | `executed_tools` in a message; in a stream a call comes in parts, by its `index` |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from clew_activities.providers.reply import (
    CALL_TEXT_LIMIT,
    MAX_CITATIONS,
    MAX_PROVIDER_CALLS,
    MAX_SOURCES,
    DraftDecoder,
    get_member,
    read_count,
    read_string,
)
from clew_activities.providers.sanitize import parse_json
from clew_workflows.contract.messages import Source

_TOOLS: Mapping[str, str] = {
    "browser.open": "web_fetch",
    "browser.search": "web_search",
    "code_interpreter": "code_execution",
    "python": "code_execution",
    "search": "web_search",
    "visit": "web_fetch",
    "visit_website": "web_fetch",
}
"""Clew's names of the servers' tools. Another tool keeps its own name."""
_INPUTS = ("query", "url", "code")
"""Members of a call's arguments that are its input where it has one of them."""


class Pages:
    """Collects the pages and the calls of one reply. What a server sends is bounded before it is kept."""

    def __init__(self) -> None:
        self._annotations: list[Mapping[str, Any]] = []
        self._listed: dict[str, str] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add_listed(self, chunk: Mapping[str, Any]) -> None:
        """Take the pages that are listed beside the choices. Servers repeat the list in each chunk."""
        for name in ("citations", "search_results"):
            pages = chunk.get(name)
            for page in pages[:MAX_CITATIONS] if isinstance(pages, list) else ():
                url = read_string(page) or read_string(get_member(page, "url"))
                if url in self._listed or (url and len(self._listed) < MAX_CITATIONS):
                    self._listed[url] = read_string(get_member(page, "title")) or self._listed.get(url, "")

    def add_delta(self, delta: Mapping[str, Any]) -> None:
        """Take the annotations and the calls of a message, or of a part of it."""
        for annotation in _list_objects(delta.get("annotations")):
            if annotation.get("type") == "url_citation" and len(self._annotations) < MAX_CITATIONS:
                self._annotations.append(annotation)
        for number, call in enumerate(_list_objects(delta.get("executed_tools"))):
            index = call["index"] if isinstance(call.get("index"), int) else number
            if index in self._calls or len(self._calls) < MAX_PROVIDER_CALLS:
                self._calls.setdefault(index, {}).update({name: value for name, value in call.items() if value})

    def finish(self, decoder: DraftDecoder, *, has_positions: bool = True) -> None:
        """Add the calls and the citations to the reply; its text may have lost the thinking that stood before it."""
        for _, call in sorted(self._calls.items()):
            tool = read_string(call.get("type"))
            decoder.add_provider_call(
                _TOOLS.get(tool, tool),
                input=_read_input(read_string(call.get("arguments"))[: 4 * CALL_TEXT_LIMIT]),
                # The output of a search is the text of its pages.
                output="" if call.get("search_results") else call.get("output"),
                sources=_list_sources(call),
            )
        cited = set()
        for annotation in self._annotations:
            # OpenRouter's models send the members of the citation with or without an object around them.
            page = annotation.get("url_citation")
            page = page if isinstance(page, dict) else annotation
            decoder.add_citation(
                page.get("url"),
                page.get("title"),
                page.get("content"),
                start=read_count(page.get("start_index")) if has_positions else None,
                end=read_count(page.get("end_index")) if has_positions else None,
            )
            cited.add(read_string(page.get("url")))
        for url, title in self._listed.items():
            if url not in cited:
                decoder.add_citation(url, title)


def _list_objects(value: object) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _read_input(arguments: str) -> str:
    """Read what a call was made with: the query, the address or the code of its arguments, or all of them."""
    parsed = parse_json(arguments)
    return next((text for name in _INPUTS if (text := read_string(get_member(parsed, name)))), arguments)


def _list_sources(call: Mapping[str, Any]) -> Iterator[Source]:
    results = get_member(call.get("search_results"), "results")
    for page in [*_list_objects(results), *_list_objects(call.get("browser_results"))][:MAX_SOURCES]:
        yield {"url": read_string(page.get("url")), "title": read_string(page.get("title"))}
