"""A request, as the client reads it: its outcome and its answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Generic, cast

from pydantic import PrivateAttr, TypeAdapter
from temporalio.api.common.v1 import Payload, WorkflowExecution
from temporalio.api.workflowservice.v1 import GetWorkflowExecutionHistoryReverseRequest
from temporalio.client import WorkflowUpdateHandle
from temporalio.converter import WorkflowSerializationContext
from temporalio.service import RPCError
from typing_extensions import TypeVar

from clew.session.events import SessionEvent, follow_request, wait_for_decision
from clew.session.events.history_polls import MODEL_CALL, describe, read_flights
from clew.session.handle import SessionHandle
from clew.session.session_reads import read_entries
from clew.session.transport import Pauses, read_answer
from clew_workflows.contract import AwaitRequestInput, EntriesQuery
from clew_workflows.contract.errors import RequestFailed
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.contract.outputs import LiveStatus
from clew_workflows.contract.payloads import AssistantMessage
from clew_workflows.thread.entries import Entry

# Read the answer of a request from its session's history: its text is the result of the run's last model call. No
# worker takes part, and the server counts no action, as it does for a query.


BATCHES = 6
"""Batches that are read at once: events that the server has written together."""
CALL_TIMEOUT = timedelta(seconds=5)
"""Time within which the server must return them."""


async def read_newest_answer(handle: SessionHandle, workflow_run_id: str, outcome: RequestOutcome) -> str | None:
    """Read the text of a completed request's answer.

    Args:
        handle: The session.
        workflow_run_id: The workflow run that has reported the outcome.
        outcome: The outcome.

    Returns:
        The text. None: the session must be asked. A call of another run has ended since, the answer was not the last
        that the run committed, or the worker writes its results in another form.
    """
    if outcome.answer_seq is None or outcome.last_seq != outcome.answer_seq + 1:
        return None
    try:
        call, answered = await _find_newest_call(handle, workflow_run_id)
        text = answered["reply"]["content"]
        return text if call["run_id"] == outcome.run_id and isinstance(text, str) else None
    except Exception:  # a payload codec of the caller's may raise anything
        return None


async def _find_newest_call(handle: SessionHandle, workflow_run_id: str) -> list[Any]:
    """Find what the newest model call with a result was given, and the result.

    Raises:
        LookupError: The workflow run has none.
    """
    client, results = handle.client, dict[int, Payload]()
    request = GetWorkflowExecutionHistoryReverseRequest(
        namespace=client.namespace,
        execution=WorkflowExecution(workflow_id=handle.session_id, run_id=workflow_run_id),
        maximum_page_size=BATCHES,
    )
    converter = client.data_converter.with_context(WorkflowSerializationContext(client.namespace, handle.session_id))
    while True:
        page = await client.workflow_service.get_workflow_execution_history_reverse(request, timeout=CALL_TIMEOUT)
        for event in page.history.events:
            completed = event.activity_task_completed_event_attributes
            if completed.scheduled_event_id:
                results[completed.scheduled_event_id] = completed.result.payloads[0]
            scheduled = event.activity_task_scheduled_event_attributes
            if scheduled.activity_type.name == MODEL_CALL and event.event_id in results:
                payloads = [scheduled.input.payloads[0], results[event.event_id]]
                return await converter.decode(payloads, [dict, dict])
        if not page.next_page_token:
            raise LookupError(MODEL_CALL)
        request.next_page_token = page.next_page_token


T = TypeVar("T", default=str)
"""The type of the answer."""

FIRST_PAUSE_SECONDS = 0.05
"""Seconds until the outcome is asked for again, the first time that the answer is `running`."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest of these pauses, in seconds; each is twice as long as the one before."""
FIRST_LOOK_SECONDS = 2.0
"""Seconds of waiting for an answer after which the server is asked whether a model call is retried."""
LONGEST_LOOK_SECONDS = 60.0
"""Longest time between two of these looks, in seconds; each is twice as long as the one before."""

log = logging.getLogger("clew")


