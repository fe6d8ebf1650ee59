"""Calls of tools in every stream that is read: their arguments are those that were written, or the call does not run.

Servers leave ids and indices out, repeat them, change them from event to event or get them wrong, and lose events.
Then a reply has the right calls, or it is broken: it is no reply, or a call in it is one that does not run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from clew_activities.providers import Decoder, ProviderError
from clew_activities.providers.anthropic.stream import AnthropicDecoder
from clew_activities.providers.bedrock.stream import BedrockDecoder
from clew_activities.providers.google.stream import GoogleDecoder
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.openai.responses_stream import ResponsesDecoder
from clew_workflows.protocol import ModelReply
from tests.support.provider_server import close_message, decode, make_chunk, open_message

Events = list[Any]


class Written(NamedTuple):
    """A call that a model has written: its tool, its arguments as text, and the pieces in which they are sent."""

    name: str
    text: str
    pieces: tuple[str, ...]


class Marks(NamedTuple):
    """How a server names the call of an event: the index and the id, by the call's number and the event's."""

    indices: str
    id: str

    def make(self, call: int, event: int) -> dict[str, Any]:
        """Make the members `index` and `id`; one that is left out is absent."""
        index = {"right": call, "zero": 0, "from one": call + 1, "text": str(call)}.get(self.indices)
        own = {"right": f"id{call}", "same": "id", "rotating": f"id{call}-{event}", "empty": ""}.get(self.id)
        return {name: value for name, value in (("index", index), ("id", own)) if value is not None}


INDICES = ("right", "zero", "from one", "text", "absent")
IDS = ("right", "same", "rotating", "empty", "absent")
MARKS = st.builds(Marks, st.sampled_from(INDICES), st.sampled_from(IDS))


@st.composite
def write_calls(draw: st.DrawFn, least: int = 1) -> list[Written]:
    """Draw the calls of a reply."""
    values = st.dictionaries(st.sampled_from(("limit", "a", "b")), st.integers(0, 9), max_size=2)
    calls = []
    for arguments in draw(st.lists(values, min_size=least, max_size=3)):
        text = json.dumps(arguments) if arguments else draw(st.sampled_from(("", "{}")))
        cut = draw(st.integers(0, len(text)))
        calls.append(Written(draw(st.sampled_from(("find", "erase"))), text, (text[:cut], text[cut:])))
    return calls


def read_arguments(call: Written) -> str:
    return json.dumps(json.loads(call.text or "{}"), sort_keys=True)


def fold(make: Callable[[], Decoder], events: Events) -> ModelReply | ProviderError:
    try:
        return decode(make(), events)
    except ProviderError as error:
        return error


def list_run(reply: ModelReply | ProviderError) -> list[tuple[str, str]]:
    """List the calls of a reply that run."""
    calls = reply.tool_calls if isinstance(reply, ModelReply) else ()
    return [(call.name, json.dumps(call.arguments, sort_keys=True)) for call in calls if call.malformed is None]


def check_right_or_broken(
    reply: ModelReply | ProviderError, written: Sequence[Written], *, counts: bool = True
) -> None:
    """Check that nothing runs but what was written, as often as that, and that nothing is missing unsaid."""
    expected = Counter((call.name, read_arguments(call)) for call in written)
    run = Counter(list_run(reply))
    assert run <= expected | Counter({key: count for key, count in run.items() if key[0] == "unnamed"})
    if counts and isinstance(reply, ModelReply):
        assert len(reply.tool_calls) >= len(written)


def check_right(reply: ModelReply | ProviderError, written: Sequence[Written]) -> None:
    assert list_run(reply) == [(call.name, read_arguments(call)) for call in written]


# Responses


def make_responses() -> ResponsesDecoder:
    return ResponsesDecoder("openai", "gpt-5.2")


class Lost(NamedTuple):
    """The events of Responses that a server does not send."""

    added: bool = False
    deltas: bool = False
    arguments_done: bool = True
    done: bool = False
    output: bool = True


LOST = st.builds(Lost, *(st.booleans() for _ in Lost._fields))


def stream_responses(calls: Sequence[Written], marks: Marks, lost: Lost, *, call_ids: bool = True) -> Events:
    """Stream a reasoning item and calls."""
    events: Events = []
    output: list[dict[str, Any]] = []
    number = 0

    def place(call: int) -> dict[str, Any]:
        nonlocal number
        number += 1
        made = marks.make(call, number)
        return {"item_id" if name == "id" else "output_index": value for name, value in made.items()}

    def add(kind: str, call: int, item: dict[str, Any]) -> None:
        named = place(call)
        own = {"id": named.pop("item_id")} if "item_id" in named else {}
        events.append({"type": f"response.output_item.{kind}", **named, "item": item | own})

    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I think"}]}
    if not lost.added:
        add("added", 0, thought | {"summary": []})
    events.append({"type": "response.reasoning_summary_text.delta", **place(0), "delta": "I think"})
    if not lost.done:
        add("done", 0, thought)
    output.append(thought)
    for position, call in enumerate(calls, 1):
        item = {"type": "function_call", "name": call.name, "arguments": ""}
        item |= {"call_id": f"call{position}"} if call_ids else {}
        if not lost.added:
            add("added", position, item)
        for piece in () if lost.deltas else call.pieces:
            events.append({"type": "response.function_call_arguments.delta", **place(position), "delta": piece})
        if not lost.arguments_done:
            end = {"arguments": call.text}
            events.append({"type": "response.function_call_arguments.done", **place(position), **end})
        item = item | {"arguments": call.text}
        if not lost.done:
            add("done", position, item)
        output.append(item | ({"id": marks.make(position, 99)["id"]} if marks.id in ("right", "same") else {}))
    response = {"object": "response", "status": "completed", "output": [] if lost.output else output}
    return [*events, {"type": "response.completed", "response": response}]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("index", INDICES)
@pytest.mark.parametrize(
    "lost", [Lost(), Lost(output=False), Lost(deltas=True), Lost(done=True, arguments_done=False)], ids=str
)
def test_items_of_responses_are_told_apart(index: str, ids: str, lost: Lost) -> None:
    """By id, by index or by their order, with an empty or a complete output at the end."""
    calls = [Written("find", '{"limit": 3}', ('{"limit"', ": 3}")), Written("erase", '{"a": 1}', ('{"a": 1}',))]
    for number in (1, 2):
        written = calls[:number]
        reply = fold(make_responses, stream_responses(written, Marks(index, ids), lost))
        if lost.done and ids == "rotating":
            # Only the end of an item has the id of its call.
            check_right_or_broken(reply, written)
            continue
        check_right(reply, written)
        assert isinstance(reply, ModelReply)
        assert reply.thinking == "I think"


@given(write_calls(), MARKS, LOST, st.booleans())
@example(
    [Written("find", "", ("", "")), Written("erase", '{"limit": 0}', ("", '{"limit": 0}'))],
    Marks("zero", "same"),
    Lost(added=True, deltas=True),
    False,
)
def test_a_call_of_responses_has_its_own_arguments(
    calls: list[Written], marks: Marks, lost: Lost, call_ids: bool
) -> None:
    reply = fold(make_responses, stream_responses(calls, marks, lost, call_ids=call_ids))
    # Nothing tells such calls from one that comes twice.
    are_alike = marks.id == "same" and not call_ids
    check_right_or_broken(reply, calls, counts=not are_alike and not (lost.done and lost.output and lost.added))


@given(write_calls(), st.sampled_from(("right", "from one", "absent")), LOST, st.data())
def test_a_call_of_responses_of_which_events_are_lost_has_its_own_arguments(
    calls: list[Written], index: str, lost: Lost, data: st.DataObject
) -> None:
    """An id says whose each event is."""
    *events, end = stream_responses(calls, Marks(index, "right"), lost)
    kept = data.draw(st.lists(st.sampled_from(range(len(events))), unique=True).map(sorted))
    reply = fold(make_responses, [*(events[number] for number in kept), end])
    expected = Counter((call.name, read_arguments(call)) for call in calls)
    assert Counter(key for key in list_run(reply) if key[0] != "unnamed") <= expected


def test_the_end_of_a_call_whose_beginning_is_lost_completes_no_other_call() -> None:
    """Its id is another one. The server gives no index, and the other call's arguments are lost."""
    begun = {"type": "function_call", "name": "find", "arguments": "", "call_id": "call1", "id": "id1"}
    events = [
        {"type": "response.output_item.added", "item": begun},
        {"type": "response.function_call_arguments.done", "item_id": "id3", "arguments": ""},
        {"type": "response.completed", "response": {"object": "response", "status": "completed", "output": []}},
    ]
    assert list_run(fold(make_responses, events)) == []


