"""The window of a model call: which messages its context had, and why it had no others."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from clew.report.report_types import CallWindow, Segment, SegmentKind, SegmentState
from clew_workflows.contract.content import list_media
from clew_workflows.contract.payloads import ConfigPayload, MessagePayload, Recipe, SummaryPayload
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.blocks import Block
from clew_workflows.thread.context.contexts import find_own_settings, rebuild_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.lane import Group, Lane
from clew_workflows.thread.thread import Thread

MAX_SEGMENTS = 30
"""Most segments of a window or of what it left out. More messages are put together, the oldest first."""
_ALL_KINDS = {"message", "tool_call", "tool_result"}


def count_media(thread: Thread) -> dict[int, int]:
    """Count the images, recordings and files of each message that has some."""
    counts = {
        entry.seq: len(list_media(body.content)) for entry in thread if isinstance(body := entry.body, MessagePayload)
    }
    return {seq: count for seq, count in counts.items() if count}


def make_window(thread: Thread, recipe: Recipe, media: Mapping[int, int] | None = None) -> CallWindow:
    """Make the window of a model call by building its context again.

    `media`: the number of images, recordings and files of each message that has some; None: of the thread's.

    Raises:
        ClewError: The context cannot be built: its projector is not registered here.
        ValueError: A policy has fields of a later release.
    """
    context = rebuild_context(thread, recipe, find_own_settings(thread, recipe))
    lane = thread.get_lane(recipe.context_ref) or Lane()
    policy = _find_policy(thread, recipe)
    layers = lane.find_layers(recipe.basis_seq)
    summary = thread[layers.top.summary] if context.meta.summary_used else None
    segments = list(_list_segments(context, lane, summary, count_media(thread) if media is None else media))
    starts = sorted(block.start for block in context.blocks if block.start is not None)
    covered: tuple[SegmentState, int] = (
        ("summarized", layers.top.summarized_to) if summary else ("replaced", layers.top.after)
    )
    left_out = list(_list_left_out(lane, starts, recipe.basis_seq, policy, covered))
    return CallWindow(
        segments=tuple(_limit(segments)),
        left_out=tuple(_limit(left_out)),
        budget=policy.budget,
        tokens=context.meta.estimated_tokens,
        matches_record=context.meta.digest == recipe.digest,
    )


def _find_policy(thread: Thread, recipe: Recipe) -> ContextPolicy:
    config = thread.find_config(recipe.basis_seq)
    policy = config.read(ConfigPayload).policy if config else ContextPolicy()
    return policy.overlay(recipe.policy)


def _list_segments(
    context: Projection, lane: Lane, summary: Entry | None, media: Mapping[int, int]
) -> Iterator[Segment]:
    """List the parts of a context in order, from the tool schemas on."""
    pinned = set(lane.find_layers(context.meta.basis_last_seq).pinned)
    if context.tools_tokens:
        yield Segment(kind="tools", state="shown", messages=0, tokens=context.tools_tokens)
    for block in context.blocks:
        first, last = _find_bounds(block, lane)
        kind = _find_kind(block, summary)
        if kind == "summary" and summary:
            first = last = summary.seq
        sent = sum(media.get(seq, 0) for seq in block.seqs) if media else 0
        # A snapshot has messages that are no entries.
        messages = block.messages if sent or not block.seqs else ()
        shown = sum(len(list_media(message["content"])) for message in messages)
        yield Segment(
            kind=kind,
            state="truncated" if block.truncated else "cleared" if block.cleared else "shown",
            first_seq=first,
            last_seq=last,
            messages=len(block.messages),
            tokens=block.tokens,
            pinned=block.pinned or not pinned.isdisjoint(block.seqs),
            results=block.cleared + len(block.truncated),
            media=shown,
            cleared_media=max(sent - shown, 0),
        )


def _find_bounds(block: Block, lane: Lane) -> tuple[int | None, int | None]:
    """Find the first and the last entry of a block's group, without results that came after later groups."""
    if block.start is None:
        return None, None
    index = bisect_right(lane.group_starts, block.start)
    end = lane.group_starts[index] if index < len(lane.group_starts) else None
    return block.start, max(seq for seq in block.seqs if end is None or seq < end)


