"""Committing a decision. The workflow, recovery and the tests all do it by `advance`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TypeVar

from clew_workflows.contract.payloads import ConfigPayload, MessagePayload, OperationPayload
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.protocol import RunTools, SessionEffect
from clew_workflows.session import tool_rounds, webhooks
from clew_workflows.session.state import Decision, Input, Request, State, note_entries
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

T = TypeVar("T", Request, Input)


@dataclass(frozen=True, slots=True)
class Stamps:
    """Makes ids and timestamps.

    Attributes:
        now: Returns the time, in UTC.
        random_bits: Returns a random number with a number of bits.
    """

    now: Callable[[], datetime]
    random_bits: Callable[[int], int]

    def make_entry_id(self) -> str:
        """Make the id of a new entry."""
        return f"e-{self.random_bits(64):016x}"

    def make_timestamp(self) -> str:
        """Format the present time as RFC 3339 in UTC, with milliseconds."""
        return format_timestamp(self.now())


def format_timestamp(time: datetime) -> str:
    """Format a time in UTC as RFC 3339, in milliseconds."""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


@dataclass(frozen=True, slots=True)
class Session:
    """A session, complete.

    Attributes:
        state: Its state beside the thread.
        thread: Its thread; `advance` appends to it.
        effect: The effect that is being carried out, or is next.
    """

    state: State
    thread: Thread
    effect: SessionEffect | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """The result of committing a decision.

    Attributes:
        session: The session afterwards.
        entries: The committed entries.
        gave_up: The decision has given up the effect that is being carried out: its answer no longer matters.
        stops: The decision stops the effect that is being carried out, and awaits its answer.
    """

    session: Session
    entries: tuple[Entry, ...]
    gave_up: bool
    stops: bool = False


def advance(session: Session, decision: Decision, stamps: Stamps) -> Step:
    """Append a decision's drafts to the session's thread, and return the session with its next state and effect."""
    before, after = session.state, decision.state
    encoding = load_encoding(after.settings.config.encoding).for_model(after.settings.model)
    entries = list[Entry]()
    if after.queue or after.inbox:
        after = _count_waiting(after, encoding)
    for draft in decision.commit:
        named = replace(draft, refs={"session_id": after.session_id, **draft.refs})
        if isinstance(draft.payload, ConfigPayload):
            named = replace(named, payload=_note_changes(session.thread, draft.payload))
        entry = named.commit(session.thread.rev, stamps.make_entry_id(), stamps.make_timestamp(), encoding)
        session.thread.append(entry)
        entries.append(entry)
    if entries:
        after = replace(after, listed=note_entries(after.listed, entries))
    if not after.has_media and any(map(_has_media, entries)):
        after = replace(after, has_media=True)
    if after.settings.webhooks or after.settings.config.webhooks:
        after = webhooks.note_events(before, after, entries, stamps.make_timestamp, session.thread.last_seq)
    gave_up = _gives_up(before, after)
    waits = isinstance(session.effect, RunTools) and tool_rounds.is_over(after, session.effect)
    effect = decision.effect or (None if gave_up or waits else session.effect)
    stops = after.stopping and not before.stopping
    return Step(Session(after, session.thread, effect), tuple(entries), gave_up, stops)


def _has_media(entry: Entry) -> bool:
    body = entry.body
    if isinstance(body, OperationPayload):
        return bool(body.snapshot and body.snapshot.media_tokens)
    return isinstance(body, MessagePayload) and bool(body.media_tokens)


def _note_changes(thread: Thread, config: ConfigPayload) -> ConfigPayload:
    """Note in a configuration which of its fields differ from the one before."""
    before = thread.find_config(thread.last_seq)
    return config.compare(before.read(ConfigPayload)) if before else config


def _count_waiting(state: State, encoding: Encoding) -> State:
    """Count the tokens of the texts of the messages and inputs that have begun to wait.

    Many of them may be committed at once later, which must not take long: all sessions of a worker share a processor.
    """
    if not any(map(_is_uncounted, state.queue)) and not any(map(_is_uncounted, state.inbox)):
        return state
    return replace(
        state,
        queue=tuple(_count(waiting, encoding) for waiting in state.queue),
        inbox=tuple(_count(waiting, encoding) for waiting in state.inbox),
    )


def _is_uncounted(waiting: Request | Input) -> bool:
    # A follow-up request has no text beside its inputs.
    return waiting.tokens is None and waiting.content != ""


def _count(waiting: T, encoding: Encoding) -> T:
    if not _is_uncounted(waiting):
        return waiting
    return replace(waiting, tokens=encoding.count_text({"role": "user", "content": waiting.content}))


def _gives_up(before: State, after: State) -> bool:
    """Whether the effect belonged to a run or a summary that is over, or the session has ended."""
    if after.closed:
        return True
    if before.summaries.writing is not None and after.summaries.writing is not before.summaries.writing:
        return True
    return before.run is not None and (after.run is None or after.run.run_id != before.run.run_id)
