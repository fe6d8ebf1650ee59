"""What a session learns of a model from the answers of its provider."""

from __future__ import annotations

from dataclasses import dataclass

EIGHTHS = 8
"""Token ratios are counted in eighths."""


@dataclass(frozen=True, slots=True)
class Learned:
    """Measurements of a model's token counts and window.

    Attributes:
        eighths: The tokens that the provider counts for eight of ours; at least 8.
        budget: The largest context that is tried after a refusal, in our tokens; None: no context was refused.
    """

    eighths: int = EIGHTHS
    budget: int | None = None

    @property
    def ratio(self) -> float:
        """The provider's token counts divided by ours."""
        return self.eighths / EIGHTHS

    def reduce(self, budget: int) -> int:
        """Reduce a policy's budget, in our tokens, to a context that the model takes."""
        scaled = max(budget * EIGHTHS // self.eighths, 1)
        return scaled if self.budget is None else min(scaled, self.budget)
