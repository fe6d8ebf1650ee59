"""What each generation of Anthropic's models takes, read from the model's name. Pure.

| models                 | thinking               | without thinking  | `reasoning_effort` | sampling | forced tools |
|------------------------|------------------------|-------------------|--------------------|----------|--------------|
| before 4.6             | `enabled`, with budget | omitted           | the budget         | yes      | yes          |
| 4.6                    | `adaptive`             | omitted           | no `xhigh`         | yes      | yes          |
| 4.7, 4.8               | `adaptive`             | omitted           | all five           | no       | yes          |
| Opus 5, Sonnet 5       | `adaptive`             | `disabled`        | all five           | no       | yes          |
| Haiku 5.5              | `adaptive`             | `disabled`        | all five           | no       | yes          |
| Sonnet 5.5             | `adaptive`             | `between_tools`   | all five           | no       | no           |
| Opus 5.5               | `adaptive`             | impossible: `low` | all five           | no       | no           |
| Fable 5, Mythos 5      | `adaptive`             | impossible: `low` | all five           | no       | yes          |
| Fable, Mythos 5.1, 5.2 | `adaptive`             | impossible: `low` | all five           | no       | no           |
| Claude, unversioned    | `adaptive`             | omitted           | no `xhigh`         | no       | yes          |
| other names            | `adaptive`             | omitted           | no `xhigh`         | yes      | yes          |

The levels of effort are low, medium, high, xhigh and max; sampling is `temperature` and `top_p`. The models from 5 on
think where a request does not say that they should not. From 5.1 on, thinking blocks are bound to all messages before
them.

Pages: platform.claude.com/docs/en/build-with-claude/thinking, …/effort, …/models and their migration guides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

from clew_activities.providers.options import LOW_TO_HIGH, LOW_TO_MAX, choose_effort

BINDING_BETA = "thinking-binding-controls-2026-08-01"
"""The beta that lets a request say what becomes of thinking whose earlier messages have changed."""

_FOUR_LEVELS = (*LOW_TO_HIGH, "max")

_BUDGET = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
_SMALLEST_BUDGET = 1024

_VERSION = re.compile(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)")
_ALWAYS_THINKING = ("fable", "mythos")
_FIRST_WITH_TOOLS = (3, 5)
_NEWEST: tuple[int, int] = (99, 0)


@dataclass(frozen=True)
class Generation:
    """The features of a model's generation; the module's docstring has the table.

    Attributes:
        adaptive: The model takes `adaptive` thinking and `effort`, not a budget.
        efforts: The values of `effort` that it takes.
        off: The thinking of a request that wants none: omitted, a type of its own, or impossible.
        sampling: The model takes `temperature` and `top_p`.
        binds: Thinking blocks are bound to the earlier messages.
        forces_tools: A call of a tool can be forced.
        tools: The provider's own tools: `none`, their first versions (`basic`), or the newest.
    """

    adaptive: bool
    efforts: tuple[str, ...]
    off: Literal["omitted", "disabled", "between_tools", "impossible"]
    sampling: bool
    binds: bool
    forces_tools: bool
    tools: Literal["none", "basic", "newest"]

    def choose_effort(self, effort: str | None) -> str | None:
        """Choose `output_config.effort`; None omits it."""
        if effort is None or not self.adaptive:
            return None
        if effort == "none":
            return self.efforts[0] if self.off == "impossible" else None
        return choose_effort(effort, self.efforts)

    def choose_thinking(self, effort: str | None, max_tokens: int, *, forced: bool) -> dict[str, Any] | None:
        """Choose the `thinking` parameter; None omits it. `forced`: the request forces a tool call.

        The API refuses thinking that a request asks for together with a forced tool call. A thinking budget counts
        towards `max_tokens`, so it is at most half of them; it is omitted below the API's minimum.
        """
        if effort == "none" and self.off in ("disabled", "between_tools"):
            return {"type": self.off}
        wanted = effort not in (None, "none")
        if self.binds:
            thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
            return thinking | ({"display": "summarized"} if wanted else {})
        if effort is None or not wanted or forced:
            return None
        if self.adaptive:
            return {"type": "adaptive", "display": "summarized"}
        budget = min(_BUDGET[effort], max_tokens // 2)
        return None if budget < _SMALLEST_BUDGET else {"type": "enabled", "budget_tokens": budget}


def make_foreign_generation(*, off: Literal["omitted", "disabled"], forces_tools: bool) -> Generation:
    """Make the features of a model that is not Anthropic's: it takes `enabled` thinking, with a budget."""
    return Generation(
        adaptive=False,
        efforts=(),
        off=off,
        sampling=True,
        binds=False,
        forces_tools=forces_tools,
        tools="none",
    )


def find_generation(model: str) -> Generation:
    """Parse `claude-sonnet-4-5-20250929`, `claude-opus-5`, `claude-3-7-sonnet-latest`, also with a prefix."""
    is_claude = "claude" in model
    match = _VERSION.search(model)
    version = (int(match[1]), int(match[2] or 0)) if match else None
    age: tuple[int, int] = version or _NEWEST
    return Generation(
        adaptive=age >= (4, 6),
        efforts=LOW_TO_MAX if version and version >= (4, 7) else _FOUR_LEVELS,
        off=_find_off(model, version),
        sampling=version < (4, 7) if version else not is_claude,
        binds=version is not None and version >= (5, 1),
        forces_tools=version is None or version < (5, 1) or "haiku" in model,
        tools=_find_tools(age) if is_claude else "none",
    )


def _find_off(
    model: str, version: tuple[int, int] | None
) -> Literal["omitted", "disabled", "between_tools", "impossible"]:
    if any(f"claude-{family}" in model for family in _ALWAYS_THINKING):
        return "impossible"
    if version is None or version < (5, 0):
        return "omitted"
    if version >= (5, 5) and "opus" in model:
        return "impossible"
    return "between_tools" if version >= (5, 5) and "sonnet" in model else "disabled"


def _find_tools(version: tuple[int, int]) -> Literal["none", "basic", "newest"]:
    if version < _FIRST_WITH_TOOLS:
        return "none"
    return "newest" if version >= (4, 6) else "basic"
