"""The projection: what a lane of a thread looks like to a model.

`project` is pure: no clock, no IO, the same input gives the same bytes, at every seq. A context is the
concatenation of four segments, system, summary, history and pending; concatenation is all the composition
there is. Its cost follows the window, not the thread.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from clew.answers import ContextMeta
from clew.canonical import canonical
from clew.entries import DEFAULT_LANE, Entry, summary_message
from clew.errors import Archived, ContextOverflow, InvalidInput
from clew.groups import Block, Rendering, archived, newest_first
from clew.messages import Message, ToolSpec
from clew.policy import ContextPolicy
from clew.thread import Lane, Thread, last_at
from clew.tokens import Encoding, encoding
from clew.window import epoch, slide


@dataclass(frozen=True, slots=True)
class ProjectionInput:
    """All that a context depends on.

    Attributes:
        thread: The facts. Entries after `at_seq` do not exist for the projection (None: all exist).
        policy: The policy in force, complete.
        pending: Messages about to be asked that are not in the thread.
        system: The system prompt, and in `system_tokens` its count where that is known.
        tools: The tool schemas, and in `tools_tokens` their count where that is known.
        context_ref: The lane.
        provider: Whose `provider_data` the messages keep.
        output_schema: What the answer must look like; part of the digest alone.
        encoding: What is not counted yet is counted under it.
        request_must_fit: Whether the current request is kept at any price, or windowed like all else.
    """

    thread: Thread
    policy: ContextPolicy
    pending: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSpec] = ()
    context_ref: str = DEFAULT_LANE
    at_seq: int | None = None
    provider: str | None = None
    output_schema: dict[str, Any] | None = None
    system_tokens: int | None = None
    tools_tokens: int | None = None
    encoding: str = "o200k_base"
    request_must_fit: bool = True


@dataclass(frozen=True, slots=True)
class Projection:
    """A context, and what is known of it.

    `blocks` are what its messages were made of, in order, each with its tokens and its seqs; `tools_tokens` are those
    of the tool schemas.
    """

    messages: list[Message]
    tool_spec: list[ToolSpec]
    meta: ContextMeta
    output_schema: dict[str, Any] | None = None
    blocks: tuple[Block, ...] = ()
    tools_tokens: int = 0


Projector = Callable[[ProjectionInput], Projection]

_projectors: dict[str, Projector] = {}


def register_projector(name: str, projector: Projector) -> None:
    """Let policies choose a projector by name. It must be pure, and registered alike on every worker and reader.

    Raises:
        ValueError: the name is taken.
    """
    if name in _projectors:
        raise ValueError(f"a projector is already registered as {name!r}")
    _projectors[name] = projector


def projector_named(name: str) -> Projector:
    """The projector that a policy chose.

    Raises:
        InvalidInput: there is none of that name.
    """
    if name not in _projectors:
        raise InvalidInput(f"unknown projector {name!r}: one of {', '.join(sorted(_projectors))}")
    return _projectors[name]


def project(given: ProjectionInput) -> Projection:
    """The context that the policy's projector makes of its input.

    Raises:
        ContextOverflow: what must fit does not: tool schemas, system prompt, pending, the current request.
        InvalidInput: the policy names a projector that does not exist.
        InvalidTokenBudget: the policy leaves no budget.
    """
    return projector_named(given.policy.checked().projector)(given)


def compose(*segments: Iterable[Message]) -> list[Message]:
    """One context of its segments, in order."""
    return list(chain.from_iterable(segments))


def default_projector(given: ProjectionInput) -> Projection:
    """What must fit takes its room first: tool schemas, system prompt, pending, the current request.

    The rest is the window's, sliding or in epochs, and the latest summary's.
    """
    policy, sizes = given.policy, _Sizes(given)
    view = LaneView(given)
    room = policy.budget
    for part, size in (("tools", sizes.tools), ("system_prompt", sizes.system), ("pending", sizes.pending)):
        if size > room:
            raise ContextOverflow(part, size, room)
        room -= size
    first = []
    if given.request_must_fit:
        first = view.pinned() if given.pending else view.kept()
    left = room
    for block, part in first:
        if block.tokens > left:
            raise ContextOverflow(part, block.tokens, left)
        left -= block.tokens

    summary = sizes.of_summary(view.summary)
    kept = [block for block, _ in first]
    if policy.window == "epoch":
        window = epoch(view, policy, room, kept, summary)
    else:
        window = slide(view.blocks, policy, room, kept, summary)
    shown = summary if window.summary_kept else None
    blocks = (
        *_segment([{"role": "system", "content": given.system}] if given.system else [], sizes.system),
        *([shown] if shown else []),
        *window.blocks,
        *_segment(given.pending, sizes.pending),
    )
    messages = compose(*(block.messages for block in blocks))
    tools = list(given.tools)
    basis_last_seq = view.upto
    return Projection(
        messages,
        tools,
        ContextMeta(
            basis_rev=basis_last_seq + 1,
            basis_last_seq=basis_last_seq,
            pending_count=len(given.pending),
            truncated=window.truncated,
            estimated_tokens=policy.budget - room + window.tokens,
            summary_used=shown is not None,
            needs_summary=view.needs_summary(window.truncated),
            entries_included=sum(len(block.seqs) for block in window.blocks),
            entries_total=basis_last_seq + 1,
            policy_hash=policy.hash,
            epoch=window.epoch,
            shared_prefix_tokens=view.shared_prefix(window.epoch),
            cleared_tool_results=(
                sum(block.cleared for block in window.blocks) if policy.clear_tool_results else None
            ),
            digest=_digest(blocks, tools, given.output_schema),
        ),
        given.output_schema,
        blocks,
        sizes.tools,
    )


def _segment(messages: Sequence[Message], tokens: int) -> list[Block]:
    """What surrounds the history, as a block of its own."""
    return [Block(tuple(messages), tokens, "message")] if messages else []


def _digest(blocks: Iterable[Block], tools: list[ToolSpec], output_schema: dict[str, Any] | None) -> str:
    """`digest` of the whole context, of which every block knows its canonical form."""
    messages = b",".join(block.canonical for block in blocks)
    rest = canonical({"tool_spec": tools, "output_schema": output_schema})
    return hashlib.sha256(b'{"messages":[%b],%b' % (messages, rest[1:])).hexdigest()


register_projector("default", default_projector)


class LaneView:
    """The part of a lane that a context can be made of: what its anchor and its summary leave.

    Raises:
        Archived: it cannot be told from what the thread keeps of its past.
    """

    def __init__(self, given: ProjectionInput) -> None:
        self.thread = thread = given.thread
        self.policy = policy = given.policy
        self.upto = thread.last_seq if given.at_seq is None else min(given.at_seq, thread.last_seq)
        if self.upto < thread.past.upto:
            raise Archived(f"entry {self.upto} is in the archive: read it through ReadThread")
        self.lane = thread.lane(given.context_ref) or Lane()
        self.rendering = Rendering(given.provider, estimator_of(policy))
        self.ground = self.lane.ground_at(self.upto)
        if not self.ground.known:
            raise archived(self.lane)
        top = self.ground.top
        self.summed = top.summed
        self.is_summed_up = policy.uses_summary and top.summary >= 0
        self.after = top.summed if self.is_summed_up else top.after

    @property
    def summary(self) -> Entry | None:
        """What stands for the lane up to `after`, where that is a summary."""
        return self._laid(self.ground.top.summary) if self.is_summed_up else None

    @property
    def snapshot(self) -> Mapping[str, Any] | None:
        """What stands for the lane up to `after`, where that is a snapshot."""
        anchor = None if self.is_summed_up else self._laid(self.ground.top.anchor)
        return anchor.payload["operation"]["result_context"] if anchor else None

    def _laid(self, seq: int) -> Entry | None:
        # Who reads a part of the thread may know of a later ground than that has.
        if seq > self.thread.last_seq:
            raise archived(self.lane)
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
        for seq in self.ground.pinned:
            if not lane.holds(seq):
                raise archived(lane)
            if seq <= self.upto and (group := lane.group_at(seq)):
                starts.add(group.start)
        return sorted(starts)

    def current(self) -> list[tuple[Block, str]]:
        """What the current run is about, oldest first, each part with its name.

        That is what its user asked, first and last, and the tool results that the next reply answers.
        """
        lane, kinds = self.lane, self.policy.include_kinds
        runs = bisect_right(lane.run_starts, self.upto)
        groups = bisect_right(lane.group_starts, self.upto)
        # What an anchor or a summary has taken out of the lane is no longer there to be kept.
        before = max(lane.run_starts[runs - 1] - 1 if runs else -1, self.after)
        if before == self.after < lane.gap.newest and before != lane.gap.asked_after:
            raise archived(lane)
        asked = lane.turn_starts[bisect_right(lane.turn_starts, before) : bisect_right(lane.turn_starts, self.upto)]
        found: dict[int, str] = {}
        if asked and "message" in kinds:
            found = {asked[0]: "request", asked[-1]: "request"}
        newest = lane.groups[groups - 1] if groups else None
        if lane.gap.newest > before and (newest is None or newest.start < lane.gap.newest):
            raise archived(lane)
        answers = newest is not None and newest.start > before and newest.entries[0].payload.get("tool_calls")
        if newest and answers and {"tool_call", "tool_result"} <= set(kinds):
            found[newest.start] = "tool_results"
        return [(self._block_at(seq), part) for seq, part in found.items()]

    def _block_at(self, start: int) -> Block:
        group = self.lane.groups[bisect_right(self.lane.group_starts, start) - 1]
        return self.rendering.of_group(group, self.upto)

    def blocks(self) -> Iterator[Block]:
        """Everything the window may keep, from the newest on."""
        whole = newest_first(self.lane, self.rendering, self.after, self.upto)
        if self.ground.pinned:
            pinned = set(self._pinned_starts())
            whole = (replace(block, pinned=True) if block.start in pinned else block for block in whole)
        return filter(self._included, chain(whole, self._snapshot_blocks()))

    def _included(self, block: Block) -> bool:
        needed = {"message": {"message"}, "tool_call": {"tool_call", "tool_result"}}
        return needed[block.kind] <= set(self.policy.include_kinds)

    def _snapshot_blocks(self) -> Iterator[Block]:
        if self.snapshot:
            yield from reversed(self.rendering.of_snapshot(self.snapshot, self._late_results()))

    def _late_results(self) -> Iterator[Entry]:
        """The results that come first where the lane's own messages begin."""
        seqs = self.lane.message_seqs
        for place in range(bisect_right(seqs, self.after), bisect_right(seqs, self.upto)):
            entry = self.thread[seqs[place]]
            if entry.payload["role"] != "tool":
                return
            yield entry

    def needs_summary(self, truncated: bool) -> bool:
        """Whether a summary is due: the window had to cut, or much has come since the last one."""
        policy = self.policy
        if policy.summarization == "none":
            return False
        if truncated:
            return True
        messages, tokens = self.said_since(self.summed)
        return (policy.summarize_threshold is not None and messages > policy.summarize_threshold) or (
            policy.max_thread_tokens is not None and tokens > policy.max_thread_tokens
        )

    def said_since(self, seq: int) -> tuple[int, int]:
        """How many messages the lane has had since a seq, and their tokens."""
        lane = self.lane
        messages, tokens = lane.said_between(seq + 1, self.upto)
        if seq >= lane.gap.newest:
            return messages, tokens
        if seq == lane.gap.mark:
            return messages + lane.gap.messages, tokens + lane.gap.tokens
        if seq == lane.gap.summed:
            return messages + lane.gap.summed_messages, tokens + lane.gap.summed_tokens
        raise archived(lane)

    @property
    def measure(self) -> tuple[int, int]:
        """How many messages a context could be made of, a snapshot's included, and their tokens."""
        messages, tokens = self.said_since(self.after)
        if self.snapshot:
            counts = self.snapshot["tokens"]
            return messages + len(counts), tokens + sum(counts)
        return messages, tokens

    def measured_blocks(self) -> Iterator[tuple[Block, int, int]]:
        """The blocks, from the newest on, each with how much there is from its start on: messages and tokens."""
        messages = tokens = 0
        for block in self.blocks():
            if block.start is not None:
                messages, tokens = self.lane.said_between(block.start, self.upto)
            else:
                messages, tokens = messages + len(block.messages), tokens + block.tokens
            yield block, messages, tokens

    def shared_prefix(self, window: tuple[int, ...] | None) -> int | None:
        """The tokens that this context has in common with the beginning of the lane's call before it.

        That is all of it, unless the window has been cut since, or what shapes contexts has changed.
        """
        if window is None:
            return None
        reply = last_at(self.lane.replies, self.upto)
        if reply is None:
            return 0
        recipe = reply.payload["recipe"]
        config = last_at(self.thread.configs, self.upto)
        same = (
            recipe.get("epoch") == list(window)
            and recipe["policy_hash"] == self.policy.hash
            and recipe["model"].partition(":")[0] == self.rendering.provider
            and (config is None or config.seq <= recipe["basis_seq"])
            and self.ground.seq <= recipe["basis_seq"]
        )
        return int(recipe["input_tokens"]) if same else 0


class _Sizes:
    """The tokens of what surrounds the history: recorded where the thread has them, counted where not."""

    def __init__(self, given: ProjectionInput) -> None:
        self._estimator = estimator_of(given.policy)
        self._given = given
        self.tools = self._sized(given.tools_tokens, lambda by: by.tools(given.tools)) if given.tools else 0
        self.system = self._sized(given.system_tokens, lambda by: by.system(given.system)) if given.system else 0
        self.pending = self._sized(None, lambda by: sum(map(by.message, given.pending))) if given.pending else 0

    def _sized(self, recorded: int | None, count: Callable[[Encoding], int]) -> int:
        if recorded is not None and self._estimator is None:
            return recorded
        return count(self._estimator or encoding(self._given.encoding))

    def of_summary(self, entry: Entry | None) -> Block | None:
        if entry is None:
            return None
        message = summary_message(entry.payload["content"], self._given.policy.summary_role)
        tokens = self._sized(entry.tokens, lambda by: by.message(message))
        return Block((message,), tokens, "message")


def estimator_of(policy: ContextPolicy) -> Encoding | None:
    """What sizes messages in place of their recorded counts, where the policy asks for it."""
    return encoding("heuristic") if policy.token_estimator == "heuristic" else None
