"""Calls whose pieces come twice, too early or in the wrong place run once, with what was written, or not at all."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew_activities.providers.anthropic.stream import AnthropicDecoder
from clew_activities.providers.fit_tools import FittedTool, FittedTools
from clew_activities.providers.google.stream import GoogleDecoder
from clew_activities.providers.interface import Decoder
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.openai.responses_stream import ResponsesDecoder
from clew_activities.providers.provider_errors import TruncatedStream
from clew_workflows.protocol import RequestedTool

Event = dict[str, Any]
DELTA, DONE = "response.function_call_arguments.delta", "response.function_call_arguments.done"


def read_calls(decoder: Decoder, *events: Event) -> tuple[RequestedTool, ...]:
    for event in events:
        decoder.feed("", json.dumps(event))
    return decoder.finish().tool_calls


def make_choice(calls: list[Event], reason: str | None = None) -> Event:
    return {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": reason}]}


def make_call(index: int, name: str | None, arguments: str, call_id: str | None = None) -> Event:
    return {"index": index, "id": call_id, "function": {"name": name, "arguments": arguments}}


def complete() -> Event:
    return {"type": "response.completed", "response": {"id": "resp_1", "status": "completed", "output": []}}


def make_item(arguments: str) -> Event:
    return {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": arguments}


def stop(reason: str) -> list[Event]:
    return [{"type": "message_delta", "delta": {"stop_reason": reason}}, {"type": "message_stop"}]


def test_arguments_at_the_index_of_another_call_run_none() -> None:
    """The second object at the index 0 may be the second call's: without it, that call would run with nothing."""
    with pytest.raises(TruncatedStream):
        read_calls(
            OpenAIDecoder(),
            make_choice([make_call(0, "first", "", "c1")]),
            make_choice([make_call(1, "second", "", "c2")]),
            make_choice([make_call(0, None, '{"x": 1}')]),
            make_choice([make_call(0, None, '{"y": 2}')], "tool_calls"),
        )


def test_a_name_in_pieces_is_one_name() -> None:
    """If the pieces together are the name of a tool, and none of them is."""
    spec: Any = {"name": "look", "description": "", "parameters": {"type": "object", "properties": {}}}
    calls = read_calls(
        OpenAIDecoder(tools=FittedTools({"look": FittedTool(spec)})),
        make_choice([make_call(0, "lo", "", "c1")]),
        make_choice([make_call(0, "ok", '{"x": 1}')], "tool_calls"),
    )
    assert calls == (RequestedTool(name="look", arguments={"x": 1}),)


def test_pieces_before_the_beginning_belong_to_the_item_with_their_id() -> None:
    calls = read_calls(
        ResponsesDecoder("own", "model"),
        {"type": DELTA, "item_id": "fc_1", "output_index": 0, "delta": '{"x": 1}'},
        {"type": "response.output_item.added", "output_index": 0, "item": make_item("")},
        {"type": "response.output_item.done", "output_index": 0, "item": make_item('{"x": 1}')},
        complete(),
    )
    assert calls == (RequestedTool(name="look", arguments={"x": 1}),)


def test_complete_arguments_may_bring_the_name() -> None:
    """As the API documents it, also where no event has begun the item."""
    done = {"type": DONE, "item_id": "fc_1", "output_index": 0, "name": "look", "arguments": '{"x": 1}'}
    calls = read_calls(ResponsesDecoder("own", "model"), done, complete())
    assert calls == (RequestedTool(name="look", arguments={"x": 1}),)


@pytest.mark.parametrize("first", ["", '{"x": 1}'])
def test_a_block_that_begins_twice_is_one_call(first: str) -> None:
    """Without its arguments the first time, or with the same."""
    start: Event = {
        "type": "content_block_start",
        "index": 0,
        "content_block": {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
    }
    delta: Event = {"type": "content_block_delta", "index": 0}
    pieces = [{**delta, "delta": {"type": "input_json_delta", "partial_json": text}} for text in (first, '{"x": 1}')]
    calls = read_calls(AnthropicDecoder("own"), start, pieces[0], start, pieces[1], *stop("tool_use"))
    assert calls == (RequestedTool(name="look", arguments={"x": 1}),)


@pytest.mark.parametrize("order", [({}, {"x": 1}), ({"x": 1}, {})])
def test_a_call_that_comes_once_without_its_arguments_is_one_call(order: tuple[Event, Event]) -> None:
    parts = [{"functionCall": {"id": "1", "name": "look", "args": arguments}} for arguments in order]
    calls = read_calls(GoogleDecoder(), {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]})
    assert calls == (RequestedTool(name="look", arguments={"x": 1}),)


@pytest.mark.parametrize("arguments", ["{}{}{}", "{}\n{}", "nil", "{ } "])
def test_other_words_for_no_arguments_are_none(arguments: str) -> None:
    assert read_calls(OpenAIDecoder(), make_choice([make_call(0, "look", arguments, "c1")], "tool_calls")) == (
        RequestedTool(name="look", arguments={}),
    )


@pytest.mark.parametrize("arguments", ["{}", "null", '""'])
def test_no_arguments_at_the_limit_are_missing_ones(arguments: str) -> None:
    """Some servers begin each call with an empty object, behind which the reply may be cut."""
    (call,) = read_calls(OpenAIDecoder(), make_choice([make_call(0, "look", arguments, "c1")], "length"))
    assert call.malformed == arguments
    assert call.cut


@pytest.mark.parametrize("arguments", ["1", "12", '{"a": 1}{"a": 2}', '{"a": 1}{"a"', '{"a": 1}}', "nul"])
def test_what_may_go_on_behind_a_cut_does_not_run(arguments: str) -> None:
    (call,) = read_calls(OpenAIDecoder(), make_choice([make_call(0, "look", arguments, "c1")], "length"))
    assert call.malformed == arguments
