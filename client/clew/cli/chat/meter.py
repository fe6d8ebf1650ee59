"""The status line: model, lane, context used, tokens and cost. Pure."""

from __future__ import annotations

from clew.cli import show
from clew.contract.outputs import SessionStatus
from clew.contract.payloads import AssistantMessage
from clew.contract.policy import ContextPolicy
from clew.outcomes import Usage
from clew.thread.entries import Entry


class Meter:
    """The numbers of a session's status line.

    Attributes:
        status: The session's status as it was read last; None: not yet.
        context_tokens: Tokens of the active lane's last context; None: not known.
    """

    def __init__(self) -> None:
        self.status: SessionStatus | None = None
        self.context_tokens: int | None = None
        self._later_usage: Usage = Usage()

    def take_status(self, status: SessionStatus) -> None:
        """Take the session's status, which counts all entries before `status.rev`."""
        if self.status and self.status.active_context_ref != status.active_context_ref:
            self.context_tokens = None
        self.status, self._later_usage = status, Usage()

    def take_entry(self, entry: Entry) -> None:
        """Take an entry: a reply's recipe has the tokens of its context."""
        if entry.kind != "ai_message" or self.status is None:
            return
        message = entry.body
        if not isinstance(message, AssistantMessage) or message.recipe is None:
            return
        if message.recipe.context_ref == self.status.active_context_ref:
            self.context_tokens = message.recipe.input_tokens
        if entry.seq >= self.status.rev:
            self._later_usage = self._later_usage.plus(message.recipe.call_usage)

    @property
    def usage(self) -> Usage:
        """The session's usage, with that of the replies since the status was read."""
        return self.status.usage.plus(self._later_usage) if self.status else Usage()

    @property
    def budget(self) -> int | None:
        """The most tokens of a context under the policy in force; None: not known."""
        policy = self.status.config.get("context_policy") if self.status else None
        try:
            return ContextPolicy.model_validate(policy, strict=False).budget if policy else None
        except ValueError:  # of a later release
            return None

    def format_line(self, activity: str, columns: int) -> str:
        """Format the line in so many columns; `activity` is the session's status in words."""
        if self.status is None:
            return activity[:columns]
        lane, usage = self.status.active_context_ref, self.usage
        tokens = f"{format_count(usage.input_tokens)} → {format_count(usage.output_tokens)} tokens"
        agent = self.status.agent.name if self.status.agent else ""
        parts = [
            self.status.session_id,
            "" if lane == "default" else f"lane {lane}",
            self.status.model or agent,
            activity,
            self._format_context(),
            tokens if usage.model_calls else "",
            show.format_dollars(usage.cost_usd),
        ]
        # The first parts are those that can be looked up with /status.
        while len(line := " · ".join(show.shorten(part, 60) for part in parts if part)) > columns and len(parts) > 1:
            parts.pop(0)
        return line[:columns]

    def _format_context(self) -> str:
        if self.context_tokens is None:
            return ""
        if not (budget := self.budget):
            return f"context {format_count(self.context_tokens)}"
        return (
            f"context {format_count(self.context_tokens)}/{format_count(budget)} ({self.context_tokens / budget:.0%})"
        )


def format_count(number: int) -> str:
    """Format a number of tokens in few characters."""
    if number < 10_000:
        return show.format_number(number)
    if number < 1_000_000:
        return f"{number / 1000:.1f}k" if number < 100_000 else f"{number // 1000}k"
    return f"{number / 1_000_000:.1f}M"
