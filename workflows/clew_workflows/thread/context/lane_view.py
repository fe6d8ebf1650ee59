"""The input of a projection, and the part of a lane that a context is made of."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from clew_workflows.contract import READ_RESULT, VIEW_BLOB
from clew_workflows.contract.errors import Archived, ContextOverflow
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.contract.payloads import AssistantMessage, OperationPayload, StoredSnapshot, ToolMessage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.blocks import (
    Block,
    Rendering,
    Truncator,
    compute_results_share,
    count_saved,
    make_archived_error,
    update_savings,
)
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.lane import GapSize, Group, Lane
from clew_workflows.thread.thread import Thread, find_last


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """Everything that a context depends on.

    Attributes:
        thread: The thread to project.
        policy: The policy in force, with all levels overlaid.
        pending: Messages that are shown after the history and are not in the thread.
        system: The system prompt.
        tools: The tool schemas.
        selected_tools: The names of `tools`, if they are some of the session's; None: they are all.
        context_ref: The lane.
        at_seq: The newest entry that the projection reads; None: the newest of the thread.
        provider: The provider whose `provider_data` the messages keep.
        model: The model whose formula counts the media of what has no recorded count.
        output_schema: The JSON Schema that the answer must meet. Only the digest depends on it.
        system_tokens: Recorded tokens of the system prompt; None: they are counted.
        tools_tokens: Recorded tokens of the tool schemas; None: they are counted.
        encoding: The encoding that counts what has no recorded count.
        request_must_fit: Whether the current run and pinned groups are required; if not, they are windowed like the
            rest of the history.
        standalone: Whether the context is for a model that cannot read this thread with `read_result` or `view_blob`.
    """

    thread: Thread
    policy: ContextPolicy
    pending: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    selected_tools: tuple[str, ...] | None = None
    context_ref: str = DEFAULT_LANE
    at_seq: int | None = None
    provider: str | None = None
    model: str = ""
    output_schema: dict[str, Any] | None = None
    system_tokens: int | None = None
    tools_tokens: int | None = None
    encoding: str = "o200k_base"
    request_must_fit: bool = True
    standalone: bool = False


class RequiredBlock(NamedTuple):
    """A block that a context must hold.

    Attributes:
        block: The block.
        part: Its part of the context, as `ContextOverflow` names it: `request`, `tool_results` or `pinned`.
    """

    block: Block
    part: str


class LaneView:
    """The part of a lane that a context can be made of: the messages that follow its snapshot or its summary.

    Raises:
        Archived: The thread does not retain enough of the lane.
    """

    def __init__(self, inputs: ProjectionInput) -> None:
        self.inputs = inputs
        self.thread = thread = inputs.thread
        self.policy = policy = inputs.policy
        self.kinds = list_block_kinds(policy)
        self.upto = thread.last_seq if inputs.at_seq is None else min(inputs.at_seq, thread.last_seq)
        if self.upto < thread.retained.upto:
            raise Archived(f"entry {self.upto} is in the archive: read it through ReadThread")
        self.lane = thread.get_lane_at(inputs.context_ref, self.upto) or Lane()
        self.rendering = Rendering(inputs.provider, choose_estimator(policy))
        self.layers = self.lane.find_layers(self.upto)
        if not self.layers.is_complete:
            raise make_archived_error(self.lane)
        top = self.layers.top
        self.summarized_to = top.summarized_to
        self.is_summarized = top.summary >= 0 and policy.uses_summary
        self.after = top.summarized_to if self.is_summarized else top.after

    @cached_property
    def truncator(self) -> Truncator:
        """Truncates tool results that do not fit."""
        return Truncator(compute_results_share(self.policy), readable=self._has_tool(READ_RESULT))

    @property
    def is_viewable(self) -> bool:
        """Whether the model can see cleared media again with `view_blob`."""
        return self._has_tool(VIEW_BLOB)

    def _has_tool(self, name: str) -> bool:
        """Whether the model has a tool that reads this thread."""
        return not self.inputs.standalone and any(tool["name"] == name for tool in self.inputs.tools)

    @property
    def summary(self) -> Entry:
        """The summary that replaces the lane's messages up to `after`, if `is_summarized`."""
        return self._get_layer_entry(self.layers.top.summary)

    @property
    def snapshot(self) -> StoredSnapshot | None:
        """The snapshot that replaces the lane's messages up to `after`."""
        anchor = self.layers.top.anchor
        if self.is_summarized or anchor < 0:
            return None
        return self._get_layer_entry(anchor).read(OperationPayload).snapshot

    def _get_layer_entry(self, seq: int) -> Entry:
        # A thread read in part may have layers from a caller that knows newer entries.
        if seq > self.thread.last_seq:
            raise make_archived_error(self.lane)
        return self.thread[seq]

    def list_required(self) -> list[RequiredBlock]:
        """List the blocks that a context must hold, oldest first.

        These are the user's messages of the current run, the newest round of tool calls if the next reply answers it,
        and the pinned blocks.
        """
        lane, after = self.lane, self._find_current_start()
        parts: dict[int, str] = {}
        if "message" in self.kinds:
            first, last = bisect_right(lane.turn_starts, after), bisect_right(lane.turn_starts, self.upto)
            parts = dict.fromkeys(lane.turn_starts[first:last], "request")
        newest = self._find_newest_round(after)
        if newest and "tool_call" in self.kinds:
            parts[newest.start] = "tool_results"
        required = [RequiredBlock(self._render_block_at(start), parts[start]) for start in sorted(parts)]
        return self._add_pinned(required) if self.layers.pinned else required

    def list_pinned(self) -> list[RequiredBlock]:
        """List the groups that hold a pinned entry, also those that a summary or a compaction replaces."""
        if not all(map(self.lane.holds, self.layers.pinned)):
            raise make_archived_error(self.lane)
        blocks = (replace(self._render_block_at(start), pinned=True) for start in sorted(self._find_pinned_starts()))
        return [RequiredBlock(block, "pinned") for block in blocks if block.kind in self.kinds]

    def _add_pinned(self, required: list[RequiredBlock]) -> list[RequiredBlock]:
        """Add the pinned blocks, oldest first. One that is required anyway becomes a pinned one."""
        by_start = {row.block.start: row for row in (*required, *self.list_pinned())}
        return sorted(by_start.values(), key=lambda row: row.block.start or 0)

    def _find_pinned_starts(self) -> set[int]:
        """Find where the pinned groups begin that the thread holds."""
        groups = (self.lane.find_group(seq) for seq in self.layers.pinned if seq <= self.upto)
        return {group.start for group in groups if group}

    def _find_current_start(self) -> int:
        """The seq after which the current run has messages that a snapshot or a summary has not replaced.

        Raises:
            Archived: A user's message after that seq may be only in the archive.
        """
        lane = self.lane
        runs = bisect_right(lane.run_starts, self.upto)
        after = max(lane.run_starts[runs - 1] - 1 if runs else -1, self.after)
        # No run is known to start after the lane's snapshot or summary: one may have started within the gap.
        is_uncertain = after == self.after < lane.gap.newest_seq and after != lane.gap.no_user_after
        if is_uncertain or lane.gap.dropped_user_seq > after or lane.gap.read_after > self.after:
            raise make_archived_error(lane)
        return after

    def _find_newest_round(self, after: int) -> Group | None:
        """The lane's newest group if it starts after a seq and has tool calls.

        Raises:
            Archived: The newest group may be only in the archive.
        """
        lane = self.lane
        groups = bisect_right(lane.group_starts, self.upto)
        newest = lane.groups[groups - 1] if groups else None
        if lane.gap.newest_seq > after and (newest is None or newest.start < lane.gap.newest_seq):
            raise make_archived_error(lane)
        if newest is None or newest.start <= after:
            return None
        message = newest.entries[0].body
        return newest if isinstance(message, AssistantMessage) and message.tool_calls else None

    def fit_required(self, required: Sequence[RequiredBlock], room: int) -> list[Block]:
        """Truncate required blocks to `room` tokens.

        First the results of the newest round are truncated. If that is not enough, the results of all blocks are
        truncated.

        Raises:
            ContextOverflow: A required block exceeds the room that those before it leave.
        """
        blocks = [block for block, _ in required]
        for index, (block, part) in enumerate(required):
            if part == "tool_results":
                room_left = room - sum(other.tokens for other in blocks) + block.tokens
                blocks[index] = self._fit_newest_round(block, room_left)
        if sum(block.tokens for block in blocks) > room:
            blocks = self.truncator.truncate_to_room(blocks, room)
            for block, (_, part) in zip(blocks, required, strict=True):
                if block.tokens > room:
                    raise ContextOverflow(part, block.tokens, room)
                room -= block.tokens
        return blocks

    def _fit_newest_round(self, block: Block, room: int) -> Block:
        at_share = self.truncator.truncate_to_share(block)
        candidates = [at_share] if self.policy.window == "epoch" else [block, at_share]
        for candidate in candidates:
            if candidate.tokens <= room:
                return candidate
        return self.truncator.truncate_to_room([block], room)[0]

    def _render_block_at(self, start: int) -> Block:
        group = self.lane.groups[bisect_right(self.lane.group_starts, start) - 1]
        return self.rendering.render_group(group, self.upto)

    def iterate_blocks(self) -> Iterator[Block]:
        """Iterate over the blocks that the window may keep, the newest first.

        Raises:
            Archived: The next block is only in the archive.
        """
        lane, pinned = self.lane, self._find_pinned_starts()
        oldest = max(self.after, lane.gap.newest_seq)
        index = bisect_right(lane.group_starts, self.upto)
        while index and lane.group_starts[index - 1] > oldest:
            index -= 1
            block = self.rendering.render_group(lane.groups[index], self.upto)
            if block.start in pinned:
                block = replace(block, pinned=True)
            if self.policy.window == "epoch":
                block = self.truncator.truncate_to_share(block)
            if block.kind in self.kinds:
                yield block
        if lane.gap.newest_seq > self.after:
            raise make_archived_error(lane)
        if self.layers.top.anchor >= 0 and (snapshot := self.snapshot):
            blocks = self.rendering.render_snapshot(snapshot, self._iterate_first_results())
            yield from (block for block in reversed(blocks) if block.kind in self.kinds)

    def _iterate_first_results(self) -> Iterator[Entry]:
        """Iterate over the tool results that the lane has right after its snapshot, before any other message."""
        seqs = self.lane.message_seqs
        for index in range(bisect_right(seqs, self.after), bisect_right(seqs, self.upto)):
            entry = self.thread[seqs[index]]
            if not isinstance(entry.body, ToolMessage):
                return
            yield entry

    def needs_summary(self, truncated: bool) -> bool:
        """Whether a summary is due: the window is truncated, or the lane has outgrown a threshold since the last."""
        policy = self.policy
        if policy.summarization == "none":
            return False
        if truncated:
            return True
        messages, tokens = self.count_since(self.summarized_to)
        return (policy.summarize_threshold is not None and messages > policy.summarize_threshold) or (
            policy.max_thread_tokens is not None and tokens > policy.max_thread_tokens
        )

    def count_since(self, seq: int) -> tuple[int, int]:
        """Count the lane's messages after a seq, and their tokens.

        Raises:
            Archived: The messages in the gap were not counted.
        """
        lane = self.lane
        in_gap = self._find_gap_size(seq)
        messages, tokens = lane.count_messages(max(seq, lane.gap.newest_seq) + 1, self.upto)
        return messages + in_gap.messages, tokens + in_gap.tokens

    def count_saved_since(self, seq: int) -> int:
        """Count the tokens that truncation of results to their share saves in the lane's messages after a seq.

        Raises:
            Archived: The messages in the gap were not counted.
        """
        saved = dict(self._find_gap_size(seq).savings)
        if seq < self.lane.gap.newest_seq and self.truncator.share not in saved:
            raise make_archived_error(self.lane)
        return self.count_saved_from(seq + 1) + saved.get(self.truncator.share, 0)

    def _find_gap_size(self, after: int) -> GapSize:
        size = self.lane.gap.find_size(after)
        if size is None:
            raise make_archived_error(self.lane)
        return size

    def count_saved_from(self, first: int) -> int:
        """Count the tokens that truncation saves in the groups that start at a seq or later, without the gap."""
        first = max(first, self.lane.gap.newest_seq + 1)
        groups = bisect_right(self.lane.group_starts, self.upto)
        if not groups or self.lane.group_starts[groups - 1] < first:
            return 0
        # The lane's cached savings leave out its newest group, to which results may still be added.
        newest = self.lane.groups[groups - 1]
        savings = update_savings(self.lane, self.truncator, self.rendering)
        older = savings.count_between(first, newest.start - 1)
        return older + count_saved(newest, self.truncator, self.rendering, self.upto)

    def measure_from(self, first: int) -> tuple[int, int]:
        """Count the messages from a seq on, without the gap, and their tokens with results truncated to the share."""
        messages, tokens = self.lane.count_messages(max(first, self.lane.gap.newest_seq + 1), self.upto)
        return messages, tokens - self.count_saved_from(first)

    @property
    def size(self) -> tuple[int, int]:
        """Number of messages that a context can be made of, and their tokens with results truncated to their share.

        A snapshot's messages are included.
        """
        messages, tokens = self.count_since(self.after)
        tokens -= self.count_saved_since(self.after)
        if self.snapshot:
            counts = self.snapshot.tokens or ()
            return messages + len(counts), tokens + sum(counts)
        return messages, tokens

    def iterate_measured_blocks(self) -> Iterator[tuple[Block, int, int]]:
        """Iterate over the blocks, the newest first, with the messages and tokens from each block's start on."""
        messages = tokens = 0
        for block in self.iterate_blocks():
            if block.start is not None:
                messages, tokens = self.measure_from(block.start)
            else:
                messages, tokens = messages + len(block.messages), tokens + block.tokens
            yield block, messages, tokens

    def count_shared_prefix(self, epoch: tuple[int, ...]) -> int:
        """Count the tokens at the beginning of an epoch's context that the lane's previous call had, too.

        It is the size of that call's whole context if the window begins where it did and the policy, provider,
        configuration and layers are the same and no late result came since; else 0.
        """
        reply = find_last(self.lane.replies, self.upto)
        if reply is None:
            return 0
        recipe = reply.recipe
        assert recipe is not None, "replies have recipes"
        config = find_last(self.thread.configs, self.upto)
        late_at_basis = bisect_right(self.lane.late_seqs, recipe.basis_seq)
        is_prefix = (
            recipe.epoch == epoch
            and recipe.policy_hash == self.policy.hash
            and recipe.provider == self.rendering.provider
            and recipe.tools == self.inputs.selected_tools
            and (config is None or config.seq <= recipe.basis_seq)
            and self.layers.seq <= recipe.basis_seq
            # A late result changes an older round.
            and late_at_basis == bisect_right(self.lane.late_seqs, self.upto)
        )
        return recipe.input_tokens if is_prefix else 0


def list_block_kinds(policy: ContextPolicy) -> tuple[str, ...]:
    """List the kinds of blocks that contexts under a policy show."""
    shown = policy.include_kinds
    messages = ("message",) if "message" in shown else ()
    return (*messages, "tool_call") if "tool_call" in shown and "tool_result" in shown else messages


def choose_estimator(policy: ContextPolicy) -> Encoding | None:
    """The encoding that counts messages in place of their recorded counts; None: use the recorded counts."""
    return load_encoding("heuristic") if policy.token_estimator == "heuristic" else None
