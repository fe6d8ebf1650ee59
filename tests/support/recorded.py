"""Threads whose model calls leave their recipes, as the real ones do."""

from __future__ import annotations

from typing import Any, Self

from clew_workflows.contract.messages import Message
from clew_workflows.contract.outcomes import Price
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE
from clew_workflows.thread.thread import Thread
from tests.support.threads import Writer, assistant_calls, assistant_says, make_recipe, tool_returns, user_says

MODEL = "openai:gpt-4o"
COST = 0.25
"""What each call with prices did cost, in USD."""


class RecordedSession:
    """A session whose calls leave their recipes, as the real ones do."""

    def __init__(self, policy: ContextPolicy, prices: tuple[Price, ...] = (), **config: Any) -> None:
        self.prices = prices
        self.writer = Writer()
        self.writer.config(context_policy=policy, **config)
        self.calls: list[Projection] = []

    @property
    def thread(self) -> Thread:
        """The thread."""
        return self.writer.thread

    def call(self, message: Message, lane: str = DEFAULT_LANE, run: str = "run-1", **recipe: Any) -> None:
        """A model call, and its reply."""
        own = recipe.get("context_policy")
        policy = ContextPolicy.model_validate(own, strict=False) if own else None
        model = recipe.get("model", MODEL)
        context = build_context(self.thread, context_ref=lane, policy=policy, model=model)
        self.calls.append(context)
        usage = {"input_tokens": 100, "output_tokens": 10, "cached_input_tokens": 40}
        recipe_json = make_recipe(
            context.meta.basis_last_seq,
            context_ref=lane,
            model=model,
            policy_hash=context.meta.policy_hash,
            digest=context.meta.digest,
            input_tokens=context.meta.estimated_tokens,
            usage=usage | ({"cost_usd": COST} if self.prices else {}),
        )
        if self.prices:
            recipe_json["prices"] = [price.model_dump(exclude_defaults=True) for price in self.prices]
        if context.meta.epoch is not None:
            recipe_json["epoch"] = list(context.meta.epoch)
        payload = {"context_ref": lane, **message, "recipe": recipe_json | recipe}
        self.writer.commit("ai_message", payload, run_id=run, call_id=f"call-{len(self.calls)}")

    def turns(self, count: int, text: str = "a question " * 10) -> Self:
        """So many turns, each with a tool call."""
        for number in range(count):
            run, call_id = f"run-{number}", f"tool{self.thread.rev:05d}"
            self.writer.message(user_says(f"{text} {number}"), run=run)
            self.call(assistant_calls(call_id), run=run)
            self.writer.message(tool_returns(call_id, "word " * 60), run=run)
            self.call(assistant_says("fine"), run=run)
        return self


def record_replies(thread: Thread, policy: ContextPolicy | None = None) -> Thread:
    """Copy a thread, as though each assistant's message had been a model's reply, under a policy of its own."""
    written = Writer()
    own = {"context_policy": policy.model_dump(mode="json")} if policy else {}
    for entry in thread:
        payload = {name: value for name, value in entry.payload.items() if name != "tokens"}
        if entry.payload.get("role") == "assistant":
            payload["recipe"] = make_recipe(entry.seq - 1, context_ref=entry.lane, model=MODEL) | own
        written.commit(entry.kind, payload, **{**entry.refs, "call_id": f"call-{entry.seq}"})
    return written.thread
