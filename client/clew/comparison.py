"""Comparison of policies: the contexts and costs that a session's model calls would have under other policies.

No model is called. Each reply has a recipe; its context is projected again at the recipe's `basis_seq`, with the
compared policy overlaid on the one that was in force at the call. The thread is not changed: a policy under which the
session would have written another summary is compared without that summary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from clew_workflows.contract.errors import ContextOverflow, InvalidInput, InvalidTokenBudget
from clew_workflows.contract.outcomes import Prices, Usage, compute_cost_usd
from clew_workflows.contract.outputs import ContextMeta
from clew_workflows.contract.payloads import ErrorPayload, Recipe
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.contexts import build_context, find_own_settings
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.lane import Lane
from clew_workflows.thread.thread import Thread

AS_IT_WAS = "as it was"
"""Name of the trial under the policies that were in force."""


@dataclass(frozen=True, slots=True)
class Reported:
    """Tokens that the providers reported of all calls, and their cost.

    Attributes:
        input_tokens: Tokens of all contexts.
        cached_tokens: Those of them that the providers' caches held.
        cost_usd: Cost as recorded with the calls, or by the prices passed in; None: not all prices are known.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """All calls of a session under one policy. Tokens are counted in the session's encoding.

    Attributes:
        name: The name of the policy, or `AS_IT_WAS`.
        policy: The fields of the policy that are overlaid; empty for `AS_IT_WAS`.
        calls: Number of calls whose context fits; the fields below sum up these.
        input_tokens: Tokens of all contexts, tool schemas included.
        cached_tokens: Those of them at the beginning of a context that the lane's previous context had, too.
        cost_usd: Cost of input, cached input and the recorded output, by the recipes' prices or the prices passed in;
            None: not all prices are known.
        truncated: Number of calls whose window was truncated.
        left_out_mean: Mean number of messages since the lane's last snapshot that a context does not have.
        left_out_most: The largest such number.
        cleared: Number of calls with cleared tool results or media.
        summaries: Number of calls with a summary.
        lost_pins: Pinned seqs that are missing in at least one context.
        overflows: Number of calls that would fail with `context_overflow`. For `AS_IT_WAS`: number of requests that
            did fail so.
        overflowing: Ids of the calls that would fail.
        reported: The providers' counts; only for `AS_IT_WAS`.
    """

    name: str
    policy: Mapping[str, Any] = field(default_factory=dict)
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None
    truncated: int = 0
    left_out_mean: float = 0.0
    left_out_most: int = 0
    cleared: int = 0
    summaries: int = 0
    lost_pins: tuple[int, ...] = ()
    overflows: int = 0
    overflowing: tuple[str, ...] = ()
    reported: Reported | None = None

    def as_dict(self) -> dict[str, Any]:
        """The trial as plain JSON, without the fields that are None."""
        value = {name: getattr(self, name) for name in self.__slots__ if name != "reported"}
        value |= {"policy": dict(self.policy), "cached_share": compute_share(self.cached_tokens, self.input_tokens)}
        value |= {"lost_pins": list(self.lost_pins), "overflowing": list(self.overflowing)}
        if self.reported:
            reported = {name: getattr(self.reported, name) for name in self.reported.__slots__}
            reported["cached_share"] = compute_share(self.reported.cached_tokens, self.reported.input_tokens)
            value["reported"] = _drop_unknown(reported)
        return _drop_unknown(value)


def compute_share(part: int, total: int) -> float | None:
    """The share of a part in a total, from 0 to 1; None: the total is 0."""
    return round(part / total, 4) if total else None


def compare_policies(
    thread: Thread,
    policies: Mapping[str, ContextPolicy],
    prices: Prices | None = None,
) -> list[Trial]:
    """Compare a session as it was with the session under each of some policies.

    `thread` must hold all entries. `prices` replace those in the recipes, to compare the prices of another model. The
    time grows with the number of calls and the size of their windows.

    Returns:
        The trial `AS_IT_WAS`, then one for each policy.

    Raises:
        InvalidInput: A policy contradicts one that was in force; the message names it.
        InvalidTokenBudget: A policy overlaid on one that was in force leaves no budget; the message names it.
    """
    session = _Session(thread, [_Reply(entry, recipe) for entry in thread if (recipe := entry.recipe)], prices)
    trials = [session.try_recorded()]
    for name, policy in policies.items():
        try:
            trials.append(session.try_policy(name, policy))
        except (InvalidInput, InvalidTokenBudget) as error:
            raise type(error)(f"policy {name}: {error}") from error
    return trials


@dataclass(frozen=True, slots=True)
class _Reply:
    """A model's reply, and the recipe of its context."""

    entry: Entry
    recipe: Recipe


class _Call(NamedTuple):
    """A call under a policy: its context, its tokens, its cost, and the messages and pins that the context lacks."""

    meta: ContextMeta
    usage: Usage
    cost: float | None
    left_out: int
    lost_pins: set[int]


