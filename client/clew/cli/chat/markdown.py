"""Split growing Markdown into blocks that later text cannot change. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from markdown_it import MarkdownIt

MAX_PENDING_CHARACTERS = 8192
"""Longest unfinished block. A longer one is cut at the end of a line."""
MAX_CODE_CHARACTERS = 65_536
"""The same of a fenced block of code, whose parts look different once it is cut."""

MARKDOWN = MarkdownIt().enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
"""The parser of replies. HTML is text, which a terminal shows as it is."""
_ENDED_BY_BLANK_LINE = {"paragraph_open", "heading_open", "hr", "table_open", "blockquote_open"}
"""Blocks that end at the latest with an empty line. A list and code by indentation may go on after it."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ITEM = re.compile(r"([-*+]|\d{1,9}[.)]) ")


@dataclass(slots=True)
class BlockSplitter:
    """Takes a text in pieces and yields its finished blocks. The result does not depend on the pieces.

    Attributes:
        taken: Characters of the text that finished blocks have.
        pending: The characters after them.
    """

    taken: int = 0
    pending: str = ""
    _checked: int = field(default=0, repr=False)
    _after_blank: bool = field(default=False, repr=False)

    def add(self, text: str) -> list[str]:
        """Add text; return the blocks that it finishes."""
        self.pending += text
        blocks: list[str] = []
        # Line by line: an incomplete line does not say yet which block it belongs to.
        while (end := self.pending.find("\n", self._checked) + 1) > 0:
            line, self._checked = self.pending[self._checked : end], end
            if length := self._find_finished(line):
                blocks.append(self._take(length))
            else:
                self._after_blank = not line.strip()
        return [block for block in blocks if block.strip()]

    def cut(self, length: int) -> bool:
        """Shorten the text to so many characters; False: finished blocks have more than that."""
        if length < self.taken:
            return False
        self.pending = self.pending[: length - self.taken]
        self._checked = min(self._checked, len(self.pending))
        return True

    def finish(self) -> list[str]:
        """End the text; return the last block, if there is one."""
        block = self._take(len(self.pending))
        return [block] if block.strip() else []

    def _take(self, length: int) -> str:
        block, self.pending = self.pending[:length], self.pending[length:]
        self.taken += length
        self._checked, self._after_blank = 0, False
        return block

    def _find_finished(self, line: str) -> int:
        """Find how many characters are finished, after the line `line` has become complete; 0: none."""
        end = self._checked
        if opening := _FENCE.match(self.pending):
            # The parser would read all of the code again for each of its lines.
            is_closed = end > len(line) and _closes(line, opening[1])
            return end if is_closed or end > MAX_CODE_CHARACTERS else 0
        limit = end if end > MAX_PENDING_CHARACTERS else 0
        # Other lines go on with the block, or the next empty line will show that they did not.
        is_blank = not line.strip()
        if _ITEM.match(self.pending):
            may_end = self._after_blank and not (is_blank or _ITEM.match(line) or line.startswith("  "))
        else:
            may_end = self._after_blank or is_blank or bool(line.startswith("#") or _FENCE.match(line))
        return (_count_finished(self.pending[:end], line) if may_end else 0) or limit


def _closes(line: str, opening: str) -> bool:
    """Whether a line closes a fenced block."""
    closing = _FENCE.match(line)
    return bool(closing and closing[1].startswith(opening) and not line.strip().strip(opening[0]))


def _count_finished(text: str, last_line: str) -> int:
    """Count the characters of complete lines that are finished blocks."""
    blocks = [token for token in MARKDOWN.parse(text) if token.level == 0 and token.map and token.nesting >= 0]
    if not blocks:
        return 0
    if len(blocks) > 1 and blocks[-1].map:
        return _measure_lines(text, blocks[-1].map[0])
    if blocks[0].type == "heading_open" and last_line.startswith("#"):
        return len(text)
    return len(text) if not last_line.strip() and blocks[0].type in _ENDED_BY_BLANK_LINE else 0


def _measure_lines(text: str, count: int) -> int:
    """Count the characters of the first lines."""
    end = 0
    for _ in range(count):
        end = text.find("\n", end) + 1
    return end
