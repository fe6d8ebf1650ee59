"""Images, recordings and files in the requests of each format: what is sent, and what stands for the others."""

from __future__ import annotations

import copy
import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.providers import ModelRequest, Provider
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.bedrock.provider import Bedrock, distinguish_documents
from clew_activities.providers.dialects import DIALECTS
from clew_activities.providers.encoders import dump_body
from clew_activities.providers.google.provider import Google
from clew_activities.providers.openai.chat import OpenAI
from clew_activities.providers.openai.responses import Responses
from clew_activities.providers.provider_errors import BadRequest, ContextLengthExceeded
from clew_activities.providers.request_media import MediaForms, choose_media
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.content import Content, ImagePart, MediaSort, Part
from clew_workflows.contract.messages import Message
from tests.providers.media_rules import list_received
from tests.support.media import make_pdf, make_png, make_wav

URL = "http://localhost"
ALL: frozenset[MediaSort] = frozenset({"image", "audio", "pdf", "text"})
BYTES: dict[str, bytes] = {}


def make_part(kind: str, data: bytes, media_type: str, **fields: Any) -> Part:
    digest = hashlib.sha256(data).hexdigest()
    BYTES[digest] = data
    blob = {"digest": digest, "media_type": media_type, "bytes": len(data), **fields}
    part: ImagePart = {"type": kind, "blob": blob}  # type: ignore[typeddict-item]
    return part


PNG = make_part("image", make_png(), "image/png", width=30, height=20, name="chart.png")
PDF = make_part("file", make_pdf(), "application/pdf", pages=2, name="Müller's two_pages.pdf")
WAV = make_part("audio", make_wav(), "audio/wav", seconds=2)
NOTES = make_part("file", b"first line\nsecond line", "text/plain", name="notes.txt")
TIFF = make_part("image", b"II*\0" + bytes(20), "image/tiff")


def text(words: str) -> Part:
    return {"type": "text", "text": words}


def make_request(model: str, *messages: Message, takes: frozenset[MediaSort] = ALL) -> ModelRequest:
    options = ModelOptions(max_output_tokens=1000)
    return ModelRequest(model=model, messages=messages, tools=(), options=options, takes=takes, blobs=BYTES)


def user(*parts: Part) -> Message:
    return {"role": "user", "content": list(parts)}


def make_round(*contents: Content) -> list[Message]:
    """Make a question, calls, and a result of each."""
    calls: Any = [{"id": f"c{n}", "name": "draw", "arguments": {}} for n in range(len(contents))]
    results: list[Message] = [
        {"role": "tool", "tool_call_id": f"c{n}", "name": "draw", "content": content}
        for n, content in enumerate(contents)
    ]
    return [{"role": "user", "content": "Draw."}, {"role": "assistant", "content": "", "tool_calls": calls}, *results]


FORMATS: dict[str, tuple[Provider, str]] = {
    "anthropic": (Anthropic("anthropic", URL), "claude-sonnet-5"),
    "responses": (Responses("openai", URL), "gpt-5.6"),
    "chat": (OpenAI("openai", URL, DIALECTS["openai"]), "gpt-5.6"),
    "mistral": (OpenAI("mistral", URL, DIALECTS["mistral"]), "pixtral-large"),
    "gemini 3": (Google("google", URL), "gemini-3-pro"),
    "gemini 2.5": (Google("google", URL), "gemini-2.5-pro"),
    "bedrock claude": (Bedrock("bedrock", URL), "anthropic.claude-sonnet-5"),
    "bedrock nova": (Bedrock("bedrock", URL), "amazon.nova-pro-v1:0"),
}
every_format = pytest.mark.parametrize("name", FORMATS)


def encode(name: str, *messages: Message, takes: frozenset[MediaSort] = ALL) -> Any:
    provider, model = FORMATS[name]
    return provider.encode(make_request(model, *messages, takes=takes))


def list_places(body: Any, *needles: str) -> list[int]:
    written = json.dumps(body, ensure_ascii=False)
    return [written.index(needle) for needle in needles]


@every_format
def test_the_order_of_texts_and_images_is_kept(name: str) -> None:
    """A model reads texts and images in the order in which they were sent, each to the byte."""
    body = encode(name, user(text("Before."), PNG, text("After."))).body
    (received,) = list_received(body)
    assert received.digest == PNG["blob"]["digest"]  # type: ignore[typeddict-item]
    places = list_places(body, "Before.", received.data, "After.")
    assert places == sorted(places)