# Chat Completions


def stream_chat(calls: Sequence[Written], marks: Marks, *, names: bool) -> Events:
    """Stream calls, of which each begins with its name, and has it in every piece with `names`."""
    events: Events = []
    for number, call in enumerate(calls):
        for place, piece in enumerate(("", *call.pieces)):
            function = {"arguments": piece} | ({"name": call.name} if names or not place else {})
            named = marks.make(number, place)
            if marks.id != "rotating" and place and not names:
                named.pop("id", None)
            events.append(make_chunk(tool_calls=[{"type": "function", "function": function, **named}]))
    return [*events, make_chunk("tool_calls"), "[DONE]"]


@given(write_calls(), MARKS, st.booleans())
def test_a_call_of_chat_completions_has_its_own_arguments(calls: list[Written], marks: Marks, names: bool) -> None:
    """Calls without arguments are told apart only by an id or an index. A name with a new id begins a call."""
    names = names and marks.id != "rotating"
    marks = marks._replace(id="absent") if marks == Marks("absent", "rotating") else marks
    has_marks = marks.indices in ("right", "from one", "text") or (marks.id == "right" and names)
    known = calls if has_marks else [call for call in calls if call.text]
    check_right_or_broken(fold(OpenAIDecoder, stream_chat(known, marks, names=names)), known, counts=has_marks)


