"""Folds the event stream of OpenAI's Responses into a reply.

A reply is a list of items: reasoning, messages, function calls, calls of the server's own tools. Its `provider_data`
holds them in their order, as the server sent them when each was done. Of a function call it holds the item's id
alone: the thread has the rest. The API refuses reasoning without the item after it, and some items without the
reasoning before them, so of a list that is incomplete nothing is kept but the ids of the calls.

OpenAI names the item of an event by its id and by its index. Other servers give all items the index 0
(gh:BerriAI/litellm#36375), another id in each event (gh:vercel/ai#18548), or neither. `_Items` says which item an
event belongs to. The arguments of a call are those that the server sends complete, at the end of the item or of the
response; its deltas count where it sends none.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
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
    limit_name,
    measure,
    parse_event,
    read_count,
    read_index,
    read_string,
)
from clew_activities.providers.sanitize import clean, clean_value, parse_json
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
_CALL = "function_call"
_Ids = tuple[str, str]
"""The id of a call, which is the same in all events, and the id of an item; empty: there is none."""
_KINDS: Mapping[str, str] = {
    "response.output_text.delta": "message",
    "response.refusal.delta": "message",
    "response.reasoning_summary_text.delta": "reasoning",
    "response.reasoning_text.delta": "reasoning",
    "response.reasoning_summary_part.added": "reasoning",
    "response.function_call_arguments.delta": _CALL,
    "response.function_call_arguments.done": _CALL,
}
"""The type of the item that an event belongs to."""


@dataclass(slots=True, eq=False)
class _Item:
    """An item of the reply.

    Attributes:
        kind: Its type.
        index: Its `output_index`, which need not be right.
        ids: The id of its call, and its own.
        call: The call that it is; None: it is none, or one too many.
        start: The character of the reply's text at which the message begins; None: it has no text.
        has_text: Whether deltas of its text or its thinking have arrived.
        has_other_indices: Whether an event with its id has another index.
        has_other_marks: Whether an event that was taken for one of it has another id or index.
        is_guessed: Whether another call may own a delta of its arguments.
        is_confirmed: Whether its complete arguments have arrived.
        is_announced: Whether the server has said that it begins.
        is_done: Whether its end has arrived.
        block: What goes back to the provider.
    """

    kind: str
    index: int | None
    ids: _Ids
    call: Call | None = None
    start: int | None = None
    has_text: bool = False
    has_other_indices: bool = False
    has_other_marks: bool = False
    is_guessed: bool = False
    is_confirmed: bool = False
    is_announced: bool = False
    is_done: bool = False
    block: dict[str, Any] | None = None


class _Items:
    """The items of a reply, and which of them an event belongs to.

    It is the item that has the id, the newest open one that has the index, or else the newest open one of its kind.

    Attributes:
        all: The items, in the order in which they began.
        is_mixed: Whether events of two items have been taken for those of one.
    """

    def __init__(self) -> None:
        self.all: list[_Item] = []
        self.is_mixed = False
        self._by_id: dict[tuple[str, str], _Item | None] = {}
        self._by_index: dict[tuple[str, int], list[_Item]] = defaultdict(list)
        self._by_kind: dict[str, list[_Item]] = defaultdict(list)

    def add(self, kind: str, index: int | None, ids: _Ids) -> _Item:
        """Add an item, behind all others."""
        item = _Item(kind, index, ids)
        self.all.append(item)
        self._by_kind[kind].append(item)
        if index is not None:
            self._by_index[kind, index].append(item)
        for each in filter(None, ids):
            if (kind, each) in self._by_id:
                self._forget_id(kind, each)
            else:
                self._by_id[kind, each] = item
        return item

    def _forget_id(self, kind: str, each: str) -> None:
        """Forget an id that stands for two items: it names none of them."""
        known = self._by_id.get((kind, each))
        self.is_mixed = self.is_mixed or (known is not None and known.has_other_indices)
        self._by_id[kind, each] = None

    def find(self, kind: str, index: int | None, ids: _Ids) -> tuple[_Item | None, bool]:
        """Find the item of an event; second: whether another one may be meant."""
        for each in ids:
            named = self._by_id.get((kind, each))
            if named is not None and not _is_other(named, index, ids):
                named.has_other_indices = named.has_other_indices or named.index != index
                return named, False
        if index is not None and (indexed := _drop_done(self._by_index.get((kind, index), []))):
            if _is_other_call(indexed[-1], ids):
                return None, True
            has_other_id = ids[1] not in ("", indexed[-1].ids[1])
            indexed[-1].has_other_marks = indexed[-1].has_other_marks or has_other_id
            return indexed[-1], has_other_id or _is_disputed(indexed)
        opened = _drop_done(self._by_kind[kind])
        if not opened or _is_other_call(opened[-1], ids):
            return None, True
        if index is not None and (any(ids) or not opened[-1].is_announced):
            # It is one whose beginning was lost.
            return None, True
        opened[-1].has_other_marks = opened[-1].has_other_marks or index is not None
        return opened[-1], index is not None or _is_disputed(opened)

    def find_early(self, kind: str, ids: _Ids) -> _Item | None:
        """Find the item whose pieces arrived before its beginning; None: it is a new one."""
        item = self._by_id.get((kind, ids[1])) if ids[1] else None
        if item is None or item.is_announced or item.is_done or _is_other_call(item, ids):
            return None
        item.ids = (ids[0], item.ids[1])
        if ids[0]:
            self._by_id.setdefault((kind, ids[0]), item)
        return item

    def match(self, output: list[dict[str, Any]]) -> list[_Item | None]:
        """Match the items of a finished response with those of its stream; None: the stream did not have it.

        First by their ids, and then those of a kind that are left by their order.
        """
        ends = [(read_string(end.get("type")), _read_ids(end)) for end in output]
        for (kind, each), number in Counter((kind, each) for kind, ids in ends for each in ids if each).items():
            if number > 1:
                self._forget_id(kind, each)
        matches: list[_Item | None] = [None] * len(output)
        matched: set[int] = set()
        for by_id in (True, False):
            left: dict[tuple[str, str], deque[_Item]] = defaultdict(deque)
            for item in self.all:
                for key in filter(None, item.ids) if by_id else ("",):
                    if id(item) not in matched:
                        left[item.kind, key].append(item)
            for position, (kind, ids) in enumerate(ends):
                for key in filter(None, ids) if by_id else ("",):
                    waiting = left[kind, key]
                    while waiting and id(waiting[0]) in matched:
                        waiting.popleft()
                    if matches[position] is None and waiting and not _is_other_call(waiting[0], ids):
                        matches[position] = waiting[0]
                        matched.add(id(waiting.popleft()))
        self.is_mixed = self.is_mixed or _lacks_calls(output, matches)
        return matches

    def forget(self) -> None:
        """Forget all items: there are too many."""
        self.all.clear()
        self._by_id.clear()
        self._by_index.clear()
        self._by_kind.clear()


def _lacks_calls(output: Sequence[Mapping[str, Any]], matches: Sequence[_Item | None]) -> bool:
    """Whether the stream lacked a call, so that another one has its arguments."""
    pairs = [(end, item) for end, item in zip(output, matches, strict=True) if end.get("type") == _CALL]
    has_more = any(
        item.call.raw.so_far.strip() and not end.get("arguments") for end, item in pairs if item and item.call
    )
    return has_more and any(item is None for _, item in pairs)


def _drop_done(items: list[_Item]) -> list[_Item]:
    """Drop the items at the end of a list that are done."""
    while items and items[-1].is_done:
        items.pop()
    return items


def _is_disputed(items: list[_Item]) -> bool:
    """Whether the item before the last one may be meant, too."""
    before = items[-2] if len(items) > 1 else None
    return before is not None and not before.is_done and not (before.call and before.call.has_ended)


def _read_ids(item: object) -> _Ids:
    return read_string(get_member(item, "call_id")), read_string(get_member(item, "id"))


def _is_other_call(item: _Item, ids: _Ids) -> bool:
    """Whether the ids of a call say that it is another one than an item."""
    return bool(item.ids[0] and ids[0]) and item.ids[0] != ids[0]


def _is_other(item: _Item, index: int | None, ids: _Ids) -> bool:
    """Whether an event with the id of an item belongs to another one: some servers use an id twice."""
    has_other_index = index is not None and item.index is not None and index != item.index
    return _is_other_call(item, ids) or (item.is_done and has_other_index)


class ResponsesDecoder(DraftDecoder):
    """Folds the events of a response, or one complete `response`."""

    def __init__(self, provider: str, model: str, tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._items = _Items()
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
        index = read_index(payload.get("output_index"))
        if kind == "response.output_item.added":
            self._announce_item(index, payload.get("item"))
        elif kind == "response.output_item.done" and isinstance(end := payload.get("item"), dict):
            found, _ = self._items.find(read_string(end.get("type")), index, _read_ids(end))
            name = limit_name(read_string(end.get("name")))
            if found and found.is_done and found.call and name not in ("", found.call.name):
                # Some servers use an id twice.
                found = None
            self._close_item(found or self._open_item(index, end), end)
        elif kind in _KINDS:
            self._extend(kind, index, payload)

    def _open_item(self, index: int | None, start: object, kind: str = "") -> _Item:
        """Begin an item, which may be a call."""
        self._opened += 1
        if self._opened > MAX_ITEMS:
            self._is_complete = False
            self._items.forget()
        item = self._items.add(kind or read_string(get_member(start, "type")), index, _read_ids(start))
        if item.kind == _CALL:
            item.call = self.open_call(get_member(start, "call_id"), get_member(start, "name"))
            self._is_complete = self._is_complete and item.call is not None
            if item.call is not None:
                item.call.has_ended = False
        return item

    def _announce_item(self, index: int | None, start: object) -> None:
        """Begin an item, of which pieces with its id may have arrived before."""
        kind, ids = read_string(get_member(start, "type")), _read_ids(start)
        item = self._items.find_early(kind, ids)
        if item is None:
            item = self._open_item(index, start)
        elif item.call is not None:
            item.call.id = ids[0]
            item.call.rename(read_string(get_member(start, "name")) or item.call.name)
        item.is_announced = True

    def _extend(self, event: str, index: int | None, payload: Mapping[str, Any]) -> None:
        """Take a piece of an item, or the complete arguments of a call."""
        kind, item_id = _KINDS[event], read_string(payload.get("item_id"))
        item, is_guessed = self._items.find(kind, index, ("", item_id))
        if item is None:
            item = self._open_item(index, {"id": item_id}, kind)
        delta = read_string(payload.get("delta"))
        match event:
            case "response.function_call_arguments.done":
                item.is_guessed = item.is_guessed or is_guessed
                if item.call and not item.call.name:
                    item.call.rename(read_string(payload.get("name")))
                if item.call and item.call.has_ended and not item.call.repeats(payload.get("arguments")):
                    self._items.is_mixed = True
                self._end_arguments(item, payload.get("arguments"), is_guessed=is_guessed)
            case "response.function_call_arguments.delta" if item.call and item.call.has_ended:
                # They are another call's, whose beginning was lost.
                self._items.is_mixed = True
            case _ if item.is_done:
                return
            case "response.output_text.delta":
                self._add_text(item, delta)
            case "response.refusal.delta":
                self._refusal = (self._refusal + delta)[:_REFUSAL_LIMIT]
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self._add_thinking(item, delta)
            case "response.reasoning_summary_part.added" if item.has_text:
                self.add_thinking(SEPARATOR)
            case "response.function_call_arguments.delta":
                item.is_guessed = item.is_guessed or is_guessed
                self.add_arguments(item.call, delta)

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

    def _close_item(self, item: _Item, end: dict[str, Any]) -> None:
        """Take an item as it is when it is done, with what no delta has brought."""
        if item.kind == _CALL:
            self._close_call(item, end)
        if item.is_done:
            return
        item.is_done = True
        match item.kind:
            case "message":
                self._close_message(item, end)
            case "reasoning" if not item.has_text:
                parts = [*_list_members(end, "summary"), *_list_members(end, "content")]
                texts = filter(None, (read_string(part.get("text")) for part in parts))
                self._add_thinking(item, SEPARATOR.join(texts))
            case "web_search_call":
                self._take_search(end)
            case "code_interpreter_call":
                self._take_code(end)
            case "image_generation_call":
                self._take_image(end)
                return
        self._keep(item, end)

    def _close_call(self, item: _Item, end: Mapping[str, Any]) -> None:
        call = item.call
        if call is None:
            return
        call.id = call.id or read_string(end.get("call_id"))
        item.ids = (item.ids[0] or call.id, item.ids[1])
        if not call.name:
            call.rename(read_string(end.get("name")))
        self._end_arguments(item, end.get("arguments"), is_cut=end.get("status") == "incomplete")

    def _end_arguments(
        self, item: _Item, arguments: object, *, is_cut: bool = False, is_guessed: bool = False
    ) -> None:
        """Take the complete arguments of a call in the place of its deltas. Some servers send none here."""
        call = item.call
        if call is None:
            return
        try:
            text = arguments if isinstance(arguments, str) else json.dumps(arguments) if arguments else ""
        except RecursionError:
            text = "[nested too deeply]"
        if text.strip() and text.strip() != call.raw.so_far.strip():
            if call.has_ended and call.has_all_arguments:
                if parse_json(text) != parse_json(call.raw.so_far):
                    self.break_reply("the server sent two arguments of one call")
            elif not call.raw.overflowed:
                call.restart()
                self.add_arguments(call, text)
        item.is_confirmed = item.is_confirmed or (bool(text.strip()) and not is_guessed)
        call.has_ended = call.has_ended or not is_cut

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
        failed = "the image was not made" if end.get("status") == "failed" else None
        self.add_provider_call("image_generation", input=end.get("revised_prompt"), error=failed)
        self.add_media("image", end.get("result"))

    def _keep(self, item: _Item, end: dict[str, Any]) -> None:
        """Keep an item for the provider."""
        block = {"type": _CALL, "id": end.get("id")} if item.kind == _CALL else end
        self._left -= measure(block)
        # Without its content, reasoning is a reference to an item that the server has not stored.
        is_empty = item.kind == "reasoning" and not (block.get("encrypted_content") or block.get("content"))
        self._is_complete = self._is_complete and self._left >= 0 and bool(item.kind) and not is_empty
        if not self._is_complete:
            return
        try:
            item.block = clean_value(_strip(block))
        except ValueError:
            self._is_complete = False

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
        if self._opened <= MAX_ITEMS:
            output = list(_list_members(response, "output"))
            for item, end in zip(self._items.match(output), output, strict=True):
                self._close_item(item or self._open_item(None, end), end)
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
        if self._items.is_mixed or any(map(self._is_doubtful, self._items.all)):
            self.break_reply("the server did not say which call some arguments belong to")
        return super().finish()

    def _is_doubtful(self, item: _Item) -> bool:
        """Whether the arguments of a call may be another's."""
        if item.call is None or item.is_confirmed or not item.call.raw.so_far.strip():
            return False
        return item.has_other_indices or item.has_other_marks or (item.is_guessed and len(self.calls) > 1)

    def make_provider_data(self) -> ProviderData | None:
        """Make what goes back to the provider: the ids of the calls, and the items; None: there are none."""
        # A server may send a longer id than it takes back; then the call gets another one.
        calls = [{"id": limit_id(call.id)} if 0 < len(call.id) <= _ID_LIMIT else {} for call in self.calls]
        kept = [item.block for item in self._items.all if item.block is not None]
        blocks = kept if self._is_complete and len(kept) == len(self._items.all) else []
        if sum(block["type"] == _CALL for block in blocks) != len(calls):
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
    if item.get("type") not in ("message", "reasoning", _CALL):
        return dict(item)
    stripped = {name: value for name, value in item.items() if value is not None}
    if item.get("type") == "message":
        stripped["content"] = [
            {name: value for name, value in part.items() if name != "logprobs"}
            for part in _list_members(item, "content")
        ]
    return stripped
