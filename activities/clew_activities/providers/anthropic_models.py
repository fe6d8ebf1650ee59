"""What Anthropic's models take, at its own API and elsewhere. Pure.

The features of a model depend on its generation, which `find_generation` reads from the model's name:

| models              | thinking               | `reasoning_effort`     | temperature | thinking blocks are bound |
|---------------------|------------------------|------------------------|-------------|---------------------------|
| before 4.6          | `enabled`, with budget | the budget             | yes         | no                        |
| 4.6                 | `adaptive`             | `output_config.effort` | yes         | no                        |
| 4.7 to 5.0          | `adaptive`             | `output_config.effort` | no          | no                        |
| 5.1 and later       | `adaptive`             | `output_config.effort` | no          | to all earlier messages   |
| Claude, unversioned | `adaptive`             | `output_config.effort` | no          | no                        |
| other names         | `adaptive`             | `output_config.effort` | yes         | no                        |

Options that the API does not support are omitted: `seed` always; `temperature` where the table says no, and in
requests with thinking. API version 2026-10-21 has no temperature, so a request with one is sent under the version
before it.

Where thinking blocks are bound, the API refuses a request whose earlier messages have changed. A sliding context
changes them in normal operation, so requests tell the API to drop such blocks instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from clew_activities.providers.interface import ModelRequest
from clew_workflows.contract.messages import Message

BINDING_BETA = "thinking-binding-controls-2026-08-01"

EFFORTS = ("low", "medium", "high", "max")
_BUDGET = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16384, "xhigh": 32768, "max": 65536}
_SMALLEST_BUDGET = 1024


@dataclass(frozen=True)
class Generation:
    """The features of a model's generation; the module's docstring has the table.

    Attributes:
        adaptive: The model takes `adaptive` thinking and `effort`, not a budget.
        temperature: The model takes a temperature.
        binds: Thinking blocks are bound to the earlier messages.
    """

    adaptive: bool
    temperature: bool
    binds: bool


def find_generation(model: str) -> Generation:
    """Parse `claude-sonnet-4-5-20250929`, `claude-opus-5`, `claude-3-7-sonnet-latest`, also with a prefix."""
    match = re.search(r"claude-(?:[a-z]+-)?(\d{1,2})(?:[-.](\d{1,2}))?(?!\d)", model)
    if match is None:
        return Generation(adaptive=True, temperature="claude" not in model, binds=False)
    version = (int(match[1]), int(match[2] or 0))
    return Generation(adaptive=version >= (4, 6), temperature=version < (4, 7), binds=version >= (5, 1))


def choose_thinking(
    request: ModelRequest, generation: Generation, max_tokens: int, *, lacks_thinking: bool
) -> dict[str, Any] | None:
    """Choose the `thinking` parameter; None omits it. `lacks_thinking`: as `round_lacks_thinking` says.

    The API refuses thinking together with a forced tool call. A thinking budget counts towards `max_tokens`, so it is
    at most half of them; it is omitted below the API's minimum.
    """
    effort = request.options.reasoning_effort
    if effort == "none":
        effort = None
    forced = bool(request.tools) and request.options.tool_choice not in (None, "auto", "none")
    if generation.binds:
        thinking = {"type": "adaptive", "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
        return thinking | ({"display": "summarized"} if effort else {})
    if effort is None or forced:
        return None
    if generation.adaptive:
        return {"type": "adaptive", "display": "summarized"}
    budget = min(_BUDGET[effort], max_tokens // 2)
    if budget < _SMALLEST_BUDGET or lacks_thinking:
        return None
    return {"type": "enabled", "budget_tokens": budget}


def round_lacks_thinking(messages: Sequence[Message], has_own_blocks: Callable[[Message], bool]) -> bool:
    """Whether an assistant's message since the newest user's message has no blocks of this provider.

    With a thinking budget, the API refuses an assistant's message of an open tool round that does not begin with
    thinking.
    """
    since_user: list[Message] = []
    for message in reversed(messages):
        if message["role"] == "user":
            break
        since_user.append(message)
    return any(message["role"] == "assistant" and not has_own_blocks(message) for message in since_user)
