"""The types of files, by their first bytes. Pure: nothing is decoded but texts.

Files begin in more ways than their specifications say: PDF files behind junk, MPEG audio behind tags, zeros or half a
frame, films without their first box, texts in other encodings than UTF-8. A text that begins with a signature is a
text: every other file has bytes that no text has, but PDF, which has objects.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator

from pydantic_core import from_json

_PIECE_BYTES = 1_000_000
"""Bytes of a text that are decoded at once, and the largest JSON that is recognized."""
_TAIL_BYTES = 65_536
"""Bytes at the end of a ZIP file in which the names of its members are looked for."""
_JUNK_BYTES = 1024
"""Bytes within which the header of a PDF file begins, as Acrobat has it."""
_END_BYTES = 4096
"""Bytes at the end of a PDF file behind junk in which its last marker stands."""
_SEARCHED_BYTES = 65_536
"""Bytes at the beginning of a recording in which the first frame of MPEG audio is looked for."""
_MOST_BOXES = 16
"""Boxes at the beginning of a film that are read for its type."""

_SIGNATURES: tuple[tuple[re.Pattern[bytes], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), media_type)
    for pattern, media_type in (
        (rb"\x89PNG\r\n\x1a\n", "image/png"),
        (rb"\xff\xd8\xff", "image/jpeg"),
        (rb"GIF8[79]a", "image/gif"),
        # The size of the file, two reserved fields, and the size of one of the headers that there are.
        (rb"BM.{12}[\x0c\x10\x28\x34\x38\x40\x6c\x7c]\0\0\0", "image/bmp"),
        (rb"II[\x2a\x2b]\0|MM\0[\x2a\x2b]", "image/tiff"),
        (rb"RIFF.{4}WEBP", "image/webp"),
        (rb"(?:RIFF|RF64|BW64).{4}WAVE", "audio/wav"),
        (rb"FORM.{4}AIF[FC]", "audio/aiff"),
        (rb"fLaC[\0\x80]", "audio/flac"),
        (rb"OggS\0", "audio/ogg"),
        (rb"%PDF-", "application/pdf"),
    )
)
_PDF_HEADER = re.compile(rb"%PDF-\d\.\d")
_ID3 = re.compile(rb"ID3[\x02-\x04].[\0\x10\x20\x40\x60\x80\xa0\xc0\xe0\xf0]([\0-\x7f]{4})", re.DOTALL)
_WEBM = re.compile(rb"\x42\x82.{1,8}webm", re.DOTALL)

# Boxes of films: the brands of the first one, and the boxes that QuickTime's older files have without it.

_BRANDS = {
    **dict.fromkeys((b"avif", b"avis", b"avio"), "image/avif"),
    **dict.fromkeys((b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx"), "image/heic"),
    **dict.fromkeys((b"M4A ", b"M4B ", b"M4P ", b"F4A ", b"F4B "), "audio/mp4"),
    b"qt  ": "video/quicktime",
}
_GENERAL_BRANDS = {b"mif1": "image/heic", b"msf1": "image/heic", b"miaf": "image/heic"}
"""Brands of images, of which another brand of the file says more."""
_SKIPPED_BOXES = (b"wide", b"free", b"skip", b"pnot", b"uuid")
_QUICKTIME_BOXES = (b"moov", b"mdat", b"wide", b"pnot")
_OTHER_BRANDS = {b"crx ": "a Canon CR3 photo", b"jp2 ": "JPEG 2000", b"jpx ": "JPEG 2000"}

_OFFICE = "application/vnd.openxmlformats-officedocument."
_ZIPPED: tuple[tuple[bytes, str], ...] = (
    (b"word/", f"{_OFFICE}wordprocessingml.document"),
    (b"xl/", f"{_OFFICE}spreadsheetml.sheet"),
    (b"ppt/", f"{_OFFICE}presentationml.presentation"),
)
_OPEN_DOCUMENTS = re.compile(rb"mimetype(application/(?:epub\+zip|vnd\.oasis\.opendocument\.[a-z]{1,20}))")

# Files that are not taken, by the names that people know them by, and what to do.

_IMAGE = "convert it to PNG or JPEG"
_SOUND = "convert it to MP3 or WAV"
_FILM = "convert it to MP4"
_ARCHIVE = "send the files that are in it"
_DOCUMENT = "save it as PDF, or in the newer format with an x at the end of its ending"
_TABLE = "save it as CSV or JSON"
_PROGRAM = "no model reads a program"
_NOT_TAKEN: tuple[tuple[re.Pattern[bytes], str, str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), name, advice)
    for pattern, name, advice in (
        (rb"\xff\x0a|\0\0\0\x0cJXL ", "JPEG XL", _IMAGE),
        (rb"\0\0\0\x0cjP  |\xff\x4f\xff\x51", "JPEG 2000", _IMAGE),
        (rb"\0\0[\x01\x02]\0[^\0]\0", "an icon (ICO)", _IMAGE),
        (rb"8BPS", "a Photoshop file", _IMAGE),
        (rb"gimp xcf", "a GIMP file", _IMAGE),
        (rb"\xc5\xd0\xd3\xc6", "EPS", "convert it to PDF or PNG"),
        (rb".{128}DICM", "DICOM", _IMAGE),
        (rb"RIFF.{4}AVI ", "an AVI film", _FILM),
        (rb"\x1aE\xdf\xa3", "a Matroska film (MKV)", "convert it to MP4 or WebM"),
        (rb"FLV\x01", "a Flash film (FLV)", _FILM),
        (rb"\0\0\x01[\xb3\xba]|G.{187}G.{187}G", "an MPEG film", _FILM),
        (rb"0&\xb2u\x8ef\xcf\x11", "a Windows Media file (WMA or WMV)", "convert it to MP3 or MP4"),
        (rb"RIFX.{4}WAVE", "a WAV file in big-endian order (RIFX)", "convert it to a WAV file of the usual order"),
        (rb"#!AMR", "AMR", _SOUND),
        (rb"\.snd\0", "a Sun recording (AU)", _SOUND),
        (rb"MThd\0\0\0\x06|RIFF.{4}RMID", "MIDI", _SOUND),
        (rb"caff\0\x01", "a Core Audio file (CAF)", _SOUND),
        (rb"MAC |wvpk|TTA1|DSD ", "a recording in a lossless format", _SOUND),
        (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an older file of Microsoft Office", _DOCUMENT),
        (rb"SQLite format 3\0", "an SQLite database", _TABLE),
        (rb"PAR1|Obj\x01|ARROW1|\x89HDF\r\n", "a table in a binary format", _TABLE),
        (rb"\x1f\x8b\x08", "a gzip archive", _ARCHIVE),
        (rb"BZh[1-9]1AY|\xfd7zXZ\0|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a\x07", "an archive", _ARCHIVE),
        (rb"PK(?:\x03\x04|\x05\x06|\x07\x08)", "a ZIP archive", _ARCHIVE),
        (rb".{257}ustar", "a tar archive", _ARCHIVE),
        (rb"MZ|\x7fELF|\xca\xfe\xba\xbe|[\xcf\xce]\xfa\xed\xfe|\0asm", "a program", _PROGRAM),
        (rb"wOF[F2]|OTTO\0|\0\x01\0\0\0", "a font", "no model reads a font"),
    )
)

# MPEG audio: kilobits a second by layer and version, and samples a second by version.

_LAYER_1, _LAYER_2, _LAYER_3 = 3, 2, 1
_BIT_RATES: dict[tuple[bool, int], tuple[int, ...]] = {
    (True, _LAYER_1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, _LAYER_2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, _LAYER_3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, _LAYER_1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, _LAYER_2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, _LAYER_3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_MPEG_1, _MPEG_2, _MPEG_2_5 = 3, 2, 0
_SAMPLE_RATES = {_MPEG_1: (44100, 48000, 32000), _MPEG_2: (22050, 24000, 16000), _MPEG_2_5: (11025, 12000, 8000)}
_FREE_FRAME_BYTES = 4608
"""The largest frame of a free bit rate that is looked for."""


def find_type(data: bytes) -> str | None:
    """Find the type that the first bytes name; None: it is a text, or a type that Clew does not take."""
    # The mark of UTF-16 is also the beginning of a frame of MPEG audio.
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) and find_encoding(data):
        return None
    for pattern, media_type in _SIGNATURES:
        if pattern.match(data):
            return None if _only_speaks_of(media_type, data) else media_type
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "video/webm" if _WEBM.search(data[:_PIECE_BYTES], 0, _END_BYTES) else None
    if data[:4] == b"PK\x03\x04":
        return _find_zipped_type(data)
    if tag := _ID3.match(data):
        return _find_tagged_type(data, tag)
    if (boxed := _find_boxed_type(data)) and not _only_speaks_of(boxed, data):
        return boxed
    return _find_framed_type(data) or _find_late_pdf(data)


def _only_speaks_of(media_type: str, data: bytes) -> bool:
    """Whether a file that begins as one of a type is a text."""
    return not (media_type == "application/pdf" and b" obj" in data) and _is_text(data, "utf-8")


def name_refused(data: bytes) -> str:
    """Name a file that is not taken, by its first bytes, with what to do."""
    for pattern, name, advice in _NOT_TAKEN:
        if pattern.match(data):
            return f"this looks like {name}, which Clew does not take: {advice}"
    if data.startswith(b"#!"):
        return f"this looks like a script that a shell runs, which Clew does not take: {_PROGRAM}"
    for brand in _list_brands(data):
        if brand in _OTHER_BRANDS:
            return f"this looks like {_OTHER_BRANDS[brand]}, which Clew does not take: {_IMAGE}"
    return (
        "this is no text in UTF-8, UTF-16, UTF-32 or Windows-1252, and its first bytes name no type that Clew takes: "
        "save a text as UTF-8, an image as PNG or JPEG, a recording as MP3 or WAV, a document as PDF"
    )


# Texts.


def find_encoding(data: bytes) -> str | None:
    """Find the encoding of a text, as Python names it; None: it is none that is known, or no text.

    Texts have no control characters. Without a mark at its beginning a text is in UTF-8 if it can be; in UTF-16 if
    every second byte of many is null; in Windows-1252 if most of its bytes are ASCII.
    """
    for mark, encoding in (
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if data.startswith(mark) and _is_text(data, encoding, cut=True):
            return encoding
    if _is_text(data, "utf-8"):
        return "utf-8-sig"
    if wide := _guess_wide_encoding(data):
        return wide if _is_text(data, wide) else None
    high = sum(map(data[:_PIECE_BYTES].count, map(_make_byte, range(0x80, 0x100))))
    is_western = high * 4 <= len(data[:_PIECE_BYTES])
    return "cp1252" if is_western and b"\0" not in data and _is_text(data, "cp1252") else None


def decode_text(data: bytes) -> str:
    """Decode a text file; what cannot be decoded is replaced."""
    return data.decode(find_encoding(data) or "utf-8-sig", "replace").removeprefix("\ufeff").replace("\0", "\ufffd")


def find_text_type(text: str) -> str:
    """Find the type of a text by its beginning: HTML, XML, which SVG is, JSON, or plain."""
    start = text[:2000].lstrip("\ufeff \t\r\n").lower()
    if re.match(r"<!doctype html|<html\b|<script\b|<body\b", start):
        return "text/html"
    if start.startswith(("<?xml", "<svg", "<!doctype svg")):
        return "application/xml"
    if start[:1] in ("{", "[") and len(text) < _PIECE_BYTES:
        try:
            from_json(text.lstrip("\ufeff"))
        except ValueError:
            return "text/plain"
        return "application/json"
    return "text/plain"


_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
# In Windows-1252 and UTF-16 these are no letters either: binary data has them.
_MORE_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffe\uffff]")


def _make_byte(number: int) -> bytes:
    return bytes((number,))


def _is_text(data: bytes, encoding: str, *, cut: bool = False) -> bool:
    """Whether the data has characters of texts alone. `cut`: the end may cut the last one."""
    controls = _CONTROLS if encoding == "utf-8" else _MORE_CONTROLS
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for start in range(0, len(data), _PIECE_BYTES):
            piece = decoder.decode(
                data[start : start + _PIECE_BYTES], final=start + _PIECE_BYTES >= len(data) and not cut
            )
            if controls.search(piece):
                return False
    except UnicodeDecodeError:
        return False
    return True


def _guess_wide_encoding(data: bytes) -> str | None:
    """Guess which half of the bytes of a text in UTF-16 has nulls; None: neither has many."""
    sample = data[: _PIECE_BYTES // 2 * 2]
    if len(sample) < 4 or len(sample) % 2:
        return None
    first, second = sample[::2].count(0), sample[1::2].count(0)
    half = len(sample) // 2
    if second * 3 >= half and first * 20 <= half:
        return "utf-16-le"
    return "utf-16-be" if first * 3 >= half and second * 20 <= half else None


# Documents.


def _find_late_pdf(data: bytes) -> str | None:
    """Find a PDF file behind junk. A text that only speaks of one has no end of it."""
    is_pdf = _PDF_HEADER.search(data, 0, _JUNK_BYTES + 8) and b"%%EOF" in data[-_END_BYTES:] and b" obj" in data
    return "application/pdf" if is_pdf else None


def _find_zipped_type(data: bytes) -> str | None:
    if match := _OPEN_DOCUMENTS.search(data[:200]):
        return match[1].decode()
    names = data[:_TAIL_BYTES] + data[-_TAIL_BYTES:]
    if b"[Content_Types].xml" not in names:
        return None
    return next((media_type for folder, media_type in _ZIPPED if folder in names), None)


# Recordings and films.


def _find_tagged_type(data: bytes, tag: re.Match[bytes]) -> str:
    """Find what follows an ID3 tag: MPEG audio mostly. The size in a tag is often wrong."""
    size = sum(byte << (7 * (3 - place)) for place, byte in enumerate(tag[1]))
    rest = data[10 + size : 10 + size + _SEARCHED_BYTES].lstrip(b"\0")
    if rest.startswith(b"fLaC"):
        return "audio/flac"
    return "audio/aac" if _is_adts(rest, 0) else "audio/mpeg"


def _list_brands(data: bytes) -> Iterator[bytes]:
    """List the brands of a file in boxes: the major one, and those that it is compatible with."""
    for kind, start, end in _list_boxes(data):
        if kind == b"ftyp":
            yield data[start : start + 4]
            for place in range(start + 8, min(end, start + 400, len(data)) - 3, 4):
                yield data[place : place + 4]
            return
        if kind not in _SKIPPED_BOXES:
            return


def _list_boxes(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """List the first boxes: the type of each, and where its content begins and ends."""
    place = 0
    for _ in range(_MOST_BOXES):
        size, kind, start = int.from_bytes(data[place : place + 4]), data[place + 4 : place + 8], place + 8
        if size == 1:
            size, start = int.from_bytes(data[place + 8 : place + 16]), place + 16
        end = place + size if size else len(data)
        if len(kind) < 4 or end < start:
            return
        yield kind, start, end
        place = end


def _find_boxed_type(data: bytes) -> str | None:
    brands = list(_list_brands(data))
    if not brands:
        kinds = [kind for kind, _, _ in _list_boxes(data)]
        is_film = kinds[:1] and kinds[0] in _QUICKTIME_BOXES and (b"moov" in kinds or b"mdat" in kinds)
        return "video/quicktime" if is_film else None
    if brands[0] in _BRANDS:
        return _BRANDS[brands[0]]
    if brands[0] in _OTHER_BRANDS:
        return None
    if brands[0] in _GENERAL_BRANDS:
        return next((_BRANDS[brand] for brand in brands if brand in _BRANDS), _GENERAL_BRANDS[brands[0]])
    images = [_BRANDS[brand] for brand in brands if _BRANDS.get(brand, "").startswith("image/")]
    return images[0] if images and b"mif1" in brands else "video/mp4"


def _find_framed_type(data: bytes) -> str | None:
    """Find audio in frames, each of which has a header: AAC in ADTS, and MPEG audio.

    The first frame may stand behind a tag, zeros, or the rest of a frame. There, three in a row are needed.
    """
    if _is_adts(data, 0):
        return "audio/aac"
    if _count_frames(data, 0, 2) == 2:
        return "audio/mpeg"
    place = data.find(b"\xff", 1, _SEARCHED_BYTES)
    while place >= 0:
        if _count_frames(data, place, 3) == 3 and not _ends(data, place):
            return "audio/mpeg"
        place = data.find(b"\xff", place + 1, _SEARCHED_BYTES)
    return None


def _ends(data: bytes, place: int) -> bool:
    """Whether the data ends before a third frame: at a place within a file that is too little."""
    for _ in range(3):
        size = _measure_frame(data, place)
        if size is None or place + size + 4 > len(data):
            return True
        place += size
    return False


def _is_adts(data: bytes, place: int) -> bool:
    """Whether a frame of AAC stands at a place, and another one, or nothing, behind it."""
    header = data[place : place + 7]
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 0x0F > 12:
        return False
    size = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    behind = data[place + size : place + size + 2]
    return size > 7 and (len(behind) < 2 or (behind[0] == 0xFF and behind[1] & 0xF6 == 0xF0))


def _count_frames(data: bytes, place: int, most: int) -> int:
    """Count the frames of MPEG audio in a row. One that the end of the data cuts counts as all that are wanted."""
    first = data[place : place + 4]
    for count in range(most):
        header = data[place : place + 4]
        if count and len(header) < 4:
            return most
        same = len(header) == 4 and header[1] == first[1] and header[2] & 0x0C == first[2] & 0x0C
        size = _measure_frame(data, place) if same else None
        if size is None:
            return count
        place += size
    return most


def _measure_frame(data: bytes, place: int) -> int | None:
    """Measure the frame of MPEG audio whose header stands at a place, in bytes; None: there is none."""
    header = data[place : place + 4]
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return None
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    rate, sampling, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer == 0 or rate == 15 or sampling == 3 or header[3] & 3 == 2:
        return None
    if rate == 0:
        # The distance to the next header of a free bit rate is its size.
        found = data.find(header[:2], place + 24, place + _FREE_FRAME_BYTES)
        return found - place if found > 0 else None
    bits, samples = _BIT_RATES[version == _MPEG_1, layer][rate] * 1000, _SAMPLE_RATES[version][sampling]
    if layer == _LAYER_1:
        return (12 * bits // samples + padding) * 4
    return (144 if layer == _LAYER_2 or version == _MPEG_1 else 72) * bits // samples + padding
