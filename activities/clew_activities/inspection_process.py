"""The child process that reads one number from the headers of a file from outside; `inspection` has its limits.

It reads the name of the number in a line, `pages` or `seconds`, and then the file from standard input, and writes a
JSON object with the number. It writes an empty one, or nothing, if the file has none or a limit ends the process.
"""

from __future__ import annotations

import io
import json
import sys
from contextlib import suppress
from typing import Any

MAX_PAGES = 100_000
MAX_LENGTH_SECONDS = 1_000_000


def main() -> None:
    """Read what comes on standard input."""
    question = sys.stdin.buffer.readline().strip()
    file = io.BytesIO(sys.stdin.buffer.read())
    answer: dict[str, float] = {}
    # The libraries raise anything for a damaged file.
    with suppress(Exception):
        answer = _count_pages(file) if question == b"pages" else _measure_length(file)
    print(json.dumps(answer), flush=True)  # noqa: T201 - standard output is where the worker reads


def _count_pages(file: io.BytesIO) -> dict[str, float]:
    """Read how many pages a PDF says that it has. The tree of pages is not walked."""
    import pypdf  # noqa: PLC0415 - one of two libraries is needed

    pages: Any = pypdf.PdfReader(file, strict=False).root_object["/Pages"]
    count = int(pages["/Count"])
    return {"pages": count} if 0 < count <= MAX_PAGES else {}


def _measure_length(file: io.BytesIO) -> dict[str, float]:
    import tinytag  # noqa: PLC0415 - one of two libraries is needed

    length = tinytag.TinyTag.get(file_obj=file, tags=False).duration or 0
    return {"seconds": round(length, 3)} if 0.001 <= length <= MAX_LENGTH_SECONDS else {}


if __name__ == "__main__":
    main()
