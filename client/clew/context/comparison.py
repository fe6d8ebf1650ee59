"""Comparison of policies: what a session's model calls would have been shown, and have cost, under other policies.

No model is called, and nothing is made up: the thread is as it is, so a policy that would have asked for a summary
gets none that is not there. A call is a reply with its recipe; it is projected anew at its own basis seq, as its
request asked for it. A policy lies over the one that was in force at each call, field by field.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from clew.context.contexts import build_context, find_output_schema
from clew.context.projection import Projection
from clew.contract.outputs import ContextMeta
from clew.contract.payloads import ErrorPayload, Recipe
from clew.contract.policy import ContextPolicy
from clew.errors import ContextOverflow, InvalidInput, InvalidTokenBudget
from clew.model.prices import Prices, compute_cost_usd
from clew.outcomes import Usage
from clew.thread.entries import Entry
from clew.thread.thread import Thread

AS_IT_WAS = "as it was"


@dataclass(frozen=True, slots=True)
class Reported:
    """What the providers reported of the calls: tokens, and what those cost.

    Attributes:
        input_tokens: Of all contexts together.
        cached_tokens: Of these, what the providers had in their caches.
        cost_usd: By list price, as it was counted when the calls were made, or by the prices that were given.
    """

    input_tokens: int = 0
    cached_tokens: int = 0
    cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Trial:
    """All calls of a session under one policy. Sizes are in tokens, as the thread counts them.

    Attributes:
        policy: The fields that it lays over the policies in force; none for the session as it was.
        input_tokens: Of all contexts together, tool schemas included.
        cached_tokens: Of these, what a context has in common with the beginning of its lane's context before it.
        cost_usd: What input, cached input and the recorded output cost by the prices that the recipes tell, or by
            those that were given; None where prices are not known.
        truncated: In how many calls the window had to cut.
        left_out_mean, left_out_most: How many messages of the lane since its last snapshot a call was not shown.
        cleared: In how many calls tool results were cleared.
        summaries: How many calls were shown a summary.
        lost_pins: The pinned seqs that at least one call was not shown.
        overflows: How many calls would fail, since what must fit does not; they count for nothing else. Of the
            session as it was, how many requests did fail so: they have no reply to be projected.
        overflowing: The ids of those calls.
        reported: As the providers counted; of the session as it was.
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

    def as_json(self) -> dict[str, Any]:
        """The trial as plain JSON; what is not known is left out."""
        value = {name: getattr(self, name) for name in self.__slots__ if name != "reported"}
        value |= {"policy": dict(self.policy), "cached_share": share(self.cached_tokens, self.input_tokens)}
        value |= {"lost_pins": list(self.lost_pins), "overflowing": list(self.overflowing)}
        if self.reported:
            told = {name: getattr(self.reported, name) for name in self.reported.__slots__}
            told["cached_share"] = share(self.reported.cached_tokens, self.reported.input_tokens)
            value["reported"] = _known(told)
        return _known(value)


def share(part: int, whole: int) -> float | None:
    """A part of a whole, between 0 and 1; of nothing there is none."""
    return round(part / whole, 4) if whole else None


def compare_policies(
    thread: Thread,
    policies: Mapping[str, ContextPolicy],
    prices: Prices | None = None,
) -> list[Trial]:
    """The session as it was, and then under each policy by its name.

    `prices` are taken in place of those that the thread tells of its calls: those of another model.

    The thread must be whole. The time it takes goes with the number of calls and the size of their windows.

    Raises:
        InvalidInput, InvalidTokenBudget: a policy cannot lie over one that was in force; the message names it.
    """
    session = _Session(thread, [_Reply(entry, recipe) for entry in thread if (recipe := entry.recipe)], prices)
    trials = [session.as_it_was()]
    for name, policy in policies.items():
        try:
            trials.append(session.under(name, policy))
        except (InvalidInput, InvalidTokenBudget) as error:
            raise type(error)(f"policy {name}: {error}") from error
    return trials


@dataclass(frozen=True, slots=True)
class _Reply:
    """A model's reply, and what the model was shown for it."""

    entry: Entry
    recipe: Recipe


