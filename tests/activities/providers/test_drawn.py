"""What models draw and say, in the forms of each API."""

from __future__ import annotations

import io
import json
import wave
from base64 import b64encode
from typing import Any

import pytest

from clew.contract import ModelOptions
from clew_activities.providers.google.stream import GoogleDecoder
from clew_activities.providers.interface import Decoder, ModelRequest
from clew_activities.providers.openai.chat_stream import OpenAIDecoder
from clew_activities.providers.openai.responses_stream import ResponsesDecoder
from clew_activities.providers.options import expects_media
from clew_activities.providers.provider_errors import EmptyReply
from clew_activities.providers.reply import MAX_MEDIA, MAX_MEDIA_CHARACTERS, DraftDecoder
from clew_activities.received_media import NewMedia, Unusable
from tests.support.media import make_png, make_wav

PNG = make_png(30, 20)
ENCODED = b64encode(PNG).decode()
SAMPLES = bytes(range(256)) * 8


def feed(decoder: Any, *events: dict[str, Any]) -> Any:
    for event in events:
        decoder.feed("message", json.dumps(event))
    return decoder


def read(decoder: Any) -> list[Any]:
    """Decode the media of a reply: its place in the text, its kind and its bytes."""
    return [(drawn.start, drawn.kind, drawn.read().data) for drawn in decoder.media]


