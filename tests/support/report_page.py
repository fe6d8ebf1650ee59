"""The page of a report, as tests read it."""

from __future__ import annotations

import json
import re
from typing import Any


def read_data(page: str) -> dict[str, Any]:
    """Read the data of a page: the report, and the images and links by digest."""
    (data,) = re.findall('<script type="application/json" id="data">(.*?)</script>', page)
    read: dict[str, Any] = json.loads(data)
    return read