@dataclass(frozen=True, slots=True)
class _Session:
    """A thread, its replies, and the prices that replace those of the recipes."""

    thread: Thread
    replies: Sequence[_Reply]
    prices: Prices | None

    def try_recorded(self) -> Trial:
        """Project every call under its own policy, and add the providers' reports."""
        usages = [reply.recipe.usage for reply in self.replies]
        reported = Reported(
            sum(usage.input_tokens for usage in usages),
            sum(usage.cached_input_tokens for usage in usages),
            _sum_costs(self._price_reported(usage) for usage in usages),
        )
        errors = self.thread.filter_by_kind("error")
        overflows = sum(entry.read(ErrorPayload).type == ContextOverflow.type for entry in errors)
        return replace(self._try(AS_IT_WAS, None), overflows=overflows, reported=reported)

    def try_policy(self, name: str, policy: ContextPolicy) -> Trial:
        """Project every call under another policy."""
        return replace(self._try(name, policy), policy=policy.model_dump(mode="json", exclude_unset=True))

    def _try(self, name: str, policy: ContextPolicy | None) -> Trial:
        calls: list[_Call] = []
        overflowing: list[str] = []
        previous: dict[str, tuple[str, Projection]] = {}
        for reply in self.replies:
            recipe = reply.recipe
            lane_name, seq, model = recipe.context_ref, recipe.basis_seq, recipe.model
            try:
                context = self._project(recipe, policy)
            except ContextOverflow:
                overflowing.append(reply.entry.refs.get("call_id", ""))
                continue
            previous_model, previous_context = previous.get(lane_name, ("", None))
            cached = (
                count_common_prefix(previous_context, context) if previous_context and previous_model == model else 0
            )
            previous[lane_name] = (model, context)
            usage = Usage(
                input_tokens=context.meta.estimated_tokens,
                cached_input_tokens=cached,
                output_tokens=recipe.usage.output_tokens,
            )
            lane = self.thread.get_lane(lane_name) or Lane()
            left_out = _count_messages(lane, seq) - context.meta.entries_included
            lost_pins = set(lane.find_layers(seq).pinned) - set(list_seqs(context))
            calls.append(_Call(context.meta, usage, self._price(reply, usage), left_out, lost_pins))
        left_out_by_call = [call.left_out for call in calls]
        return Trial(
            name,
            calls=len(calls),
            input_tokens=sum(call.usage.input_tokens for call in calls),
            cached_tokens=sum(call.usage.cached_input_tokens for call in calls),
            cost_usd=_sum_costs(call.cost for call in calls),
            truncated=sum(call.meta.truncated for call in calls),
            left_out_mean=round(sum(left_out_by_call) / len(calls), 2) if calls else 0.0,
            left_out_most=max((0, *left_out_by_call)),
            cleared=sum(bool(call.meta.cleared_tool_results or call.meta.cleared_media) for call in calls),
            summaries=sum(call.meta.summary_used for call in calls),
            lost_pins=tuple(sorted(set[int]().union(*(call.lost_pins for call in calls)))),
            overflows=len(overflowing),
            overflowing=tuple(overflowing),
        )

    def _project(self, recipe: Recipe, policy: ContextPolicy | None) -> Projection:
        """Project the context of a call with a policy overlaid on the call's own."""
        own = find_own_settings(self.thread, recipe)
        return build_context(
            self.thread,
            context_ref=recipe.context_ref,
            at_seq=recipe.basis_seq,
            policy=recipe.policy.overlay(policy) if recipe.policy else policy,
            model=recipe.model,
            output_schema=own.output_schema,
            tools=recipe.tools,
            external_tools=own.external_tools,
        )

    def _price_reported(self, usage: Usage) -> float | None:
        return usage.cost_usd if self.prices is None else compute_cost_usd(self.prices, usage)

    def _price(self, reply: _Reply, usage: Usage) -> float | None:
        return compute_cost_usd(reply.recipe.prices if self.prices is None else self.prices, usage)


def count_common_prefix(before: Projection, now: Projection) -> int:
    """Count the tokens of the longest common beginning of two contexts, tool schemas and system prompt included.

    Blocks are compared as one: a single message, or tool calls with their results.
    """
    if (before.tool_spec, before.output_schema) != (now.tool_spec, now.output_schema):
        return 0
    tokens = now.tools_tokens
    for block, earlier_block in zip(now.blocks, before.blocks, strict=False):
        if block.messages != earlier_block.messages:
            break
        tokens += block.tokens
    return tokens


def list_seqs(context: Projection) -> Iterator[int]:
    """List the seqs of the entries whose messages a context holds."""
    return (seq for block in context.blocks for seq in block.seqs)


def _count_messages(lane: Lane, seq: int) -> int:
    """Count the messages that a lane has at a seq since its snapshot."""
    return bisect_right(lane.message_seqs, seq) - bisect_right(lane.message_seqs, lane.find_layers(seq).top.after)


def _sum_costs(costs: Iterable[float | None]) -> float | None:
    """Sum the costs; None: at least one is not known."""
    known: list[float] = []
    for cost in costs:
        if cost is None:
            return None
        known.append(cost)
    return round(sum(known), 6)


def _drop_unknown(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part is not None}
