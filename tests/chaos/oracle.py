"""The oracle: what each caller was promised, and where a thread or a reader's view differs from it.

Callers tell it what they were answered. A command without an answer is uncertain: it may have been accepted, once.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

from bench.ledger import Ledger, check, check_structure
from clew.contract.payloads import ApprovalPayload, AssistantMessage, ForkPayload, ToolMessage
from clew.errors import ClewError
from clew.session.events import EntryCommitted, Restarted, SessionEvent, TextAdded
from clew_activities.model.reply_in_progress import MAX_STREAMED_CHARACTERS
from clew_audit.audit import Report
from clew_workflows.thread.entries import Entry
from tests.chaos.rules import Span, check_answers, check_hooks, check_images, check_models, find_lost_signals

Kind = Literal["thread", "effect", "reader", "webhook", "audit", "wedged", "client", "worker", "round"]
"""What is broken: a promise about the thread, a tool's declaration, a reader's view, what a webhook was told, the
archive or a history, the end of all work, the client's errors, a process, or an error that has ended the round."""
_MISSING = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character that a viewer was not shown."""


@dataclass(frozen=True)
class Violation:
    """A broken promise.

    Attributes:
        kind: Its kind.
        session: The session; empty if the violation concerns no single session.
        text: What is wrong.
    """

    kind: Kind
    session: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind} · {self.session}: {self.text}"


@dataclass(frozen=True)
class Origin:
    """Where a fork comes from.

    Attributes:
        session: Its parent.
        seq: The last entry that both have.
    """

    session: str
    seq: int


@dataclass(frozen=True)
class ExternalResult:
    """The accepted result of an external call.

    Attributes:
        seq: The seq that the answer named.
        content: What was sent.
        is_error: Whether it was sent as an error.
    """

    seq: int
    content: Any
    is_error: bool


@dataclass
class Promises:
    """What the callers of one session were promised.

    Attributes:
        session: The session.
        ledger: Their commands and the answers.
        origin: Where it was forked from; None: it is no fork.
        rev: Entries that the session must have: those that answers and readers have named.
        seen: The digest of each entry that a reader has seen, by seq.
        answers: The texts of answers that callers have read, by the seq of the answer.
        decisions: Accepted decisions about tool calls.
        messages: The arguments of accepted messages, by request id.
        results: The accepted results of external calls.
        forks: The last shared seq of each fork that was made.
        deleted: Its callers have asked for its deletion, and use it no more.
        signals: When each accepted signal was sent, by its id.
        closes: Closes of which the thread may say nothing: they had no answer, or found a session that had not begun.
    """

    session: str
    ledger: Ledger = field(default_factory=Ledger)
    origin: Origin | None = None
    rev: int = 0
    seen: dict[int, str] = field(default_factory=dict)
    answers: dict[int, str] = field(default_factory=dict)
    decisions: dict[str, str] = field(default_factory=dict)
    messages: dict[str, dict[str, Any]] = field(default_factory=dict)
    results: dict[str, ExternalResult] = field(default_factory=dict)
    forks: dict[str, int] = field(default_factory=dict)
    deleted: bool = False
    signals: dict[str, Span] = field(default_factory=dict)
    closes: list[Span] = field(default_factory=list)


class Reader:
    """One reader of a session, which must see each entry once and in order.

    `of_request`: it sees the entries of one request alone.
    """

    def __init__(self, oracle: Oracle, session: str, start: int | None, *, of_request: bool = False) -> None:
        self.next = start
        self._oracle = oracle
        self._session = session
        self._of_request = of_request

    def take(self, entry: Entry) -> None:
        """Take the next entry that the reader was shown."""
        is_next = self.next is None or entry.seq == self.next or (self._of_request and entry.seq > self.next)
        if not is_next:
            self._oracle.report("reader", self._session, f"a reader expected seq {self.next}, and saw {entry.seq}")
        self.next = entry.seq + 1
        self._oracle.see(self._session, entry)

    async def view(self, events: AsyncGenerator[SessionEvent, None], seconds: float) -> None:
        """Take the events of one connection for some seconds, or until they end or an error ends them."""
        texts = Texts()
        with suppress(TimeoutError, ClewError):
            async with asyncio.timeout(seconds), aclosing(events):
                async for event in events:
                    if problem := texts.take(event):
                        self._oracle.report("reader", self._session, problem)
                    if isinstance(event, EntryCommitted):
                        self.take(event.entry)


class Texts:
    """What one connection has shown of the replies that grow: once a reply's entry comes, all of it, once.

    Of a long reply a heartbeat has no more than the newest part. The part before it comes with the entry.
    """

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def take(self, event: SessionEvent) -> str | None:
        """Take the next event; returns what is wrong."""
        match event:
            case TextAdded():
                known, end = self._texts.get(event.call_id, ""), event.offset + len(event.text)
                self._texts[event.call_id] = known[: event.offset].ljust(event.offset, _MISSING) + event.text
                if event.offset > len(known) and end <= MAX_STREAMED_CHARACTERS:
                    return f"{event.call_id} goes on at {event.offset}, and {len(known)} characters are known"
            case Restarted():
                self._texts.pop(event.call_id, None)
            case EntryCommitted(body=AssistantMessage() as reply) if call := event.entry.refs.get("call_id"):
                shown = self._texts.pop(call, "")
                if shown != reply.text:
                    return f"a reader saw {shown[:500]!r} of {call}, whose text is {reply.text[:500]!r}"
        return None


class Oracle:
    """Collects promises and violations.

    Attributes:
        promises: The promises of each session.
        violations: The violations so far.
        seen: The number of entries that readers have seen.
    """

    def __init__(self) -> None:
        self.promises: dict[str, Promises] = {}
        self.violations: list[Violation] = []
        self.seen = 0

    def add_session(self, session: str, origin: Origin | None = None) -> Promises:
        """Add a session that callers use from now on."""
        return self.promises.setdefault(session, Promises(session, origin=origin))

    def report(self, kind: Kind, session: str, text: str) -> None:
        """Report a violation, once."""
        violation = Violation(kind, session, text)
        if violation not in self.violations:
            self.violations.append(violation)

    def see(self, session: str, entry: Entry) -> None:
        """Note an entry that a reader was shown. It must be the one that others see."""
        promises = self.promises[session]
        self.seen += 1
        digest = digest_entry(entry)
        if promises.seen.setdefault(entry.seq, digest) != digest:
            self.report("reader", session, f"two readers saw different entries at seq {entry.seq}")
        promises.rev = max(promises.rev, entry.seq + 1)

    def see_page(self, session: str, entries: Iterable[Entry], start: int) -> None:
        """Note what a reader of all entries from `start` on was shown."""
        reader = Reader(self, session, start)
        for entry in entries:
            reader.take(entry)

    def acknowledge(self, session: str, seq: int | None) -> None:
        """Note that an answer has named an entry."""
        if seq is not None:
            promises = self.promises[session]
            promises.rev = max(promises.rev, seq + 1)

    def check_rev(self, session: str, rev: int, promised: int) -> None:
        """Check the number of entries that a session answers against what was promised before the question."""
        if rev < promised:
            self.report("reader", session, f"the session has {rev} entries, after {promised} had been answered")

    def check_audit(self, report: Report) -> None:
        """Check the audit of a session: histories, archive and live session agree, and all calls verify."""
        for difference in report.differences:
            self.report("audit", report.session_id, str(difference))
        if report.calls.unverified:
            self.report("audit", report.session_id, f"{len(report.calls.unverified)} model calls cannot be verified")

    def check_subagent(self, session: str, entries: Sequence[Entry]) -> None:
        """Check the complete thread of a subagent, which has no callers."""
        for problem in (*check_structure(entries), *_check_alone(entries)):
            self.report("thread", session, problem)

    def check_thread(self, session: str, entries: Sequence[Entry], parent: Sequence[Entry] | None) -> None:
        """Compare a complete thread with the promises; `parent`: the thread of a fork's parent, if it is there."""
        promises = self.promises[session]
        # A signal has no answer: one that comes while the session is being closed leaves nothing.
        for name in find_lost_signals(promises.signals, promises.closes, entries):
            promises.ledger.uncertain[name] = ""
            promises.ledger.signalled.discard(name)
        if promises.origin and parent is None:
            # Readers have seen it before it was deleted.
            above = self.promises[promises.origin.session].seen
            for seq, digest in above.items():
                if seq <= promises.origin.seq and digest_entry(entries[seq]) != digest:
                    self.report("thread", session, f"the fork has another entry at seq {seq} than its parent had")
        for problem in (*check(entries, promises.ledger), *_check(promises, entries, parent)):
            self.report("thread", session, problem)
        for seq, digest in promises.seen.items():
            if seq >= len(entries) or digest_entry(entries[seq]) != digest:
                self.report("reader", session, f"a reader saw an entry at seq {seq} that the thread does not have")
        for seq, text in promises.answers.items():
            said = entries[seq].body if seq < len(entries) else None
            if not (isinstance(said, AssistantMessage) and said.content == text):
                self.report(
                    "reader", session, f"a caller read another answer than the thread has at seq {seq}: {text}"
                )


