"""The child process that reads one number from the headers of a file from outside, within hard limits.

It reads the name of the number in a line, `pages` or `seconds`, and then the file from standard input, and writes a
JSON object with the number. It writes an empty one, or nothing, if the file has none or a limit ends the process.
"""

from __future__ import annotations

import io
import json
import resource
import signal
import sys
from contextlib import suppress
from typing import Any

MAX_MEMORY_BYTES = 768 * 1024 * 1024
MAX_CPU_SECONDS = 5
MAX_SECONDS = 20
"""Limit of wall-clock time, in seconds; longer than the CPU time, for a machine under load."""
MAX_PAGES = 100_000
MAX_LENGTH_SECONDS = 1_000_000


def main() -> None:
    """Read what comes on standard input."""
    _limit_resources()
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


def _limit_resources() -> None:
    """Set limits that the system enforces, also after the worker has died."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_SECONDS, MAX_CPU_SECONDS))
    signal.alarm(MAX_SECONDS)
    # macOS has this limit and refuses to set it.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))


if __name__ == "__main__":
    main()
