"""The child process that turns an image from outside into what a terminal draws; `pictures` has its limits.

It reads a JSON object with the size in a line, and then the image from standard input. It writes the sequences for
the terminal, or nothing, if the image is damaged, too large, of another type, or a limit ends the process.

The library asks the terminal what it can do when it is imported, and takes typed keys with the answer. Here it has no
terminal to ask.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress

MAX_PIXELS = 50_000_000
"""Most pixels of an image that is decoded."""
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP")
"""The formats that are decoded, by Pillow's names."""


def main() -> None:
    """Draw what comes on standard input."""
    size = json.loads(sys.stdin.buffer.readline())
    data = sys.stdin.buffer.read()
    # The library raises anything for a damaged file.
    with suppress(Exception):
        _draw(data, **size)


def _draw(data: bytes, *, protocol: str, columns: int, rows: int, cell_width: int, cell_height: int) -> None:
    from PIL import Image, ImageOps  # noqa: PLC0415 - after the limits
    from rich.console import Console  # noqa: PLC0415
    from textual_image.renderable import SixelImage, TGPImage  # noqa: PLC0415

    Image.MAX_IMAGE_PIXELS = MAX_PIXELS
    with Image.open(io.BytesIO(data), formats=FORMATS) as opened:
        # The header is read, and no pixel.
        if opened.width * opened.height > MAX_PIXELS or min(opened.size) < 1:
            return
        room = columns * cell_width, rows * cell_height
        opened.draft("RGB", room)
        # As it is shown: a camera's picture may lie on its side.
        opened.thumbnail((max(room), max(room)))
        picture = ImageOps.exif_transpose(opened).convert("RGBA")
        picture.thumbnail(room)
    width = max(round(picture.width / cell_width), 1)
    height = max(round(picture.height / cell_height), 1)
    # Written at once: an image that fails in the middle must not leave half a sequence.
    made = io.StringIO()
    console = Console(file=made, width=columns, force_terminal=True, color_system="truecolor", legacy_windows=False)
    sent, sys.__stdout__ = sys.__stdout__, made  # type: ignore[misc,assignment]
    console.print((TGPImage if protocol == "kitty" else SixelImage)(picture, width=width, height=height))
    sys.__stdout__ = sent  # type: ignore[misc]
    sys.stdout.write(made.getvalue())
    sys.stdout.flush()


if __name__ == "__main__":
    main()