def _check_alone(entries: Sequence[Entry]) -> Iterator[str]:
    """Check what a thread must be, whatever its callers were promised."""
    yield from check_hooks(entries)
    yield from check_models(entries)
    yield from check_images(entries)


def digest_entry(entry: Entry) -> str:
    """Compute a digest of all that an entry holds."""
    return hashlib.sha256(json.dumps(entry.as_dict(), sort_keys=True).encode()).hexdigest()


def _check(promises: Promises, entries: Sequence[Entry], parent: Sequence[Entry] | None) -> Iterator[str]:
    if len(entries) < promises.rev:
        yield f"the thread has {len(entries)} entries, but {promises.rev} were answered or seen"
    if promises.origin and parent is not None:
        shared = promises.origin.seq + 1
        if list(entries[:shared]) != list(parent[:shared]):
            yield f"the fork differs from {promises.origin.session} before seq {shared}"
    decided = [said for said in (entry.body for entry in entries) if isinstance(said, ApprovalPayload)]
    for call, times in Counter(said.tool_call_id for said in decided).items():
        if times > 1:
            yield f"call {call} has {times} decisions"
    decisions = {said.tool_call_id: said.decision for said in decided}
    for call, decision in promises.decisions.items():
        if decisions.get(call) != decision:
            yield f"call {call} was to be {decision}, but the thread has {decisions.get(call)}"
    for call, result in promises.results.items():
        said = entries[result.seq].body if result.seq < len(entries) else None
        if not (isinstance(said, ToolMessage) and said.tool_call_id == call):
            yield f"the result of {call} is not at {result.seq}"
            continue
        content = said.text if isinstance(result.content, str) else json.loads(said.text)
        if (content, said.is_error) != (result.content, result.is_error):
            yield f"the result of {call} is not what was sent, but {said.text[:100]!r}"
    yield from _check_alone(entries)
    yield from check_answers(promises.messages, promises.ledger.outcomes, entries)
    recorded = Counter(
        (said.session_id, said.fork_seq)
        for said in (entry.body for entry in entries)
        if isinstance(said, ForkPayload) and said.event == "forked_to"
    )
    for fork, seq in promises.forks.items():
        if recorded[fork, seq] != 1:
            yield f"the fork {fork} at {seq} is recorded {recorded[fork, seq]} times"
