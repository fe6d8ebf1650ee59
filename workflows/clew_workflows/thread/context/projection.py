"""The projection: builds the context of a lane of a thread.

`project` is pure: it reads no clock and does no IO, so the same input gives the same bytes, at every seq. A context
is the concatenation of four segments: system, summary, history and pending. The cost of a projection depends on the
size of the window, not on the length of the thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, TypeVar, cast

from clew_workflows.contract.errors import ContextOverflow, InvalidInput
from clew_workflows.contract.messages import Message, ToolSpec, canonicalize, compute_digest
from clew_workflows.contract.outputs import ContextMeta
from clew_workflows.contract.payloads import SummaryPayload
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.blocks import Block
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput, RequiredBlock, choose_estimator
from clew_workflows.thread.context.window import Window, fill_epoch_window, fill_sliding_window
from clew_workflows.thread.entries import Entry

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Projection:
    """A context. Its messages and schemas are copies: changing them changes no other context.

    Attributes:
        messages: The messages for the model, in order.
        tool_spec: The tool schemas.
        meta: Sizes, the basis, and what was left out or shortened.
        output_schema: The JSON Schema that the answer must meet; None: any text.
        blocks: The blocks of the messages, in order; empty if a projector of a user's own has changed the messages.
        tools_tokens: Tokens of the tool schemas.
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

    `project` computes the digest of what a projector returns; the other values of `meta` are the projector's.

    Raises:
        ValueError: A projector of that name is registered.
    """
    if name in _projectors:
        raise ValueError(f"a projector is already registered as {name!r}")
    _projectors[name] = projector


def find_projector(name: str) -> Projector:
    """Find the projector that a policy names.

    Raises:
        InvalidInput: No projector of that name is registered.
    """
    if name not in _projectors:
        raise InvalidInput(f"unknown projector {name!r}: one of {', '.join(sorted(_projectors))}")
    return _projectors[name]


def project(inputs: ProjectionInput) -> Projection:
    """Build a context with the projector that the policy names.

    Raises:
        Archived: The thread does not retain enough of the lane.
        ContextOverflow: Tool schemas, system prompt, pending messages or required blocks exceed the budget.
        InvalidInput: The policy is contradictory, or names a projector that is not registered.
        InvalidTokenBudget: The policy leaves no budget.
    """
    projector = find_projector(inputs.policy.ensure_usable().projector)
    context = projector(inputs)
    if projector is not project_within_budget:
        context = _describe(context)
    return replace(
        context,
        messages=_copy(context.messages),
        tool_spec=_copy(context.tool_spec),
        output_schema=_copy(context.output_schema),
    )


def _describe(context: Projection) -> Projection:
    """Correct what a projector of a user's own says about a context that it may have changed."""
    content = {"messages": context.messages, "tool_spec": context.tool_spec, "output_schema": context.output_schema}
    is_changed = compose(*(block.messages for block in context.blocks)) != context.messages
    return replace(
        context,
        meta=context.meta.model_copy(update={"digest": compute_digest(content)}),
        blocks=() if is_changed else context.blocks,
    )


def _copy(value: T) -> T:
    """Copy a JSON value: `copy.deepcopy` takes ten times as long."""
    copied: Any = value
    if isinstance(value, dict):
        copied = {name: _copy(part) if isinstance(part, dict | list) else part for name, part in value.items()}
    elif isinstance(value, list):
        copied = [_copy(part) if isinstance(part, dict | list) else part for part in value]
    return cast("T", copied)


def compose(*segments: Iterable[Message]) -> list[Message]:
    """Concatenate segments into one context."""
    return list(chain.from_iterable(segments))


def project_within_budget(inputs: ProjectionInput) -> Projection:
    """The default projector.

    Tool schemas, system prompt, pending messages and required blocks must fit into the budget. The latest summary and
    the window's blocks get the room that is left.
    """
    policy, sizes = inputs.policy, _Sizes(inputs)
    view = LaneView(inputs)
    room = _reserve_room(sizes, policy.budget)
    required = _fit_required(view, inputs, room)
    summary = sizes.render_summary(view.summary)
    fill_window = fill_epoch_window if policy.window == "epoch" else fill_sliding_window
    window = fill_window(view, room, required, summary)
    blocks = (
        *_make_segment([{"role": "system", "content": inputs.system}] if inputs.system else [], sizes.system),
        *([summary] if summary and window.keeps_summary else []),
        *window.blocks,
        *_make_segment(inputs.pending, sizes.pending),
    )
    tools = list(inputs.tools)
    return Projection(
        compose(*(block.messages for block in blocks)),
        tools,
        _make_meta(
            inputs,
            view,
            window,
            estimated_tokens=policy.budget - room + window.tokens,
            digest=_compute_digest(blocks, tools, inputs.output_schema),
        ),
        inputs.output_schema,
        blocks,
        sizes.tools,
    )


