"""An image, in the forms in which programs put it into texts."""

from __future__ import annotations

import base64
import random
from typing import Any

PNG = b"\x89PNG\r\n\x1a\n" + random.Random(7).randbytes(40_000)
ENCODED = base64.b64encode(PNG).decode()
DATA_URL = f"data:image/png;base64,{ENCODED}"

PARTS: dict[str, Any] = {
    "a data URL": {"type": "image_url", "image_url": {"url": DATA_URL}},
    "a part of MCP": {"type": "image", "mimeType": "image/png", "data": ENCODED},
    "a part of Anthropic": {"source": {"type": "base64", "media_type": "image/png", "data": ENCODED}},
    "bare": ENCODED,
    "for URLs": base64.urlsafe_b64encode(PNG).decode(),
}
"""The image as parts of several formats."""
