"""The reads of a session: status, contexts, messages and entries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Unpack

from clew.contract import ContextQuery, EntriesQuery, TranscriptQuery, WindowQuery
from clew.contract.outputs import (
    Context,
    SessionStatus,
    TranscriptMessage,
    Window,
)
from clew.contract.policy import ContextPolicy
from clew.errors import NotFound
from clew.session._reader import read_context, read_entries, read_status, read_transcript, read_window
from clew.session.handle import SessionHandle
from clew.session.options import EntryFilters
from clew.session.transport import make_input
from clew.session.waiting import WaitingCall, list_waiting_calls
from clew.thread.entries import Entry


class SessionReads:
    """The part of `Session` that changes nothing."""

    def __init__(self, handle: SessionHandle) -> None:
        self._handle = handle

    async def status(self) -> SessionStatus:
        """Read what the session is doing, its configuration and its usage.

        Raises:
            Closed: The session has ended, and the server has forgotten its workflow.
            NotFound: There is no such session.
        """
        try:
            return await read_status(self._handle)
        except NotFound as absent:
            raise await self._handle.explain_absence(absent) from None

    async def list_waiting_calls(self) -> Sequence[WaitingCall]:
        """List the tool calls that wait for people or programs, in this session and in the subagents that it has.

        Raises:
            Closed: The session has ended, and the server has forgotten its workflow.
            NotFound: There is no such session.
        """
        try:
            return await list_waiting_calls(self._handle)
        except NotFound as absent:
            raise await self._handle.explain_absence(absent) from None

    async def context(
        self,
        *,
        context_ref: str | None = None,
        at_seq: int | None = None,
        call_id: str | None = None,
        context_policy: ContextPolicy | None = None,
        pending: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> Context:
        """Read a lane's context: the current one, the one at a seq, that of a model call, or a preview.

        With `pending`, messages that a user might send next, it is a preview of the call that would follow:
        `meta.fits` says whether they fit, `meta.input_cost_usd` what the prompt costs. Nothing is committed.
        `context_policy` overrides fields of the policy in force.

        Raises:
            InvalidInput: There is no such model call, or fields of the policy contradict each other.
            InvalidTokenBudget: The policy leaves no budget for messages.
            NotFound: There is no such session.
        """
        query = {
            "context_ref": context_ref,
            "at_seq": at_seq,
            "call_id": call_id,
            "context_policy": context_policy,
            "pending": None if pending is None else [_make_user_message(message) for message in pending],
        }
        return await read_context(self._handle, make_input(ContextQuery, query))

    async def transcript(
        self,
        *,
        context_ref: str | None = None,
        from_seq: int = 0,
        limit: int | None = None,
        include_system: bool = False,
    ) -> list[TranscriptMessage]:
        """Read a lane's messages in order, each with its seq. `limit`: no more than so many, the newest ones."""
        fields = {"context_ref": context_ref, "from_seq": from_seq, "limit": limit, "include_system": include_system}
        query = make_input(TranscriptQuery, fields)
        return [message async for message in read_transcript(self._handle, query)]

    async def window(self, token_budget: int, *, context_ref: str | None = None) -> Window:
        """Read the newest messages that fit a token budget."""
        query = make_input(WindowQuery, {"token_budget": token_budget, "context_ref": context_ref})
        return await read_window(self._handle, query)

    async def entries(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> list[Entry]:
        """Read the thread's entries that meet the filters, in order."""
        return [entry async for entry in self.read(from_seq=from_seq, limit=limit, **filters)]

    async def read(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> AsyncIterator[Entry]:
        """Read entries like `entries`, but one by one: at most a page of the thread is in memory."""
        query = make_input(EntriesQuery, {**filters, "from_seq": from_seq, "limit": limit})
        async for entry in read_entries(self._handle, query):
            yield entry


def _make_user_message(message: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "user", "content": message} if isinstance(message, str) else message