def _reserve_room(sizes: _Sizes, budget: int) -> int:
    """The tokens of the budget that are left for the history.

    Raises:
        ContextOverflow: Tool schemas, system prompt or pending messages exceed the budget.
    """
    room = budget
    for part, size in (("tools", sizes.tools), ("system_prompt", sizes.system), ("pending", sizes.pending)):
        if size > room:
            raise ContextOverflow(part, size, room)
        room -= size
    return room


def _fit_required(view: LaneView, inputs: ProjectionInput, room: int) -> list[Block]:
    """The required blocks, truncated where they do not fit in full.

    Pending messages are a request of their own, so the current run is not required then.

    Raises:
        ContextOverflow: A required block exceeds the room that those before it leave.
    """
    required: list[RequiredBlock] = []
    if inputs.request_must_fit:
        required = view.list_pinned() if inputs.pending else view.list_required()
    blocks = view.fit_required(required, room)
    for block, (_, part) in zip(blocks, required, strict=True):
        if block.tokens > room:
            raise ContextOverflow(part, block.tokens, room)
        room -= block.tokens
    return blocks


def _make_meta(
    inputs: ProjectionInput, view: LaneView, window: Window, estimated_tokens: int, digest: str
) -> ContextMeta:
    policy, last_seq = inputs.policy, view.upto
    cleared = sum(block.cleared for block in window.blocks)
    truncated = {
        tool_call_id: (head, tail) for block in window.blocks for tool_call_id, head, tail in block.truncated
    }
    return ContextMeta(
        basis_rev=last_seq + 1,
        basis_last_seq=last_seq,
        pending_count=len(inputs.pending),
        truncated=window.truncated,
        estimated_tokens=estimated_tokens,
        summary_used=window.keeps_summary,
        needs_summary=view.needs_summary(window.truncated),
        entries_included=sum(len(block.seqs) for block in window.blocks),
        entries_total=last_seq + 1,
        policy_hash=policy.hash,
        epoch=window.epoch,
        shared_prefix_tokens=view.count_shared_prefix(window.epoch),
        cleared_tool_results=cleared if policy.clear_tool_results else None,
        truncated_tool_results=truncated or None,
        digest=digest,
    )


def _make_segment(messages: Sequence[Message], tokens: int) -> list[Block]:
    """The system or pending segment as one block; no block if it has no messages."""
    return [Block(tuple(messages), tokens, "message")] if messages else []


def _compute_digest(blocks: Iterable[Block], tools: list[ToolSpec], output_schema: dict[str, Any] | None) -> str:
    """The digest of a context. It joins the canonical JSON that each block caches."""
    messages = b",".join(block.canonical for block in blocks)
    rest = canonicalize({"tool_spec": tools, "output_schema": output_schema})
    return hashlib.sha256(b'{"messages":[%b],%b' % (messages, rest[1:])).hexdigest()


register_projector("default", project_within_budget)


class _Sizes:
    """Tokens of the parts around the history. Recorded counts are used unless the policy estimates.

    Attributes:
        tools: Tokens of the tool schemas.
        system: Tokens of the system prompt.
        pending: Tokens of the pending messages.
    """

    def __init__(self, inputs: ProjectionInput) -> None:
        self._estimator = choose_estimator(inputs.policy)
        self._inputs = inputs
        self.tools = self.system = self.pending = 0
        if inputs.tools:
            self.tools = self._count(inputs.tools_tokens, lambda encoding: encoding.count_tools(inputs.tools))
        if system := inputs.system:
            self.system = self._count(inputs.system_tokens, lambda encoding: encoding.count_system_prompt(system))
        if inputs.pending:
            self.pending = self._count(None, lambda encoding: sum(map(encoding.count_message, inputs.pending)))

    def _count(self, recorded: int | None, count: Callable[[Encoding], int]) -> int:
        if recorded is not None and self._estimator is None:
            return recorded
        return count(self._estimator or load_encoding(self._inputs.encoding))

    def render_summary(self, entry: Entry | None) -> Block | None:
        """Render a summary in the role that the policy chooses."""
        if entry is None:
            return None
        message = entry.read(SummaryPayload).make_message(self._inputs.policy.summary_role)
        tokens = self._count(entry.tokens, lambda encoding: encoding.count_message(message))
        return Block((message,), tokens, "message")