class Outcome(RequestOutcome, Generic[T]):
    """The outcome of a request whose answer has a type.

    Attributes:
        answer: The answer's text; None: the request has not completed.
    """

    answer: str | None = None
    _type: TypeAdapter[T] = PrivateAttr()

    @property
    def value(self) -> T:
        """The answer as a value of its type.

        Raises:
            RequestFailed: The request ended without an answer.
            pydantic.ValidationError: The answer does not match the type. Types may check more than their schemas.
        """
        if self.answer is None:
            raise RequestFailed(self)
        return self._type.validate_json(self.answer)


class Request(Generic[T]):
    """A request of a session. `Session.message` and `Session.request` return it.

    Any process can make one of the same request, also after a crash. Waiting costs nothing and may take months.

    Attributes:
        session_id: The session's id.
        request_id: The request's id.

    Example:
        request = await session.message("Where is my order?", request_id="msg-93")
        print(await request.answer())
    """

    def __init__(
        self, handle: SessionHandle, request_id: str, update: WorkflowUpdateHandle[dict[str, Any]] | None = None
    ) -> None:
        self.session_id = handle.session_id
        self.request_id = request_id
        self._handle = handle
        self._update = update
        self._outcome: RequestOutcome | None = None

    def __repr__(self) -> str:
        return f"<request {self.request_id} of {self.session_id}>"

    async def result(self) -> RequestOutcome:
        """Wait until the request ends and return its outcome. A failed or cancelled request raises no error here.

        Returns:
            The outcome: `status` (`completed`, `failed` or `cancelled`), `termination_reason`, `error`, `usage` in
            tokens and USD, `iterations`, and `answer_seq`, the entry of the answer. Of a request with an answer type
            also `answer`, its text, and `value`.

        Raises:
            Interrupted: The session was terminated or has timed out.
            Refusal: The session has refused the message after it had accepted it.
            UnknownRequest: The session knows no request with this id.

        Example:
            outcome = await request.result()
            print(outcome.status, outcome.usage.cost_usd, outcome.error and outcome.error.message)
        """
        return await self._wait_for_outcome()

    async def answer(self) -> T:
        """Wait for the answer and return its text, or its value if the request has an answer type.

        Raises:
            RequestFailed: The request ended without an answer; its `outcome` says why.
            pydantic.ValidationError: The answer does not match the type. Types may check more than their schemas.

        Example:
            print(await request.answer())
        """
        return cast("T", await self._read_text(await self.result()))

    async def reply(self) -> AssistantMessage:
        """Wait for the answer and return its message: the text with its citations, its reasoning and its recipe.

        Returns:
            The message: `text`, `content`, `citations`, `provider_calls`, `thinking` and `recipe`.

        Raises:
            RequestFailed: The request ended without an answer.

        Example:
            reply = await request.reply()
            for citation in reply.citations or ():
                print(citation["url"])
        """
        outcome = await self.result()
        if outcome.status != "completed" or outcome.answer_seq is None:
            raise RequestFailed(outcome)
        return await self._read_reply(outcome.answer_seq)

    async def events(self) -> AsyncGenerator[SessionEvent, None]:
        """Follow the request as `Session.follow` follows a session: from its first entry to its outcome.

        Yields:
            Events of `clew.session.events`, as `Session.follow` does.

        Raises:
            Interrupted: The session's workflow was terminated, or has timed out or failed.
            Refusal: The session has refused the message after it had accepted it.
            UnknownRequest: The session knows no request with this id.

        Example:
            events = request.events()
            async for event in events:
                if event.type == "text":
                    print(event.text, end="")
        """
        async with aclosing(self._follow()) as events:
            async for event in events:
                if not isinstance(event, LiveStatus):
                    yield event

    def _follow(
        self, *, behind: Entry | None = None, is_fresh: bool = False
    ) -> AsyncGenerator[SessionEvent | LiveStatus, None]:
        """Follow the request as faces do: with the session's status, behind an entry or from its first one on."""
        wait = self._wait_for_outcome
        return follow_request(self._handle, self.request_id, wait, behind=behind, is_fresh=is_fresh)

    async def _wait_for_decision(self) -> None:
        """Wait until the session has decided about a message that it has accepted.

        Raises:
            Closed: The session has ended.
            Refusal: The session has refused the message.
            UnknownRequest: The session knows no request with this id.
        """
        await wait_for_decision(self._handle, self.request_id, self._wait_for_outcome)

    async def _wait_for_outcome(self) -> RequestOutcome:
        pauses = Pauses(FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
        while self._outcome is None:
            sent_at = time.monotonic()
            # Keep the update until it has answered: a cancelled call of `result` can be repeated.
            update = self._update = self._update or await self._ask_again()
            async with self._handle.explain_end():
                outcome = RequestOutcome.model_validate(await read_answer(self.session_id, update))
            if outcome.status == "running":
                self._update = None
                # The session answers `running` at once when too many callers wait: pause before the next try.
                if time.monotonic() - sent_at < LONGEST_PAUSE_SECONDS:
                    await pauses.wait()
            else:
                self._outcome = outcome
        return self._outcome

    async def _read_text(self, outcome: RequestOutcome) -> str:
        if outcome.status != "completed" or outcome.answer_seq is None:
            raise RequestFailed(outcome)
        workflow_run_id = self._update.workflow_run_id if self._update else None
        if workflow_run_id and (text := await read_newest_answer(self._handle, workflow_run_id, outcome)):
            return text
        return (await self._read_reply(outcome.answer_seq)).text

    async def _read_reply(self, seq: int) -> AssistantMessage:
        query = EntriesQuery(from_seq=seq, limit=1)
        (entry,) = [entry async for entry in read_entries(self._handle, query)]
        return entry.read(AssistantMessage)

    async def _ask_again(self) -> WorkflowUpdateHandle[dict[str, Any]]:
        return await self._handle.send("await_request", AwaitRequestInput(request_id=self.request_id))


class TypedRequest(Request[T]):
    """A request whose answer has a type. `Session.message` and `Session.request` return it, given an `answer`."""

    def __init__(
        self,
        handle: SessionHandle,
        request_id: str,
        answer: TypeAdapter[T],
        update: WorkflowUpdateHandle[dict[str, Any]] | None = None,
    ) -> None:
        super().__init__(handle, request_id, update)
        self._type = answer
        self._typed: Outcome[T] | None = None

    async def result(self) -> Outcome[T]:
        """Wait until the request ends and return its outcome with its answer; raises as `Request.result` does."""
        if self._typed is None:
            outcome = await super().result()
            ended_well = outcome.status == "completed" and outcome.answer_seq is not None
            answer = await self._read_text(outcome) if ended_well else None
            self._typed = Outcome(**dict(outcome), answer=answer)
            self._typed._type = self._type
        return self._typed

    async def answer(self) -> T:
        """Wait for the answer and return its value; raises as `Request.answer` does."""
        return (await self.result()).value


@asynccontextmanager
async def warn_of_retries(handle: SessionHandle) -> AsyncIterator[None]:
    """Log why the session's model call is retried, while the body waits for an answer.

    The server is asked, and never the session.
    """
    watching = asyncio.create_task(_warn_of_retries(handle))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _warn_of_retries(handle: SessionHandle) -> None:
    known: set[tuple[str, int]] = set()
    pauses = Pauses(FIRST_LOOK_SECONDS, LONGEST_LOOK_SECONDS)
    while True:
        await pauses.wait()
        # The warnings are a courtesy: a failure to read them does not end the wait.
        with suppress(RPCError):
            execution = await describe(handle)
            for flight in await read_flights(handle, execution.pending if execution else ()):
                if (
                    flight.is_model_call
                    and (retry := flight.retry)
                    and (flight.activity_id, retry.attempt) not in known
                ):
                    known.add((flight.activity_id, retry.attempt))
                    log.warning(
                        "session %r: the model call is retried, attempt %d %s: %s: %s",
                        handle.session_id,
                        retry.attempt,
                        f"begins at {retry.next_at}" if retry.next_at else "has begun",
                        retry.error,
                        retry.message,
                    )


def make_request(
    handle: SessionHandle, request_id: str, answer: Any, update: WorkflowUpdateHandle[dict[str, Any]] | None = None
) -> Request[Any]:
    """Make the handle of a request; `answer` is the type of its answer, None: its text."""
    if answer is None:
        return Request(handle, request_id, update)
    return TypedRequest(handle, request_id, TypeAdapter(answer), update)
