"""A lane as a projection sees it: what a context can be made of, and what of it is kept before anything else."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from clew.context.blocks import Block, Rendering, make_archived_error, render_newest_first
from clew.context.projection_input import ProjectionInput
from clew.context.truncation import Cutter, compute_results_share, count_saved, update_savings
from clew.contract import READ_RESULT
from clew.contract.payloads import MessagePayload, OperationPayload, StoredSnapshot, ToolMessage
from clew.contract.policy import ContextPolicy
from clew.errors import Archived
from clew.model.tokens import Encoding, load_encoding
from clew.thread.entries import Entry
from clew.thread.lane import Lane
from clew.thread.thread import find_last


class LaneView:
    """The part of a lane that a context can be made of: what its anchor and its summary leave.

    Raises:
        Archived: it cannot be told from what the thread keeps of its past.
    """

    def __init__(self, given: ProjectionInput) -> None:
        self.thread = thread = given.thread
        self.policy = policy = given.policy
        self.upto = thread.last_seq if given.at_seq is None else min(given.at_seq, thread.last_seq)
        if self.upto < thread.retained.upto:
            raise Archived(f"entry {self.upto} is in the archive: read it through ReadThread")
        self.lane = thread.get_lane(given.context_ref) or Lane()
        self.rendering = Rendering(given.provider, choose_estimator(policy))
        has_reader = any(tool["name"] == READ_RESULT for tool in given.tools)
        self.cutter = Cutter(compute_results_share(policy), readable=has_reader and not given.standalone)
        self.layers = self.lane.find_layers(self.upto)
        if not self.layers.is_complete:
            raise make_archived_error(self.lane)
        top = self.layers.top
        self.summed = top.summarized_to
        self.is_summed_up = policy.uses_summary and top.summary >= 0
        self.after = top.summarized_to if self.is_summed_up else top.after

    @property
    def summary(self) -> Entry | None:
        """What stands for the lane up to `after`, where that is a summary."""
        return self._laid(self.layers.top.summary) if self.is_summed_up else None

    @property
    def snapshot(self) -> StoredSnapshot | None:
        """What stands for the lane up to `after`, where that is a snapshot."""
        anchor = None if self.is_summed_up else self._laid(self.layers.top.anchor)
        return anchor.read(OperationPayload).snapshot if anchor else None

    def _laid(self, seq: int) -> Entry | None:
        # The reader of a part of the thread may know of later layers than that part has.
        if seq > self.thread.last_seq:
            raise make_archived_error(self.lane)
        return self.thread[seq] if seq >= 0 else None

    def kept(self) -> list[tuple[Block, str]]:
        """What a context keeps before anything else, oldest first, each part with its name."""
        parts = {block.start: (block, part) for block, part in (*self.current(), *self.pinned())}
        return sorted(parts.values(), key=lambda kept: kept[0].start or 0)

    def pinned(self) -> list[tuple[Block, str]]:
        """The groups of the entries that are pinned, also where a summary or a compaction speaks for them."""
        blocks = (replace(self._block_at(start), pinned=True) for start in self._pinned_starts())
        return [(block, "pinned") for block in blocks if self._included(block)]

    def _pinned_starts(self) -> list[int]:
        lane, starts = self.lane, set[int]()
        for seq in self.layers.pinned:
            if not lane.holds(seq):
                raise make_archived_error(lane)
            if seq <= self.upto and (group := lane.find_group(seq)):
                starts.add(group.start)
        return sorted(starts)

    def current(self) -> list[tuple[Block, str]]:
        """What the current run is about, oldest first, each part with its name.

        That is all that its user has said, and the tool results that the next reply answers.
        """
        lane, kinds = self.lane, self.policy.include_kinds
        runs = bisect_right(lane.run_starts, self.upto)
        groups = bisect_right(lane.group_starts, self.upto)
        # What an anchor or a summary has taken out of the lane is no longer there to be kept.
        before = max(lane.run_starts[runs - 1] - 1 if runs else -1, self.after)
        unsure = before == self.after < lane.gap.newest_seq and before != lane.gap.no_user_after
        if unsure or lane.gap.dropped_user_seq > before:
            raise make_archived_error(lane)
        found: dict[int, str] = {}
        if "message" in kinds:
            said = bisect_right(lane.turn_starts, before), bisect_right(lane.turn_starts, self.upto)
            found = dict.fromkeys(lane.turn_starts[slice(*said)], "request")
        newest = lane.groups[groups - 1] if groups else None
        if lane.gap.newest_seq > before and (newest is None or newest.start < lane.gap.newest_seq):
            raise make_archived_error(lane)
        answers = newest is not None and newest.start > before and newest.entries[0].read(MessagePayload).call_ids
        if newest and answers and {"tool_call", "tool_result"} <= set(kinds):
            found[newest.start] = "tool_results"
        return [(self._block_at(seq), part) for seq, part in found.items()]

    def fit_required(self, kept: Sequence[tuple[Block, str]], room: int) -> list[Block]:
        """What is kept before anything else; what has no room is cut, the newest results before those pinned."""
        blocks = [block for block, _ in kept]
        for place, (block, part) in enumerate(kept):
            if part == "tool_results":
                left = room - sum(other.tokens for other in blocks) + block.tokens
                at_share = self.cutter.cut_to_share(block)
                forms = [at_share] if self.policy.window == "epoch" else [block, at_share]
                fitting = [form for form in forms if form.tokens <= left]
                (blocks[place],) = fitting[:1] or self.cutter.cut_to_room([block], left)
        if sum(block.tokens for block in blocks) > room:
            blocks = self.cutter.cut_to_room(blocks, room)
        return blocks

    def _block_at(self, start: int) -> Block:
        group = self.lane.groups[bisect_right(self.lane.group_starts, start) - 1]
        return self.rendering.render_group(group, self.upto)

    def blocks(self) -> Iterator[Block]:
        """Everything the window may keep, from the newest on."""
        whole = render_newest_first(self.lane, self.rendering, self.after, self.upto)
        if self.layers.pinned:
            pinned = set(self._pinned_starts())
            whole = (replace(block, pinned=True) if block.start in pinned else block for block in whole)
        if self.policy.window == "epoch":
            whole = map(self.cutter.cut_to_share, whole)
        return filter(self._included, chain(whole, self._snapshot_blocks()))

    def _included(self, block: Block) -> bool:
        return shows_block(self.policy, block)

    def _snapshot_blocks(self) -> Iterator[Block]:
        if self.snapshot:
            yield from reversed(self.rendering.render_snapshot(self.snapshot, self._late_results()))

    def _late_results(self) -> Iterator[Entry]:
        """The results that come first where the lane's own messages begin."""
        seqs = self.lane.message_seqs
        for place in range(bisect_right(seqs, self.after), bisect_right(seqs, self.upto)):
            entry = self.thread[seqs[place]]
            if not isinstance(entry.body, ToolMessage):
                return
            yield entry

    def needs_summary(self, truncated: bool) -> bool:
        """Whether a summary is due: the window had to cut, or much has come since the last one."""
        policy = self.policy
        if policy.summarization == "none":
            return False
        if truncated:
            return True
        messages, tokens = self.count_since(self.summed)
        return (policy.summarize_threshold is not None and messages > policy.summarize_threshold) or (
            policy.max_thread_tokens is not None and tokens > policy.max_thread_tokens
        )

    def count_since(self, seq: int) -> tuple[int, int]:
        """How many messages the lane has had since a seq, and their tokens."""
        lane = self.lane
        messages, tokens = lane.count_messages(seq + 1, self.upto)
        if seq >= lane.gap.newest_seq:
            return messages, tokens
        if seq == lane.gap.after:
            return messages + lane.gap.messages, tokens + lane.gap.tokens
        if seq == lane.gap.summarized_to:
            return messages + lane.gap.unsummarized_messages, tokens + lane.gap.unsummarized_tokens
        raise make_archived_error(lane)

    def count_saved_since(self, seq: int) -> int:
        """How many tokens less than the lane has said since a seq are shown, with all results cut to their share."""
        lane, share = self.lane, self.cutter.share
        saved = self.count_saved_from(seq + 1)
        if seq >= lane.gap.newest_seq:
            return saved
        known = dict(lane.gap.savings if seq == lane.gap.after else lane.gap.unsummarized_savings)
        if seq not in (lane.gap.after, lane.gap.summarized_to) or share not in known:
            raise make_archived_error(lane)
        return saved + known[share]

    def count_saved_from(self, first: int) -> int:
        """As `saved_since`, of the groups held that start at `first` or later."""
        groups = bisect_right(self.lane.group_starts, self.upto)
        if not groups or self.lane.group_starts[groups - 1] < first:
            return 0
        # The newest group may still grow, or have grown since.
        newest = self.lane.groups[groups - 1]
        savings = update_savings(self.lane, self.cutter, self.rendering)
        return savings.count_between(first, newest.start - 1) + count_saved(
            newest, self.cutter, self.rendering, self.upto
        )

    @property
    def measure(self) -> tuple[int, int]:
        """How many messages a context could be made of, a snapshot's included, and their tokens."""
        messages, tokens = self.count_since(self.after)
        tokens -= self.count_saved_since(self.after)
        if self.snapshot:
            counts = self.snapshot.tokens or ()
            return messages + len(counts), tokens + sum(counts)
        return messages, tokens

    def measured_blocks(self) -> Iterator[tuple[Block, int, int]]:
        """The blocks, from the newest on, each with how much there is from its start on: messages and tokens."""
        messages = tokens = 0
        for block in self.blocks():
            if block.start is not None:
                messages, tokens = self.lane.count_messages(block.start, self.upto)
                tokens -= self.count_saved_from(block.start)
            else:
                messages, tokens = messages + len(block.messages), tokens + block.tokens
            yield block, messages, tokens

    def count_shared_prefix(self, window: tuple[int, ...] | None) -> int | None:
        """The tokens that this context has in common with the beginning of the lane's call before it.

        That is all of it, unless the window has been cut since, or what shapes contexts has changed.
        """
        if window is None:
            return None
        reply = find_last(self.lane.replies, self.upto)
        if reply is None:
            return 0
        recipe = reply.recipe
        assert recipe is not None, "replies have recipes"
        config = find_last(self.thread.configs, self.upto)
        lately = bisect_right(self.lane.late_seqs, recipe.basis_seq)
        same = (
            recipe.epoch == window
            and recipe.policy_hash == self.policy.hash
            and recipe.provider == self.rendering.provider
            and (config is None or config.seq <= recipe.basis_seq)
            and self.layers.seq <= recipe.basis_seq
            # A late result changes what is shown of an older round.
            and lately == bisect_right(self.lane.late_seqs, self.upto)
        )
        return recipe.input_tokens if same else 0


def shows_block(policy: ContextPolicy, block: Block) -> bool:
    """Whether a policy's contexts show blocks of this kind."""
    needed = {"message": {"message"}, "tool_call": {"tool_call", "tool_result"}}
    return needed[block.kind] <= set(policy.include_kinds)


def choose_estimator(policy: ContextPolicy) -> Encoding | None:
    """What sizes messages in place of their recorded counts, where the policy asks for it."""
    return load_encoding("heuristic") if policy.token_estimator == "heuristic" else None
