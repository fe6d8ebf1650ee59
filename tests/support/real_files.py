"""Files as programs write them, beside the forms of their specifications: each with the type that it has.

Images are made by Pillow, documents by pypdf, WAV files by Python; the other recordings are headers with silence.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from typing import Any

from PIL import Image

from tests.support.media import make_pdf, make_wav

WORDS = "Hello world, this is a text.\nIts second line: naïve café, “quoted”.\n"
LONG_WORDS = WORDS * 40


def save(form: str, mode: str = "RGB", **options: Any) -> bytes:
    """Make an image with Pillow."""
    image, file = Image.effect_noise((64, 48), 30).convert(mode), io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def save_frames(form: str, **options: Any) -> bytes:
    """Make an image that moves."""
    frames = [Image.new("RGB", (64, 48), color) for color in ("red", "green", "blue")]
    file = io.BytesIO()
    frames[0].save(file, form, save_all=True, append_images=frames[1:], duration=100, **options)
    return file.getvalue()


def make_mpeg(first: int = 0xFB, second: int = 0x90, size: int = 417, frames: int = 20) -> bytes:
    """Make MPEG audio of silent frames: the second and third byte of each header, and the size of a frame."""
    return (bytes((0xFF, first, second, 0x64)) + bytes(size - 4)) * frames


def make_id3(size: int = 100, stated: int | None = None) -> bytes:
    """Make an ID3v2 tag of padding, which may state another size than it has."""
    stated = size if stated is None else stated
    return b"ID3\4\0\0" + bytes((stated >> shift) & 0x7F for shift in (21, 14, 7, 0)) + bytes(size)


def make_ape() -> bytes:
    """Make an APEv2 tag with one item, as some programs put it first."""
    item = struct.pack("<II", 4, 0) + b"Title\0abcd"
    fields = struct.pack("<III", 2000, len(item) + 32, 1)
    return b"".join((b"APETAGEX" + fields + struct.pack("<I", 0xA0000000) + bytes(8), item)) + (
        b"APETAGEX" + fields + struct.pack("<I", 0x80000000) + bytes(8)
    )


def make_adts(frames: int = 20) -> bytes:
    """Make AAC in ADTS: 44 100 Hz, two channels, frames of 100 bytes."""
    size = 100
    header = bytes((0xFF, 0xF1, 0x50, 0x80 | size >> 11, size >> 3 & 0xFF, (size & 7) << 5 | 0x1F, 0xFC))
    return (header + bytes(size - 7)) * frames


def make_flac() -> bytes:
    """Make the header of a FLAC file of a second."""
    packed = (44100 << 44) | (1 << 41) | (15 << 36) | 44100
    info = struct.pack(">HH", 4096, 4096) + bytes(6) + packed.to_bytes(8) + bytes(16)
    return b"fLaC\x80" + len(info).to_bytes(3) + info + b"\xff\xf8" + bytes(100)


def make_ogg(head: bytes) -> bytes:
    """Make the pages of an Ogg file: the header of a codec, and the end."""

    def make_page(kind: int, granule: int, number: int, body: bytes) -> bytes:
        fields = struct.pack("<BBqIII", 0, kind, granule, 7, number, 0)
        return b"OggS" + fields + bytes((1, len(body))) + body

    return make_page(2, 0, 0, head) + make_page(4, 48000, 1, bytes(50))


OPUS = make_ogg(b"OpusHead\1\2\0\0" + struct.pack("<IhB", 48000, 0, 0))
VORBIS = make_ogg(b"\1vorbis" + struct.pack("<IBIiiiB", 0, 2, 44100, 0, 128000, 0, 0xB8) + b"\1")


def make_box(kind: bytes, content: bytes = b"", *, wide: bool = False) -> bytes:
    """Make a box of a film, with a size of 4 or of 8 bytes."""
    if wide:
        return b"\0\0\0\1" + kind + (len(content) + 16).to_bytes(8) + content
    return (len(content) + 8).to_bytes(4) + kind + content


MOOV = make_box(b"moov", make_box(b"mvhd", struct.pack(">IIIII", 0, 0, 0, 1000, 2500) + bytes(80)))
MDAT = make_box(b"mdat", bytes(64))


def make_film(*brands: bytes, before: bytes = b"") -> bytes:
    """Make a film: its major brand, and those that it is compatible with."""
    return before + make_box(b"ftyp", brands[0] + bytes(4) + b"".join(brands)) + MOOV + MDAT


def make_matroska(kind: bytes, before: bytes = b"") -> bytes:
    """Make the header of a Matroska file of a kind; `before`: elements before the kind."""
    fields = before + b"\x42\x86\x81\1\x42\x82" + bytes((0x80 | len(kind),)) + kind
    return b"\x1aE\xdf\xa3" + (0x4000 | len(fields)).to_bytes(2) + fields + b"\x18S\x80g\x01" + b"\xff" * 7


def make_zip(*names: str) -> bytes:
    """Make a ZIP file of members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name in names:
            archive.writestr(name, "text")
    return file.getvalue()