def gemini(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {"candidates": [{"content": {"parts": list(parts)}, **fields}]}


def inline(data: str, media_type: str = "image/png", **fields: Any) -> dict[str, Any]:
    return {"inlineData": {"mimeType": media_type, "data": data}, **fields}


def test_gemini_draws_between_its_texts() -> None:
    """An image has its place in the text; a sketch within a thought is left out; the signature keeps the place."""
    decoder = feed(
        GoogleDecoder(),
        gemini({"text": "Here: "}),
        gemini(inline(ENCODED, thought=True)),
        gemini(inline(ENCODED, thoughtSignature="c2ln"), {"text": "done"}, finishReason="STOP"),
    )
    reply = decoder.finish()
    assert reply.content == "Here: done"
    assert read(decoder) == [(6, "image", PNG)]
    assert {"inlineData": {}, "thoughtSignature": "c2ln"} in reply.provider_data["blocks"]
    assert ENCODED[:40] not in json.dumps(reply.provider_data)


def test_geminis_samples_become_one_recording() -> None:
    """Samples without a header arrive in pieces; they are a WAV file of the rate that the type names."""
    pieces = [inline(b64encode(SAMPLES[i : i + 500]).decode(), "audio/L16;codec=pcm;rate=16000") for i in (0, 500)]
    decoder = feed(GoogleDecoder(), gemini(pieces[0]), gemini(pieces[1], finishReason="STOP"))
    assert decoder.finish().content == ""
    ((_, kind, data),) = read(decoder)
    with wave.open(io.BytesIO(data)) as recording:
        assert (kind, recording.getframerate()) == ("audio", 16_000)
        assert recording.readframes(10_000) == SAMPLES[:1000]


def test_the_responses_api_draws_and_repeats_it_at_the_end() -> None:
    """An image is kept once, with the prompt that the model has written; its bytes are no provider data."""
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed", "revised_prompt": "a cat"}
    item["result"] = ENCODED
    text = {"type": "message", "content": [{"type": "output_text", "text": "a cat"}]}
    partial = {
        "type": "response.image_generation_call.partial_image",
        "output_index": 0,
        "partial_image_b64": ENCODED,
    }
    response = {"object": "response", "status": "completed", "output": [item, text]}
    decoder = feed(
        ResponsesDecoder("openai", "gpt-5"),
        partial,
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.output_item.done", "output_index": 1, "item": text},
        {"type": "response.completed", "response": response},
    )
    reply = decoder.finish()
    assert read(decoder) == [(0, "image", PNG)]
    assert reply.provider_calls == ({"tool": "image_generation", "input": "a cat"},)
    assert reply.provider_data is None


@pytest.mark.parametrize("member", ["delta", "message"])
def test_chat_completions_draw_in_images(member: str) -> None:
    """OpenRouter's images are data URLs, in the stream or in a complete reply; an address is kept as one."""
    images = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{ENCODED}"}}]
    images.append({"type": "image_url", "image_url": {"url": "https://example.com/a.png"}})
    chunk = {"choices": [{"index": 0, member: {"content": "a", "images": images}, "finish_reason": "stop"}]}
    decoder = feed(OpenAIDecoder(), chunk)
    assert decoder.finish().content == "a"
    assert [(drawn.url, drawn.start) for drawn in decoder.media] == [("", 1), ("https://example.com/a.png", 1)]
    assert decoder.media[0].read() == NewMedia("image", PNG)


def test_chat_completions_speak() -> None:
    """Samples arrive in pieces with the text of what is said; the recording is a WAV file, and the text is shown."""

    def say(transcript: str, data: bytes) -> dict[str, Any]:
        audio = {"id": "a", "transcript": transcript, "data": b64encode(data).decode()}
        return {"choices": [{"index": 0, "delta": {"audio": audio}}]}

    decoder = feed(OpenAIDecoder(), say("Hel", SAMPLES[:100]), say("lo", SAMPLES[100:250]))
    feed(decoder, {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert decoder.finish().content == "Hello"
    ((_, kind, data),) = read(decoder)
    with wave.open(io.BytesIO(data)) as recording:
        assert (kind, recording.readframes(1000)) == ("audio", SAMPLES[:250])


def test_a_complete_recording_stays_as_it_is() -> None:
    """A file with a header is not wrapped again."""
    audio = {"id": "a", "data": b64encode(make_wav(1)).decode(), "transcript": "Hi"}
    decoder = feed(OpenAIDecoder(), {"choices": [{"message": {"audio": audio}, "finish_reason": "stop"}]})
    assert decoder.finish().content == "Hi"
    assert read(decoder) == [(0, "audio", make_wav(1))]


@pytest.mark.parametrize("data", [None, 7, "", [], {}])
def test_a_reply_without_data_is_empty(data: Any) -> None:
    """An image without data is none, and a reply with nothing else is empty."""
    decoder = feed(GoogleDecoder(), gemini({"inlineData": {"mimeType": "image/png", "data": data}}))
    feed(decoder, gemini(finishReason="STOP"))
    with pytest.raises(EmptyReply):
        decoder.finish()


def test_media_is_bounded_in_number_and_size() -> None:
    """A reply keeps the first images, up to its bounds; what is not base64 is named as that."""
    many = DraftDecoder()
    for _ in range(MAX_MEDIA + 9):
        many.add_media("image", ENCODED)
    assert len(many.media) == MAX_MEDIA
    large = DraftDecoder()
    large.add_media("image", "A" * (MAX_MEDIA_CHARACTERS - 4))
    large.add_media("image", ENCODED)
    assert len(large.media) == 1
    broken = DraftDecoder()
    broken.add_media("image", "***")
    assert isinstance(broken.media[0].read(), Unusable)


@pytest.mark.parametrize(
    ("model", "tools", "options", "expected"),
    [
        ("gemini-3-pro-image", (), {}, True),
        ("gpt-audio", (), {}, True),
        ("gpt-5.1", ("image_generation",), {}, True),
        ("gpt-5.1", ("web_search",), {}, False),
        ("some/model", (), {"openrouter": {"modalities": ["image", "text"]}}, True),
        ("imagen-like-reimagined", (), {}, False),
    ],
)
def test_only_calls_that_may_draw_have_large_bounds(
    model: str, tools: tuple[str, ...], options: dict[str, Any], expected: bool
) -> None:
    """The name of the model, the provider's tool or the caller's own options say that a reply may have media."""
    own = ModelOptions(max_output_tokens=10, provider_options=options or None)
    request = ModelRequest(model=model, messages=[], tools=[], options=own, provider_tools=tools)
    assert expects_media(request) is expected


def test_a_decoder_of_another_package_needs_no_media() -> None:
    """The protocol of decoders does not ask for media."""
    assert "media" not in dir(Decoder)