@pytest.mark.parametrize("index", [7, 0, None, "1"])
def test_arguments_with_a_wrong_index_are_the_newest_calls(index: object) -> None:
    calls = [Written("find", '{"limit": 3}', ()), Written("erase", '{"a": 1}', ())]
    events: Events = []
    for number, call in enumerate(calls):
        head = {"index": number, "id": f"id{number}", "function": {"name": call.name, "arguments": ""}}
        events.append(make_chunk(tool_calls=[head]))
        place = number if number == 0 else index
        for piece in (call.text[:3], call.text[3:]):
            events.append(make_chunk(tool_calls=[{"index": place, "function": {"arguments": piece}}]))
    check_right_or_broken(fold(OpenAIDecoder, [*events, make_chunk("tool_calls")]), calls)


def test_arguments_of_no_known_call_do_not_let_another_one_run_without_its_own() -> None:
    """As if a tool were called with its defaults."""
    head = {"index": 0, "id": "x", "function": {"name": "erase", "arguments": ""}}
    lost = [{"index": 1, "id": "y", "function": {"arguments": '{"limit": 3}'}}]
    events = [make_chunk(tool_calls=[head]), make_chunk(tool_calls=lost), make_chunk("tool_calls")]
    assert ("erase", "{}") not in list_run(fold(OpenAIDecoder, events))


def test_a_call_that_is_sent_twice_runs_once() -> None:
    whole = {"index": 0, "id": "x", "function": {"name": "erase", "arguments": '{"a": 1}'}}
    events = [make_chunk(tool_calls=[whole]), make_chunk(tool_calls=[whole]), make_chunk("tool_calls")]
    assert list_run(fold(OpenAIDecoder, events)) == [("erase", '{"a": 1}')]


# Anthropic's and Bedrock's blocks