def list_images() -> Iterator[tuple[str, bytes, str]]:
    """List images: what is special, the bytes, and the type."""
    jpeg = save("JPEG")
    yield "JPEG with JFIF", jpeg, "image/jpeg"
    yield "JPEG, progressive", save("JPEG", progressive=True), "image/jpeg"
    yield "JPEG in CMYK with Adobe's APP14", save("JPEG", "CMYK"), "image/jpeg"
    yield "JPEG, gray, with EXIF", save("JPEG", "L", exif=Image.Exif().tobytes()), "image/jpeg"
    rest = jpeg[4 + int.from_bytes(jpeg[4:6]) :]
    yield "JPEG without any APPn", jpeg[:2] + rest, "image/jpeg"
    yield "JPEG with APP13 first", jpeg[:2] + b"\xff\xed\0\x10Photoshop 3.0\0" + rest, "image/jpeg"
    yield "JPEG with a comment first", jpeg[:2] + b"\xff\xfe\0\x06note" + rest, "image/jpeg"
    yield "JPEG with fill bytes", jpeg[:2] + b"\xff" + rest, "image/jpeg"
    yield "PNG", save("PNG"), "image/png"
    yield "PNG with a palette", save("PNG", "P"), "image/png"
    yield "PNG that moves", save_frames("PNG"), "image/png"
    yield "GIF", save("GIF"), "image/gif"
    yield "GIF of 1987", b"GIF87a" + save("GIF")[6:], "image/gif"
    yield "GIF that moves", save_frames("GIF"), "image/gif"
    yield "WebP with loss", save("WEBP"), "image/webp"
    yield "WebP without loss", save("WEBP", lossless=True), "image/webp"
    yield "WebP with EXIF", save("WEBP", exif=Image.Exif().tobytes()), "image/webp"
    yield "WebP that moves", save_frames("WEBP"), "image/webp"
    yield "BMP", save("BMP"), "image/bmp"
    yield "TIFF", save("TIFF"), "image/tiff"
    yield "TIFF, compressed", save("TIFF", compression="tiff_lzw"), "image/tiff"
    yield "AVIF", save("AVIF"), "image/avif"


