"""A worker's own secrets, taken out of a text however they are written in it. Pure.

A secret is found by its value: as it is, in either case; quoted for JSON, HTML or Python, to any depth;
percent-encoded, in full or in part; split by white space, as over two lines; in base64 of either alphabet, alone or
within other text (as in `Bearer …`). The first half of a secret counts as the secret: a server may truncate what it
repeats. Time is linear in the length of the text.

A secret of less than `SHORTEST` characters is not looked for: it would be found in ordinary words.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import ascii_lowercase, ascii_uppercase
from typing import Any
from urllib.parse import quote

SHORTEST = 8
"""Characters of the shortest secret that is looked for, and of the shortest beginning of one at the end of a text."""
MARK = "[redacted]"
"""The text that replaces a secret."""

_VARIABLES = (
    "TEMPORAL_API_KEY",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AZURE_STORAGE_ACCOUNT_KEY",
    "AZURE_STORAGE_ACCESS_KEY",
)
_KEYS = ("CLEW_CHECKPOINT_KEYS", "CLEW_ENCRYPTION_KEYS")
_NAMED_SECRET = re.compile(r"(?:KEY|TOKEN|SECRET|PASSWORD)$", re.IGNORECASE)
_HEADERS = re.compile(r"CLEW_PROVIDER_\w+_HEADERS")
_JSON_STRING = re.compile(r'"((?:[^"\\]|\\.)*)"')


def read_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Read the secrets of Temporal and the store, and the keys of checkpoints and of encryption."""
    pairs = [pair for name in _KEYS for pair in environ.get(name, "").split(",")]
    values = [environ.get(name, "") for name in _VARIABLES] + [pair.partition(":")[2] for pair in pairs]
    return tuple(filter(None, map(str.strip, values)))


