"""The callers of one session: how they persist, and what they tell the oracle."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from temporalio.client import WorkflowUpdateFailedError

from clew import Clew, ContextPolicy, Request, Session
from clew.errors import ArchiveUnavailable, ClewError, Closed, NotFound, Refusal, RequestFailed, UnknownRequest
from clew_activities.archive import Archive
from clew_workflows.contract.content import get_text
from clew_workflows.contract.outcomes import RequestOutcome
from tests.chaos.model import FIRST
from tests.chaos.oracle import Oracle, Origin
from tests.chaos.plan import SESSIONS
from tests.chaos.service import Service

T = TypeVar("T")

PATIENCE_SECONDS = 120.0
"""Seconds for which a command is tried again. The server may refuse many quick attempts while a worker is stopped."""
PAUSE_SECONDS = 0.4
OUTCOME_SECONDS = 40.0
"""Seconds for which a caller waits for an outcome; another one asks for it later."""
PLAIN: dict[str, Any] = {
    "model": FIRST,
    "system_prompt": "You answer briefly.",
    "tools": ["note", "charge", "wire", "flaky", "nap", "big", "order"],
    "context_policy": ContextPolicy(max_input_tokens=2000, reserve_output_tokens=100),
    "request_timeout_seconds": 120,
}
BOSS: dict[str, Any] = {"agent": "boss"}
WORDS = ("ball", "thread", "labyrinth", "clew", "wool", "bull", "gate", "torch", "stone", "echo", "dark", "spindle")


class GaveUp(Exception):
    """A command had no answer in time. It stays uncertain."""


class Callers:
    """The callers of one session.

    Attributes:
        session: The session.
        clew: The connection.
        archive: The archive, as operators have it: their way to the store has its faults, too.
        oracle: The oracle.
        promises: What these callers were promised.
        waiting: Their handles, by request id.
        receipts: The arguments of accepted inputs, with their receipts.
        operations: The arguments of accepted operations, by id.
        errors: Errors after which a command was sent again, with their counts.
        ends: How the actions ended: `done`, or the type of an error.
        service: The service; None: there is none.
        settings: Fields of the session's configuration beside those of its kind.
        at_rest: The faults are over: what a session refuses because its store is slow is sent again.
    """

    def __init__(self, clew: Clew, archive: Archive, oracle: Oracle, name: str, origin: Origin | None = None) -> None:
        self.session: Session = clew.session(name)
        self.clew = clew
        self.archive = archive
        self.oracle = oracle
        self.promises = oracle.add_session(name, origin)
        self.waiting: dict[str, Request] = {}
        self.receipts: list[tuple[dict[str, Any], Any]] = []
        self.operations: dict[str, dict[str, Any]] = {}
        self.errors: Counter[str] = Counter()
        self.ends: Counter[str] = Counter()
        self.service: Service | None = None
        self.settings: dict[str, Any] = {}
        self.at_rest = False
        self._opening: set[asyncio.Task[None]] = set()

    @property
    def name(self) -> str:
        """The session's id."""
        return self.session.id

    async def open(self) -> None:
        """Open the session, or open it again."""
        own = BOSS if self.name.startswith("boss") else PLAIN
        fields: dict[str, Any] = own if self.name in SESSIONS else {}
        await self.clew.open(self.name, **fields, **self.settings)

    def call_offspring(self, name: str, origin: Origin | None = None) -> Callers:
        """Make the callers of a session that was made of this one."""
        callers = Callers(self.clew, self.archive, self.oracle, name, origin)
        callers.at_rest, callers.service = self.at_rest, self.service
        return callers

    async def delete(self, send: Callable[[], Awaitable[object]] | None = None) -> None:
        """Delete the session, until there is an answer. It is used no more, and not opened again.

        `send`: another way than the Python client's.
        """
        self.promises.deleted = True
        await asyncio.gather(*self._opening, return_exceptions=True)
        while True:
            try:
                await (send() if send else self.clew.delete(self.name))
            except NotFound:
                return
            except ClewError as error:
                self._count(error)
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    async def persist(self, send: Callable[[], Awaitable[T]], name: str = "", content: str = "") -> T:
        """Send a command until there is an answer.

        With `name`, the id of what is sent, the command is uncertain until then, and refused or accepted after it.

        Raises:
            Refusal: The session refused it.
            GaveUp: There was no answer.
        """
        ledger, was_uncertain = self.promises.ledger, False
        give_up_at = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < give_up_at and not self.promises.deleted:
            if name:
                ledger.uncertain[name] = content
            try:
                answer = await send()
            except (Closed, NotFound) as error:
                was_uncertain = True
                self._count(error)
                await self._reopen()
            except Refusal as refusal:
                if not (self.at_rest and isinstance(refusal, ArchiveUnavailable)):
                    if name and not was_uncertain:
                        del ledger.uncertain[name]
                        ledger.refused.add(name)
                    raise refusal
                self._count(refusal)
            except ClewError as error:
                was_uncertain = True
                self._count(error)
            else:
                ledger.uncertain.pop(name, None)
                return answer
            await asyncio.sleep(PAUSE_SECONDS)
        raise GaveUp(name)

    async def ask(self, request_id: str, arguments: dict[str, Any]) -> RequestOutcome:
        """Send a message and wait for its answer, until there is one; returns the outcome.

        Raises:
            Refusal: The session refused the message, before or after it had accepted it.
            GaveUp: There was no answer.
        """
        ledger, messages, content = self.promises.ledger, self.promises.messages, get_text(arguments["content"])

        async def send() -> str | None:
            try:
                answer: str = await self.session.ask(request_id=request_id, **arguments)
            except RequestFailed as failed:
                self.note_outcome(request_id, failed.outcome)
                return None
            return answer

        messages[request_id] = arguments
        try:
            text = await self.persist(send, request_id, content)
        except Refusal as refusal:
            del messages[request_id]
            if isinstance(refusal, UnknownRequest):
                self.oracle.report("thread", self.name, f"{request_id} was accepted, and is not known any more")
            ledger.refused.discard(request_id)
            ledger.uncertain[request_id] = content
            raise
        ledger.requests[request_id] = content
        outcome = await self.persist(self.session.request(request_id).result)
        self.note_outcome(request_id, outcome)
        if text is not None and outcome.answer_seq is not None:
            self.promises.answers[outcome.answer_seq] = text
        return outcome

    async def read_missing_answers(self) -> None:
        """Read the answers that no caller has read, or whose callers had no reply."""
        for request_id, outcome in self.promises.ledger.outcomes.items():
            seq = outcome.answer_seq
            if outcome.status == "completed" and seq is not None and seq not in self.promises.answers:
                self.promises.answers[seq] = await self.persist(self.session.request(request_id).answer)

    async def read_outcome(self, request_id: str) -> None:
        """Wait for the outcome of a message that was accepted.

        A session that starts, stops a run, or has much to read accepts a message and decides afterwards: then the
        refusal is the answer, and the message may be in the thread or not.

        Raises:
            ClewError: There is no answer yet, or its text cannot be read.
        """
        request = self.waiting[request_id]
        try:
            outcome = await request.result()
        except Refusal as refusal:
            cause = refusal.__cause__.cause if isinstance(refusal.__cause__, WorkflowUpdateFailedError) else None
            if isinstance(refusal, UnknownRequest) or getattr(cause, "type", None) != refusal.type:
                # Another answer than that to the message: its workflow has ended, for example.
                raise
            ledger = self.promises.ledger
            ledger.uncertain[request_id] = ledger.requests.pop(request_id)
            del self.promises.messages[request_id], self.waiting[request_id]
        else:
            self.note_outcome(request_id, outcome)
            if outcome.status == "completed" and outcome.answer_seq is not None:
                self.promises.answers[outcome.answer_seq] = await request.answer()

    def note_outcome(self, request_id: str, outcome: RequestOutcome) -> None:
        """Note an outcome that a caller got. Each caller must get the same."""
        known = self.promises.ledger.outcomes.setdefault(request_id, outcome)
        if known != outcome:
            self.oracle.report("thread", self.name, f"{request_id} got {known}, and then {outcome}")
        self.oracle.acknowledge(self.name, outcome.last_seq)

    async def _reopen(self) -> None:
        if self.promises.deleted:
            return
        opening = asyncio.create_task(self.open())
        self._opening.add(opening)
        opening.add_done_callback(self._opening.discard)
        try:
            await opening
        except ClewError as error:
            self._count(error)

    def _count(self, error: ClewError) -> None:
        self.errors[f"{type(error).__name__}: {str(error)[:120]}"] += 1


def make_words(chance: random.Random) -> str:
    """Make the end of a text."""
    return " ".join(chance.choices(WORDS, k=chance.randint(3, 30)))


def choose_start(callers: Callers, chance: random.Random) -> int | None:
    """Choose the seq from which a viewer follows a session; None: the next one."""
    return chance.choice((None, 0, max(0, callers.promises.rev - 5)))


def choose_request(callers: Callers, chance: random.Random) -> str | None:
    """Choose one of the newest requests for a viewer; None: it follows the session."""
    return chance.choice([None, None, *list(callers.promises.messages)[-2:]])