def list_recordings() -> Iterator[tuple[str, bytes, str]]:
    """List recordings: what is special, the bytes, and the type."""
    mpeg, wav = make_mpeg(), make_wav(1)
    yield "MP3", mpeg, "audio/mpeg"
    yield "MP3 with checksums", make_mpeg(0xFA), "audio/mpeg"
    yield "MP3 of MPEG 2", make_mpeg(0xF3, 0x80, 208), "audio/mpeg"
    yield "MP3 of MPEG 2.5", make_mpeg(0xE3, 0x80, 417), "audio/mpeg"
    yield "MP3 of a free bit rate", make_mpeg(0xFB, 0x00, 600), "audio/mpeg"
    yield "MP2", make_mpeg(0xFD, 0x80, 417), "audio/mpeg"
    yield "MP3 behind ID3", make_id3() + mpeg, "audio/mpeg"
    yield "MP3 behind ID3 of a wrong size", make_id3(5000, 3000) + mpeg, "audio/mpeg"
    yield "MP3 behind zeros", bytes(1000) + mpeg, "audio/mpeg"
    yield "MP3 behind a cut frame", bytes(range(1, 200)) + mpeg, "audio/mpeg"
    yield "MP3 behind an APE tag", make_ape() + mpeg, "audio/mpeg"
    yield "MP3 with ID3v1 at its end", mpeg + b"TAG" + bytes(125), "audio/mpeg"
    yield "AAC in ADTS", make_adts(), "audio/aac"
    yield "AAC behind ID3", make_id3() + make_adts(), "audio/aac"
    yield "WAV", wav, "audio/wav"
    listed = b"LIST" + struct.pack("<I", 12) + b"INFOISFT" + bytes(4)
    yield "WAV with a list first", wav[:12] + listed + wav[12:], "audio/wav"
    yield (
        "WAV of 64 bits",
        b"RF64\xff\xff\xff\xffWAVEds64" + struct.pack("<I", 28) + bytes(28) + wav[12:],
        "audio/wav",
    )
    yield "FLAC", make_flac(), "audio/flac"
    yield "FLAC behind ID3", make_id3() + make_flac(), "audio/flac"
    yield "Opus", OPUS, "audio/ogg"
    yield "Vorbis", VORBIS, "audio/ogg"
    yield "AIFF", b"FORM\0\0\0\x26AIFFCOMM\0\0\0\x12\0\1\0\0\0\x64\0\x10\x40\x0e\xac\x44" + bytes(6), "audio/aiff"
    yield "M4A", make_film(b"M4A ", b"isom", b"mp42"), "audio/mp4"
    yield "M4B", make_film(b"M4B ", b"M4A "), "audio/mp4"
    yield "MP4", make_film(b"isom", b"iso2", b"avc1", b"mp41"), "video/mp4"
    yield "MP4 of a camera", make_film(b"XAVC", b"mp42", b"iso2"), "video/mp4"
    yield "MP4 in pieces", make_film(b"iso5", b"dash", b"msdh"), "video/mp4"
    yield "MP4 behind free space", make_film(b"mp42", b"isom", before=make_box(b"free", bytes(9))), "video/mp4"
    yield "a phone's film", make_film(b"3gp5", b"3gp4"), "video/mp4"
    yield "QuickTime", make_film(b"qt  ", b"niko"), "video/quicktime"
    yield "QuickTime without brands", MOOV + MDAT, "video/quicktime"
    yield "QuickTime, wide", make_box(b"wide") + MDAT + MOOV, "video/quicktime"
    yield "QuickTime, a wide size", make_box(b"mdat", bytes(40), wide=True) + MOOV, "video/quicktime"
    yield "HEIC", make_film(b"heic", b"mif1", b"heic"), "image/heic"
    yield "HEIC with a general brand", make_film(b"mif1", b"heic"), "image/heic"
    yield "AVIF with a general brand", make_film(b"mif1", b"avif", b"miaf"), "image/avif"
    yield "WebM", make_matroska(b"webm"), "video/webm"
    yield "WebM with void before its kind", make_matroska(b"webm", b"\xec\xc0" + bytes(64)), "video/webm"


def list_documents() -> Iterator[tuple[str, bytes, str]]:
    """List documents: what is special, the bytes, and the type."""
    pdf, office = make_pdf(), "application/vnd.openxmlformats-officedocument"
    yield "PDF", pdf, "application/pdf"
    yield "PDF behind a mark of UTF-8", b"\xef\xbb\xbf" + pdf, "application/pdf"
    yield "PDF behind lines", b"\r\n\r\n" + pdf, "application/pdf"
    yield "PDF behind 1 000 bytes", b"\xaa" * 1000 + pdf, "application/pdf"
    part = b"--x\r\nContent-Disposition: form-data; name=f\r\nContent-Type: application/pdf\r\n\r\n"
    yield "PDF in a form", part + pdf, "application/pdf"
    yield "Word", make_zip("[Content_Types].xml", "word/document.xml"), f"{office}.wordprocessingml.document"
    yield "Excel", make_zip("_rels/.rels", "xl/a.xml", "[Content_Types].xml"), f"{office}.spreadsheetml.sheet"


