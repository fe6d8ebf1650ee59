"""A request as its caller holds it."""

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
LONGEST_PAUSE_SECONDS = 10.0
"""Between two questions about a request that are answered `running` at once."""


class Request:
    """A request that a session has accepted. `Session.message` and `Session.request` make it.

    Attributes:
        session_id: The session that serves it.
        request_id: Its id.
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
        """How the request ended; waits until it has, however long that takes.

        Raises:
            UnknownRequest: the session knows no request of this id.
        """
        pause = FIRST_PAUSE_SECONDS
        while self._outcome is None:
            sent_at = time.monotonic()
            # Kept until it has answered, so that whoever waits again waits for the same update.
            update = self._update = self._update or await self._ask_again()
            async with translate_errors(self.session_id):
                outcome = RequestOutcome.model_validate(await update.result())
            if outcome.status == "running":
                self._update = None
                # An answer that comes at once is that of a session with as many callers as it lets wait.
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
        """The text of the answer, or what it says in the form of a pydantic model; waits until it is there.

        Raises:
            RequestFailed: the request ended without one.
            pydantic.ValidationError: the answer is not of the form.
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
