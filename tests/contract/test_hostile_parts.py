"""Contents of messages that no session takes: each is refused at the door, with what is wrong and what to do."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew.errors import InvalidInput, Refusal, UnsupportedContent
from clew_workflows.contract import MessageInput, SessionConfig
from clew_workflows.contract.content import get_text, read_parts
from clew_workflows.contract.limits import MAX_PARTS
from clew_workflows.contract.payloads import StoredSnapshot, UserMessage
from clew_workflows.host.ingress import decode_signal, decode_update
from tests.support.hostile_input import make_raw

CONFIG = SessionConfig(model="openai:gpt-4o")
BLOB: dict[str, Any] = {"digest": "0" * 64, "media_type": "image/png", "bytes": 7}
URL = "https://images.example/a.png"


def image(**fields: Any) -> list[dict[str, Any]]:
    """Make a content of an image whose blob has other fields."""
    return [{"type": "image", "blob": BLOB | fields}]


def nest(levels: int) -> Any:
    """Make lists within lists."""
    value: Any = []
    for _ in range(levels):
        value = [value]
    return value


MALFORMED: dict[str, Any] = {
    "no part": [],
    "a number": 7,
    "nothing": None,
    "one part": {"type": "text", "text": "hello"},
    "texts": ["hello"],
    "no type": [{}],
    "another type": [{"type": "video", "blob": BLOB}],
    "a type of a wrong type": [{"type": ["image"], "blob": BLOB}],
    "a text of a wrong type": [{"type": "text", "text": ["hello"]}],
    "a text with another field": [{"type": "text", "text": "hello", "cache": True}],
    "an image of nothing": [{"type": "image"}],
    "an image of two": [{"type": "image", "blob": BLOB, "url": URL}],
    "the second image of nothing": [{"type": "image", "url": URL}, {"type": "image"}],
    "a recording at an address": [{"type": "audio", "url": URL}],
    "a file of nothing": [{"type": "file", "blob": None}],
    "a file on the disk": [{"type": "image", "url": "file:///etc/passwd"}],
    "a script": [{"type": "image", "url": "javascript:alert(1)"}],
    "bytes": [{"type": "image", "url": "data:image/png;base64,iVBORw0KGgo="}],
    "an address of two lines": [{"type": "image", "url": f"{URL}\r\nX-Evil: 1"}],
    "a long address": [{"type": "image", "url": URL + "a" * 9000}],
    "a path for a digest": image(digest="../../../../etc/passwd"),
    "a digest and a line": image(digest="0" * 64 + "\n"),
    "bytes in words": image(bytes="7"),
    "bytes that are true": image(bytes=True),
    "no bytes": image(bytes=0),
    "too many bytes": image(bytes=1 << 70),
    "half a byte": image(bytes=7.5),
    "a type with parameters": image(media_type="text/html; charset=utf-8"),
    "a type and a header": image(media_type="image/png\r\nSet-Cookie: a=b"),
    "a path for a name": image(name="../../x"),
    "a path of another system": image(name="..\\..\\x"),
    "a name with controls": image(name="a\x1b[31m.png"),
    "an empty name": image(name=""),
    "a long name": image(name="x" * 256),
    "a negative width": image(width=-1),
    "endless seconds": image(seconds=1e300),
    "an unknown field": image(path="/etc/passwd"),
    "a blob in a blob": [{"type": "image", "blob": {"blob": BLOB}}],
    "many parts": [{"type": "text", "text": "a"}] * (MAX_PARTS + 1),
    "thousands of parts": [{"type": "text", "text": "a"}] * 5000,
    "deep nesting": nest(60),
}


@pytest.mark.parametrize("content", MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_content_is_refused_wherever_it_arrives(content: Any) -> None:
    """As a message, an input, a message of a snapshot, and as signals: with a word, and a reason of one paragraph."""
    snapshot = {"messages": [{"role": "user", "content": content}]}
    replace = {"op_id": "o-1", "operation": {"type": "replace", "result_context": snapshot}}
    updates = {
        "message": {"content": content},
        "submit_input": {"content": content, "kind": "steer"},
        "submit_context_operation": replace,
    }
    signals = {"steer": {"content": content}, "inject": {"content": content}}
    refusals: list[Refusal] = []
    for decode, messages in ((decode_update, updates), (decode_signal, signals)):
        for name, message in messages.items():
            with pytest.raises(Refusal) as refused:
                decode(name, [make_raw(json.dumps(message).encode())], CONFIG)
            refusals.append(refused.value)
    assert [refusal.type for refusal in refusals] == [
        *("invalid_input", "invalid_input", "invalid_operation", "invalid_input", "invalid_input")
    ]
    for refusal in refusals:
        assert "content" in refusal.message
        # It names fields of the contract, and nothing of how they are validated.
        assert "[" not in refusal.message.partition(": ")[0]
        assert len(refusal.message) < 1000


@pytest.mark.parametrize("content", [*MALFORMED.values(), image(media_type="application/pdf")])
def test_a_malformed_result_is_no_part(content: Any) -> None:
    """A late result is refused. What a tool returns otherwise is its JSON, and names no blob."""
    late = make_raw(json.dumps({"tool_call_id": "t", "content": content}).encode())
    with pytest.raises(Refusal):
        decode_signal("late_result", [late], CONFIG)
    if content != image(media_type="application/pdf"):
        assert read_parts(content) is None


@pytest.mark.parametrize(("part", "says"), [({}, "neither"), ({"blob": BLOB, "url": URL}, "both")])
def test_an_image_has_one_source(part: dict[str, Any], says: str) -> None:
    """The refusal says which of the two is wrong, where, and how to name one."""
    content = [{"type": "text", "text": "look"}, {"type": "image", **part}]
    with pytest.raises(InvalidInput, match=f"part 1 .*{says}.*PutBlob"):
        decode_update("message", [make_raw(json.dumps({"content": content}).encode())], CONFIG)


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [
        *(("image", "text/html"), ("image", "application/pdf"), ("image", "image/svg+xml"), ("audio", "image/png")),
        ("file", "image/svg+xml"),
    ],
)
def test_a_part_has_a_blob_of_its_kind(kind: str, media_type: str) -> None:
    """HTML is no image, and SVG is none either."""
    content = [{"type": kind, "blob": BLOB | {"media_type": media_type}}]
    with pytest.raises(UnsupportedContent):
        decode_update("message", [make_raw(json.dumps({"content": content}).encode())], CONFIG)


def test_what_a_later_release_adds_to_parts_is_ignored_in_threads() -> None:
    """A stored part may have further fields. A field that readers rely on must have its type."""
    part = {"type": "image", "blob": BLOB | {"frames": 12}, "alt": "a square"}
    message = UserMessage.from_json({"context_ref": "default", "role": "user", "content": [part]})
    assert get_text(message.content).startswith("[image: ")
    with pytest.raises(ValueError, match="part 0"):
        StoredSnapshot.from_json({"messages": [{"role": "user", "content": [part | {"blob": {"frames": 12}}]}]})


def test_well_formed_contents_are_taken() -> None:
    """The same door takes each kind of part."""
    for part in ({"type": "image", "url": URL}, {"type": "image", "blob": BLOB}, {"type": "file", "blob": BLOB}):
        taken = decode_update("message", [make_raw(json.dumps({"content": [part]}).encode())], CONFIG)
        assert isinstance(taken, MessageInput)
        assert taken.content == [part]