@dataclass(frozen=True, slots=True)
class _Session:
    """A thread and the replies in it, and how they are looked at."""

    thread: Thread
    replies: Sequence[_Reply]
    prices: Prices | None

    def as_it_was(self) -> Trial:
        """Every call under its own policy, and what was reported of it."""
        usages = [reply.recipe.usage for reply in self.replies]
        reported = Reported(
            sum(usage.input_tokens for usage in usages),
            sum(usage.cached_input_tokens for usage in usages),
            _total(self._charged(usage) for usage in usages),
        )
        errors = self.thread.filter_by_kind("error")
        overflows = sum(entry.read(ErrorPayload).type == ContextOverflow.type for entry in errors)
        return replace(self._tallied(None).trial(AS_IT_WAS), overflows=overflows, reported=reported)

    def under(self, name: str, policy: ContextPolicy) -> Trial:
        """Every call under another policy."""
        return replace(self._tallied(policy).trial(name), policy=policy.model_dump(mode="json", exclude_unset=True))

    def _tallied(self, policy: ContextPolicy | None) -> _Tally:
        tally = _Tally()
        before: dict[str, tuple[str, Projection]] = {}
        for reply in self.replies:
            recipe = reply.recipe
            lane, seq, model = recipe.context_ref, recipe.basis_seq, recipe.model
            try:
                shown = self._projected(recipe, policy)
            except ContextOverflow:
                tally.overflowing.append(reply.entry.refs.get("call_id", ""))
                continue
            read, earlier = before.get(lane, ("", None))
            cached = count_common_prefix(earlier, shown) if earlier and read == model else 0
            before[lane] = (model, shown)
            spent = Usage(
                input_tokens=shown.meta.estimated_tokens,
                cached_input_tokens=cached,
                output_tokens=recipe.usage.output_tokens,
            )
            tally.add(shown.meta, spent, self._cost(reply, spent))
            tally.leave_out(_said(self.thread, lane, seq) - shown.meta.entries_included)
            if found := self.thread.get_lane(lane):
                tally.lost_pins |= set(found.find_layers(seq).pinned) - set(list_seqs(shown))
        return tally

    def _projected(self, recipe: Recipe, policy: ContextPolicy | None) -> Projection:
        """What a call is shown under a policy that lies over its own."""
        return build_context(
            self.thread,
            context_ref=recipe.context_ref,
            at_seq=recipe.basis_seq,
            policy=recipe.policy.overlay(policy) if recipe.policy else policy,
            model=recipe.model,
            output_schema=find_output_schema(self.thread, recipe),
        )

    def _charged(self, usage: Usage) -> float | None:
        return usage.cost_usd if self.prices is None else compute_cost_usd(self.prices, usage)

    def _cost(self, reply: _Reply, usage: Usage) -> float | None:
        return compute_cost_usd(reply.recipe.prices if self.prices is None else self.prices, usage)


@dataclass(slots=True)
class _Tally:
    """What adds up over the calls."""

    calls: int = 0
    spent: Usage = Usage()
    costs: list[float | None] = field(default_factory=list)
    truncated: int = 0
    left_out: int = 0
    left_out_most: int = 0
    cleared: int = 0
    summaries: int = 0
    lost_pins: set[int] = field(default_factory=set)
    overflowing: list[str] = field(default_factory=list)

    def add(self, meta: ContextMeta, spent: Usage, cost: float | None) -> None:
        """Count one call."""
        self.calls += 1
        self.spent = self.spent.plus(spent)
        self.costs.append(cost)
        self.truncated += meta.truncated
        self.cleared += bool(meta.cleared_tool_results)
        self.summaries += meta.summary_used

    def leave_out(self, messages: int) -> None:
        """Count what one call is not shown."""
        self.left_out += messages
        self.left_out_most = max(self.left_out_most, messages)

    def trial(self, name: str) -> Trial:
        """The sums under a name."""
        return Trial(
            name,
            calls=self.calls,
            input_tokens=self.spent.input_tokens,
            cached_tokens=self.spent.cached_input_tokens,
            cost_usd=_total(self.costs),
            truncated=self.truncated,
            left_out_mean=round(self.left_out / self.calls, 2) if self.calls else 0.0,
            left_out_most=self.left_out_most,
            cleared=self.cleared,
            summaries=self.summaries,
            lost_pins=tuple(sorted(self.lost_pins)),
            overflows=len(self.overflowing),
            overflowing=tuple(self.overflowing),
        )


def count_common_prefix(before: Projection, now: Projection) -> int:
    """The tokens of the longest beginning that two contexts share, tool schemas and system prompt included.

    It is found block by block: a message alone, or tool calls with their results.
    """
    if (before.tool_spec, before.output_schema) != (now.tool_spec, now.output_schema):
        return 0
    tokens = now.tools_tokens
    for mine, theirs in zip(now.blocks, before.blocks, strict=False):
        if mine.messages != theirs.messages:
            break
        tokens += mine.tokens
    return tokens


def list_seqs(shown: Projection) -> Iterator[int]:
    """The seqs of the entries whose messages a context holds."""
    return (seq for block in shown.blocks for seq in block.seqs)


def _said(thread: Thread, context_ref: str, seq: int) -> int:
    """How many messages a lane has at a seq since its snapshot."""
    lane = thread.get_lane(context_ref)
    if lane is None:
        return 0
    return bisect_right(lane.message_seqs, seq) - bisect_right(lane.message_seqs, lane.find_layers(seq).top.after)


def _total(costs: Iterable[float | None]) -> float | None:
    """The sum; what is not known as a whole is not known."""
    known: list[float] = []
    for cost in costs:
        if cost is None:
            return None
        known.append(cost)
    return round(sum(known), 6)


def _known(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: part for name, part in value.items() if part is not None}
