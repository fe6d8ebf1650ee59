"""Tokens, and the pieces of texts that are counted once."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from clew.errors import EncodingUnavailable
from clew_workflows.contract import tokens
from clew_workflows.contract.tokens import (
    ENCODINGS,
    MAX_PIECES,
    PIECE_BYTES,
    find_piece_starts,
    load_encoding,
    load_encodings,
    register_encoding,
    split,
)
from tests.support.examples import examples
from tests.support.reference import canonical_json
from tests.support.threads import CALCULATOR, assistant_calls, tool_returns, user_says

# Counting tokens.


VOCABULARIES = ("o200k_base", "cl100k_base")
UNCACHED: Callable[[str], Any] = load_encoding.__wrapped__


@pytest.fixture(params=VOCABULARIES)
def published(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Get tiktoken's published definition of an encoding, without its vocabulary."""
    public = importlib.import_module("tiktoken_ext.openai_public")
    hashes: list[str] = []

    def load(_: str, expected_hash: str) -> dict[bytes, int]:
        hashes.append(expected_hash)
        return {}

    monkeypatch.setattr(public, "load_tiktoken_bpe", load)
    shape = getattr(public, request.param)()
    return SimpleNamespace(name=request.param, shape=shape, sha256=hashes[0])


def test_the_facts_are_the_published_ones(published: SimpleNamespace) -> None:
    """Patterns, special tokens and the hash of the vocabulary are those of tiktoken."""
    ours = tokens._VOCABULARIES[published.name]
    assert ours.shape["pat_str"] == published.shape["pat_str"]
    assert ours.shape["special_tokens"] == published.shape["special_tokens"]
    assert ours.sha256 == published.sha256
    assert ours.shape.keys() | {"name", "mergeable_ranks"} == published.shape.keys()


@pytest.mark.slow
def test_counts_are_tiktokens(published: SimpleNamespace) -> None:
    """The count of a text equals tiktoken's."""
    ranks = tokens._read_ranks(tokens._read_bundled(published.name) or b"")
    theirs = tiktoken.Encoding(**published.shape | {"mergeable_ranks": ranks})
    ours = load_encoding(published.name)

    @given(st.text(st.characters(exclude_categories=["Cs"])))
    @example("Hello world, it's 2026!\r\n\r\n  def f(x):\n\treturn x\u00a0\u2028")
    @example("<|endoftext|><|endofprompt|>")
    @example("x" + " " * 511 + "y")
    @example("HTTPServer's naïveté 日本語 🧵👩‍👩‍👧 ǅ ʰ ́")
    @examples(60)
    def agree(text: str) -> None:
        assert ours.count(text) == len(theirs.encode_ordinary(text))

    agree()


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("cl100k_base", "tiktoken is great!", 6),
        ("cl100k_base", "hello world", 2),
        ("o200k_base", "hello world", 2),
        ("cl100k_base", "antidisestablishmentarianism", 6),
        ("heuristic", "hello world", 2),
        ("heuristic", "日本語", 2),
        *[(name, "", 0) for name in ENCODINGS],
    ],
)
def test_known_counts(name: str, text: str, count: int) -> None:
    """Counts that are published elsewhere; a quarter of the bytes for the heuristic."""
    assert load_encoding(name).count(text) == count


@pytest.mark.parametrize("name", VOCABULARIES)
@pytest.mark.parametrize("text", [" " * 1_000_000, "\n \t\u00a0" * 250_000, "a" + " " * 1_000_000 + "b"])
def test_a_million_spaces(name: str, text: str) -> None:
    """A run of white space without end is counted, in pieces, and does not panic."""
    assert 1000 < load_encoding(name).count(text) < 1_000_000


@pytest.mark.parametrize(("name", "framing"), [("o200k_base", 4), ("cl100k_base", 4), ("heuristic", 10)])
def test_what_a_message_costs(name: str, framing: int) -> None:
    """A message costs its framing, its text, its canonical calls and what goes back verbatim, and a tool's name."""
    by = load_encoding(name)
    data: Any = {"provider": "anthropic", "blocks": [{"signature": "c2lnbmF0dXJl"}]}
    call = assistant_calls("x")
    calls = by.count(canonical_json(call.get("tool_calls")))
    assert by.count_message(user_says("hello world")) == framing + by.count("hello world")
    assert by.count_message(call) == framing + calls
    assert by.count_message({**call, "provider_data": data}) == framing + calls + by.count(canonical_json(data))
    assert by.count_message(tool_returns("x", "12")) == framing + by.count("12") + by.count("calculator")
    assert by.count_system_prompt("hello world") == framing + by.count("hello world")
    assert by.count_system_prompt(None) == by.count_system_prompt("") == 0
    assert by.count_tools([CALCULATOR, CALCULATOR]) == 2 * (framing + by.count(canonical_json(CALCULATOR)))
    assert by.count_tools([]) == 0


@pytest.mark.parametrize("name", ["", "gpt2", "o200k", "O200K_BASE"])
def test_an_unknown_encoding(name: str) -> None:
    """An encoding that is not one of Clew's is said to be unknown, with those that are."""
    with pytest.raises(EncodingUnavailable, match="o200k_base, cl100k_base, heuristic"):
        load_encoding(name)


