"""Small files of the kinds that messages can have."""

from __future__ import annotations

import io
import random
import struct
import wave
import zlib

import pypdf


def make_png(width: int = 30, height: int = 20, *, size: int = 0) -> bytes:
    """Make a PNG of one color; with `size`, of about so many bytes, which are different in each."""
    noise = random.Random(f"{width} {height} {size}").randbytes(size)
    rows = b"".join(b"\0" + b"\xff\x00\x7f" * width for _ in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = [(b"IHDR", header), (b"teXt", b"noise\0" + noise), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(_make_chunk, chunks if noise else [chunks[0], *chunks[2:]]))


def _make_chunk(chunk: tuple[bytes, bytes]) -> bytes:
    kind, data = chunk
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def make_pdf(pages: int = 2) -> bytes:
    """Make a PDF of blank pages."""
    writer, file = pypdf.PdfWriter(), io.BytesIO()
    for _ in range(pages):
        writer.add_blank_page(100, 100)
    writer.write(file)
    return file.getvalue()


def make_wav(seconds: int = 2) -> bytes:
    """Make a recording of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(1)
        writer.setsampwidth(2)
        writer.setframerate(8000)
        writer.writeframes(b"\0\0" * 8000 * seconds)
    return file.getvalue()
