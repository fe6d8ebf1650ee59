"""Clearing: replaces older tool results by a marker that says how to read them again.

The thread keeps every result, and the model reads a cleared one with the tool `read_result`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from clew.context.blocks import Block, Result
from clew.contract import READ_RESULT
from clew.contract.policy import ClearToolResults
from clew.model.messages import Message

# Tokens of a marker without the call's id and the tool's name, message framing included. With one token for each byte
# of those it is an upper bound under every encoding, so all readers compute the same size without a vocabulary.
_MARKER_TOKENS = 24


def format_cleared_marker(tool_call_id: str) -> str:
    """The content that replaces a cleared result."""
    return f"[cleared: {READ_RESULT}(tool_call_id={tool_call_id!r}) reads it again]"


def count_cleared_marker(message: Message) -> int:
    """Tokens of a result after it has been cleared."""
    id_and_name = f"{message.get('tool_call_id', '')}{message.get('name', '')}"
    return _MARKER_TOKENS + len(id_and_name.encode())


def clear_older(blocks: Iterable[Block], rule: ClearToolResults) -> Iterator[Block]:
    """Clear all results but the newest `rule.keep` of blocks that come newest first.

    The newest block is never cleared: the next reply answers its results.
    """
    keep = rule.keep
    for number, block in enumerate(blocks):
        older = max(len(block.results) - keep, 0)
        yield clear_results(block, older, rule) if number and older else block
        keep = max(keep - len(block.results), 0)


def clear_in_steps(blocks: Sequence[Block], rule: ClearToolResults) -> tuple[list[Block], int]:
    """Clear the oldest results of blocks that come oldest first, in whole steps.

    A step is a run of consecutive results whose clearing frees `rule.min_tokens`. It is taken when its last result is
    older than those that the rule keeps. Until the next step is taken, blocks that begin alike are cleared alike.

    Returns:
        The blocks, and the number of results up to the end of the last step.
    """
    newest = len(blocks[-1].results) if blocks else 0
    older = sum(len(block.results) for block in blocks) - max(rule.keep, newest)
    reached = freed = 0
    for number, tokens in enumerate((tokens for block in blocks for tokens in _count_freed(block, rule)), 1):
        freed += tokens
        if number <= older and freed and freed >= rule.min_tokens:
            reached, freed = number, 0
    result, left = [], reached
    for block in blocks:
        result.append(clear_results(block, left, rule) if left > 0 else block)
        left -= len(block.results)
    return result, reached


def _count_freed(block: Block, rule: ClearToolResults) -> list[int]:
    """The tokens that clearing each result of a block frees; 0 for a result that is never cleared."""
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
    """Clear the first `count` results of a block, except those whose clearing frees nothing."""
    freed_by_index = {index: tokens for index, tokens in enumerate(_count_freed(block, rule)[:count]) if tokens}
    if not freed_by_index:
        return block
    messages = list(block.messages)
    results = list(block.results)
    for index in freed_by_index:
        message = messages[index + 1]
        content = format_cleared_marker(message.get("tool_call_id", ""))
        messages[index + 1] = {**message, "content": content}
        results[index] = Result(count_cleared_marker(message))
    freed = sum(freed_by_index.values())
    cleared_ids = {messages[index + 1].get("tool_call_id") for index in freed_by_index}
    return replace(
        block,
        messages=tuple(messages),
        tokens=block.tokens - freed,
        results=tuple(results),
        cleared=len(freed_by_index),
        freed=freed,
        truncated=tuple(part for part in block.truncated if part[0] not in cleared_ids),
    )
