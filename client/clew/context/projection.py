"""The projection: what a lane of a thread looks like to a model.

`project` is pure: no clock, no IO, the same input gives the same bytes, at every seq. A context is the
concatenation of four segments, system, summary, history and pending; concatenation is all the composition
there is. Its cost follows the window, not the thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from clew.context._lane_view import LaneView, choose_estimator
from clew.context._window import fill_epoch_window, fill_sliding_window
from clew.context.blocks import Block
from clew.context.projection_input import ProjectionInput
from clew.contract.outputs import ContextMeta
from clew.contract.payloads import SummaryPayload
from clew.errors import ContextOverflow, InvalidInput
from clew.model.canonical import canonicalize
from clew.model.messages import Message, ToolSpec
from clew.model.tokens import Encoding, load_encoding
from clew.thread.entries import Entry


@dataclass(frozen=True, slots=True)
class Projection:
    """A context, and what is known of it.

    Attributes:
        messages: What the model is shown, in order.
        tool_spec: The tool schemas.
        meta: What is known of the context.
        output_schema: The schema that the answer must meet.
        blocks: What the messages were made of, in order, each with its tokens and its seqs.
        tools_tokens: The tokens of the tool schemas.
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


def find_projector(name: str) -> Projector:
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
    return find_projector(given.policy.ensure_usable().projector)(given)


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
    kept = view.fit_required(first, room)
    left = room
    for block, (_, part) in zip(kept, first, strict=True):
        if block.tokens > left:
            raise ContextOverflow(part, block.tokens, left)
        left -= block.tokens

    summary = sizes.of_summary(view.summary)
    window = (fill_epoch_window if policy.window == "epoch" else fill_sliding_window)(view, room, kept, summary)
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
            shared_prefix_tokens=view.count_shared_prefix(window.epoch),
            cleared_tool_results=(
                sum(block.cleared for block in window.blocks) if policy.clear_tool_results else None
            ),
            cut_tool_results={
                tool_call_id: (head, tail) for block in window.blocks for tool_call_id, head, tail in block.cut
            }
            or None,
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
    rest = canonicalize({"tool_spec": tools, "output_schema": output_schema})
    return hashlib.sha256(b'{"messages":[%b],%b' % (messages, rest[1:])).hexdigest()


register_projector("default", default_projector)


class _Sizes:
    """The tokens of what surrounds the history: recorded where the thread has them, counted where not."""

    def __init__(self, given: ProjectionInput) -> None:
        self._estimator = choose_estimator(given.policy)
        self._given = given
        self.tools = self._sized(given.tools_tokens, lambda by: by.count_tools(given.tools)) if given.tools else 0
        self.system = (
            self._sized(given.system_tokens, lambda by: by.count_system_prompt(given.system)) if given.system else 0
        )
        self.pending = self._sized(None, lambda by: sum(map(by.count_message, given.pending))) if given.pending else 0

    def _sized(self, recorded: int | None, count: Callable[[Encoding], int]) -> int:
        if recorded is not None and self._estimator is None:
            return recorded
        return count(self._estimator or load_encoding(self._given.encoding))

    def of_summary(self, entry: Entry | None) -> Block | None:
        if entry is None:
            return None
        message = entry.read(SummaryPayload).message(self._given.policy.summary_role)
        tokens = self._sized(entry.tokens, lambda by: by.count_message(message))
        return Block((message,), tokens, "message")
