"""What requests ask for, from their bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.content import Audio, File, Image
from clew.serve.openai import bodies, fields, ids
from clew.serve.openai.asks import Ask, make_snapshot, read_chat, read_response
from clew.serve.openai.frames import ECHO
from clew.serve.openai.refusals import InvalidValue, UnsupportedValue
from clew.session.transport import make_input
from clew_workflows.contract import MessageInput
from clew_workflows.contract.errors import InvalidInput, TooLarge


def ask_response(given: Any, **body: Any) -> Ask:
    read = fields.read_body(bodies.ResponseCreate, {"model": "support", "input": given, **body}, fields.RESPONSES)
    return read_response(read)


def ask_chat(*messages: Any, **body: Any) -> Ask:
    read = fields.read_body(bodies.ChatCreate, {"model": "support", "messages": messages, **body}, fields.CHAT)
    return read_chat(read)


def call(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": name, "name": "look", "arguments": '{"a": 1}', **fields}


def test_the_parts_of_a_conversation() -> None:
    """Messages of the system are instructions, those up to the newest reply are history, and the rest is new."""
    asked = ask_response(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "one"},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            call("c1"),
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"role": "assistant", "content": [{"type": "output_text", "text": "two", "annotations": []}]},
            {"role": "user", "content": "three"},
        ],
        instructions="Be kind.",
    )
    assert asked.instructions == "Be kind.\n\nBe brief."
    assert asked.content == ["three"]
    assert make_snapshot(asked.history) == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "c0", "name": "look", "arguments": {"a": 1}}]},
        {"role": "tool", "content": "42", "tool_call_id": "c0", "name": "look"},
        {"role": "assistant", "content": "two"},
    ]


def test_both_apis_ask_for_the_same() -> None:
    """A chat with options is read as the response with the same options."""
    schema = {"type": "object", "properties": {}}
    chat = ask_chat(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        temperature=0.5,
        max_completion_tokens=9,
        reasoning_effort="low",
        user="ann",
        response_format={"type": "json_schema", "json_schema": {"name": "form", "schema": schema}},
        tools=[{"type": "function", "function": {"name": "look"}}],
        tool_choice={"type": "function", "function": {"name": "look"}},
    )
    response = ask_response(
        "Hi",
        instructions="Be brief.",
        temperature=0.5,
        max_output_tokens=9,
        reasoning={"effort": "low"},
        user="ann",
        text={"format": {"type": "json_schema", "name": "form", "schema": schema}},
        tools=[{"type": "function", "name": "look"}],
        tool_choice={"type": "function", "name": "look"},
    )
    assert chat == response
    options = chat.make_message_options()
    assert json.loads(options["metadata"][ECHO]) == {"format": "form", "user": "ann"}
    MessageInput.model_validate_json(
        json.dumps({"content": "Hi", **options}, default=lambda value: value.model_dump())
    )


@pytest.mark.parametrize(
    "history",
    [
        [{"role": "user", "content": "one"}, call("c1"), {"role": "assistant", "content": "two"}],
        [
            {"role": "user", "content": "one"},
            {"type": "function_call_output", "call_id": "c1", "output": "42"},
            {"role": "assistant", "content": "two"},
        ],
    ],
    ids=["no result", "no call"],
)
def test_calls_and_results_belong_together(history: list[Any]) -> None:
    """A history with a call without its result, or the reverse, is refused: no provider takes it."""
    with pytest.raises(InvalidValue):
        make_snapshot(ask_response([*history, {"role": "user", "content": "three"}]).history)


def test_an_item_names_its_session() -> None:
    """The newest item that this service has made names a session; ids of other services name none."""
    own = ids.encode(ids.MESSAGE, "chat", "call-1")
    known = {"role": "assistant", "content": "Hi", "id": own}
    foreign = {"role": "assistant", "content": "Hi", "id": "msg_68c1a2"}
    new = {"role": "user", "content": "Hi"}
    assert ask_response([new, known, new]).find_place() == own
    assert ask_response([new, foreign, new]).find_place() is None
    assert ask_response([new, call("call_abc123"), new]).find_place() is None
    result = {"type": "function_call_output", "call_id": ids.encode(ids.CALL, "chat", "t1"), "output": "x"}
    assert ask_response([new, result]).find_place() == result["call_id"]


@pytest.mark.parametrize(
    "arguments", ["[1]", "{", '{"a": NaN}', '{"a": "\\ud800"}', "[" * 100_000, '{"a":' * 100_000]
)
def test_arguments_that_are_no_object_are_taken_as_text(arguments: str) -> None:
    """The APIs take whatever a model has written as the arguments of an earlier call."""
    (said,) = ask_response([call("c1", arguments=arguments)]).history
    assert said.calls[0].arguments == {"malformed_arguments": arguments}


def test_instructions_are_checked_by_the_contract() -> None:
    """A prompt that no session takes is refused with the contract's word."""
    asked = ask_chat({"role": "system", "content": "x" * 70_000}, {"role": "user", "content": "Hi"})
    with pytest.raises(InvalidInput):
        make_input(MessageInput, {"content": "Hi", **asked.make_message_options()})


def test_parts_are_images_recordings_and_files() -> None:
    """Bytes come as data URLs or in base64; an address is an image's alone, and what is not valid is refused."""
    asked = ask_response(
        [
            {
                "role": "user",
                "content": [
                    {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
                    {"type": "input_image", "image_url": "https://example.com/a.png"},
                    {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}},
                    {"type": "input_file", "file_data": "data:application/pdf;base64,AAAA", "filename": "a.pdf"},
                ],
            }
        ]
    )
    shown, linked, audio, file = asked.content
    assert isinstance(shown, Image)
    assert isinstance(linked, Image)
    assert isinstance(audio, Audio)
    assert isinstance(file, File)
    assert (shown.media_type, shown.read(), linked.url) == ("image/png", bytes(3), "https://example.com/a.png")
    assert (audio.media_type, file.media_type, file.name) == ("audio/wav", "application/pdf", "a.pdf")
    bad: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"type": "input_image"}, InvalidValue),
        ({"type": "input_image", "image_url": "data:image/png;base64,???"}, InvalidValue),
        ({"type": "input_image", "file_id": "file-123"}, UnsupportedValue),
        ({"type": "input_file", "file_url": "https://example.com/a.pdf"}, UnsupportedValue),
        ({"type": "input_file", "file_data": "A" * 80_000_000}, TooLarge),
    ]
    for part, error in bad:
        with pytest.raises(error):
            ask_response([{"role": "user", "content": [part]}])


def test_base64_in_lines_is_read_in_a_time_that_grows_with_its_length() -> None:
    """Bytes may come in lines. Much white space before a character that is none of base64 is refused at once."""

    def read(data: str) -> Ask:
        return ask_response([{"role": "user", "content": [{"type": "input_file", "file_data": data}]}])

    (file,) = read("AA\r\nAA\n").content
    assert isinstance(file, File)
    assert file.read() == bytes(3)
    for data in ("AAAA" + " " * 1_000_000 + "!", " " * 1_000_000, "A", "AAAA=AAAA"):
        with pytest.raises(InvalidValue):
            read(data)