def find_suspected_secrets(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Find the values that may be secrets.

    They are the known ones, those of variables named like `…_KEY` or `…_TOKEN`, and the texts of providers' headers.

    They are used until the environment has been read. A worker's replies are not searched for them, because some are
    ordinary words: `STATE_KEY=production`.
    """
    named = (value.strip() for name, value in environ.items() if _NAMED_SECRET.search(name))
    headers = (value for name, value in environ.items() if _HEADERS.fullmatch(name))
    quoted = (text for value in headers for text in _JSON_STRING.findall(value))
    return (*read_secrets(environ), *filter(None, named), *filter(None, quoted))


class Redaction:
    """Redacts secrets in texts. Its repr shows none.

    `headers` are the names of HTTP headers whose values are redacted where a text quotes them.
    """

    def __init__(self, secrets: Iterable[str] = (), headers: Iterable[str] = ()) -> None:
        self._secrets, self._headers = frozenset(secrets), frozenset(headers)
        names = "|".join(map(re.escape, sorted(self._headers)))
        self._header = re.compile(_QUOTED_HEADER.format(names=names), re.IGNORECASE) if names else None
        long_secrets = {secret for secret in self._secrets if len(secret) >= SHORTEST}
        self._plain = sorted({_Normal.of(secret).text.translate(_TO_LOWER) for secret in long_secrets})
        self._base64 = sorted({core for secret in long_secrets for core in _make_base64_cores(secret)})
        self._halves = [_take_half(core) for core in self._plain], [_take_half(core) for core in self._base64]

    def extend(self, secrets: Iterable[str]) -> Redaction:
        """Make a redaction of these secrets, too."""
        more = self._secrets.union(secrets)
        return self if more == self._secrets else Redaction(more, self._headers)

    def redact_text(self, text: str) -> str:
        """Replace each secret in a text with a mark.

        A text may be truncated within a secret: a beginning of at least `SHORTEST` characters at the text's end
        counts as the secret. A mark `[truncated: …]` is not part of the text.
        """
        if not self._plain or len(text) < SHORTEST:
            return text
        mark = _TRUNCATION_MARK.search(text, max(len(text) - _LONGEST_TRUNCATION_MARK, 0))
        end = mark.start() if mark else len(text)
        if self._is_free(text[:end], SHORTEST):
            return text
        normal = _Normal.of(text[:end])
        spans = self._find_spans(normal)
        begun = self._find_beginning(normal.text, SHORTEST)
        if begun is not None:
            spans.append((normal.start(begun), end))
        return _replace_spans(text, spans)

    def hide_headers(self, text: str) -> str:
        """Replace the values of secret headers that a text quotes with a mark."""
        return text if self._header is None else self._header.sub(rf"\g<label>{MARK}", text)

    def redact_value(self, value: Any) -> Any:
        """Redact the strings and keys of a JSON value."""
        # One look at all of them: most values hold none, and many hold thousands of strings.
        if not self._plain or not self._find_spans(_Normal.of("\0".join(_list_strings(value)))):
            return value
        return self._replace(value)

    def settle(self, text: str) -> tuple[str, int]:
        """Redact the part of a growing text that later pieces cannot change. Returns it and its raw length."""
        if not self._plain or not text:
            return text, len(text)
        unit = _BEGUN_UNIT.search(text, max(len(text) - _LONGEST_BEGUN_UNIT, 0))
        end = unit.start() if unit else len(text)
        if self._is_free(text[:end], 1):
            return text[:end], end
        normal = _Normal.of(text[:end])
        spans = self._find_spans(normal)
        begun = self._find_beginning(normal.text, 1)
        if begun is not None:
            end = normal.start(begun)
            for start, stop in sorted(spans, reverse=True):
                end = start if start < end < stop else end
        return _replace_spans(text[:end], [span for span in spans if span[1] <= end]), end

    def _replace(self, value: Any) -> Any:
        if isinstance(value, str):
            return _replace_spans(value, self._find_spans(_Normal.of(value)))
        if isinstance(value, dict):
            return {self._replace(key): self._replace(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self._replace(item) for item in value]
        return value

    def _is_free(self, text: str, least: int) -> bool:
        """Whether there is no secret in a text and no beginning of one at its end, as a quick look says."""
        if _ENCODED.search(text):
            return False
        plain = "".join(text.split())
        views = plain.translate(_TO_LOWER), plain.translate(_TO_STANDARD)
        return self._find_beginning(plain, least) is None and not any(
            half in view for view, halves in zip(views, self._halves, strict=True) for half in halves
        )

    def _find_spans(self, normal: _Normal) -> list[tuple[int, int]]:
        """Where secrets stand in the raw text."""
        lower = normal.text.translate(_TO_LOWER)
        spans = [span for core in self._plain for span in _find_occurrences(lower, core)]
        standard = normal.text.translate(_TO_STANDARD)
        for core in self._base64:
            for start, stop in _find_occurrences(standard, core):
                # The characters right beside it hold some bits of the secret, too.
                before = start > 0 and standard[start - 1] in _BASE64 and normal.adjoin(start)
                after = stop < len(standard) and standard[stop] in _BASE64 and normal.adjoin(stop)
                spans.append((start - before, stop + after))
        return [(normal.start(start), normal.end(stop - 1)) for start, stop in spans]

    def _find_beginning(self, text: str, least: int) -> int | None:
        """Where in a normal text the longest beginning of a secret starts that the text ends in."""
        cores = ((text.translate(_TO_LOWER), self._plain), (text.translate(_TO_STANDARD), self._base64))
        starts = [
            len(normal_text) - length
            for normal_text, some in cores
            for core in some
            for length in _find_overlaps(normal_text, core, least)
        ]
        return min(starts, default=None)


class GrowingText:
    """Shows a growing text without secrets, and without an end that may become one."""

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._shown = ""
        self._read = 0

    def show(self, text: str) -> str:
        """Return the part of the text that can be shown. The text must begin with that of the last call."""
        shown, length = self._redaction.settle(text[self._read :])
        self._shown += shown
        self._read += length
        return self._shown


@dataclass(frozen=True, slots=True)
class _Normal:
    """A text with every encoded character decoded and all white space removed.

    It has parts, each a stretch of the raw text as it is, or one decoded character.
    """

    text: str
    # Of each part: where it starts in `text`, where in the raw text, and where a decoded character ends there.
    _starts: list[int]
    _raw_starts: list[int]
    _raw_ends: list[int | None]

    @classmethod
    def of(cls, raw: str) -> _Normal:
        pieces: list[str] = []
        starts: list[int] = []
        raw_starts: list[int] = []
        raw_ends: list[int | None] = []
        length = 0

        def add(piece: str, start: int, end: int | None) -> None:
            nonlocal length
            pieces.append(piece)
            starts.append(length)
            raw_starts.append(start)
            raw_ends.append(end)
            length += len(piece)

        done = 0
        for unit in _UNIT.finditer(raw):
            if unit.start() > done:
                add(raw[done : unit.start()], done, None)
            done = unit.end()
            if character := _decode(unit):
                add(character, unit.start(), done)
        if done < len(raw):
            add(raw[done:], done, None)
        return cls("".join(pieces), starts, raw_starts, raw_ends)

    def start(self, index: int) -> int:
        """Where a character starts in the raw text."""
        part = bisect_right(self._starts, index) - 1
        if self._raw_ends[part] is not None:
            return self._raw_starts[part]
        return self._raw_starts[part] + index - self._starts[part]

    def adjoin(self, index: int) -> bool:
        """Whether nothing stands in the raw text between a character and the one before it."""
        return self.end(index - 1) == self.start(index)

    def end(self, index: int) -> int:
        """Where a character ends in the raw text."""
        part = bisect_right(self._starts, index) - 1
        return self._raw_ends[part] or self._raw_starts[part] + index - self._starts[part] + 1


_QUOTED_HEADER = r"(?P<label>\b(?:{names})['\"]?\s*[:=]\s*['\"]?(?:(?:bearer|basic)\s+)?)[^\s'\",;{{}}]{{4,}}"

_SPACE = (
    r"(?:[ \t\r\n]|\\+(?:[rnt]|(?:u00|x)(?:0[9aAdD]|20))|%(?:25)*(?:0[9aAdD]|20)"
    r"|&\#(?:9|10|13|32|[xX](?:0?[9aAdD]|20));)"
)
# Every run of white space, of backslashes and of `%25` is a unit: none is looked at twice. No quantifier is
# possessive: those of Python 3.11.2 match what they should not (gh-101955).
_UNIT = re.compile(
    rf"{_SPACE}+"
    r"|\\+(?:(?:u00|x)(?P<escaped>[0-9a-fA-F]{2}))?"
    r"|%(?:25)*(?P<percent>[0-9a-fA-F]{2})"
    r"|&(?:\#(?P<decimal>\d{2,3})|\#[xX](?P<hex>[0-9a-fA-F]{2})|(?P<name>amp|quot|apos|lt|gt));"
)
_ENCODED = re.compile(r"[\\%&]")
_ENTITIES = {"amp": "&", "quot": '"', "apos": "'", "lt": "<", "gt": ">"}

# The beginning of a unit at the end of a text: two more digits tell which character it is.
_BEGUN_UNIT = re.compile(r"(?:%(?:25)*[0-9a-fA-F]?|\\+(?:u0{0,2}[0-9a-fA-F]?|x[0-9a-fA-F]?)?|&[#\w]{0,4})\Z")
_LONGEST_BEGUN_UNIT = 32

_TRUNCATION_MARK = re.compile(r"(?:\[truncated: [^\]]{1,40}\])+\Z")
_LONGEST_TRUNCATION_MARK = 100

# Only ASCII: other letters may change their length with their case.
_TO_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
_TO_STANDARD = str.maketrans("-_", "+/")
# Characters of the shortest first half: all of a short secret.
_LEAST_HALF = 12
_BASE64 = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


def _decode(unit: re.Match[str]) -> str:
    kind = unit.lastgroup
    if kind is None:
        return ""
    if kind == "name":
        return _ENTITIES[unit[kind]]
    return chr(int(unit[kind], 10 if kind == "decimal" else 16))


def _list_strings(value: Any) -> Iterator[str]:
    """All strings and keys within a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _list_strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _list_strings(item)


def _make_base64_cores(secret: str) -> Iterator[str]:
    """What base64 makes of a secret at any place of what was encoded: the characters that hold nothing else."""
    for written in {secret, quote(secret, safe=""), quote(secret), json.dumps(secret)[1:-1]}:
        data = written.encode()
        for before in range(3):
            encoded = b64encode(b"\0" * before + data).decode()
            first = -(-before * 8 // 6)
            yield encoded[first : (before + len(data)) * 8 // 6]


def _take_half(core: str) -> str:
    """The least beginning of a secret that counts as the secret."""
    return core[: max(len(core) // 2, _LEAST_HALF)]


def _find_occurrences(text: str, core: str) -> Iterator[tuple[int, int]]:
    """Where a secret stands in a text, or its first half and as much of the other as follows."""
    half = _take_half(core)
    at = text.find(half)
    while at >= 0:
        length = len(half)
        while length < len(core) and text.startswith(core[length], at + length):
            length += 1
        yield at, at + length
        at = text.find(half, at + length)


def _find_overlaps(text: str, core: str, least: int) -> Iterator[int]:
    """How long a beginning of `core`, of at least so many characters and not all of it, the text ends in."""
    last = text[-least:]
    at = core.find(last) if len(last) == least else -1
    while at >= 0:
        length = at + least
        if length < len(core) and text.endswith(core[:length]):
            yield length
        at = core.find(last, at + 1)


def _replace_spans(text: str, spans: list[tuple[int, int]]) -> str:
    if not spans:
        return text
    pieces: list[str] = []
    done = 0
    for start, end in sorted(spans):
        if start >= done:
            pieces += [text[done:start], MARK]
        done = max(done, end)
    return "".join([*pieces, text[done:]])
