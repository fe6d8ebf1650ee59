"""Clearing: older tool results give way to a marker that says how to read them again.

Nothing is lost: the thread keeps them, and the model has `read_result`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from clew.context.blocks import Block, Result
from clew.contract.policy import ClearToolResults
from clew.model.messages import Message

READ_RESULT = "read_result"
"""The built-in tool that reads a tool result again."""

# With its framing, and beside it a token for each byte of the call's id and of the tool's name: an upper bound under
# every encoding, so that a reader without a vocabulary sizes the cleared context as its writer did.
_MARKER_TOKENS = 24


def format_cleared_marker(tool_call_id: str) -> str:
    """What stands in the place of a result."""
    return f"[cleared: {READ_RESULT}(tool_call_id={tool_call_id!r}) reads it again]"


def count_cleared_marker(message: Message) -> int:
    """What a result costs once it is cleared."""
    named = f"{message.get('tool_call_id', '')}{message.get('name', '')}"
    return _MARKER_TOKENS + len(named.encode())


def clear_older(blocks: Iterable[Block], rule: ClearToolResults) -> Iterator[Block]:
    """Blocks that come newest first, without the results that the rule lets go.

    The newest block keeps all of its own: they are what the next reply answers.
    """
    keep = rule.keep
    for number, block in enumerate(blocks):
        older = max(len(block.results) - keep, 0)
        yield clear_results(block, older, rule) if number and older else block
        keep = max(keep - len(block.results), 0)


def clear_in_steps(blocks: Sequence[Block], rule: ClearToolResults) -> tuple[list[Block], int]:
    """Blocks that come oldest first, without the results that the steps taken so far have reached, and their number.

    A step is as many results as free `min_tokens`. It is taken once the last of them is older than those that the
    rule keeps; so blocks that begin alike are cleared alike until the next step is.
    """
    newest = len(blocks[-1].results) if blocks else 0
    older = sum(len(block.results) for block in blocks) - max(rule.keep, newest)
    reached = freed = 0
    for place, tokens in enumerate((tokens for block in blocks for tokens in _freed(block, rule)), 1):
        freed += tokens
        if place <= older and freed and freed >= rule.min_tokens:
            reached, freed = place, 0
    shown, left = [], reached
    for block in blocks:
        shown.append(clear_results(block, left, rule) if left > 0 else block)
        left -= len(block.results)
    return shown, reached


def _freed(block: Block, rule: ClearToolResults) -> list[int]:
    """The tokens that each result of a block gives back when it is cleared; 0 where it stays."""
    if not block.results or block.pinned:
        return [0] * len(block.results)
    names = {call["id"]: call["name"] for call in block.messages[0].get("tool_calls", [])}
    return [
        0
        if names.get(message.get("tool_call_id", "")) in rule.exclude_tools
        else max(result.tokens - count_cleared_marker(message), 0)
        for message, result in zip(block.messages[1:], block.results, strict=False)
    ]


def clear_results(block: Block, count: int, rule: ClearToolResults) -> Block:
    """A block with its first results cleared, where that frees anything."""
    gone = {place: tokens for place, tokens in enumerate(_freed(block, rule)[:count]) if tokens}
    if not gone:
        return block
    messages = list(block.messages)
    results = list(block.results)
    for place in gone:
        message = messages[place + 1]
        content = format_cleared_marker(message.get("tool_call_id", ""))
        messages[place + 1] = {**message, "content": content}
        results[place] = Result(count_cleared_marker(message))
    freed = sum(gone.values())
    ids = {messages[place + 1].get("tool_call_id") for place in gone}
    return replace(
        block,
        messages=tuple(messages),
        tokens=block.tokens - freed,
        results=tuple(results),
        cleared=len(gone),
        freed=freed,
        cut=tuple(cut for cut in block.cut if cut[0] not in ids),
    )
