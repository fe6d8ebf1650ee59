"""Folds the event stream of OpenAI's Responses into a reply.

A reply is a list of items: reasoning, messages, function calls, calls of the server's own tools. Its `provider_data`
holds them in their order, as the server sent them when each was done. Of a function call it holds the item's id
alone: the thread has the rest. The API refuses reasoning without the item after it, and some items without the
reasoning before them, so of a list that is incomplete nothing is kept but the ids of the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from clew_activities.providers.errors import TruncatedStream, classify_event
from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.reply import (
    PROVIDER_DATA_LIMIT,
    Call,
    DraftDecoder,
    get_member,
    limit_id,
    measure,
    parse_event,
    read_count,
    read_string,
)
from clew_activities.providers.sanitize import clean, clean_value
from clew_workflows.contract.messages import ProviderData, Source
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import ModelReply

MAX_ITEMS = 4096
"""Most items of a reply that are kept for the provider; of a reply with more none is kept."""
SEPARATOR = "\n\n"
"""Stands between the messages of a reply, and between the parts of its thinking."""
_ID_LIMIT = 64
"""The longest id of a call that the API takes back."""
_ENDS = ("completed", "failed", "incomplete", "cancelled")
"""The states of a response that has ended."""
_REFUSAL_LIMIT = 4000
"""Characters of a refusal that are kept."""


@dataclass(slots=True)
class _Item:
    """An item that is still arriving.

    Attributes:
        is_call: Whether it is known to be a function call.
        call: The call that it is; None: it is none, or one too many.
        start: The character of the reply's text at which the message begins; None: it has no text.
        has_text: Whether deltas of its text, its thinking or its arguments have arrived.
    """

    is_call: bool = False
    call: Call | None = None
    start: int | None = None
    has_text: bool = False


class ResponsesDecoder(DraftDecoder):
    """Folds the events of a response, or one complete `response`."""

    def __init__(self, provider: str, model: str, tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._open: dict[int, _Item] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._done: set[int] = set()
        self._opened = 0
        self._left = PROVIDER_DATA_LIMIT
        self._is_complete = True
        self._text_size = 0
        self._has_thinking = False
        self._refusal = ""

    def feed(self, event: str, data: str) -> None:
        """Fold one event; ignore unknown kinds of event.

        Raises:
            ProviderError: The event is an error, or says that the response failed.
            TruncatedStream: The event cannot be parsed, or the response was cancelled.
        """
        # Some gateways end every stream so.
        if data.strip() == "[DONE]":
            return
        payload = parse_event(data)
        kind = read_string(payload.get("type")) or event
        response = payload if payload.get("object") == "response" else payload.get("response")
        if kind == "error" or payload.get("error"):
            raise classify_event(payload)
        if isinstance(response, dict) and response.get("status") in _ENDS:
            self._take_response(response)
            return
        index = payload.get("output_index")
        if not isinstance(index, int) or isinstance(index, bool):
            return
        match kind:
            case "response.output_item.added":
                self._open_item(index, payload.get("item"))
            case "response.output_item.done":
                self._close_item(index, payload.get("item"))
            case _ if index not in self._done:
                self._extend(self._open.get(index) or self._open_item(index, None), kind, payload)

    def _extend(self, item: _Item, kind: str, payload: Mapping[str, Any]) -> None:
        delta = read_string(payload.get("delta"))
        match kind:
            case "response.output_text.delta":
                self._add_text(item, delta)
            case "response.refusal.delta":
                self._refusal = (self._refusal + delta)[:_REFUSAL_LIMIT]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_thinking(item, delta)
            case "response.reasoning_summary_part.added" if item.has_text:
                self.add_thinking(SEPARATOR)
            case "response.function_call_arguments.delta":
                item.has_text = item.has_text or bool(delta)
                self.add_arguments(item.call, delta)

    def _open_item(self, index: int, start: object) -> _Item:
        """Begin an item. Servers number them in the order in which they come."""
        self._opened += 1
        if self._opened > MAX_ITEMS:
            self._is_complete = False
            self._blocks.clear()
            self._open.clear()
        item = self._open[index] = _Item()
        if get_member(start, "type") == "function_call":
            self._open_call(item, start)
        return item

    def _open_call(self, item: _Item, start: object) -> None:
        item.is_call = True
        item.call = self.open_call(get_member(start, "call_id"), get_member(start, "name"))
        self._is_complete = self._is_complete and item.call is not None

    def _add_text(self, item: _Item, text: str) -> None:
        if not text:
            return
        if item.start is None:
            separator = SEPARATOR if self._text_size else ""
            item.start = self._text_size + len(separator)
            text = separator + text
        item.has_text = True
        self._text_size += len(text)
        self.add_text(text)

    def _add_thinking(self, item: _Item, text: str) -> None:
        if not text:
            return
        if self._has_thinking and not item.has_text:
            self.add_thinking(SEPARATOR)
        item.has_text = self._has_thinking = True
        self.add_thinking(text)

    def _close_item(self, index: int, end: object) -> None:
        """Take an item as it is when it is done, with what no delta has brought."""
        if index in self._done or not isinstance(end, dict):
            return
        item = self._open.get(index) or self._open_item(index, end)
        self._open.pop(index, None)
        if self._opened <= MAX_ITEMS:
            self._done.add(index)
        match end.get("type"):
            case "message":
                self._close_message(item, end)
            case "reasoning" if not item.has_text:
                parts = [*_list_members(end, "summary"), *_list_members(end, "content")]
                texts = filter(None, (read_string(part.get("text")) for part in parts))
                self._add_thinking(item, SEPARATOR.join(texts))
            case "function_call":
                self._close_call(item, end)
            case "web_search_call":
                self._take_search(end)
            case "code_interpreter_call":
                self._take_code(end)
            case "image_generation_call":
                self._take_image(end)
                return
        self._keep(index, end)

    def _close_call(self, item: _Item, end: Mapping[str, Any]) -> None:
        if not item.is_call:
            self._open_call(item, end)
            item.has_text = False
        if item.call is not None and not item.has_text:
            self.add_arguments(item.call, end.get("arguments"))
        if item.call is not None and not item.call.name:
            item.call.rename(read_string(end.get("name")))

    def _close_message(self, item: _Item, end: Mapping[str, Any]) -> None:
        parts = list(_list_members(end, "content"))
        if not item.has_text:
            self._add_text(item, "".join(read_string(part.get("text")) for part in parts))
        # The parts of a message are one text; the annotations of each count from its beginning.
        start = item.start or 0
        for part in parts:
            text = read_string(part.get("text"))
            if refusal := read_string(part.get("refusal")):
                self._refusal = refusal[:_REFUSAL_LIMIT]
            for note in _list_members(part, "annotations"):
                if note.get("type") == "url_citation":
                    places = (_move(note.get("start_index"), start), _move(note.get("end_index"), start))
                    self.add_citation(note.get("url"), note.get("title"), start=places[0], end=places[1])
            start += len(text)

    def _take_search(self, end: Mapping[str, Any]) -> None:
        """Take a search, or a page that was opened or searched, which has an address in place of a query."""
        action = end.get("action")
        queries = get_member(action, "queries")
        query = read_string(get_member(action, "query")) or "\n".join(
            filter(None, map(read_string, queries if isinstance(queries, list) else ()))
        )
        url = read_string(get_member(action, "url"))
        sources: list[Source] = [{"url": url}] if url else []
        found: list[Source] = [
            {"url": read_string(source.get("url")), "title": read_string(source.get("title"))}
            for source in _list_members(action, "sources")
        ]
        failed = "the search failed" if end.get("status") == "failed" else None
        self.add_provider_call("web_search", input=query or url, sources=[*sources, *found], error=failed)

    def _take_code(self, end: Mapping[str, Any]) -> None:
        logs = "\n".join(filter(None, (read_string(one.get("logs")) for one in _list_members(end, "outputs"))))
        failed = "the code failed" if end.get("status") == "failed" else None
        self.add_provider_call("code_execution", input=end.get("code"), output=logs, error=failed)

    def _take_image(self, end: Mapping[str, Any]) -> None:
        """Take an image. The item has its bytes, so that it does not go back, and neither do the others."""
        self._is_complete = False
        self._blocks.clear()
        failed = "the image was not made" if end.get("status") == "failed" else None
        self.add_provider_call("image_generation", input=end.get("revised_prompt"), error=failed)
        self.add_media("image", end.get("result"))

    def _keep(self, index: int, end: dict[str, Any]) -> None:
        """Keep an item for the provider."""
        block = {"type": "function_call", "id": end.get("id")} if end.get("type") == "function_call" else end
        self._left -= measure(block)
        try:
            cleaned = clean_value(_strip(block))
        except ValueError:
            self._is_complete = False
            return
        # Without its content, reasoning is a reference to an item that the server has not stored.
        is_empty = block.get("type") == "reasoning" and not (block.get("encrypted_content") or block.get("content"))
        is_item = isinstance(block.get("type"), str)
        self._is_complete = self._is_complete and self._left >= 0 and is_item and not is_empty
        if self._is_complete:
            self._blocks[index] = cleaned
        else:
            self._blocks.clear()

    def _take_response(self, response: Mapping[str, Any]) -> None:
        """Take the response as it is at its end.

        Raises:
            ProviderError: It has failed.
            TruncatedStream: It was cancelled.
        """
        self._read_usage(response.get("usage"))
        status = response.get("status")
        if status == "failed" or response.get("error"):
            error = response.get("error")
            raise classify_event({"error": error if isinstance(error, dict) else {"message": "the response failed"}})
        if status == "cancelled":
            raise TruncatedStream("the response was cancelled")
        for index, item in enumerate(_list_members(response, "output")):
            if self._opened <= MAX_ITEMS:
                self._close_item(index, item)
        self.stop_reason = "stop"
        if status == "incomplete":
            self.stop_reason = "length"
            if get_member(response.get("incomplete_details"), "reason") == "content_filter":
                self.refusal = "the provider's content filter stopped the reply"
        self.ended = True

    def _read_usage(self, usage: object) -> None:
        details = get_member(usage, "input_tokens_details")
        self.usage = Usage(
            input_tokens=read_count(get_member(usage, "input_tokens")) or self.usage.input_tokens,
            output_tokens=read_count(get_member(usage, "output_tokens")) or self.usage.output_tokens,
            cached_input_tokens=read_count(get_member(details, "cached_tokens")) or 0,
            written_input_tokens=read_count(get_member(details, "cache_write_tokens")) or None,
        )

    def finish(self) -> ModelReply:
        """Return the reply; raises as `Decoder.finish` does."""
        if self._refusal:
            self.refusal = clean(self._refusal)
        return super().finish()

    def make_provider_data(self) -> ProviderData | None:
        """Make what goes back to the provider: the ids of the calls, and the items; None: there are none."""
        # A server may send a longer id than it takes back; then the call gets another one.
        calls = [{"id": limit_id(call.id)} if 0 < len(call.id) <= _ID_LIMIT else {} for call in self.calls]
        blocks = [block for _, block in sorted(self._blocks.items())] if self._is_complete and not self._open else []
        if sum(block["type"] == "function_call" for block in blocks) != len(calls):
            blocks = []
        if not blocks and not any(calls):
            return None
        return {"provider": self._provider, "blocks": blocks, "calls": calls, "model": self._model}


def _list_members(value: object, key: str) -> Iterator[dict[str, Any]]:
    """List the objects of a member that is a list."""
    members = get_member(value, key)
    return (member for member in (members if isinstance(members, list) else ()) if isinstance(member, dict))


def _move(index: object, start: int) -> int | None:
    place = read_count(index)
    return None if place is None else start + place


def _strip(item: Mapping[str, Any]) -> dict[str, Any]:
    """Copy an item without the members that are null where requests have none, and without probabilities."""
    if item.get("type") not in ("message", "reasoning", "function_call"):
        return dict(item)
    stripped = {name: value for name, value in item.items() if value is not None}
    if item.get("type") == "message":
        stripped["content"] = [
            {name: value for name, value in part.items() if name != "logprobs"}
            for part in _list_members(item, "content")
        ]
    return stripped
