"""Images, recordings and files between sessions and clients of AG-UI."""

from __future__ import annotations

import hashlib
from base64 import b64encode
from typing import Any

import pytest
from ag_ui import core

from clew import Audio, File, Image
from clew.ag_ui import ag_ui_parts
from clew.ag_ui.ag_ui_parts import BLOB, convert_content, read_content
from clew.ag_ui.mapping import RunEvents, convert_entry, convert_thread
from clew.local import Reply
from clew.session.events import EntryCommitted
from clew.thread import Entry
from clew_workflows.contract.content import Blob, Content
from clew_workflows.contract.errors import InvalidInput, TooLarge, UnsupportedContent
from tests.support.ag_ui import AgUiClient, apply
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.scripts import PausedModel
from tests.support.stack import Stack

PICTURE: Blob = {"digest": "a" * 64, "media_type": "image/png", "bytes": 10, "width": 5, "height": 4, "name": "a.png"}
PAGES: Blob = {"digest": "b" * 64, "media_type": "application/pdf", "bytes": 11, "pages": 2}
FILM: Blob = {"digest": "c" * 64, "media_type": "video/mp4", "bytes": 12}
CONTENT: Content = [
    {"type": "text", "text": "Look."},
    {"type": "image", "blob": PICTURE},
    {"type": "file", "blob": PAGES},
    {"type": "file", "blob": FILM},
    {"type": "image", "url": "https://example.org/a.png"},
]


def inline(data: bytes, mime_type: str) -> core.DataSource:
    """Make a source with bytes."""
    return core.DataSource(value=b64encode(data).decode(), mime_type=mime_type)


def commit(role: str, content: Any, **payload: Any) -> EntryCommitted:
    """Make an event of a message."""
    refs = {"session_id": "s", "request_id": "m1", "call_id": "call-1"}
    fields = {"context_ref": "default", "role": role, "content": content, **payload}
    entry = Entry.from_json(
        {"seq": 1, "id": "e1", "kind": "ai_message", "at": "", "payload": fields, "refs": refs, "tokens": 0}
    )
    return EntryCommitted(seq=1, entry=entry)


def test_parts_name_blobs_and_have_no_bytes() -> None:
    """A part is a file of the provider `clew`, or has the address that the service makes; an address stays one."""
    converted: Any = convert_content(CONTENT)
    assert [part.type for part in converted] == ["text", "image", "document", "video", "image"]
    assert (converted[1].source.type, converted[1].source.value, converted[1].source.provider) == (
        *("file", "a" * 64, "clew"),
    )
    assert converted[1].metadata[BLOB] == PICTURE
    assert converted[4].source.value == "https://example.org/a.png"
    linked: Any = convert_content(CONTENT, lambda blob: f"/blobs/{blob['digest'][:4]}")
    assert [part.source.value for part in linked[1:3]] == ["/blobs/aaaa", "/blobs/bbbb"]


@pytest.mark.parametrize("blob_url", [None, lambda blob: f"/blobs/{blob['digest']}"])
def test_parts_that_come_back_name_the_same_blobs(blob_url: Any) -> None:
    """A client may send what it got: by the description in the metadata, not by the address."""
    read: Any = read_content(convert_content(CONTENT, blob_url))
    assert read[0] == "Look."
    assert [part.blob for part in read[1:4]] == [PICTURE, PAGES, FILM]
    assert [type(part) for part in read[1:]] == [Image, File, File, Image]
    assert read[4].url == "https://example.org/a.png"


def test_texts_stay_a_text() -> None:
    """Parts that are all text are one text, as a message without parts has it."""
    assert read_content([core.TextPart(text="a"), core.TextPart(text="b")]) == "a\nb"
    assert read_content("a") == "a"


def test_bytes_come_in_base64_or_a_data_url() -> None:
    """Each part is of its kind; parameters of the type are left out; the metadata may name the file."""
    wav = make_wav(1)
    read: Any = read_content(
        [
            core.AudioPart(source=inline(wav, "audio/WAV; codecs=1"), metadata={"filename": "note.wav"}),
            core.ImagePart(source=core.UrlSource(value=f"data:image/png;base64,{b64encode(make_png()).decode()}")),
            core.DocumentPart(source=core.UrlSource(value="data:text/plain,a%20b")),
        ]
    )
    assert [type(part) for part in read] == [Audio, Image, File]
    assert [part.media_type for part in read] == ["audio/wav", "image/png", "text/plain"]
    assert [part.read() for part in read] == [wav, make_png(), b"a b"]
    assert read[0].name == "note.wav"


@pytest.mark.parametrize(
    ("part", "refusal"),
    [
        (core.ImagePart(source=core.DataSource(value="%%%", mime_type="image/png")), InvalidInput),
        (core.DocumentPart(source=core.UrlSource(value="https://example.org/a.pdf")), UnsupportedContent),
        (core.ImagePart(source=core.FileSource(value="file-1", provider="openai")), UnsupportedContent),
        (core.ImagePart(source=core.FileSource(value="a" * 64, provider="clew")), InvalidInput),
        (core.ImagePart(source=core.FileSource(value="a" * 64), metadata={BLOB: {"digest": "a"}}), InvalidInput),
        (core.ImagePart(source=core.FileSource(value="b" * 64), metadata={BLOB: PICTURE}), InvalidInput),
    ],
)  # fmt: skip
def test_parts_that_a_session_cannot_have(part: core.ContentPart, refusal: type[Exception]) -> None:
    """Nothing is fetched for a client, and a description must be of the blob that is named."""
    with pytest.raises(refusal):
        read_content([core.TextPart(text="Look."), part])