@every_format
@pytest.mark.parametrize("part", [PNG, PDF, WAV, NOTES, TIFF], ids=["png", "pdf", "wav", "text", "tiff"])
def test_every_part_is_sent_or_named(name: str, part: Part) -> None:
    """Nothing of a part is lost without a word: it is in the request, or a marker is, and the recipe says why."""
    encoded = encode(name, user(text("Look."), part))
    blob: Any = part["blob"]  # type: ignore[typeddict-item]
    shown = encoded.fitting.media.get(blob["digest"][:12])
    written = json.dumps(encoded.body, ensure_ascii=False)
    if blob["media_type"] == "text/plain":
        assert "second line" in written
        assert shown is None
    elif received := list_received(encoded.body):
        assert [one.digest for one in received] == [blob["digest"]]
        assert shown is None
    else:
        assert f"[{part['type']}: " in written
        assert shown


@every_format
def test_an_unknown_model_gets_markers(name: str) -> None:
    """A model of which nothing is known gets the markers of all parts, and no bytes."""
    encoded = encode(name, user(PNG, PDF, WAV, NOTES), takes=frozenset())
    assert list_received(encoded.body) == []
    assert "[image: chart.png, image/png, 30 x 20" in json.dumps(encoded.body)
    assert len(encoded.fitting.media) == 4


RESULTS = {"anthropic": True, "responses": True, "gemini 3": True, "bedrock claude": True}


@every_format
def test_images_of_results_stand_in_them_or_follow_them(name: str) -> None:
    """Where a result cannot have an image, it follows all results of the round, behind a line that names the call."""
    encoded = encode(name, *make_round([text("Drawn."), PNG], "Nothing drawn."), {"role": "user", "content": "So?"})
    (received,) = list_received(encoded.body)
    assert received.in_result == RESULTS.get(name, False)
    moved = encoded.fitting.media.get(PNG["blob"]["digest"][:12])  # type: ignore[typeddict-item]
    if received.in_result:
        assert moved is None
    else:
        assert moved
        places = list_places(
            encoded.body, "Drawn.", "Nothing drawn.", "From the result of draw, call c0", received.data, "So?"
        )
        assert places == sorted(places)


@every_format
def test_what_a_model_has_drawn_follows_its_message(name: str) -> None:
    """No format takes images in an assistant's message; they follow it, and its text stays as it was."""
    reply: Message = {"role": "assistant", "content": [text("Here it is."), PNG]}
    encoded = encode(name, user(text("Draw.")), reply, user(text("Another.")))
    (received,) = list_received(encoded.body)
    assert received.role not in ("assistant", "model")
    places = list_places(encoded.body, "Here it is.", "From the reply before", received.data, "Another.")
    assert places == sorted(places)


@every_format
def test_an_address_is_passed_on_or_named(name: str) -> None:
    """The address of an image goes to providers that fetch images; others get its marker."""
    encoded = encode(name, user(text("Look."), {"type": "image", "url": "https://example.com/cat.png"}))
    assert "https://example.com/cat.png" in json.dumps(encoded.body)
    fetches = name in ("anthropic", "responses", "chat", "mistral")
    assert bool(encoded.fitting.media) != fetches


@every_format
def test_texts_are_encoded_as_before(name: str) -> None:
    """A context of texts has the same bytes, whatever the model takes; parts that are texts are one text."""
    plain: list[Message] = [{"role": "user", "content": "One.\nTwo."}]
    parts = [user(text("One."), text("Two."))]
    bodies = {
        dump_body(encode(name, *messages, takes=takes).body)
        for messages in (plain, parts)
        for takes in (ALL, frozenset())
    }
    assert len(bodies) == 1


def test_documents_at_bedrock_have_names_that_it_takes() -> None:
    """Names lose the characters that Converse refuses, differ from each other, and a text stands beside them."""
    body = encode("bedrock claude", user(PDF, PDF)).body
    blocks = body["messages"][0]["content"]
    names = [block["document"]["name"] for block in blocks if "document" in block]
    assert names[0] == "M ller s two pages"
    assert len(set(names)) == 2
    assert any("text" in block for block in blocks)


