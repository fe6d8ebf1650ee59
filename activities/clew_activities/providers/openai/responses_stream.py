"""Folds the event stream of OpenAI's Responses into a reply.

The `output` of a response is a list of items: reasoning, messages, function calls, calls of the server's own tools. A
reply's `provider_data` holds them in their order, as the server sent them when each was done. Of a function call it
holds the item's id alone: the thread has the rest. The API refuses reasoning without the item after it, and some
items without the reasoning before them, so of a list that is incomplete nothing is kept but the ids of the calls.

OpenAI names the item of an event by `item_id` and `output_index`. Other servers give all items the index 0
(gh:BerriAI/litellm#36375), another id in each event (gh:vercel/ai#18548), or neither. `_Output` says which item an
event belongs to. The arguments of a call are those that the server sends complete, at the end of the item or of the
response; its deltas count where it sends none.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clew_activities.providers.fit_tools import FittedTools
from clew_activities.providers.provider_errors import TruncatedStream, classify_event
from clew_activities.providers.reply import (
    PROVIDER_DATA_LIMIT,
    Call,
    DraftDecoder,
    get_list,
    get_member,
    limit_id,
    limit_name,
    list_objects,
    measure,
    parse_event,
    read_count,
    read_index,
    read_string,
    write_json,
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


@dataclass(slots=True, eq=False)
class _Item:
    """An item of the reply.

    Attributes:
        type: As the API names it.
        output_index: Its place in the output, which need not be right.
        call_id: The id of its call, which is the same in all events; empty: it has none.
        id: Its own id, which need not be; empty: it has none.
        call: The call that it is; None: it is none, or one too many.
        start: The character of the reply's text, or thinking, at which its own begins; None: it has none.
        has_other_indices: Whether an event with its id has another index.
        has_other_marks: Whether an event that was taken for one of it has another id or index.
        is_guessed: Whether another call may own a delta of its arguments.
        is_confirmed: Whether its complete arguments have arrived.
        is_added: Whether the server has said that it begins.
        is_done: Whether its end has arrived.
        block: What goes back to the provider.
    """

    type: str
    output_index: int | None
    call_id: str
    id: str
    call: Call | None = None
    start: int | None = None
    has_other_indices: bool = False
    has_other_marks: bool = False
    is_guessed: bool = False
    is_confirmed: bool = False
    is_added: bool = False
    is_done: bool = False
    block: dict[str, Any] | None = None


class _Output:
    """The items of a reply: which of them an event belongs to, and what goes back to the provider.

    An event belongs to the item that has its id, or to the newest open one that has its index, or else to the newest
    open one of its type.

    Attributes:
        items: The items, in the order in which they began.
        is_mixed: Whether events of two items have been taken for those of one.
        is_complete: Whether all items can go back.
    """

    def __init__(self) -> None:
        self.items: list[_Item] = []
        self.is_mixed = False
        self.is_complete = True
        self._left = PROVIDER_DATA_LIMIT
        self._added = 0
        self._by_id: dict[tuple[str, str], _Item | None] = {}
        self._by_index: dict[tuple[str, int | None], list[_Item]] = defaultdict(list)
        self._by_type: dict[str, list[_Item]] = defaultdict(list)

    def add(self, item_type: str, index: int | None, call_id: str, item_id: str) -> _Item:
        """Add an item, behind all others, which are forgotten if there are too many."""
        self._added += 1
        if self._added > MAX_ITEMS:
            self.is_complete = False
            for known in (self.items, self._by_id, self._by_index, self._by_type):
                known.clear()
        item = _Item(item_type, index, call_id, item_id)
        self.items.append(item)
        self._by_type[item_type].append(item)
        if index is not None:
            self._by_index[item_type, index].append(item)
        for each in filter(None, (call_id, item_id)):
            if (item_type, each) in self._by_id:
                self._forget_id(item_type, each)
            else:
                self._by_id[item_type, each] = item
        return item

    def _forget_id(self, item_type: str, each: str) -> None:
        """Forget an id that stands for two items: it names none of them."""
        known = self._by_id.get((item_type, each))
        self.is_mixed |= known is not None and known.has_other_indices
        self._by_id[item_type, each] = None

    def find(self, item_type: str, index: int | None, call_id: str, item_id: str) -> tuple[_Item | None, bool]:
        """Find the item of an event; second: whether another one may be meant."""
        for each in (call_id, item_id):
            named = self._by_id.get((item_type, each))
            if named is None or _is_other_call(named, call_id):
                continue
            if named.output_index != index:
                if named.is_done and None not in (named.output_index, index):
                    # Some servers use an id twice.
                    continue
                named.has_other_indices = True
            return named, False
        indexed = _drop_done(self._by_index.get((item_type, index), []))
        candidates = indexed or _drop_done(self._by_type[item_type])
        if not candidates or _is_other_call(candidates[-1], call_id):
            return None, True
        newest = candidates[-1]
        if not indexed and index is not None and (call_id or item_id or not newest.is_added):
            # It is one whose beginning was lost.
            return None, True
        has_other_mark = item_id not in ("", newest.id) or (not indexed and index is not None)
        newest.has_other_marks |= has_other_mark
        return newest, has_other_mark or _is_disputed(candidates)

    def find_early(self, item_type: str, call_id: str, item_id: str) -> _Item | None:
        """Find the item whose pieces arrived before its beginning; None: it is a new one."""
        item = self._by_id.get((item_type, item_id)) if item_id else None
        if item is None or item.is_added or item.is_done or _is_other_call(item, call_id):
            return None
        item.call_id = call_id
        if call_id:
            self._by_id.setdefault((item_type, call_id), item)
        return item

    def match(self, output: list[dict[str, Any]]) -> list[tuple[_Item | None, dict[str, Any]]]:
        """Match the output of a finished response with the items of its stream; None: the stream did not have it."""
        if self._added > MAX_ITEMS:
            return []
        types, ids = [read_string(end.get("type")) for end in output], [_read_ids(end) for end in output]
        by_id = [(position, each) for position, pair in enumerate(ids) for each in pair if each]
        for (item_type, each), number in Counter((types[position], each) for position, each in by_id).items():
            if number > 1:
                self._forget_id(item_type, each)
        left: dict[tuple[str, str], deque[_Item]] = defaultdict(deque)
        for item in self.items:
            for each in ("", *filter(None, (item.call_id, item.id))):
                left[item.type, each].append(item)
        matches: dict[int, _Item] = {}
        matched: set[_Item] = set()
        # First by their ids, and then those of a type that are left by their order.
        for position, each in (*by_id, *((position, "") for position in range(len(output)))):
            waiting = left[types[position], each]
            while waiting and waiting[0] in matched:
                waiting.popleft()
            if position not in matches and waiting and not _is_other_call(waiting[0], ids[position][0]):
                matches[position] = waiting[0]
                matched.add(waiting[0])
        pairs = [(matches.get(position), end) for position, end in enumerate(output)]
        self.is_mixed |= _lacks_calls(pairs)
        return pairs

    def keep(self, item: _Item, end: dict[str, Any]) -> None:
        """Keep an item for the provider."""
        if not self.is_complete:
            return
        block = {"type": _CALL, "id": end.get("id")} if item.type == _CALL else end
        self._left -= measure(block)
        # Without its content, reasoning is a reference to an item that the server has not stored.
        is_empty = item.type == "reasoning" and not (block.get("encrypted_content") or block.get("content"))
        self.is_complete = self._left >= 0 and bool(item.type) and not is_empty
        if self.is_complete:
            try:
                item.block = clean_value(_strip(block))
            except ValueError:
                self.is_complete = False

    def list_blocks(self, calls: int) -> list[dict[str, Any]]:
        """List what goes back of a reply with so many calls: all items, or none."""
        blocks = [item.block for item in self.items if item.block is not None]
        has_all = len(blocks) == len(self.items) and sum(block["type"] == _CALL for block in blocks) == calls
        return blocks if self.is_complete and has_all else []


def _lacks_calls(pairs: Sequence[tuple[_Item | None, Mapping[str, Any]]]) -> bool:
    """Whether the stream lacked a call, so that another one has its arguments."""
    calls = [(item, end) for item, end in pairs if end.get("type") == _CALL]
    has_more = any(
        item.call.raw.so_far.strip() and not end.get("arguments") for item, end in calls if item and item.call
    )
    return has_more and any(item is None for item, _ in calls)


def _drop_done(items: list[_Item]) -> list[_Item]:
    """Drop the items at the end of a list that are done."""
    while items and items[-1].is_done:
        items.pop()
    return items


def _is_disputed(items: list[_Item]) -> bool:
    """Whether the item before the last one may be meant, too."""
    before = items[-2] if len(items) > 1 else None
    return before is not None and not before.is_done and not (before.call and before.call.has_ended)


def _read_ids(item: object) -> tuple[str, str]:
    """Read the id of a call, and that of its item."""
    return read_string(get_member(item, "call_id")), read_string(get_member(item, "id"))


def _is_other_call(item: _Item, call_id: str) -> bool:
    """Whether the id of a call says that it is another one than an item."""
    return call_id not in ("", item.call_id) and item.call_id != ""


class ResponsesDecoder(DraftDecoder):
    """Folds the events of a response, or one complete `response`."""

    def __init__(self, provider: str, model: str, tools: FittedTools | None = None) -> None:
        super().__init__(tools)
        self._provider = provider
        self._model = model
        self._output = _Output()
        # Characters of the text and of the thinking, by the type of their items.
        self._sizes = {"message": 0, "reasoning": 0}
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
        elif take := _HANDLERS.get(kind):
            take(self, payload)

    def _take_item_added(self, payload: Mapping[str, Any]) -> None:
        """Begin an item, of which pieces with its id may have arrived before."""
        start = payload.get("item")
        item_type, (call_id, item_id) = read_string(get_member(start, "type")), _read_ids(start)
        item = self._output.find_early(item_type, call_id, item_id)
        if item is None:
            item = self._open_item(item_type, read_index(payload.get("output_index")), start)
        elif item.call is not None:
            item.call.id = call_id
            item.call.rename(read_string(get_member(start, "name")) or item.call.name)
        item.is_added = True

    def _take_item_done(self, payload: Mapping[str, Any]) -> None:
        end = payload.get("item")
        if not isinstance(end, dict):
            return
        item_type, index = read_string(end.get("type")), read_index(payload.get("output_index"))
        item, _ = self._output.find(item_type, index, *_read_ids(end))
        name = limit_name(read_string(end.get("name")))
        if item and item.is_done and item.call and name not in ("", item.call.name):
            # Some servers use an id twice.
            item = None
        self._close_item(item or self._open_item(item_type, index, end), end)

    def _take_text(self, payload: Mapping[str, Any]) -> None:
        self._extend(self._find_item("message", payload)[0], read_string(payload.get("delta")))

    def _take_reasoning(self, payload: Mapping[str, Any]) -> None:
        self._extend(self._find_item("reasoning", payload)[0], read_string(payload.get("delta")))

    def _take_summary_part(self, payload: Mapping[str, Any]) -> None:
        item, _ = self._find_item("reasoning", payload)
        if item.start is not None and not item.is_done:
            self.add_thinking(SEPARATOR)

    def _take_refusal(self, payload: Mapping[str, Any]) -> None:
        if not self._find_item("message", payload)[0].is_done:
            self._refusal = (self._refusal + read_string(payload.get("delta")))[:_REFUSAL_LIMIT]

    def _take_arguments(self, payload: Mapping[str, Any]) -> None:
        item, _ = self._find_item(_CALL, payload)
        if item.call and item.call.has_ended:
            # They are another call's, whose beginning was lost.
            self._output.is_mixed = True
        elif not item.is_done:
            self.add_arguments(item.call, read_string(payload.get("delta")))

    def _take_arguments_done(self, payload: Mapping[str, Any]) -> None:
        item, is_guessed = self._find_item(_CALL, payload)
        if item.call and item.call.has_ended and not item.call.repeats(payload.get("arguments")):
            self._output.is_mixed = True
        self._end_arguments(item, payload, is_guessed=is_guessed)

    def _find_item(self, item_type: str, payload: Mapping[str, Any]) -> tuple[_Item, bool]:
        """Find the item of a piece, or begin it; second: whether the piece may be another one's."""
        index, item_id = read_index(payload.get("output_index")), read_string(payload.get("item_id"))
        item, is_guessed = self._output.find(item_type, index, "", item_id)
        if item is None:
            item = self._open_item(item_type, index, {"id": item_id})
        if is_guessed:
            item.is_guessed = True
        return item, is_guessed

    def _open_item(self, item_type: str, index: int | None, start: object) -> _Item:
        """Begin an item, which may be a call."""
        item = self._output.add(item_type, index, *_read_ids(start))
        if item_type == _CALL:
            item.call = self.open_call(get_member(start, "call_id"), get_member(start, "name"))
            if item.call is None:
                self._output.is_complete = False
            else:
                item.call.has_ended = False
        return item

    def _extend(self, item: _Item, text: str) -> None:
        """Add a piece to a message or to reasoning, unless it is done."""
        if not text or item.is_done:
            return
        if item.start is None:
            separator = SEPARATOR if self._sizes[item.type] else ""
            item.start = self._sizes[item.type] + len(separator)
            text = separator + text
        self._sizes[item.type] += len(text)
        if item.type == "message":
            self.add_text(text)
        else:
            self.add_thinking(text)

    def _close_item(self, item: _Item, end: dict[str, Any]) -> None:
        """Take an item as it is when it is done, with what no delta has brought."""
        if item.call:
            item.call.id = item.call.id or read_string(end.get("call_id"))
            item.call_id = item.call_id or item.call.id
            self._end_arguments(item, end, is_cut=end.get("status") == "incomplete")
        if item.is_done:
            return
        match item.type:
            case "message":
                self._close_message(item, end)
            case "reasoning" if item.start is None:
                parts = [*list_objects(end, "summary"), *list_objects(end, "content")]
                texts = filter(None, (read_string(part.get("text")) for part in parts))
                self._extend(item, SEPARATOR.join(texts))
            case "web_search_call":
                self._take_search(end)
            case "code_interpreter_call":
                self._take_code(end)
            case "image_generation_call":
                self._take_image(end)
        item.is_done = True
        self._output.keep(item, end)

    def _end_arguments(
        self, item: _Item, end: Mapping[str, Any], *, is_cut: bool = False, is_guessed: bool = False
    ) -> None:
        """Take the name and the complete arguments of a call, in the place of its deltas. Some servers send none."""
        call = item.call
        if call is None:
            return
        if not call.name:
            call.rename(read_string(end.get("name")))
        text = write_json(end.get("arguments") or "")
        has_text = bool(text.strip())
        if has_text and text.strip() != call.raw.so_far.strip():
            if call.has_ended and call.has_all_arguments:
                if parse_json(text) != parse_json(call.raw.so_far):
                    self.break_reply("the server sent two arguments of one call")
            elif not call.raw.overflowed:
                call.restart()
                self.add_arguments(call, text)
        item.is_confirmed |= has_text and not is_guessed
        # The end of another call without arguments would complete one whose arguments are lost.
        call.has_ended = call.has_ended or ((has_text or not is_guessed) and not is_cut)

    def _close_message(self, item: _Item, end: Mapping[str, Any]) -> None:
        parts = list_objects(end, "content")
        if item.start is None:
            self._extend(item, "".join(read_string(part.get("text")) for part in parts))
        # The parts of a message are one text; the annotations of each count from its beginning.
        start = item.start or 0
        for part in parts:
            text = read_string(part.get("text"))
            if refusal := read_string(part.get("refusal")):
                self._refusal = refusal[:_REFUSAL_LIMIT]
            for note in list_objects(part, "annotations"):
                if note.get("type") == "url_citation":
                    places = (_move(note.get("start_index"), start), _move(note.get("end_index"), start))
                    self.add_citation(note.get("url"), note.get("title"), start=places[0], end=places[1])
            start += len(text)

    def _take_search(self, end: Mapping[str, Any]) -> None:
        """Take a search, or a page that was opened or searched, which has an address in place of a query."""
        action = end.get("action")
        query = read_string(get_member(action, "query")) or "\n".join(
            filter(None, map(read_string, get_list(action, "queries")))
        )
        url = read_string(get_member(action, "url"))
        sources: list[Source] = [{"url": url}] if url else []
        found: list[Source] = [
            {"url": read_string(source.get("url")), "title": read_string(source.get("title"))}
            for source in list_objects(action, "sources")
        ]
        failed = "the search failed" if end.get("status") == "failed" else None
        self.add_provider_call("web_search", input=query or url, sources=[*sources, *found], error=failed)

    def _take_code(self, end: Mapping[str, Any]) -> None:
        logs = "\n".join(filter(None, (read_string(one.get("logs")) for one in list_objects(end, "outputs"))))
        failed = "the code failed" if end.get("status") == "failed" else None
        self.add_provider_call("code_execution", input=end.get("code"), output=logs, error=failed)

    def _take_image(self, end: Mapping[str, Any]) -> None:
        """Take an image. The item has its bytes, so that it does not go back, and neither do the others."""
        self._output.is_complete = False
        failed = "the image was not made" if end.get("status") == "failed" else None
        self.add_provider_call("image_generation", input=end.get("revised_prompt"), error=failed)
        self.add_media("image", end.get("result"))

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
        for item, end in self._output.match(list_objects(response, "output")):
            self._close_item(item or self._open_item(read_string(end.get("type")), None, end), end)
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
        if self._output.is_mixed or any(map(self._is_doubtful, self._output.items)):
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
        blocks = self._output.list_blocks(len(calls))
        if not blocks and not any(calls):
            return None
        return {"provider": self._provider, "blocks": blocks, "calls": calls, "model": self._model}


_HANDLERS: Mapping[str, Callable[[ResponsesDecoder, Mapping[str, Any]], None]] = {
    "response.output_item.added": ResponsesDecoder._take_item_added,
    "response.output_item.done": ResponsesDecoder._take_item_done,
    "response.output_text.delta": ResponsesDecoder._take_text,
    "response.refusal.delta": ResponsesDecoder._take_refusal,
    "response.reasoning_summary_part.added": ResponsesDecoder._take_summary_part,
    "response.reasoning_summary_text.delta": ResponsesDecoder._take_reasoning,
    "response.reasoning_text.delta": ResponsesDecoder._take_reasoning,
    "response.function_call_arguments.delta": ResponsesDecoder._take_arguments,
    "response.function_call_arguments.done": ResponsesDecoder._take_arguments_done,
}
"""What takes each type of event."""


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
            for part in list_objects(item, "content")
        ]
    return stripped