@pytest.mark.parametrize("source", [inline(bytes(20), "image/png"), core.UrlSource(value=f"data:,{'a' * 40}")])
def test_parts_that_are_too_large(source: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a blob is checked before its bytes are decoded."""
    monkeypatch.setattr(ag_ui_parts, "MAX_BLOB_BYTES", 10)
    with pytest.raises(TooLarge):
        read_content([core.ImagePart(source=source)])


def test_a_reply_with_a_picture_has_it_in_its_metadata() -> None:
    """The protocol's replies are texts: the text names the picture, the metadata has its part."""
    (message,) = convert_entry(commit("assistant", CONTENT[:2]).entry)
    assert isinstance(message, core.AssistantMessage)
    assert message.content
    assert message.content.startswith("Look.\n[image: a.png")
    assert message.metadata
    assert [part["type"] for part in message.metadata["clew.parts"]] == ["text", "image"]
    events = RunEvents([])
    made: Any = [*events.take(commit("assistant", CONTENT[:2]))]
    assert apply([], made) == [message]


def test_a_result_has_its_parts() -> None:
    """The event of a tool's result and its message have the same parts."""
    committed = commit("tool", CONTENT, tool_call_id="t1", name="draw")
    (message,) = convert_entry(committed.entry)
    assert isinstance(message, core.ToolMessage)
    assert [part.type for part in message.content if not isinstance(part, str)] == [
        *("text", "image", "document", "video", "image")
    ]
    made: Any = [*RunEvents([]).take(committed)]
    assert apply([], made) == [message]


def test_the_message_of_another_client_comes_with_its_parts() -> None:
    """A snapshot adds it; the client that has sent it keeps its own."""
    committed = commit("user", CONTENT, request_id="m1")
    made: Any = [*RunEvents([]).take(committed)]
    assert [event.type for event in made] == [core.EventType.MESSAGES_SNAPSHOT]
    assert apply([], made) == [*convert_entry(committed.entry)]
    own = core.UserMessage(id="m1", content=[core.TextPart(text="Look.")])
    assert [*RunEvents([own]).take(committed)] == []


async def test_a_client_sends_and_gets_parts(stack: Stack) -> None:
    """Bytes of a message are stored once, and a client that connects gets the parts by their digests."""
    session = await stack.open(lambda _body: Reply("seen"))
    client = AgUiClient(session)
    picture = core.ImagePart(source=inline(make_png(30, 20), "image/png"), metadata={"filename": "a.png"})
    document = core.DocumentPart(source=inline(make_pdf(1), "application/pdf"))
    ended = await client.say([core.TextPart(text="Look."), picture, document])
    assert isinstance(ended, core.RunFinishedEvent)
    other = AgUiClient(session)
    await other.run()
    assert other.messages == await convert_thread(session.read(kind="ai_message"))
    sent: Any = other.messages[0].content
    assert [part.type for part in sent] == ["text", "image", "document"]
    digest = sent[1].source.value
    assert digest == hashlib.sha256(make_png(30, 20)).hexdigest()
    assert await session.read_blob(digest) == make_png(30, 20)
    # A client sends a picture again by its name.
    ended = await other.say([core.TextPart(text="And now?"), sent[1]])
    assert isinstance(ended, core.RunFinishedEvent)
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    assert contents[2][1]["blob"]["digest"] == digest


async def test_another_client_sees_the_parts_of_a_message(stack: Stack) -> None:
    """A message with a picture that another client sends comes to the one that follows the run."""
    model = PausedModel()
    session = await stack.open(model)
    client = AgUiClient(session)
    request = await session.message("one")
    await model.called.wait()
    await session.steer(["this", Image.from_bytes(make_png(30, 20))])
    model.free.set()
    await request.result()
    await client.run()
    assert client.messages == await convert_thread(session.read(kind="ai_message"))


@pytest.mark.parametrize(
    ("part", "code"),
    [
        (core.ImagePart(source=inline(b"<html></html>", "image/png")), "content_mismatch"),
        (core.ImagePart(source=inline(b"<svg/>", "image/svg+xml")), "unsupported_content"),
        (core.ImagePart(source=core.FileSource(value="file-1")), "unsupported_content"),
        (core.ImagePart(source=core.DataSource(value="!", mime_type="image/png")), "invalid_input"),
    ],
)
async def test_refusals_end_the_run(stack: Stack, part: core.ContentPart, code: str) -> None:
    """The code of `RUN_ERROR` is the word of the contract, and the thread has no message."""
    session = await stack.open()
    client = AgUiClient(session)
    ended = await client.say([core.TextPart(text="Look."), part])
    assert isinstance(ended, core.RunErrorEvent)
    assert ended.code == code
    assert await session.transcript() == []
