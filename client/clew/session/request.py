"""A request, as the client reads it: its outcome and its answer."""

from __future__ import annotations

import asyncio
import time
from typing import Any, TypeVar, overload

from pydantic import BaseModel
from temporalio.client import WorkflowUpdateHandle

from clew.contract import AwaitRequestInput, EntriesQuery
from clew.contract.payloads import AssistantMessage
from clew.errors import RequestFailed
from clew.outcomes import RequestOutcome
from clew.session._reader import read_entries
from clew.session.handle import SessionHandle
from clew.session.transport import translate_errors

M = TypeVar("M", bound=BaseModel)

FIRST_PAUSE_SECONDS = 0.05
"""Seconds until the outcome is asked for again, the first time that the answer is `running`."""
LONGEST_PAUSE_SECONDS = 10.0
"""Longest of these pauses, in seconds; each is twice as long as the one before."""


class Request:
    """A request of a session. `Session.message` and `Session.request` return it.

    Attributes:
        session_id: The session's id.
        request_id: The request's id.
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
        """Wait until the request ends and return its outcome.

        Raises:
            UnknownRequest: the session knows no request with this id.
        """
        pause = FIRST_PAUSE_SECONDS
        while self._outcome is None:
            sent_at = time.monotonic()
            # Keep the update until it has answered: a cancelled call of `result` can be repeated.
            update = self._update = self._update or await self._ask_again()
            async with translate_errors(self.session_id):
                outcome = RequestOutcome.model_validate(await update.result())
            if outcome.status == "running":
                self._update = None
                # The session answers `running` at once when too many callers wait: pause before the next try.
                if time.monotonic() - sent_at < LONGEST_PAUSE_SECONDS:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE_SECONDS)
            else:
                self._outcome = outcome
        return self._outcome

    @overload
    async def answer(self) -> str: ...

    @overload
    async def answer(self, form: type[M]) -> M: ...

    async def answer(self, form: type[M] | None = None) -> str | M:
        """Wait for the answer and return its text, or with `form` an instance of that pydantic model.

        Raises:
            RequestFailed: the request ended without an answer.
            pydantic.ValidationError: the answer does not match `form`.
        """
        outcome = await self.result()
        if outcome.status != "completed" or outcome.answer_seq is None:
            raise RequestFailed(outcome)
        query = EntriesQuery(from_seq=outcome.answer_seq, limit=1)
        (entry,) = [entry async for entry in read_entries(self._handle, query)]
        text = entry.read(AssistantMessage).content
        return text if form is None else form.model_validate_json(text)

    async def _ask_again(self) -> WorkflowUpdateHandle[dict[str, Any]]:
        return await self._handle.send("await_request", AwaitRequestInput(request_id=self.request_id))
