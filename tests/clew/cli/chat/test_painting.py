"""Growing Markdown, in blocks that can be printed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clew.cli.chat.painting import MAX_CODE_CHARACTERS, MAX_PENDING_CHARACTERS, BlockSplitter, Painter, ToolBlock


def split(*pieces: str) -> list[str]:
    """Split a text that arrives in pieces, up to its end."""
    splitter = BlockSplitter()
    return [block for piece in pieces for block in splitter.add(piece)] + splitter.finish()


@pytest.mark.parametrize(
    "blocks",
    [
        ["One\nparagraph.\n\n", "Another."],
        ["# A heading\n", "Its text.\n\n", "***\n\n", "the end"],
        ["- one\n\n- two\n\n  more of two\n\n", "After the list.\n\n", "1. a\n2. b\n"],
        ["Code:\n", "```python\nfor x in y:\n\n    pass\n```\n", "\nThat is all."],
        ["~~~\n```\nstill code\n~~~\n", "text"],
        ["| a | b |\n|---|---|\n| 1 | 2 |\n\n", "> a quote\nthat goes on\n\n", "end\n"],
        ["A title\n=======\n\n", "text"],
        ["```\nnever closed\n\n# no heading\n"],
    ],
)
def test_a_text_is_split_into_its_blocks(blocks: list[str]) -> None:
    """Each block ends where no later text can change it."""
    assert split("".join(blocks)) == blocks


MARKS = st.sampled_from(["a", "\n", "\n\n", "- ", "  ", "1. ", "```\n", "# ", "> ", "| a | b |\n|-|-|\n", "---\n"])


@given(st.lists(MARKS, max_size=30), st.data())
def test_the_pieces_make_no_difference(marks: list[str], data: st.DataObject) -> None:
    """The blocks are those of the text at once; nothing but empty lines is lost."""
    text = "".join(marks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert split(*pieces) == split(text)
    assert "".join(split(text)).split() == text.split()


def test_only_what_is_not_finished_can_be_cut() -> None:
    """A text that is replaced from some character on stays printed before it."""
    splitter = BlockSplitter()
    assert splitter.add("One.\n\nTwo thr") == ["One.\n\n"]
    assert not splitter.cut(3)
    assert splitter.cut(10)
    assert splitter.pending == "Two "
    assert splitter.add("more") + splitter.finish() == ["Two more"]


@pytest.mark.parametrize(
    ("line", "limit"), [("- item\n", MAX_PENDING_CHARACTERS), ("word\n", MAX_PENDING_CHARACTERS)]
)
def test_a_block_without_end_is_cut(line: str, limit: int) -> None:
    """A text that finishes no block does not grow without bound."""
    splitter = BlockSplitter()
    assert len(splitter.add(line * (limit // len(line) + 10))) == 1
    assert len(splitter.pending) < 100


def test_long_code_stays_in_one_block() -> None:
    """Code is cut later than other text: its parts look different."""
    code = "~~~\n" + "code\n" * (MAX_PENDING_CHARACTERS // 2)
    splitter = BlockSplitter()
    assert splitter.add(code) == []
    assert splitter.add("~~~\n") == [code + "~~~\n"]
    assert len(splitter.add("~~~\n" + "code\n" * MAX_CODE_CHARACTERS)) >= 1


def test_a_result_without_a_text_has_no_line() -> None:
    """A result of images alone shows its call; the lines of its images follow."""
    painter = Painter(width=80, colors=None)
    assert painter.paint_block(ToolBlock("draw", {}, "a cat")).count("\n") == 2
    assert painter.paint_block(ToolBlock("draw", {}, "")).count("\n") == 1
