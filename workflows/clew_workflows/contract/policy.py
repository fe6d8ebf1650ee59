"""The context policy: its fields, its presets, and the resolution of its four levels."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from clew_workflows.contract.errors import InvalidInput, InvalidTokenBudget
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.names import ModelName
from clew_workflows.contract.validation import Input

Kind = Literal["message", "tool_call", "tool_result", "summary"]
# Every JSON reader, and so the policy's hash, reads numbers up to this one exactly.
_LARGEST = 2**53 - 1
Tokens = Annotated[int, Field(ge=-_LARGEST, le=_LARGEST)]
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Positive = Annotated[int, Field(ge=1, le=_LARGEST)]


class ClearToolResults(Input):
    """Replace older tool results by a marker. A result that is not larger than the marker stays.

    Attributes:
        keep: The number of newest results that stay.
        min_tokens: The fewest tokens that clearing must free; below that, all results stay.
        exclude_tools: The tools whose results stay.
    """

    keep: Count
    min_tokens: Count = 0
    exclude_tools: tuple[str, ...] = Field(default=(), strict=False)


class ClearMedia(Input):
    """Replace older images, recordings and files by markers. A part that is not larger than its marker stays.

    The messages that the next reply answers keep theirs.

    Attributes:
        keep: The number of newest parts that stay.
        min_tokens: The fewest tokens that clearing must free; below that, all parts stay.
    """

    keep: Count
    min_tokens: Count = 0


class ContextPolicy(Input):
    """The rules that make a context from a thread. Sizes are in tokens.

    The policy of one level overlays those below it field by field: only fields that were set have an effect.

    Attributes:
        max_input_tokens: The context's budget is this less `reserve_output_tokens`.
        reserve_output_tokens: Tokens left for the reply; without `max_output_tokens`, also the longest reply.
        max_messages: The most messages of history; 0: no limit.
        keep_last_turns: The number of newest turns that have priority over a summary and older turns.
        window: `sliding`: the newest messages that fit; `epoch`: the beginning moves only when the budget overflows.
        low_water: The share of the budget, between 0 and 1, that an epoch's window keeps where it is truncated.
        summarization: `none`: contexts have no summaries; `use_existing`: they have those that exist; `request_new`:
            the session also writes summaries when the window was truncated; `compact`: it puts them under the lane.
        summary_role: The role of a summary's message.
        include_kinds: The kinds that a context may have. Tool calls and their results appear only together.
        system_prompt: Replaces the session's; at most 65 536 bytes.
        projector: The name of a registered projector.
        token_estimator: `exact`: the recorded counts; `heuristic`: bytes / 4 + 10. Epochs need `exact`.
        summarize_threshold: A summary is due after more messages than this since the last one.
        max_thread_tokens: A summary is due after more tokens than this since the last one.
        summarization_model: The model that writes summaries; absent: the session's.
        clear_tool_results: The rule by which a marker replaces older tool results.
        clear_media: The rule by which markers replace older images, recordings and files.
        unsupported_content: What becomes of an image, a recording or a file that the model does not take: `marker`: a
            text that names it stands for it; `refuse`: the call fails before it is sent.
    """

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
    summarization_model: ModelName | None = None
    clear_tool_results: ClearToolResults | None = None
    clear_media: ClearMedia | None = None
    unsupported_content: Literal["marker", "refuse"] = "marker"

    @property
    def budget(self) -> int:
        """The most tokens of a context, tool schemas and system prompt included."""
        return self.max_input_tokens - self.reserve_output_tokens

    @property
    def uses_summary(self) -> bool:
        """Whether contexts have a lane's latest summary in place of the messages that it covers."""
        return self.summarization != "none" and "summary" in self.include_kinds

    @property
    def writes_summaries(self) -> bool:
        """Whether the session may write a summary of a lane by itself, at the end of a run."""
        return self.summarization in ("request_new", "compact")

    @property
    def hash(self) -> str:
        """The digest of the fields that are not at their defaults, so that new fields change no hash."""
        return compute_digest(self.model_dump(mode="json", exclude_defaults=True))

    def complete(self) -> ContextPolicy:
        """Return this policy with every field set, so that a later default cannot change it."""
        return ContextPolicy.model_validate(self.model_dump())

    def ensure_usable(self) -> ContextPolicy:
        """Return this policy if a context can be made under it.

        Raises:
            InvalidInput: `window` is `epoch` and `token_estimator` is `heuristic`.
            InvalidTokenBudget: The budget is less than one token, or `reserve_output_tokens` is negative.
        """
        if self.window == "epoch" and self.token_estimator == "heuristic":
            raise InvalidInput(
                "window 'epoch' needs the recorded counts: leave token_estimator at 'exact', or choose 'sliding'"
            )
        if self.reserve_output_tokens < 0 or self.budget < 1:
            raise InvalidTokenBudget(
                f"max_input_tokens ({self.max_input_tokens}) less reserve_output_tokens "
                f"({self.reserve_output_tokens}) must leave at least one token, and neither may be negative"
            )
        return self

    @classmethod
    def short_context(cls) -> ContextPolicy:
        """Make a policy for windows of 8 000 tokens."""
        return cls(max_input_tokens=6000, keep_last_turns=2)

    @classmethod
    def long_context(cls) -> ContextPolicy:
        """Make a policy for windows of 128 000 tokens and more."""
        return cls(max_input_tokens=100_000, keep_last_turns=10, max_messages=0)

    @classmethod
    def tool_focused(cls) -> ContextPolicy:
        """Make a policy for work that is mostly tool calls: without summaries."""
        return cls(
            keep_last_turns=5,
            include_kinds=("message", "tool_call", "tool_result"),
            summarization="none",
        )


def resolve(*, session: ContextPolicy | None = None, agent: ContextPolicy | None = None) -> ContextPolicy:
    """Resolve the policy in force: the session's over the agent's over the default, field by field. It is complete.

    A request's policy overlays the result.

    Raises:
        InvalidInput: `window` is `epoch` and `token_estimator` is `heuristic`.
        InvalidTokenBudget: The budget is less than one token, or `reserve_output_tokens` is negative.
    """
    return ContextPolicy().overlay(agent).overlay(session).complete().ensure_usable()