def list_texts() -> Iterator[tuple[str, bytes, str, str]]:
    """List texts: what is special, the bytes, the type, and the text."""
    for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252", "utf-16-le", "utf-16-be"):
        yield encoding, LONG_WORDS.encode(encoding), "text/plain", LONG_WORDS
    for encoding in ("utf-16-be", "utf-32-be"):
        yield f"{encoding} with a mark", ("\ufeff" + WORDS).encode(encoding), "text/plain", WORDS
    short = "Hello world"
    yield "a short text in UTF-16", short.encode("utf-16"), "text/plain", short
    russian, chinese = "Привет, мир. " * 20, "你好世界" * 20
    yield "Russian in UTF-16", russian.encode("utf-16"), "text/plain", russian
    yield "Chinese in UTF-16", chinese.encode("utf-16"), "text/plain", chinese
    latin = "Le café est fermé à midi.\r\n" * 3
    yield "French in Latin-1", latin.encode("latin-1"), "text/plain", latin
    for kind, text in (
        ("application/json", '{"a": [1, "b"]}'),
        ("text/html", "<!DOCTYPE html><html><body>x</body></html>"),
        ("application/xml", "<?xml version='1.0'?><a/>"),
        ("text/plain", "name,price\r\ncafé,1\r\n"),
        ("text/plain", "# Title\n\n| a | b |\n|---|---|\n"),
    ):
        for encoding in ("utf-8", "utf-8-sig", "utf-16"):
            yield f"{kind} in {encoding}", text.encode(encoding), kind, text
    for start in (
        "BM is no image",
        "BMW makes cars",
        "MZ is a region",
        "ID3 tags are data",
        "OggS and fLaC",
        "II* MM",
    ):
        yield f"a text that begins {start!r}", start.encode(), "text/plain", start
    about = "A PDF file begins with %PDF-1.7 and has many obj in it.\n"
    yield "a text about PDF", about.encode(), "text/plain", about


def list_refused() -> Iterator[tuple[str, bytes]]:
    """List files that are not taken: what their refusals name, and the bytes."""
    yield "JPEG XL", b"\0\0\0\x0cJXL \r\n\x87\n" + bytes(40)
    yield "JPEG 2000", save("JPEG2000")
    yield "ICO", save("ICO")
    yield "EPS", b"\xc5\xd0\xd3\xc6" + bytes(40)
    yield "CR3", make_film(b"crx ", b"isom")
    yield "MKV", make_matroska(b"matroska")
    yield "AVI", b"RIFF\x40\0\0\0AVI LIST" + bytes(40)
    yield "RIFX", b"RIFX\0\0\0\x40WAVEfmt " + bytes(40)
    yield "MPEG film", b"\0\0\1\xba" + bytes(40)
    yield "WMA", b"0&\xb2u\x8ef\xcf\x11\xa6\xd9\0\xaa\0b\xcel" + bytes(40)
    yield "AMR", b"#!AMR\n\x3c" + bytes(40)
    yield "MIDI", b"MThd\0\0\0\6\0\1\0\2\1\xe0"
    yield "Microsoft Office", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(40)
    yield "SQLite", b"SQLite format 3\0" + bytes(40)
    yield "ZIP", make_zip("a.exe")
    yield "gzip", b"\x1f\x8b\x08\0" + bytes(40)
    yield "an archive", b"7z\xbc\xaf\x27\x1c\0\4"
    yield "program", b"MZ\x90\0\3\0\0\0"
    yield "program", b"\x7fELF\2\1\1\0"
    yield "script", b"#!/bin/sh\necho\n"
    yield "save a text as UTF-8", "Привет, мир. ".encode("koi8-r") * 20
    yield "save a text as UTF-8", b"a\0b"
    yield "save a text as UTF-8", bytes(range(256)) * 4
