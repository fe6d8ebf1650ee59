"""A decision: the consequences of an event or a command, as data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from clew.thread.entries import Draft
from clew_workflows.core.state import Moment, State
from clew_workflows.protocol import SessionEffect


@dataclass(frozen=True, slots=True)
class Decision:
    """The consequences of an event or a command.

    Attributes:
        state: The next state.
        commit: The entries to commit, in order.
        effect: The effect to carry out next; None: none, or the one that is being carried out already.
    """

    state: State
    commit: tuple[Draft, ...] = ()
    effect: SessionEffect | None = None

    def prepend(self, *drafts: Draft) -> Decision:
        """Commit other entries before those of this decision."""
        return replace(self, commit=(*drafts, *self.commit))

    def then(self, follow: Callable[[State, Moment], Decision], at: Moment) -> Decision:
        """Chain another decision, made from this one's state. `at` is the moment of this decision."""
        more = follow(self.state, Moment(at.rev + len(self.commit), at.time))
        return Decision(more.state, (*self.commit, *more.commit), more.effect or self.effect)