class Blocks(NamedTuple):
    """How a server marks blocks.

    Attributes:
        indices: As those of `Marks`.
        stops: Whether it says that a block is complete.
        whole: Whether the arguments stand in the beginning of a block, too.
    """

    indices: str
    stops: bool
    whole: bool

    def place(self, block: int, name: str = "index") -> dict[str, Any]:
        made = Marks(self.indices, "absent").make(block, 0)
        return {name: made["index"]} if "index" in made else {}


def make_anthropic() -> AnthropicDecoder:
    return AnthropicDecoder("anthropic")


def stream_anthropic(calls: Sequence[Written], blocks: Blocks) -> Events:
    events: Events = [open_message()]
    starts: list[tuple[dict[str, Any], list[dict[str, Any]]]] = [
        ({"type": "thinking", "thinking": ""}, [{"type": "thinking_delta", "thinking": "I think"}]),
        ({"type": "text", "text": ""}, [{"type": "text_delta", "text": "Hello"}]),
    ]
    for number, call in enumerate(calls):
        start: dict[str, Any] = {"type": "tool_use", "id": f"id{number}", "name": call.name}
        start["input"] = json.loads(call.text or "{}") if blocks.whole else {}
        starts.append((start, [{"type": "input_json_delta", "partial_json": piece} for piece in call.pieces]))
    for number, (block, deltas) in enumerate(starts):
        events.append({"type": "content_block_start", **blocks.place(number), "content_block": block})
        events += [{"type": "content_block_delta", **blocks.place(number), "delta": delta} for delta in deltas]
        if blocks.stops:
            events.append({"type": "content_block_stop", **blocks.place(number)})
    return [*events, *close_message("tool_use")]


BLOCKS = st.builds(Blocks, st.sampled_from(INDICES), st.booleans(), st.booleans())


@given(write_calls(), BLOCKS)
def test_a_call_of_messages_has_its_own_arguments(calls: list[Written], blocks: Blocks) -> None:
    reply = fold(make_anthropic, stream_anthropic(calls, blocks))
    check_right(reply, calls)
    assert isinstance(reply, ModelReply)
    assert (reply.thinking, reply.content) == ("I think", "Hello")


@given(write_calls(), BLOCKS, st.data())
def test_a_call_of_messages_of_which_beginnings_are_lost_has_its_own_arguments(
    calls: list[Written], blocks: Blocks, data: st.DataObject
) -> None:
    # Where neither an index nor an end tells blocks apart, arguments without a beginning are those of a call before
    # that has none.
    assume(blocks.stops or blocks.indices not in ("zero", "absent") or all(call.text for call in calls))
    events = stream_anthropic(calls, blocks)
    starts = [number for number, event in enumerate(events) if event["type"] == "content_block_start"]
    lost = data.draw(st.sets(st.sampled_from(starts)))
    reply = fold(make_anthropic, [event for number, event in enumerate(events) if number not in lost])
    if isinstance(reply, ModelReply):
        assert Counter(list_run(reply)) <= Counter((call.name, read_arguments(call)) for call in calls)


def test_messages_without_beginnings_of_their_texts_are_read() -> None:
    events = [
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": text}} for text in ("He", "llo")
    ]
    reply = fold(make_anthropic, [open_message(), *events, *close_message()])
    assert isinstance(reply, ModelReply)
    assert reply.content == "Hello"


def make_bedrock() -> BedrockDecoder:
    return BedrockDecoder("bedrock", "amazon.nova-pro-v1:0")


def stream_bedrock(calls: Sequence[Written], blocks: Blocks) -> list[tuple[str, dict[str, Any]]]:
    def place(number: int) -> dict[str, Any]:
        return blocks.place(number, "contentBlockIndex")

    events: list[tuple[str, dict[str, Any]]] = [
        ("contentBlockDelta", {**place(0), "delta": {"text": "Hello"}}),
        ("contentBlockStop", place(0)),
    ]
    for number, call in enumerate(calls, 1):
        start = {"toolUse": {"toolUseId": f"id{number}", "name": call.name}}
        events.append(("contentBlockStart", {**place(number), "start": start}))
        events += [
            ("contentBlockDelta", {**place(number), "delta": {"toolUse": {"input": piece}}}) for piece in call.pieces
        ]
        if blocks.stops:
            events.append(("contentBlockStop", place(number)))
    return [*events, ("messageStop", {"stopReason": "tool_use"}), ("metadata", {"usage": {}})]


