"""Shapes of the pictures. Widths are percentages, so that a picture is as wide as its page; heights are pixels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_MIN_WIDTH = 0.15
"""The smallest width of entries in a picture, in percent."""


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle.

    Attributes:
        x: Its left side, in percent.
        width: Its width, in percent.
        y: Its upper side, in pixels.
        height: Its height, in pixels.
        look: The class of its colour.
        title: Its description.
    """

    x: float
    width: float
    y: float
    height: float
    look: str
    title: str = ""


@dataclass(frozen=True, slots=True)
class Joined:
    """Boxes of one picture with few elements: a page has thousands of them.

    Attributes:
        paths: For each look the outline of its boxes, in a picture that is 100 wide.
        boxes: The boxes that have a pattern or a line over them, which would be stretched.
    """

    paths: tuple[tuple[str, str], ...]
    boxes: tuple[Box, ...]


_DRAWN_OVER = ("cleared", "truncated", "summarized", "replaced", "pinned")


def join_boxes(boxes: Iterable[Box]) -> Joined:
    """Join boxes of one look to one path."""
    outlines: dict[str, list[str]] = {}
    alone = []
    for box in boxes:
        if any(word in box.look for word in _DRAWN_OVER):
            alone.append(box)
        else:
            outline = f"M{box.x:g} {box.y:g}h{box.width:g}v{box.height:g}h-{box.width:g}z"
            outlines.setdefault(box.look, []).append(outline)
    return Joined(tuple((look, "".join(outline)) for look, outline in outlines.items()), tuple(alone))


def limit_digits(value: float) -> float:
    """Round a length: more digits make the page larger and no picture better."""
    return round(value, 2)


def place_entries(count: int, first: int, last: int) -> tuple[float, float]:
    """Place entries in a picture of `count` entries; the answer is their left side and their width, in percent."""
    return limit_digits(first * 100 / count), limit_digits(max((last - first + 1) * 100 / count, _MIN_WIDTH))
