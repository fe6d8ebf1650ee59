"""The content of messages: what stands for an image in a text, and how parts are kept where messages are changed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import ValidationError

from clew.errors import InvalidInput, UnknownBlob
from clew_workflows.contract import MessageInput
from clew_workflows.contract.content import (
    Content,
    ReadsBlobs,
    append_text,
    find_sort,
    get_digest,
    get_text,
    is_empty,
    iterate_blobs,
    join_contents,
    list_media,
    name_part,
    prefix_text,
    strip_content,
)
from clew_workflows.contract.validation import translate_validation_error

BLOB: Any = {"digest": "ab" * 32, "media_type": "image/png", "bytes": 1234, "name": "screen.png"}
IMAGE: Any = {"type": "image", "blob": {**BLOB, "width": 30, "height": 20}}
FILE: Any = {"type": "file", "blob": {"digest": "cd" * 32, "media_type": "application/pdf", "bytes": 9, "pages": 2}}
TEXT: Any = {"type": "text", "text": "Look:"}
PARTS: Content = [TEXT, IMAGE, FILE]


def take(content: Any) -> MessageInput:
    """Take a message as a session does.

    Raises:
        Refusal: It is not valid.
    """
    try:
        return MessageInput.model_validate({"content": content})
    except ValidationError as error:
        raise translate_validation_error(MessageInput, error) from None


def test_a_marker_names_what_it_stands_for() -> None:
    """The name or the beginning of the digest, the type, the measures and the size."""
    assert get_text(PARTS).splitlines() == [
        "Look:",
        "[image: screen.png, image/png, 30 x 20, 1234 bytes]",
        "[file: cdcdcdcdcdcd, application/pdf, 2 pages, 9 bytes]",
    ]
    assert [blob["bytes"] for blob in iterate_blobs(["text", PARTS])] == [1234, 9]


def test_a_part_is_named_by_the_beginning_of_its_digest_or_its_address() -> None:
    url: Any = {"type": "image", "url": f"https://example.com/{'a' * 300}"}
    assert [name_part(part) for part in list_media(PARTS)] == ["ab" * 6, "cd" * 6]
    assert name_part(url) == url["url"][:200]


@pytest.mark.parametrize(
    ("media_type", "sort"),
    [
        ("image/png", "image"),
        ("audio/mpeg", "audio"),
        ("application/pdf", "pdf"),
        ("text/csv", "text"),
        ("application/geo+json", "text"),
        ("application/zip", "other"),
    ],
)
def test_the_sort_of_a_file_is_that_of_its_bytes(media_type: str, sort: str) -> None:
    """By their media type, whatever kind of part names them."""
    part: Any = {"type": "file", "blob": {**BLOB, "media_type": media_type}}
    assert find_sort(part) == sort


def test_a_part_without_a_blob_is_a_text_or_an_image() -> None:
    assert find_sort(TEXT) == "text"
    assert find_sort({"type": "image", "url": "https://example.com/a"}) == "image"


def test_no_part_is_lost_where_texts_are_added() -> None:
    """A note before or behind a message is a part of its own; a text stays a text."""
    assert prefix_text("note ", "text") == "note text"
    assert append_text("text", " note") == "text note"
    assert prefix_text("note", PARTS) == [{"type": "text", "text": "note"}, *PARTS]
    assert append_text(PARTS, "note") == [*PARTS, {"type": "text", "text": "note"}]
    assert join_contents(["a", " ", "b"], "\n\n") == "a\n\nb"
    assert join_contents(["a", PARTS], "\n\n") == [{"type": "text", "text": "a"}, *PARTS]


def test_a_message_of_an_image_alone_is_not_empty() -> None:
    """White space around it is removed."""
    blank: Any = {"type": "text", "text": " \n"}
    assert is_empty([blank])
    assert is_empty(" ")
    assert strip_content([blank, IMAGE]) == [IMAGE]
    assert not is_empty([IMAGE])


@pytest.mark.parametrize(
    "content",
    [
        PARTS,
        [{"type": "image", "url": "https://example.com/a.png"}],
        "text",
    ],
    ids=["parts", "url", "text"],
)
def test_a_text_and_a_list_of_parts_are_taken(content: Any) -> None:
    """As they are."""
    assert take(content).content == content


@pytest.mark.parametrize(
    "content",
    [
        [],
        [TEXT] * 101,
        [{"type": "video", "blob": BLOB}],
        [{"type": "image"}],
        [{"type": "image", "blob": BLOB, "url": "https://example.com/a.png"}],
        [{"type": "image", "url": "http://example.com/a.png"}],
        [{"type": "image", "url": "https://example.com/a b.png"}],
        [{"type": "audio", "url": "https://example.com/a.mp3"}],
        [{"type": "image", "blob": {**BLOB, "digest": "AB" * 32}}],
        [{"type": "image", "blob": {**BLOB, "bytes": 0}}],
        [{"type": "image", "blob": {**BLOB, "bytes": 2**40}}],
        [{"type": "image", "blob": {**BLOB, "name": "../x"}}],
        [{"type": "image", "blob": {**BLOB, "media_type": "image/PNG; a=b"}}],
        [{"type": "image", "blob": {**BLOB, "data": "aGk="}}],
        [{"type": "text", "text": "data:image/png;base64," + "QUJDRA" * 400}],
        [{"type": "text", "text": "hi", "blob": BLOB}],
        7,
    ],
)
def test_a_part_that_is_not_valid_is_refused(content: Any) -> None:
    """With `invalid_input`: bytes, relative names, other protocols and unknown fields never enter a thread."""
    with pytest.raises(InvalidInput):
        take(content)


@pytest.mark.parametrize(
    "named", [BLOB["digest"], BLOB, IMAGE, SimpleNamespace(blob=BLOB), SimpleNamespace(blob=IMAGE)]
)
def test_a_blob_is_named_by_whatever_has_its_digest(named: object) -> None:
    """The digest itself, a description, a part, or a client's media."""
    assert get_digest(named) == BLOB["digest"]


def test_blobs_are_read_where_a_worker_has_given_a_reader() -> None:
    context: Any = ReadsBlobs.__new__(type("Context", (ReadsBlobs,), {}))
    with pytest.raises(RuntimeError, match="on a worker"):
        context.read_blob_sync(BLOB)
    context._blobs = SimpleNamespace(read_sync=lambda digest: f"bytes of {digest[:4]}")
    assert context.read_blob_sync(BLOB) == "bytes of abab"


@pytest.mark.parametrize("named", ["", "ab", "g" * 64, "ab" * 33, 5, None, {}, TEXT, {"digest": 5}])
def test_other_values_name_no_blob(named: object) -> None:
    with pytest.raises(UnknownBlob):
        get_digest(named)
