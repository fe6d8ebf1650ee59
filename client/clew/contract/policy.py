"""How a thread becomes a context: the policy, its presets, and how its four levels combine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from clew.errors import InvalidInput, InvalidTokenBudget
from clew.model.canonical import compute_digest

Kind = Literal["message", "tool_call", "tool_result", "summary"]
# No number is larger than what every JSON reader, and so the policy's hash, takes exactly.
_LARGEST = 2**53 - 1
Tokens = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Positive = Annotated[int, Field(ge=1, le=_LARGEST)]


class ClearToolResults(BaseModel):
    """Older tool results give way to a marker. A result that is not larger than the marker stays.

    Attributes:
        keep: The newest results stay, so many.
        min_tokens: Nothing is cleared until that frees so many tokens.
        exclude_tools: Results of these tools stay.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    keep: Count
    min_tokens: Count = 0
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)


class ContextPolicy(BaseModel):
    """How a thread becomes a context. Sizes are in tokens.

    A policy that is given at one level overlays those below it field by field: only fields that were set count.

    Attributes:
        max_input_tokens: The budget of a context is this less `reserve_output_tokens`.
        reserve_output_tokens: Left for the reply; without `max_output_tokens` a reply may take as much.
        max_messages: The most messages of history; 0: no limit.
        keep_last_turns: So many of the newest turns come before a summary and older turns.
        window: `sliding` shows as much as fits; `epoch` moves its beginning only when the budget overflows.
        low_water: The share of the budget that an epoch's cut leaves.
        summarization: `none`, `use_existing`; `request_new` and `compact` write summaries where the window had to
            cut, and `compact` puts them under the lane.
        summary_role: The role that a summary is shown in.
        include_kinds: What may be shown. Tool calls and their results are shown only together.
        system_prompt: Stands in place of the session's; at most 65 536 bytes.
        projector: The name of a registered projector.
        token_estimator: `exact`: the recorded counts; `heuristic`: bytes / 4 + 10. Epochs need `exact`.
        summarize_threshold: A summary is due after so many messages since the last one.
        max_thread_tokens: A summary is due after so many tokens since the last one.
        summarization_model: Writes summaries; absent: the session's model.
        clear_tool_results: When older tool results give way to a marker.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    max_input_tokens: Tokens = 8000
    reserve_output_tokens: Tokens = 2000
    max_messages: Count = Field(default=0)
    keep_last_turns: Count = 3
    window: Literal["sliding", "epoch"] = "sliding"
    low_water: float = Field(default=0.5, gt=0, lt=1)
    summarization: Literal["none", "use_existing", "request_new", "compact"] = "use_existing"
    summary_role: Literal["system", "user"] = "system"
    include_kinds: tuple[Kind, ...] = Field(default=("message", "tool_call", "tool_result", "summary"), strict=False)
    system_prompt: str | None = Field(default=None, max_length=65536)
    projector: str = Field(default="default", max_length=200)
    token_estimator: Literal["exact", "heuristic"] = "exact"
    summarize_threshold: Positive | None = Field(default=None)
    max_thread_tokens: Positive | None = Field(default=None)
    summarization_model: str | None = Field(default=None, max_length=200)
    clear_tool_results: ClearToolResults | None = None

    @property
    def budget(self) -> int:
        """What a context may hold, tool schemas and system prompt included."""
        return self.max_input_tokens - self.reserve_output_tokens

    @property
    def uses_summary(self) -> bool:
        """Whether a lane's latest summary stands for what it sums up."""
        return self.summarization != "none" and "summary" in self.include_kinds

    @property
    def writes_summaries(self) -> bool:
        """Whether the session may sum a lane up by itself, at the end of a run."""
        return self.summarization in ("request_new", "compact")

    @property
    def hash(self) -> str:
        """Names what this policy does: fields at their defaults do not count, so new ones change no hash."""
        return compute_digest(self.model_dump(mode="json", exclude_defaults=True))

    def overlay(self, upper: ContextPolicy | None) -> ContextPolicy:
        """This policy with the fields that `upper` sets. Which fields are set adds up."""
        if upper is None:
            return self
        return ContextPolicy.model_validate(
            self.model_dump(exclude_unset=True) | upper.model_dump(exclude_unset=True)
        )

    def complete(self) -> ContextPolicy:
        """This policy with every field set, so that no other default can ever show through it."""
        return ContextPolicy.model_validate(self.model_dump())

    def ensure_usable(self) -> ContextPolicy:
        """This policy, if a context can be made under it.

        Raises:
            InvalidInput: it does not go together.
            InvalidTokenBudget: it leaves no budget.
        """
        if self.window == "epoch" and self.token_estimator == "heuristic":
            raise InvalidInput(
                "window 'epoch' goes by the recorded counts: leave token_estimator at 'exact', or choose 'sliding'"
            )
        if self.reserve_output_tokens < 0 or self.budget < 1:
            raise InvalidTokenBudget(
                f"max_input_tokens ({self.max_input_tokens}) less reserve_output_tokens "
                f"({self.reserve_output_tokens}) must leave at least one token, and neither may be negative"
            )
        return self

    @classmethod
    def short_context(cls) -> ContextPolicy:
        """For windows of 8 000 tokens."""
        return cls(max_input_tokens=6000, keep_last_turns=2)

    @classmethod
    def long_context(cls) -> ContextPolicy:
        """For windows of 128 000 tokens and more."""
        return cls(max_input_tokens=100_000, keep_last_turns=10, max_messages=0)

    @classmethod
    def tool_focused(cls) -> ContextPolicy:
        """For work that is mostly tool calls: no summaries."""
        return cls(
            keep_last_turns=5,
            include_kinds=("message", "tool_call", "tool_result"),
            summarization="none",
        )


def resolve(
    request: ContextPolicy | None = None,
    session: ContextPolicy | None = None,
    agent: ContextPolicy | None = None,
    default: ContextPolicy | None = None,
) -> ContextPolicy:
    """The policy in force: the highest level that sets a field decides it. Complete, and checked.

    Raises:
        InvalidInput, InvalidTokenBudget: see `ContextPolicy.ensure_usable`.
    """
    policy = default or ContextPolicy()
    for level in (agent, session, request):
        policy = policy.overlay(level)
    return policy.complete().ensure_usable()
