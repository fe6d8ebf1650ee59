"""Contexts read from the thread alone: policy, prompt and tool schemas as its entries have them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic_core import to_json

from clew.context.projection import Projection, project
from clew.context.projection_input import ProjectionInput
from clew.contract import MAX_PAGE_BYTES
from clew.contract.payloads import ConfigPayload, OperationPayload, Recipe, StoredSnapshot, UserMessage
from clew.contract.policy import ContextPolicy
from clew.thread.entries import Entry
from clew.thread.thread import Thread

T = TypeVar("T")


def build_context(
    thread: Thread,
    *,
    context_ref: str | None = None,
    at_seq: int | None = None,
    policy: ContextPolicy | None = None,
    model: str | None = None,
    output_schema: dict[str, Any] | None = None,
    standalone: bool = False,
) -> Projection:
    """The context of a lane (the active one unless named) at a seq (the newest unless named).

    `policy`, `model` and `output_schema` are a request's own; all else is the configuration in force there. A
    `standalone` context is for a session that does not have this thread.

    Raises:
        ContextOverflow: what must fit does not.
        InvalidInput: the policy asks for what there is not.
        InvalidTokenBudget: the policy leaves no budget.
    """
    seq = thread.last_seq if at_seq is None else min(at_seq, thread.last_seq)
    config = thread.find_config(seq)
    lane_name = context_ref or thread.find_active_lane(seq)
    if config is None:
        return project(ProjectionInput(thread, policy or ContextPolicy(), context_ref=lane_name, at_seq=seq))
    held = config.read(ConfigPayload)
    anchor = thread.find_anchor(lane_name, seq)
    system, system_tokens = _system_prompt(thread.find_prompt(seq) or config, anchor, policy)
    return project(
        ProjectionInput(
            thread,
            held.policy.overlay(policy),
            system=system,
            system_tokens=system_tokens,
            tools=held.tools,
            tools_tokens=held.tokens.tools if held.tokens else None,
            context_ref=lane_name,
            at_seq=seq,
            provider=(model or held.model).partition(":")[0],
            output_schema=output_schema,
            encoding=held.encoding,
            standalone=standalone,
        )
    )


def rebuild_context(thread: Thread, recipe: Recipe, output_schema: dict[str, Any] | None) -> Projection:
    """What a model call was shown, by its recipe. `output_schema` is what its answer was to look like.

    Raises:
        Archived: the thread does not keep enough of it.
    """
    return build_context(
        thread,
        context_ref=recipe.context_ref,
        at_seq=recipe.basis_seq,
        policy=recipe.policy,
        model=recipe.model,
        output_schema=output_schema,
    )


def find_output_schema(thread: Thread, recipe: Recipe) -> dict[str, Any] | None:
    """What the answer to a model call was to look like.

    Raises:
        Archived: the thread does not keep the message that said so.
    """
    seq = recipe.output_schema_seq
    return None if seq is None else thread[seq].read(UserMessage).output_schema


def take_page(whole: Projection, first: int) -> dict[str, Any]:
    """One page of a context, from a message on; the tool schemas are on the first.

    The next page is asked for with the answer's `next_page` and `at_seq`: so it is one of the same context, whatever
    has been said meanwhile.
    """
    tool_spec = whole.tool_spec if first == 0 else []
    room = MAX_PAGE_BYTES - len(to_json(tool_spec)) - (0 if first else len(to_json(whole.output_schema)))
    messages = list(_within(whole.messages[first:], room))
    answer = {"messages": messages, "tool_spec": tool_spec, "meta": whole.meta.as_json()}
    if whole.output_schema is not None and first == 0:
        answer["output_schema"] = whole.output_schema
    if first + len(messages) < len(whole.messages):
        answer |= {"next_page": first + len(messages), "at_seq": whole.meta.basis_last_seq}
    return answer


def build_window(thread: Thread, context_ref: str, token_budget: int) -> Projection:
    """The newest messages of a lane that fit a budget and one page, grouped and filtered by the policy in force."""
    config = thread.find_config(thread.last_seq)
    policy = config.read(ConfigPayload).policy if config else ContextPolicy()
    while True:
        whole = project(
            ProjectionInput(
                thread, make_window_policy(policy, token_budget), context_ref=context_ref, request_must_fit=False
            )
        )
        size = len(to_json({"messages": whole.messages, "meta": whole.meta.as_json()}))
        if size <= MAX_PAGE_BYTES:
            return whole
        # Of a window that is more than a page it is the oldest that must go.
        token_budget = max(min(token_budget, whole.meta.estimated_tokens) * MAX_PAGE_BYTES // (size + 1), 1)


def make_window_policy(policy: ContextPolicy, token_budget: int) -> ContextPolicy:
    """A policy for a window of so many tokens."""
    return policy.model_copy(update={"max_input_tokens": token_budget, "reserve_output_tokens": 0})


def find_lane_prompt(thread: Thread, context_ref: str) -> str | None:
    """The system prompt that a lane has from the snapshot under it, where that is in force.

    Raises:
        Archived: it cannot be told from what the thread keeps of its past.
    """
    config = thread.find_prompt(thread.last_seq)
    anchor = thread.find_anchor(context_ref, thread.last_seq)
    snapshot = _prompting(anchor, config) if config else None
    return snapshot.system_prompt if snapshot else None


def _within(rows: Iterable[T], room: int) -> Iterable[T]:
    """As many rows as have room, in bytes of JSON; the first one always."""
    for number, row in enumerate(rows):
        room -= len(to_json(row)) + 1
        if number and room < 0:
            return
        yield row


def _prompting(anchor: Entry | None, config: Entry) -> StoredSnapshot | None:
    """The snapshot under a lane, where it brings a system prompt that is newer than the session's."""
    if anchor is None or anchor.seq < config.seq:
        return None
    snapshot = anchor.read(OperationPayload).snapshot
    return snapshot if snapshot and snapshot.system_prompt is not None else None


def _system_prompt(
    config: Entry, anchor: Entry | None, policy: ContextPolicy | None
) -> tuple[str | None, int | None]:
    """The prompt in force and, where the thread has it, its count: the request's, else the newer one of two.

    These are the snapshot's under the lane, where it has one, and the session's, which `config` put in force.
    """
    if policy and policy.system_prompt is not None:
        return policy.system_prompt, None
    if snapshot := _prompting(anchor, config):
        return snapshot.system_prompt, snapshot.system_prompt_tokens
    held = config.read(ConfigPayload)
    return held.prompt, held.tokens.system_prompt if held.tokens else None