FILE_NAMES = st.lists(
    st.sampled_from(("report.pdf", "report (2).pdf", "report-2.pdf", "re port.pdf", "r" * 300, "ä"))
)


@given(FILE_NAMES, st.data())
def test_no_two_documents_at_bedrock_have_one_name_and_none_changes_when_another_follows(
    names: list[str], data: st.DataObject
) -> None:
    """Converse refuses a request that has a name twice, and would refuse it again with every later message."""
    documents: list[dict[str, Any]] = []
    sent: list[str] = []
    for _ in names:
        name = data.draw(st.sampled_from((*names, *sent)))
        documents.append(
            {"document": {"name": re.sub(r"[^A-Za-z0-9()\[\]-]+", " ", name).strip()[:200] or "document"}}
        )
        before, sent = sent, encode_documents(documents)
        assert sent[: len(before)] == before
    assert len(set(sent)) == len(sent)
    assert all(re.fullmatch(r"[A-Za-z0-9 ()\[\]-]{1,200}", name) and "  " not in name for name in sent)


def encode_documents(documents: list[dict[str, Any]]) -> list[str]:
    turns = [{"content": copy.deepcopy(documents)}]
    distinguish_documents(turns)
    return [block["document"]["name"] for block in turns[0]["content"]]


def test_bytes_that_are_not_at_hand_are_an_error() -> None:
    """A codec never leaves out an image that the model is to see."""
    provider, model = FORMATS["anthropic"]
    with pytest.raises(BadRequest):
        provider.encode(replace(make_request(model, user(PNG)), blobs={}))


FORMS = MediaForms(types=frozenset({"image/png"}), total_bytes=1000, side=100, many=(2, 50), counts={"image": 3})


def make_image(side: int, size: int = 30) -> Part:
    return make_part("image", bytes([side]) * size, "image/png", width=side, height=10)


def list_replaced(*parts: Part) -> list[int]:
    chosen = choose_media(make_request("m", *map(user, parts)), FORMS)
    return [parts.index(part) for part, _ in chosen.replaced]


@pytest.mark.parametrize(
    ("make", "replaced"),
    [
        (lambda: [make_image(90), make_image(91)], []),
        (lambda: [make_image(101), make_image(91)], [0]),
        (lambda: [make_image(10), make_image(60), make_image(11)], [1]),
        (lambda: [make_image(10), make_image(11), make_image(12), make_image(13)], [0]),
        (lambda: [make_image(10, 900)], [0]),
    ],
    ids=["fits", "large", "large among many", "too many", "too many bytes"],
)
def test_images_beyond_a_limit_are_markers(make: Callable[[], list[Part]], replaced: list[int]) -> None:
    """An image that a provider would refuse does not make all later calls fail: a marker stands for it."""
    assert list_replaced(*make()) == replaced


def test_too_many_bytes_together_are_a_context_that_is_too_long() -> None:
    """The error says how much the provider takes, so that the session shortens its context."""
    chosen = choose_media(make_request("m", user(make_image(10, 400), make_image(11, 400))), FORMS)
    with pytest.raises(ContextLengthExceeded) as error:
        chosen.ensure_size(FORMS)
    assert error.value.details == {"limit": 1000, "actual": 1072}


def test_the_record_of_markers_is_bounded() -> None:
    """A thousand images that a model does not see take no more of a recipe than some twenty."""
    parts = [make_part("image", str(number).encode(), "image/png") for number in range(1000)]
    changes = choose_media(make_request("m", user(*parts), takes=frozenset()), FORMS).changes
    assert len(changes) == 21
    assert changes["others"] == "980"


@pytest.mark.parametrize("name", ["responses", "chat"])
@pytest.mark.parametrize("detail", [None, "low", "high", "original"])
def test_the_detail_of_an_image_is_sent(name: str, detail: str | None) -> None:
    """OpenAI's APIs get it as its sender has chosen it; without one the provider decides."""
    provider, model = FORMATS[name]
    part: Any = {**PNG, **({"detail": detail} if detail else {})}
    body: Any = provider.encode(make_request(model, user(part))).body
    sent = (body["input"] if name == "responses" else body["messages"])[0]["content"][0]
    if name == "responses":
        assert sent["detail"] == (detail or "auto")
    else:
        assert sent["image_url"].get("detail") == detail
