"""Tokens of media: the formulas give what the providers publish, and every part has a count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew_activities.inspection import MAX_PIXELS, MAX_SIDE
from clew_workflows.contract.content import Part
from clew_workflows.contract.media_tokens import FORMULAS, NEUTRAL, find_formula
from clew_workflows.contract.messages import Message
from clew_workflows.contract.tokens import load_encoding
from tests.support.generated_threads import make_part


@pytest.mark.parametrize(
    ("model", "width", "height", "tokens"),
    [
        # platform.claude.com/docs/en/build-with-claude/vision
        ("anthropic:claude-opus-5", 3840, 2160, 4784),
        ("bedrock:us.anthropic.claude-opus-4-7", 1075, 1520, 39 * 55),
        ("anthropic:claude-sonnet-4-5", 3840, 2160, 1560),
        ("bedrock:eu.anthropic.claude-sonnet-4-20250514-v1:0", 1075, 1520, 33 * 47),
        ("anthropic:claude-3-5-haiku", 200, 200, 64),
        # developers.openai.com/api/docs/guides/images-vision
        ("openai:gpt-4o", 1024, 1024, 765),
        ("openai:gpt-4o", 2048, 4096, 1105),
        ("openai:gpt-4o", 512, 513, 85 + 2 * 170),
        ("azure:gpt-4.1-mini", 1024, 1024, 1659),
        ("openai:gpt-4.1-nano", 1800, 2400, 3572),
        ("openai:o4-mini", 1024, 1024, 1762),
        ("openai:gpt-5", 1024, 1024, 70 + 4 * 140),
        ("openai:gpt-5.6", 640, 480, 360),
        ("openai:gpt-6-astra", 3200, 960, 3600),
        # ai.google.dev/gemini-api/docs/image-understanding, media-resolution
        ("google:gemini-2.5-pro", 384, 384, 258),
        ("google:gemini-2.5-flash", 960, 540, 6 * 258),
        ("google:gemini-3-pro", 960, 540, 1120),
        # docs.aws.amazon.com/nova/latest/nova2-userguide
        ("bedrock:us.amazon.nova-2-lite-v1:0", 960, 540, 230),
    ],
)
def test_images_count_as_the_providers_publish(model: str, width: int, height: int, tokens: int) -> None:
    """The examples of the providers' pages have the counts that stand there."""
    assert find_formula(model).count_image(width, height) == tokens


@pytest.mark.parametrize(
    ("width", "height", "tokens"), [(900, 450, 800), (900, 900, 1300), (1400, 900, 1800), (1800, 900, 2400)]
)
def test_images_of_nova_are_near_the_published_estimates(width: int, height: int, tokens: int) -> None:
    """The row is within a tenth of each size that the page has."""
    assert find_formula("bedrock:amazon.nova-pro").count_image(width, height) == pytest.approx(tokens, rel=0.1)


SIZES = st.integers(1, MAX_SIDE).flatmap(
    lambda width: st.tuples(st.just(width), st.integers(1, min(MAX_PIXELS // width, MAX_SIDE)))
)
"""The sizes of images that are stored."""


@given(st.sampled_from([*FORMULAS]), SIZES)
def test_every_image_has_a_count_within_bounds(name: str, size: tuple[int, int]) -> None:
    """Neither a single pixel nor the thinnest strip nor the largest image breaks a formula."""
    assert 1 <= find_formula(f"any:{name}").count_image(*size) <= 400_000


def test_pages_seconds_and_files_of_text_count_by_their_size() -> None:
    """A document counts by its pages, a recording by its length, a text by its bytes; unknown sizes are estimated."""
    claude, gemini = find_formula("anthropic:claude-opus-5"), find_formula("google:gemini-2.5-pro")
    assert claude.count(make_part("file", pages=3)) == 3 * claude.count(make_part("file", pages=1))
    assert gemini.count(make_part("file", pages=3)) == 3 * 258
    assert gemini.count(make_part("audio", seconds=10.0)) == 320
    assert gemini.count(make_part("audio", bytes=160_000)) == 320
    assert find_formula("openai:gpt-audio").count(make_part("audio", seconds=10.0)) == 100
    assert NEUTRAL.count(make_part("file", media_type="text/csv", bytes=4000)) == 1001
    assert NEUTRAL.count(make_part("file", bytes=250_000)) == 3 * NEUTRAL.page
    assert NEUTRAL.count(make_part("image")) == NEUTRAL.count_image(1024, 1024)
    assert NEUTRAL.count({"type": "text", "text": "x" * 4000}) == 0
    assert find_formula("own:unknown") is find_formula("") is NEUTRAL


def test_a_message_counts_its_text_and_its_media() -> None:
    """The two are counted apart: texts by the encoding, other parts by the model's formula."""
    image, text = make_part("image", width=1024, height=1024), "What is wrong here?"
    parts: list[Part] = [{"type": "text", "text": text}, image]
    message: Message = {"role": "user", "content": parts}
    encoding = load_encoding("o200k_base").for_model("openai:gpt-4o")
    assert encoding.count_media(parts) == (765,)
    assert encoding.count_text(message) == encoding.count_message({"role": "user", "content": text})
    assert encoding.count_message(message) == encoding.count_text(message) + 765
