"""The one step of a session: a decision is committed. The workflow, recovery and the tests take it alike."""

from __future__ import annotations

from dataclasses import dataclass

from clew.model.tokens import load_encoding
from clew.thread.entries import Entry
from clew.thread.thread import Thread
from clew_workflows.core.decision import Decision
from clew_workflows.core.stamps import Stamps
from clew_workflows.core.state import State
from clew_workflows.protocol import SessionEffect


@dataclass(frozen=True, slots=True)
class Session:
    """All that a session is.

    Attributes:
        state: What it is at the moment, beside its thread.
        thread: Its log; `advance` appends to it.
        effect: What is being carried out, or is to be next.
    """

    state: State
    thread: Thread
    effect: SessionEffect | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What became of a session by a decision.

    Attributes:
        session: The session after it.
        entries: What was committed.
        gave_up: What was being carried out is over; its answer no longer matters.
    """

    session: Session
    entries: tuple[Entry, ...]
    gave_up: bool


def advance(session: Session, decision: Decision, stamps: Stamps) -> Step:
    """Append a decision's drafts to the session's thread, and give the session as it is from then on."""
    before, after = session.state, decision.state
    counting, entries = load_encoding(after.config.encoding), list[Entry]()
    for draft in decision.commit:
        entry = draft.commit(session.thread.rev, stamps.make_entry_id(), stamps.make_timestamp(), counting)
        session.thread.append(entry)
        entries.append(entry)
    gave_up = _gives_up(before, after)
    effect = decision.effect or (None if gave_up else session.effect)
    return Step(Session(after, session.thread, effect), tuple(entries), gave_up)


def _gives_up(before: State, after: State) -> bool:
    """Whether what is being carried out was for a run or a summary that is over, or for a session that has ended."""
    if after.closed:
        return True
    if before.summarizing is not None and after.summarizing is not before.summarizing:
        return True
    return before.run is not None and (after.run is None or after.run.run_id != before.run.run_id)