class Letters:
    """Counts what `len` counts, plus `more`."""

    def __init__(self, more: object = 0) -> None:
        self.more: Any = more

    def count(self, text: str) -> int:
        return len(text) + self.more  # type: ignore[no-any-return]


def test_a_tokenizer_of_ones_own() -> None:
    """It counts all that the others count; its name is registered once, and is none of Clew's."""
    name = f"letters-{uuid.uuid4().hex}"
    register_encoding(name, Letters(), framing=2)
    by = load_encoding(name)
    assert by.count("hello") == 5
    assert by.count_message(user_says("hello")) == 7
    assert by.count_tools([CALCULATOR]) == 2 + len(canonical_json(CALCULATOR))
    assert load_encoding(name) is by
    for taken in (name, *ENCODINGS):
        with pytest.raises(ValueError, match="already registered"):
            register_encoding(taken, Letters())


@pytest.mark.parametrize(
    ("name", "more", "problem"),
    [("", 0, "1 to 64"), ("a b", 0, "1 to 64"), ("half", 0.5, "6.5"), ("owing", -7, "-1")],
)
def test_a_tokenizer_that_cannot_be_used_is_refused(name: str, more: object, problem: str) -> None:
    """A name of another form, and a tokenizer that does not count, are refused where they are registered."""
    with pytest.raises(ValueError, match=problem):
        register_encoding(name, Letters(more))
    with pytest.raises(EncodingUnavailable):
        load_encoding(name)


def test_a_tokenizer_may_count_nothing_in_a_text() -> None:
    """Zero is a number of tokens."""
    name = f"nothing-{uuid.uuid4().hex}"
    register_encoding(name, Letters(-6))
    assert load_encoding(name).count("a text") == 0


def test_an_encoding_is_loaded_once() -> None:
    """A second load returns the same encoding."""
    assert load_encoding("cl100k_base") is load_encoding("cl100k_base")


def packaged(monkeypatch: pytest.MonkeyPatch, package: Path | None) -> None:
    """Move or remove the package `bpe_openai`."""
    spec = None if package is None else SimpleNamespace(origin=str(package / "__init__.py"))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)


@pytest.mark.parametrize(
    "content",
    [b"", b"IQ== 0\n", gzip.compress(b"IQ== 0\n", mtime=0), None],
    ids=["empty", "not compressed", "another vocabulary", "missing"],
)
def test_a_wrong_vocabulary_is_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None
) -> None:
    """A file that is missing, broken or not the published one is an error: there is no fallback."""
    (tmp_path / "data").mkdir()
    if content is not None:
        (tmp_path / "data" / "o200k_base.tiktoken.gz").write_bytes(content)
    packaged(monkeypatch, tmp_path)
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: pytest.fail("another vocabulary was asked for"))
    with pytest.raises(EncodingUnavailable, match="o200k_base cannot be loaded"):
        UNCACHED("o200k_base")


@pytest.mark.slow
def test_a_worker_that_starts_checks_every_vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The vocabulary that few models use is checked, too, and takes no memory before a session needs it."""
    load_encoding("o200k_base")
    load_encoding.cache_clear()
    load_encodings()
    assert load_encoding.cache_info().currsize == 1
    folder = Path(importlib.util.find_spec("bpe_openai").origin).parent / "data"  # type: ignore[union-attr,arg-type]
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "o200k_base.tiktoken.gz").symlink_to(folder / "o200k_base.tiktoken.gz")
    packaged(monkeypatch, tmp_path)
    with pytest.raises(EncodingUnavailable, match="cl100k_base cannot be loaded"):
        load_encodings()


def test_no_vocabulary_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the wheel tiktoken's own download is tried, and where that fails too, that is said."""

    def offline(name: str) -> tiktoken.Encoding:
        raise OSError(f"no network for {name}")

    packaged(monkeypatch, None)
    monkeypatch.setattr(tiktoken, "get_encoding", offline)
    with pytest.raises(EncodingUnavailable, match=r"no network for cl100k_base.*install 'clew\[worker\]'"):
        UNCACHED("cl100k_base")


def test_without_tiktoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where tiktoken is not installed the vocabularies cannot be had, and the heuristic can."""
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(EncodingUnavailable, match=r"install 'clew\[worker\]'"):
        UNCACHED("o200k_base")
    assert UNCACHED("heuristic").count("12345678") == 2


# Texts in pieces.


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=2000), st.integers(1, 40))
def test_pieces_are_the_text(text: str, times: int) -> None:
    """Together they are all of it, they are of about the same size, and there are not too many."""
    pieces = split(text * times)
    assert "".join(pieces) == text * times
    assert 1 <= len(pieces) <= MAX_PIECES
    sizes = [len(piece.encode()) for piece in pieces]
    assert max(sizes) - min(sizes) <= 7
    assert find_piece_starts((text * times).encode())[0] == 0


@pytest.mark.parametrize(("size", "pieces"), [(0, 1), (PIECE_BYTES, 1), (PIECE_BYTES + 1, 2), (65_536, MAX_PIECES)])
def test_how_many(size: int, pieces: int) -> None:
    """A short text is one piece."""
    assert len(split("x" * size)) == pieces
