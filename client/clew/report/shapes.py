"""Shapes of the pictures. Widths are percentages, so that a picture is as wide as its page; heights are pixels."""

from __future__ import annotations

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


def limit_digits(value: float) -> float:
    """Round a length: more digits make the page larger and no picture better."""
    return round(value, 2)


def place_entries(count: int, first: int, last: int) -> tuple[float, float]:
    """Place entries in a picture of `count` entries; the answer is their left side and their width, in percent."""
    return limit_digits(first * 100 / count), limit_digits(max((last - first + 1) * 100 / count, _MIN_WIDTH))
