"""The naive projection's forms of a group: complete, with truncated results, and with cleared ones."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from dataclasses import dataclass, field

from clew_workflows.contract.messages import Message
from clew_workflows.contract.policy import ClearToolResults
from clew_workflows.contract.tokens import Encoding
from clew_workflows.thread.context.blocks import MISSING_RESULT
from tests.support.reference_lane import Unit
from tests.support.reference_tokens import count_tokens


@dataclass
class Form:
    """A unit as a context shows it.

    Attributes:
        messages: The messages, placeholder results included.
        tokens: Tokens of all messages.
        results: For each result that may be truncated: its index in `messages`, its tokens, bytes of the full result.
        pinned: Whether the unit is pinned.
        truncated: For each result that is truncated, by tool call: bytes shown of its beginning and of its end.
        sizes: Tokens of each result.
    """

    messages: list[Message]
    tokens: int
    results: list[tuple[int, int, int]]
    pinned: bool = False
    truncated: dict[str, tuple[int, int]] = field(default_factory=dict)
    sizes: list[int] = field(default_factory=list)


def render(unit: Unit, provider: str | None, counted: Encoding | None) -> Form:
    """Render a unit for a provider, with placeholder results for calls that have none."""
    sizes = [count_tokens(piece.message, counted) if counted else piece.tokens for piece in unit.pieces]
    tokens = sum(sizes)
    messages = [piece.message.copy() for piece in unit.pieces]
    if messages[0].get("provider_data", {}).get("provider") != provider:
        messages[0].pop("provider_data", None)
    results: list[tuple[int, int, int]] = []
    for index, piece in enumerate(unit.pieces[1:], 1):
        # Results of a snapshot are never truncated.
        if unit.pieces[0].seq is not None:
            results.append((index, sizes[index], piece.stored or len(piece.message["content"].encode())))
    for call in messages[0].get("tool_calls", []):
        if call["id"] in unit.open_calls:
            name = call["name"]
            messages.append({"role": "tool", "content": MISSING_RESULT, "tool_call_id": call["id"], "name": name})
            tokens += 32 + len(name.encode())
    return Form(messages, tokens, results, unit.pinned, {}, sizes[1:])


def _count_name(message: Message) -> int:
    return len(message.get("tool_call_id", "").encode()) + len(message.get("name", "").encode())


def fit_results(forms: list[Form], room: int, by: Encoding, *, readable: bool) -> list[Form]:
    """Truncate results at the highest level at which all units fit; no result has more tokens than the level."""
    if sum(form.tokens for form in forms) <= room:
        return forms
    ways = [
        [_list_ways(form.messages[at], cost, total, by, readable=readable) for at, cost, total in form.results]
        for form in forms
    ]
    levels = sorted({tokens for rows in ways for row in rows for tokens, *_ in row}, reverse=True) or [0]
    chosen: list[Form] = []
    for level in levels:
        chosen = []
        for form, rows in zip(forms, ways, strict=True):
            new = Form(form.messages.copy(), form.tokens, [], form.pinned, {}, form.sizes)
            for (at, full, _), row in zip(form.results, rows, strict=True):
                tokens, content, part = next((way for way in row if way[0] <= level), row[-1])
                new.tokens += tokens - full
                new.messages[at] = {**form.messages[at], "content": content}
                if part:
                    new.truncated[form.messages[at].get("tool_call_id", "")] = part
            chosen.append(new)
        if sum(form.tokens for form in chosen) <= room:
            return chosen
    return chosen


def _list_ways(
    message: Message, tokens: int, all_bytes: int, by: Encoding, *, readable: bool
) -> list[tuple[int, str, tuple[int, int] | None]]:
    """List every way to show a result, the largest first: in full, in part, and the marker alone."""
    text = message["content"]
    least = 44 + _count_name(message)
    ways: list[tuple[int, str, tuple[int, int] | None]] = [(tokens, text, None)]
    if least >= tokens:
        return ways
    data = text.encode()
    number = max(1, min((len(data) + 255) // 256, 128))
    ends = [0, *itertools.accumulate(len(character.encode()) for character in text)]
    bounds = [ends[bisect_right(ends, index * len(data) // number) - 1] for index in range(number)]
    pieces = [data[begin:end].decode() for begin, end in itertools.pairwise([*bounds, len(data)])]
    for taken in range(number - 1, -1, -1):
        heads, tails = (taken + 1) // 2, taken // 2
        head, tail = "".join(pieces[:heads]), "".join(pieces[number - tails :])
        cost = least + sum(by.count(piece) + 2 for piece in pieces[:heads] + pieces[number - tails :])
        if cost >= tokens:
            continue
        begin, end = len(head.encode()), len(data) - len(tail.encode()) if tails else all_bytes
        call_id = message.get("tool_call_id", "")
        how = f": read_result(tool_call_id='{call_id}', offset={begin}) reads on" if readable else ""
        marker = f"[bytes {begin} to {end} of {all_bytes} are left out{how}]"
        content = "\n".join(part for part in (head, marker, tail) if part)
        ways.append((cost, content, (begin, len(tail.encode()))))
    return ways


def clear_results(
    units: list[Unit], rendered: list[Form], rule: ClearToolResults, counted: Encoding | None
) -> tuple[list[Form], list[int]]:
    """Clear all results but the newest `rule.keep`. Returns the forms, and the number of results cleared in each.

    Results of the newest unit, of excluded tools, and those that are not larger than the marker are never cleared.
    """
    results = [(index, piece) for index, unit in enumerate(units) for piece in unit.pieces[1:]]
    older = results[: -rule.keep] if rule.keep else results
    lighter = [
        Form(form.messages.copy(), form.tokens, form.results.copy(), form.pinned, {}, form.sizes.copy())
        for form in rendered
    ]
    gone = [0] * len(units)
    for index, piece in older:
        call_id = piece.message.get("tool_call_id", "")
        calls = units[index].pieces[0].message.get("tool_calls", [])
        tool = next(call["name"] for call in calls if call["id"] == call_id)
        marker = 24 + _count_name(piece.message)
        gain = (count_tokens(piece.message, counted) if counted else piece.tokens) - marker
        if index == len(units) - 1 or units[index].pinned or tool in rule.exclude_tools or gain <= 0:
            continue
        form = lighter[index]
        at = next(at for at, message in enumerate(form.messages) if message.get("tool_call_id") == call_id)
        content = f"[cleared: read_result(tool_call_id='{call_id}') reads it again]"
        form.messages[at] = {**form.messages[at], "content": content}
        form.tokens -= gain
        form.sizes[at - 1] = marker
        form.results = [row for row in form.results if row[0] != at]
        gone[index] += 1
    return lighter, gone
