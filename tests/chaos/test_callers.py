"""Callers tell the oracle what they were answered."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from clew import Clew, Refusal
from clew.errors import ArchiveUnavailable, Closed, UnknownRequest
from clew_activities.archive import Archive, Store
from tests.chaos.callers import Callers
from tests.chaos.oracle import Oracle
from tests.support.stack import Stack


class Refused:
    """A request whose message was accepted, and whose result is a refusal."""

    def __init__(self, refusal: Refusal, word: str) -> None:
        self._refusal, self._word = refusal, word

    async def result(self) -> Any:
        raise self._refusal from WorkflowUpdateFailedError(ApplicationError("no", type=self._word))


def make_callers(stack: Stack, refusal: Refusal, word: str) -> Callers:
    archive = Archive(Store.from_url("memory://"), "default")
    callers = Callers(Clew(stack.clew.temporal), archive, Oracle(), "s-1")
    callers.promises.ledger.requests["r-1"] = "r-1: go"
    callers.promises.messages["r-1"] = {}
    callers.waiting["r-1"] = Refused(refusal, word)  # type: ignore[assignment]
    return callers


async def test_a_message_that_is_refused_after_it_was_accepted_may_be_in_the_thread_or_not(stack: Stack) -> None:
    """A session that is being closed refuses what waits for it."""
    callers = make_callers(stack, Closed("it is closed"), "closed")
    await callers.read_outcome("r-1")
    assert (callers.waiting, callers.promises.ledger.requests) == ({}, {})
    assert callers.promises.ledger.uncertain == {"r-1": "r-1: go"}


@pytest.mark.parametrize(
    ("refusal", "word"),
    [(Closed("it has ended"), "AcceptedUpdateCompletedWorkflow"), (UnknownRequest("which one?"), "unknown_request")],
)
async def test_any_other_refusal_takes_no_promise_back(stack: Stack, refusal: Refusal, word: str) -> None:
    """A workflow that ended without an answer, and a session that has forgotten the message, refuse nothing."""
    callers = make_callers(stack, refusal, word)
    with pytest.raises(type(refusal)):
        await callers.read_outcome("r-1")
    assert callers.promises.ledger.requests == {"r-1": "r-1: go"}


async def test_a_slow_store_is_waited_for_once_the_faults_are_over(stack: Stack) -> None:
    """Before that it is a refusal like others."""
    callers, answers = make_callers(stack, Closed("it is closed"), "closed"), [ArchiveUnavailable("later"), None]

    async def send() -> str:
        if error := answers.pop(0):
            raise error
        return "done"

    with pytest.raises(ArchiveUnavailable):
        await callers.persist(send, "r-2", "r-2: go")
    assert callers.promises.ledger.refused == {"r-2"}
    callers.at_rest, answers[:] = True, [ArchiveUnavailable("later"), None]
    assert await callers.persist(send, "r-3", "r-3: go") == "done"
