"""Histories of other libraries as the messages of a session, and what is said of files that hold none."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pytest

from clew.content import Audio, File, Image
from clew.serve.openai.history_files import HistoryInvalid, read_file, read_rows
from tests.support.media import make_pdf, make_png

PNG = b64encode(make_png()).decode()
CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}


def read(document: Any) -> Any:
    return read_file(json.dumps(document).encode(), "history.json")


def refuse(document: Any) -> str:
    """Read what is refused; returns the message."""
    with pytest.raises(HistoryInvalid) as refused:
        read(document)
    return str(refused.value)


def test_system_messages_become_the_prompt() -> None:
    """Wherever they stand; a history of them alone has no messages."""
    history = read(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "Hello?"},
            {"role": "developer", "content": [{"type": "text", "text": "Be kind."}]},
            {"role": "assistant", "content": "Hello."},
        ]
    )
    assert (history.format, history.system_prompt) == ("chat", "Be brief.\n\nBe kind.")
    assert [message["content"] for message in history.messages] == ["Hello?", "Hello."]
    assert "no messages" in refuse([{"role": "system", "content": "Be brief."}])
    assert "65536" in refuse([{"role": "system", "content": "x" * 65_537}, {"role": "user", "content": "Hello?"}])


def test_the_same_items_have_the_same_digest_in_any_container() -> None:
    """As JSON, as JSON Lines, in a request and in rows: so an import can be repeated from any of them."""
    items = [{"role": "user", "content": "Hello?"}, {"role": "assistant", "content": "Hello."}]
    lines = "\n".join(map(json.dumps, items)).encode()
    digests = {
        read(items).digest,
        read({"model": "m", "messages": items}).digest,
        read_file(lines, "history.jsonl").digest,
        read_rows(list(map(json.dumps, items)), "sessions.db").digest,
    }
    assert len(digests) == 1
    assert read(items[:1]).digest not in digests


def test_calls_have_their_results_behind_them() -> None:
    """In each format; arguments that are no JSON stay as the text that the model wrote."""
    bad = {**CALL, "id": "b", "function": {"name": "add", "arguments": "{n"}}
    chat = read(
        [
            {"role": "user", "content": "Add."},
            {"role": "assistant", "content": None, "tool_calls": [CALL, bad]},
            {"role": "tool", "tool_call_id": "b", "content": "no JSON"},
            {"role": "tool", "tool_call_id": "a", "content": "2"},
        ]
    )
    langchain = read(
        [
            {"type": "human", "content": "Add."},
            {
                "type": "ai",
                "content": [{"type": "tool_use", "id": "a", "name": "add", "input": {}}],
                "tool_calls": [{"name": "add", "args": {"n": 1}, "id": "a", "type": "tool_call"}],
                "invalid_tool_calls": [{"name": "add", "args": "{n", "id": "b", "error": "no JSON"}],
            },
            {"type": "tool", "content": "no JSON", "tool_call_id": "b"},
            {"type": "tool", "content": "2", "tool_call_id": "a"},
        ]
    )
    responses = read(
        [
            {"role": "user", "content": "Add."},
            {"type": "function_call", "call_id": "a", "name": "add", "arguments": '{"n": 1}'},
            {"type": "reasoning", "id": "rs_1", "summary": []},
            {"type": "function_call", "call_id": "b", "name": "add", "arguments": "{n"},
            {"type": "function_call_output", "call_id": "b", "output": "no JSON"},
            {"type": "function_call_output", "call_id": "a", "output": "2"},
        ]
    )
    pydantic_ai = read(
        [
            {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "Add."}]},
            {
                "kind": "response",
                "parts": [
                    {"part_kind": "thinking", "content": "Hm."},
                    {"part_kind": "tool-call", "tool_name": "add", "args": {"n": 1}, "tool_call_id": "a"},
                    {"part_kind": "tool-call", "tool_name": "add", "args": "{n", "tool_call_id": "b"},
                ],
            },
            {
                "kind": "request",
                "parts": [
                    {"part_kind": "retry-prompt", "tool_name": "add", "content": "no JSON", "tool_call_id": "b"},
                    {"part_kind": "tool-return", "tool_name": "add", "content": 2, "tool_call_id": "a"},
                ],
            },
        ]
    )
    histories = (chat, langchain, responses, pydantic_ai)
    assert [one.format for one in histories] == ["chat", "langchain", "responses", "pydantic_ai"]
    assert all(one.messages == chat.messages for one in histories)
    assert chat.messages[1]["tool_calls"][1]["arguments"] == {"malformed_arguments": "{n"}
    assert [message.get("content") for message in chat.messages] == ["Add.", "", "no JSON", "2"]


@pytest.mark.parametrize(
    "block",
    [
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}},
        {"type": "image_url", "image_url": f"data:image/png;base64,{PNG}"},
        {"type": "image", "base64": PNG, "mime_type": "image/png"},
        {"type": "image", "source_type": "base64", "data": PNG, "mime_type": "image/png"},
        {"type": "image", "source": {"type": "base64", "data": PNG, "media_type": "image/png"}},
    ],
    ids=["openai", "openai-text", "langchain", "langchain-0", "anthropic"],
)
def test_an_image_is_read_in_each_form_that_langchain_has(block: dict[str, Any]) -> None:
    """Its bytes become those of a blob."""
    history = read([{"type": "human", "content": ["See:", block]}])
    text, image = history.messages[0]["content"]
    assert text == "See:"
    assert isinstance(image, Image)
    assert image.read() == make_png()


def test_instructions_of_pydantic_ai_are_those_of_its_newest_request() -> None:
    """Each request repeats them; bytes in its form of base64 are read."""
    data = PNG.replace("+", "-").replace("/", "_")
    image = {"kind": "binary", "data": data, "media_type": "image/png"}
    prompts = [["See:", image], "Again."]
    parts = [[{"part_kind": "user-prompt", "content": prompt}] for prompt in prompts]
    history = read([{"kind": "request", "parts": part, "instructions": f"Be {n}."} for n, part in enumerate(parts)])
    assert history.system_prompt == "Be 1."
    assert history.messages[0]["content"][1].read() == make_png()


def test_files_and_recordings_are_read_and_addresses_stay() -> None:
    """A file keeps its name, and an image at an address keeps that."""
    pdf = b64encode(make_pdf()).decode()
    blocks = [
        {"type": "file", "base64": pdf, "mime_type": "application/pdf", "extras": {"filename": "a.pdf"}},
        {"type": "audio", "base64": PNG, "mime_type": "audio/wav"},
        {"type": "image", "url": "https://example.com/a.png"},
    ]
    file, audio, image = read([{"type": "human", "content": blocks}]).messages[0]["content"]
    assert isinstance(file, File)
    assert (file.name, file.read()) == ("a.pdf", make_pdf())
    assert isinstance(audio, Audio)
    assert isinstance(image, Image)
    assert image.url == "https://example.com/a.png"


def test_data_in_a_text_becomes_its_description() -> None:
    """Sessions refuse long base64 in texts, and no model can read it."""
    text = f"See data:image/png;base64,{b64encode(bytes(range(256)) * 8).decode()} here"
    assert read([{"role": "user", "content": text}]).messages[0]["content"] == (
        "See [image/png, 2048 bytes: left out, a model reads text only] here"
    )


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "no messages"),
        ({"text": "Hello?"}, "holds no history"),
        ("Hello?", "holds no history"),
        (["Hello?"], "item 0"),
        ([{"text": "Hello?"}], "item 0"),
        ([{"role": "user", "content": "a"}, {"role": "robot", "content": "b"}], "item 1"),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": "b"}], "item 1"),
        ([{"role": "user", "content": "a"}, {"role": "tool", "content": "b", "tool_call_id": "x"}], "item 1"),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}], "item 1"),
        ([{"role": "user", "content": "a"}, {"type": "compaction", "encrypted_content": "x"}], "item 1"),
        ([{"role": "user", "content": "a"}, {"type": "item_reference", "id": "msg_1"}], "item 1"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,?"}}]}],
         "item 0"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}], "item 0"),
        ([{"role": "user", "content": [{"type": "input_image", "file_id": "0" * 64}]}], "file_id"),
        ([{"type": "human", "content": "a"}, {"type": "remove", "id": "1"}], "item 1"),
        ([{"type": "human", "content": "a"}, {"type": "human", "content": [{"type": "video"}]}], "item 1"),
        ([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "a"}]},
          {"kind": "request", "parts": [{"part_kind": "user-prompt", "content": [{"kind": "video-url"}]}]}],
         "item 1"),
        ([{"kind": "request", "parts": [{"part_kind": "user-prompt", "content": "a"},
                                        {"part_kind": "user-prompt", "content": "b"}]},
          {"kind": "response", "parts": [{"part_kind": "tool-call", "tool_name": "f", "tool_call_id": "a"}]}],
         "item 1"),
        ([{"lc": 1, "type": "not_implemented", "id": ["x"], "repr": "x"}], "item 0"),
        ([{"type": "human", "content": "a"}, {"role": "user", "content": "b"}], "item 1"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_named(document: Any, words: str) -> None:
    """The error names the file and the item, and says that nothing was imported."""
    said = refuse(document)
    assert said.startswith("history.json: ")
    assert words in said
    assert "othing was imported" in said


def test_a_file_that_is_no_json_is_refused() -> None:
    """So are several conversations in one file, and a damaged line, by its number."""
    with pytest.raises(HistoryInvalid, match="not JSON"):
        read_file(b"\x89PNG", "a.png")
    with pytest.raises(HistoryInvalid, match="item 1"):
        read_file(b'{"role": "user", "content": "a"}\n{"role": ', "a.jsonl")
    line = b'{"messages": [{"role": "user", "content": "a"}]}\n'
    with pytest.raises(HistoryInvalid, match="2 histories"):
        read_file(line * 2, "a.jsonl")
    with pytest.raises(HistoryInvalid, match="item 1"):
        read_rows(['{"role": "user", "content": "a"}', "{"], "sessions.db")