def _find_kind(block: Block, summary: Entry | None) -> SegmentKind:
    first = block.messages[0]
    if block.start is None:
        text = summary.read(SummaryPayload).make_message("user")["content"] if summary else None
        if first["content"] == text:
            return "summary"
        return "system" if first["role"] == "system" else "snapshot"
    if block.kind == "tool_call":
        return "tool_calls"
    return "user" if first["role"] == "user" else "assistant"


def _list_left_out(
    lane: Lane, starts: Sequence[int], upto: int, policy: ContextPolicy, covered: tuple[SegmentState, int]
) -> Iterator[Segment]:
    """List the lane's groups between those of a window, whose starts are in order; neighbours of one state together.

    `covered`: the state of the messages that a summary or a snapshot replaces, and the last seq of them.
    """
    covered_state, covered_to = covered
    shows_all = set(policy.include_kinds) >= _ALL_KINDS
    first = 0
    count = bisect_right(lane.group_starts, upto)
    for start in (*starts, None):
        end = count if start is None else bisect_left(lane.group_starts, start)
        split = min(max(bisect_right(lane.group_starts, covered_to), first), end)
        if first < split:
            yield _describe_groups(lane, first, split, upto, covered_state)
        if split < end and shows_all:
            yield _describe_groups(lane, split, end, upto, "dropped")
        else:
            yield from _describe_by_kind(lane, split, end, upto, policy)
        first = end + 1


def _describe_by_kind(lane: Lane, first: int, end: int, upto: int, policy: ContextPolicy) -> Iterator[Segment]:
    """Describe groups of which the policy excludes some kinds."""

    def find_state(index: int) -> SegmentState:
        return "dropped" if _is_included(lane.groups[index], policy) else "excluded"

    for state, indexes in groupby(range(first, end), find_state):
        run = list(indexes)
        yield _describe_groups(lane, run[0], run[-1] + 1, upto, state)


def _is_included(group: Group, policy: ContextPolicy) -> bool:
    calls_tools = bool(group.entries[0].read(MessagePayload).call_ids)
    needed = {"tool_call", "tool_result"} if calls_tools else {"message"}
    return needed <= set(policy.include_kinds)


def _describe_groups(lane: Lane, first: int, end: int, upto: int, state: SegmentState) -> Segment:
    """Describe the groups from the index `first` to before the index `end`."""
    begin = lane.groups[first].start
    last = lane.groups[end].start - 1 if end < len(lane.groups) else upto
    messages, tokens = lane.count_messages(begin, min(last, upto))
    last_seq = max(entry.seq for entry in lane.groups[end - 1].entries if entry.seq <= upto)
    return Segment(kind="messages", state=state, first_seq=begin, last_seq=last_seq, messages=messages, tokens=tokens)


def _limit(segments: Sequence[Segment]) -> Sequence[Segment]:
    """Put the oldest segments together where there are too many: neighbours of one state, then all of one state."""
    if len(segments) <= MAX_SEGMENTS:
        return segments
    older, newer = segments[: -MAX_SEGMENTS // 2], segments[-MAX_SEGMENTS // 2 :]
    joined = [_join(list(row)) for _, row in groupby(older, _find_sort)]
    if len(joined) > MAX_SEGMENTS // 2:
        by_sort: dict[object, list[Segment]] = {}
        for segment in joined:
            by_sort.setdefault(_find_sort(segment), []).append(segment)
        joined = list(map(_join, by_sort.values()))
    return [*joined, *newer]


def _find_sort(segment: Segment) -> object:
    """Segments of one sort may be put together."""
    alone = segment.kind if segment.kind in ("tools", "system", "summary") else None
    return alone, segment.state, segment.pinned


def _join(segments: Sequence[Segment]) -> Segment:
    first, last = segments[0], segments[-1]
    kinds = {segment.kind for segment in segments}
    return first.model_copy(
        update={
            "kind": first.kind if len(kinds) == 1 else "messages",
            "last_seq": last.last_seq,
            "messages": sum(segment.messages for segment in segments),
            "tokens": sum(segment.tokens for segment in segments),
            "results": sum(segment.results for segment in segments),
            "media": sum(segment.media for segment in segments),
            "cleared_media": sum(segment.cleared_media for segment in segments),
        }
    )
