"""A decision: what follows from an event or a command, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from clew.thread.entries import Draft
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import SessionEffect


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows.

    Attributes:
        state: The next state.
        commit: The entries to commit, in order.
        effect: What is to be carried out next; None: nothing, or what is being carried out already.
    """

    state: State
    commit: tuple[Draft, ...] = ()
    effect: SessionEffect | None = None

    def prepend(self, *drafts: Draft) -> Decision:
        """This decision, with other entries committed before its own."""
        return replace(self, commit=(*drafts, *self.commit))

    def then(self, follow: Callable[[State, Moment], Decision], at: Moment) -> Decision:
        """This decision, taken at a moment, and what follows from where it leads."""
        more = follow(self.state, replace(at, rev=at.rev + len(self.commit)))
        return Decision(more.state, (*self.commit, *more.commit), more.effect or self.effect)