@given(write_calls(), BLOCKS)
def test_a_call_of_converse_has_its_own_arguments(calls: list[Written], blocks: Blocks) -> None:
    decoder = make_bedrock()
    for event, payload in stream_bedrock(calls, blocks):
        decoder.feed(event, json.dumps(payload))
    reply = decoder.finish()
    check_right(reply, calls)
    assert reply.content == "Hello"


# Gemini


def add_parts(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


def split_arguments(text: str) -> Iterator[dict[str, Any]]:
    """Make the pieces of arguments that Vertex AI sends."""
    for name, value in json.loads(text or "{}").items():
        if isinstance(value, str):
            yield {"jsonPath": f"$.{name}", "stringValue": value[:2], "willContinue": True}
            yield {"jsonPath": f"$.{name}", "stringValue": value[2:]}
        else:
            yield {"jsonPath": f"$.{name}", "numberValue": value}


@given(write_calls(), st.booleans(), st.booleans(), st.booleans())
def test_a_call_of_gemini_has_its_own_arguments(calls: list[Written], ids: bool, pieces: bool, repeats: bool) -> None:
    """Also in pieces, and of gateways that send a call with an id twice."""
    chunks: Events = []
    for number, call in enumerate(calls):
        own = {"id": f"id{number}"} if ids else {}
        if not pieces:
            whole = add_parts({"functionCall": {"name": call.name, "args": json.loads(call.text or "{}"), **own}})
            chunks += [whole] * (1 + (repeats and ids))
            continue
        chunks.append(add_parts({"functionCall": {"name": call.name, "willContinue": True, **own}}))
        for piece in split_arguments(call.text):
            chunks.append(add_parts({"functionCall": {"partialArgs": [piece], "willContinue": True}}))
        chunks.append(add_parts({"functionCall": {}}))
    check_right(fold(GoogleDecoder, [*chunks, add_parts(finishReason="STOP")]), calls)


def test_arguments_in_pieces_have_the_places_that_their_paths_say() -> None:
    paths = [
        {"jsonPath": "$.filter.names[0]", "stringValue": "a", "willContinue": True},
        {"jsonPath": "$.filter.names[0]", "stringValue": "b"},
        {"jsonPath": "$['filter'].names[1]", "boolValue": True},
        {"jsonPath": "$.none", "nullValue": "NULL_VALUE"},
    ]
    part = {"functionCall": {"name": "find", "partialArgs": paths}}
    reply = fold(GoogleDecoder, [add_parts(part, finishReason="STOP")])
    assert isinstance(reply, ModelReply)
    assert reply.tool_calls[0].arguments == {"filter": {"names": ["ab", True]}, "none": None}


@pytest.mark.parametrize("path", ["", "$", "names", "$[0]", "$.a[2]", "$.a.b", "$..a", "$.a[0]", "$.a['b"])
def test_a_piece_without_a_place_breaks_the_reply(path: str) -> None:
    pieces = [{"jsonPath": "$.a", "numberValue": 1}, {"jsonPath": path, "numberValue": 1}]
    part = {"functionCall": {"name": "find", "partialArgs": pieces}}
    assert isinstance(fold(GoogleDecoder, [add_parts(part, finishReason="STOP")]), ProviderError)


def test_a_call_of_gemini_that_is_cut_does_not_run() -> None:
    start = add_parts({"functionCall": {"name": "erase", "willContinue": True}})
    assert isinstance(fold(GoogleDecoder, [start, add_parts(finishReason="STOP")]), ProviderError)
    reply = fold(GoogleDecoder, [start, add_parts(finishReason="MAX_TOKENS")])
    assert isinstance(reply, ModelReply)
    assert reply.tool_calls[0].cut
