"""The projection: builds the context of a lane of a thread.

`project` is pure: it reads no clock and does no IO, so the same input gives the same bytes, at every seq. A context
is the concatenation of four segments: system, summary, history and pending. The cost of a projection depends on the
size of the window, not on the length of the thread.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar, cast

from clew_workflows.contract.errors import ContextOverflow, InvalidInput
from clew_workflows.contract.messages import Message, ToolSpec, canonicalize, compute_digest
from clew_workflows.contract.outputs import ContextMeta
from clew_workflows.contract.payloads import SummaryPayload
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.blocks import Block
from clew_workflows.thread.context.lane_view import LaneView, ProjectionInput, RequiredBlock
from clew_workflows.thread.context.window import Window, fill_epoch_window, fill_sliding_window

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
    is_changed = [message for block in context.blocks for message in block.messages] != context.messages
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


def project_within_budget(inputs: ProjectionInput) -> Projection:
    """The default projector.

    Tool schemas, system prompt, pending messages and required blocks must fit into the budget. The latest summary and
    the window's blocks get the room that is left.
    """
    policy, view = inputs.policy, LaneView(inputs)
    sizes = _measure_parts(inputs, view.rendering.estimator)
    room = policy.budget
    for part, size in sizes.items():
        if size > room:
            raise ContextOverflow(part, size, room)
        room -= size
    required: list[RequiredBlock] = []
    if inputs.request_must_fit:
        # Pending messages are a request of their own, so the current run is not required then.
        required = view.list_pinned() if inputs.pending else view.list_required()
    fitted = view.fit_required(required, room)
    summary = _render_summary(view) if view.is_summarized else None
    fill_window = fill_epoch_window if policy.window == "epoch" else fill_sliding_window
    window = fill_window(view, room, fitted, summary)
    blocks = window.blocks
    if summary and window.keeps_summary:
        blocks = [summary, *blocks]
    if inputs.system:
        blocks = [Block(({"role": "system", "content": inputs.system},), sizes["system_prompt"], "message"), *blocks]
    if inputs.pending:
        blocks = [*blocks, Block(tuple(inputs.pending), sizes["pending"], "message")]
    tools = list(inputs.tools)
    return Projection(
        [message for block in blocks for message in block.messages],
        tools,
        _make_meta(
            inputs,
            view,
            window,
            estimated_tokens=policy.budget - room + window.tokens,
            digest=_compute_digest(blocks, tools, inputs.output_schema),
        ),
        inputs.output_schema,
        tuple(blocks),
        sizes["tools"],
    )


def _measure_parts(inputs: ProjectionInput, estimator: Encoding | None) -> dict[str, int]:
    """Count the tokens of the parts around the history, by the names of `ContextOverflow`.

    Recorded counts are used unless the policy estimates.
    """
    tools = inputs.tools_tokens if inputs.tools else 0
    system = inputs.system_tokens if inputs.system else 0
    pending = 0
    if estimator or tools is None or system is None or inputs.pending:
        encoding = estimator or load_encoding(inputs.encoding)
        if estimator or tools is None:
            tools = encoding.count_tools(inputs.tools)
        if estimator or system is None:
            system = encoding.count_system_prompt(inputs.system)
        pending = sum(map(encoding.for_model(inputs.model).count_message, inputs.pending))
    return {"tools": tools, "system_prompt": system, "pending": pending}


def _render_summary(view: LaneView) -> Block:
    """Render the lane's summary in the role that the policy chooses."""
    entry, estimator = view.summary, view.rendering.estimator
    message = entry.read(SummaryPayload).make_message(view.policy.summary_role)
    return Block((message,), estimator.count_message(message) if estimator else entry.tokens, "message")


def _make_meta(
    inputs: ProjectionInput, view: LaneView, window: Window, estimated_tokens: int, digest: str
) -> ContextMeta:
    policy, last_seq, epoch = inputs.policy, view.upto, window.epoch
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
        epoch=epoch,
        shared_prefix_tokens=None if epoch is None else view.count_shared_prefix(epoch),
        cleared_tool_results=sum(block.cleared for block in window.blocks) if policy.clear_tool_results else None,
        cleared_media=sum(block.cleared_media for block in window.blocks) if policy.clear_media else None,
        truncated_tool_results=truncated or None,
        digest=digest,
    )


def _compute_digest(blocks: Iterable[Block], tools: list[ToolSpec], output_schema: dict[str, Any] | None) -> str:
    """The digest of a context. It joins the canonical JSON that each block caches."""
    messages = b",".join(block.canonical for block in blocks)
    rest = canonicalize({"tool_spec": tools, "output_schema": output_schema})
    return hashlib.sha256(b'{"messages":[%b],%b' % (messages, rest[1:])).hexdigest()


register_projector("default", project_within_budget)
