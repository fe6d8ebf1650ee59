"""Tokens of images, recordings and files, by the formulas that the providers publish.

The formula is that of the session's model when the entry is committed, and the entry keeps the counts. Where a
provider counts more than its formula says, the session corrects its budgets by what the provider reports.

Formulas are pure. A formula that has been released is never changed, since a replay counts the entries of a running
session again: a family that counts in another way gets a row of its own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

UNKNOWN_SIDE = 1024
"""Pixels of each side of an image whose size is not known."""
PAGE_SIZE = (816, 1056)
"""Pixels of a page of US Letter at 96 dots an inch."""
BYTES_PER_PAGE = 100_000
"""Bytes of a document that count as one page, where its pages are not known."""
BYTES_PER_SECOND = 16_000
"""Bytes of a recording that count as one second, where its length is not known: 128 kbit/s."""
BYTES_PER_TEXT_TOKEN = 4
"""Bytes of a file of text that count as one token."""
_TEXT_TYPES = ("application/json", "application/xml", "application/x-ndjson", "application/yaml")


@dataclass(frozen=True, slots=True)
class MediaFormula:
    """How a family of models counts what is not text.

    Attributes:
        count_image: Counts an image of a width and a height in pixels.
        page: Tokens of a page of a document.
        second: Tokens of a second of audio.
    """

    count_image: Callable[[int, int], int]
    page: int
    second: int

    def count(self, part: Mapping[str, Any]) -> int:
        """Count the tokens of a part of a message; 0 for a text."""
        blob: Mapping[str, Any] = part.get("blob") or {}
        match part["type"]:
            case "text":
                return 0
            case "image":
                return self.count_image(blob.get("width", UNKNOWN_SIDE), blob.get("height", UNKNOWN_SIDE))
            case "audio":
                return math.ceil(blob.get("seconds", blob.get("bytes", 0) / BYTES_PER_SECOND) * self.second) or 1
        media_type, size = str(blob.get("media_type", "")), int(blob.get("bytes", 0))
        if media_type.startswith("text/") or media_type in _TEXT_TYPES:
            return size // BYTES_PER_TEXT_TOKEN + 1
        return int(blob.get("pages") or math.ceil(size / BYTES_PER_PAGE) or 1) * self.page


# Anthropic: platform.claude.com/docs/en/build-with-claude/vision. An image costs a token for each patch of 28 x 28
# pixels. It is scaled down first: to 1568 pixels and 1568 tokens, and from Claude 4.7 on to 2576 pixels and 4784
# tokens. The older w * h / 750 is the same density (784 pixels) without the edges.
# PDFs: platform.claude.com/docs/en/build-with-claude/pdf-support. A page costs 1 500 to 3 000 tokens of text, and an
# image, whose size is not published. The row has 1 500 of each: a count that is too small is corrected, one that is
# too large is not.


def count_patches(width: int, height: int, side: int) -> int:
    """Count the patches of `side` x `side` pixels that cover an image."""
    return math.ceil(width / side) * math.ceil(height / side)


def _make_claude(longest: int, most: int) -> MediaFormula:
    def count_scaled(width: int, height: int, edge: int) -> int:
        scale = edge / max(width, height)
        return count_patches(max(round(width * scale), 1), max(round(height * scale), 1), 28)

    def count_image(width: int, height: int) -> int:
        edge = min(max(width, height), longest)
        if count_scaled(width, height, edge) <= most:
            return count_scaled(width, height, edge)
        # The largest edge at which the patches are few enough.
        low = 1
        while edge - low > 1:
            middle = (low + edge) // 2
            low, edge = (middle, edge) if count_scaled(width, height, middle) <= most else (low, middle)
        return count_scaled(width, height, low)

    return MediaFormula(count_image, page=3000, second=32)


# OpenAI: developers.openai.com/api/docs/guides/images-vision. The detail is `auto`. Newer families count patches of
# 32 x 32 pixels up to a budget and multiply them; older ones scale an image to 2048, its shorter side to 768 pixels,
# and count tiles of 512 x 512.
# PDFs: developers.openai.com/api/docs/guides/pdf-files. The model gets the text and an image of each page; neither
# size is published. A page counts as 700 tokens of text and an image of `PAGE_SIZE`.
# Audio: a token for 100 milliseconds (developers.openai.com/api/docs/guides/realtime-costs).


_PAGE_TEXT = 700


def _make_openai(count_image: Callable[[int, int], int]) -> MediaFormula:
    return MediaFormula(count_image, page=_PAGE_TEXT + count_image(*PAGE_SIZE), second=10)


def _make_tiles(base: int, tile: int) -> MediaFormula:
    def count_image(width: int, height: int) -> int:
        fit = min(2048 / max(width, height), 1.0)
        scale = fit * min(768 / (min(width, height) * fit), 1.0)
        return base + tile * count_patches(max(round(width * scale), 1), max(round(height * scale), 1), 512)

    return _make_openai(count_image)


def _make_patches(budget: int, longest: int, hundredths: int) -> MediaFormula:
    def count_image(width: int, height: int) -> int:
        fit = min(longest / max(width, height), 1.0)
        wide, high = max(width * fit, 1.0), max(height * fit, 1.0)
        patches = count_patches(math.ceil(wide), math.ceil(high), 32)
        if patches > budget:
            shrink = math.sqrt(32 * 32 * budget / (wide * high))
            columns, rows = wide * shrink / 32, high * shrink / 32
            shrink *= min((math.floor(columns) or columns) / columns, (math.floor(rows) or rows) / rows)
            patches = min(count_patches(math.floor(wide * shrink) or 1, math.floor(high * shrink) or 1, 32), budget)
        return -(-patches * hundredths // 100)

    return _make_openai(count_image)


# Google: ai.google.dev/gemini-api/docs/tokens, image-understanding and media-resolution. Up to Gemini 2.5 an image of
# at most 384 x 384 pixels costs 258 tokens, and a larger one as much for each tile; a page of a PDF costs 258.
# Gemini 3 has 1 120 tokens for an image and 560 for a page at the default `media_resolution`. Audio: 32 a second.


def _count_gemini_tiles(width: int, height: int) -> int:
    if max(width, height) <= 384:
        return 258
    tile = min(max(math.floor(min(width, height) / 1.5), 256), 768)
    return 258 * count_patches(width, height, tile)


# Amazon Nova: docs.aws.amazon.com/nova/latest/userguide/modalities-image.html has estimates for five sizes, from 800
# tokens for 900 x 450 to 2 600 for 1300 x 1300: 200 tokens and one for 710 pixels are within a tenth of each. Smaller
# images are scaled up to 896 pixels. Nova 2 counts 230 tokens for each image
# (docs.aws.amazon.com/nova/latest/nova2-userguide/using-multimodal-models.html).


def _count_nova(width: int, height: int) -> int:
    scale = max(896 / max(width, height), 1.0)
    return min(200 + round(width * height * scale * scale / 710), 2600)


def _count_neutral(width: int, height: int) -> int:
    return min(max(width * height // 750, 85), 1600)


_PAGE, _SECOND = 2000, 32

NEUTRAL = MediaFormula(_count_neutral, _PAGE, _SECOND)
"""For models whose formula is not published: a token for 750 pixels, from 85 to 1 600; 2 000 a page, 32 a second."""
_CLAUDE_STANDARD = _make_claude(1568, 1568)
_CLAUDE_HIGH = _make_claude(2576, 4784)
_TILES = _make_tiles(85, 170)
_REASONING_TILES = _make_tiles(75, 150)
_GEMINI_2 = MediaFormula(_count_gemini_tiles, 258, 32)
_GEMINI_3 = MediaFormula(lambda _width, _height: 1120, 560, 32)

FORMULAS: dict[str, MediaFormula] = {
    # Claude 4.7 and later have the high resolution.
    "claude-": _CLAUDE_HIGH,
    "claude-3": _CLAUDE_STANDARD,
    "claude-haiku-4": _CLAUDE_STANDARD,
    "claude-sonnet-4": _CLAUDE_STANDARD,
    "claude-opus-4": _CLAUDE_STANDARD,
    "claude-opus-4-7": _CLAUDE_HIGH,
    "claude-opus-4-8": _CLAUDE_HIGH,
    "gpt-": _make_patches(30_000, 65_535, 120),
    "gpt-4": _TILES,
    "gpt-4o-mini": _make_tiles(2833, 5667),
    "gpt-4.1-mini": _make_patches(1536, 2048, 162),
    "gpt-4.1-nano": _make_patches(1536, 2048, 246),
    "gpt-5": _make_tiles(70, 140),
    "gpt-5-mini": _make_patches(1536, 2048, 162),
    "gpt-5-nano": _make_patches(1536, 2048, 246),
    "gpt-5.2": _make_patches(1536, 2048, 120),
    "gpt-5.3": _make_patches(1536, 2048, 120),
    "gpt-5.4": _make_patches(2500, 2048, 120),
    "gpt-5.4-mini": _make_patches(1536, 2048, 162),
    "gpt-5.4-nano": _make_patches(1536, 2048, 246),
    "gpt-5.5": _make_patches(10_000, 6000, 120),
    "gpt-5.6": _make_patches(30_000, 65_535, 120),
    "chatgpt-4o": _TILES,
    "o1": _REASONING_TILES,
    "o3": _REASONING_TILES,
    "o4-mini": _make_patches(1536, 2048, 172),
    "gemini-": _GEMINI_3,
    "gemini-1": _GEMINI_2,
    "gemini-2": _GEMINI_2,
    "nova-": MediaFormula(_count_nova, _PAGE, _SECOND),
    "nova-2": MediaFormula(lambda _width, _height: 230, _PAGE, _SECOND),
}
"""The formulas by the beginnings of models' names. The longest beginning counts."""

# Amazon Bedrock names a model with its vendor, often after a part of the world: `us.anthropic.claude-opus-5`.
_VENDOR = re.compile(
    r"^(?:(?:us|us-gov|eu|apac|jp|au|ca|global)\.)?(?:amazon|anthropic|deepseek|meta|mistral|openai)\."
)


def get_bare_name(model: str) -> str:
    """Return the name of `provider:model` without the provider, a vendor and a path, in lower case."""
    return _VENDOR.sub("", model.partition(":")[2].lower().rpartition("/")[2])


@lru_cache(maxsize=256)
def find_formula(model: str) -> MediaFormula:
    """Find the formula of `provider:model`; the neutral estimate for a model that has none."""
    name = get_bare_name(model)
    prefix = max((prefix for prefix in FORMULAS if name.startswith(prefix)), key=len, default=None)
    return NEUTRAL if prefix is None else FORMULAS[prefix]
