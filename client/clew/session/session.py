"""A session as a backend holds it: a method for every update and query of the wire contract."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Literal, TypeVar, Unpack, overload

from pydantic import BaseModel
from temporalio.client import Client

from clew.contract import (
    FORK_WORKFLOW,
    TASK_QUEUE,
    ApprovalInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ContextQuery,
    EntriesQuery,
    ForkSessionInput,
    HibernateInput,
    MessageInput,
    SubmitInput,
    SummarizeInput,
    TranscriptQuery,
    WindowQuery,
)
from clew.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    CheckpointReceipt,
    CloseReceipt,
    ConfigureReceipt,
    Context,
    HibernateReceipt,
    InputReceipt,
    OperationReceipt,
    SessionStatus,
    StreamState,
    SummaryReceipt,
    TranscriptMessage,
    Window,
)
from clew.contract.policy import ContextPolicy
from clew.model.messages import Message
from clew.session._reader import (
    read_context,
    read_entries,
    read_last_seq,
    read_status,
    read_transcript,
    read_window,
)
from clew.session._streaming import stream_reply
from clew.session.handle import SessionHandle
from clew.session.options import ConfigChanges, EntryFilters, InputOptions, MessageOptions
from clew.session.request import Request
from clew.session.transport import make_input
from clew.thread.entries import Entry

M = TypeVar("M", bound=BaseModel)
Reason = Literal["manual", "restore", "compaction", "system"]
"""The reason that a context operation is recorded with."""


class Session:
    """One durable session. It serves one request at a time; two conversations at once belong in two sessions.

    Attributes:
        id: The session's id.
    """

    def __init__(self, client: Client, session_id: str, task_queue: str = TASK_QUEUE) -> None:
        self.id = session_id
        self._handle = SessionHandle(client, session_id, task_queue)

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    @overload
    async def ask(self, content: str, *, answer: None = None, **options: Unpack[MessageOptions]) -> str: ...

    @overload
    async def ask(self, content: str, *, answer: type[M], **options: Unpack[MessageOptions]) -> M: ...

    async def ask(self, content: str, *, answer: type[M] | None = None, **options: Unpack[MessageOptions]) -> str | M:
        """Send a message and wait for the answer. Takes the options of `message`.

        With `answer`, a pydantic model, the answer is query for in its form and comes as an instance of it.

        Raises:
            RequestFailed: the request ended without an answer.
            Refusal: the message was refused, and nothing has changed.
        """
        if answer is None:
            return await (await self.message(content, **options)).answer()
        options = {**options, "output_schema": answer.model_json_schema()}
        return await (await self.message(content, **options)).answer(answer)

    async def message(self, content: str, **options: Unpack[MessageOptions]) -> Request:
        """Send a message; back as soon as it is accepted, which is when it can no longer be lost.

        Raises:
            Refusal: the message was refused, and nothing has changed.
        """
        # The id of the Update is the request's id where the caller names none: once in the history is enough. A
        # caller's own comes again, also when it was refused, and what came of an Update is kept with its id.
        update_id = uuid.uuid4().hex
        update = await self._handle.send(
            "message", make_input(MessageInput, {**options, "content": content}), update_id
        )
        return Request(self._handle, options.get("request_id") or update_id, update)

    def request(self, request_id: str) -> Request:
        """A request by its id, whichever client has sent it. The session is not query whether it exists."""
        return Request(self._handle, request_id)

    async def steer(self, content: str, **options: Unpack[InputOptions]) -> InputReceipt:
        """Correct the run in progress: read after its answer, or with `at="step"` before its next model call.

        Raises:
            Idle: nothing is running that could read it.
            Refusal: it was refused otherwise.
        """
        return await _submit(self._handle, "steer", content, options)

    async def inject(self, content: str, **options: Unpack[InputOptions]) -> InputReceipt:
        """Tell the run in progress something, as a program; otherwise like `steer`."""
        return await _submit(self._handle, "inject", content, options)

    async def cancel(
        self,
        request_id: str | None = None,
        *,
        reason: str | None = None,
        inputs: Literal["drop", "follow_up"] | None = None,
    ) -> CancelReceipt:
        """Cancel the request that is served, or one that waits. Inputs that it has not read are dropped by default.

        Raises:
            Idle: no request is served.
            RequestMismatch: `request_id` names neither the request that is served nor one that waits.
        """
        command = {"request_id": request_id, "reason": reason, "inputs": inputs}
        return await self._handle.call("cancel_request", make_input(CancelInput, command), CancelReceipt)

    async def replace_context(
        self,
        messages: Sequence[Message | Mapping[str, Any]],
        *,
        op_id: str,
        context_ref: str | None = None,
        system_prompt: str | None = None,
        base_seq: int | None = None,
        reason: Reason | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> OperationReceipt:
        """Put a snapshot under a lane, by default the active one. While a run is active it waits for its end.

        With `base_seq` the lane's messages after that seq stay. An `op_id` is applied once.

        Raises:
            InvalidOperation: the snapshot is not a valid context, or `base_seq` is not in the thread.
        """
        snapshot: dict[str, Any] = {"messages": list(messages)}
        if system_prompt is not None:
            snapshot["system_prompt"] = system_prompt
        operation = {"reason": reason, "result_context": snapshot, "base_seq": base_seq, "meta": meta}
        return await _operate(self._handle, op_id, context_ref, {"type": "replace", **operation})

    async def reset_context(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Empty a lane, by default the active one. Its messages stay in the thread."""
        return await self.replace_context([], op_id=op_id, context_ref=context_ref)

    async def switch_context(self, context_ref: str, *, op_id: str, reason: Reason | None = None) -> OperationReceipt:
        """Make another lane the active one; a new lane begins empty. While a run is active it waits for its end."""
        return await _operate(self._handle, op_id, context_ref, {"type": "switch", "reason": reason})

    async def summarize(
        self, from_seq: int | None = None, to_seq: int | None = None, *, context_ref: str | None = None
    ) -> SummaryReceipt:
        """Have a model summarize a lane. Back when the summary is committed; contexts show it from then on.

        A summary covers everything up to `to_seq`, by default all but the last turns that the policy keeps. It builds
        on the summary before it; with a `from_seq` that this one covers, everything is read again. `expand` undoes
        it.

        Raises:
            Busy: a request or another summary is in progress.
            NothingToSummarize: the lane has no messages there.
            Refusal: the model wrote no usable summary (`unusable_summary`), or its provider failed.
        """
        command = {"context_ref": context_ref, "from_seq": from_seq, "to_seq": to_seq}
        return await self._handle.call("summarize", make_input(SummarizeInput, command), SummaryReceipt)

    async def compact(
        self, *, op_id: str, context_ref: str | None = None, to_seq: int | None = None
    ) -> OperationReceipt:
        """Have a model summarize a lane, and put the summary under it in place of the messages: a compaction.

        The receipt says `deferred`: the summary is still to be written. If that fails, an `error` entry says so.
        Pinned messages and the last turns stay, and `expand` undoes it.
        """
        operation = {"type": "replace", "reason": "compaction", "base_seq": to_seq}
        return await _operate(self._handle, op_id, context_ref, operation)

    async def expand(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo a lane's latest compaction or summary: contexts show the messages that it covered again.

        Raises:
            InvalidOperation: the lane has neither.
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "expand"})

    async def pin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Keep messages of a lane in all its contexts, word for word, whatever is truncated or summarized.

        Raises:
            InvalidOperation: a seq is none of the lane's messages, or the pins are too many or too large.
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "pin", "seqs": list(seqs)})

    async def unpin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo `pin` for messages of a lane."""
        return await _operate(self._handle, op_id, context_ref, {"type": "unpin", "seqs": list(seqs)})

    async def configure(self, **changes: Unpack[ConfigChanges]) -> ConfigureReceipt:
        """Change the configuration, field by field. While a run is active the change waits for its end.

        Raises:
            InvalidInput: a value is not of the contract's shape, or the policy does not go together.
            InvalidTokenBudget: the policy leaves no budget.
        """
        return await self._handle.call("configure", make_input(ConfigureInput, changes), ConfigureReceipt)

    async def approve(
        self, tool_call_id: str, *, arguments: Mapping[str, Any] | None = None, reason: str | None = None
    ) -> ApprovalReceipt:
        """Let a tool call run that waits for approval. `arguments` replace those of the model.

        Raises:
            AlreadyResolved: the call was approved or denied before.
            UnknownApproval: no such call waits for approval.
            InvalidInput: the tool does not take these arguments.
        """
        return await _resolve(self._handle, tool_call_id, "approve", reason, arguments)

    async def deny(self, tool_call_id: str, *, reason: str | None = None) -> ApprovalReceipt:
        """Keep a tool call from running; the model reads the reason.

        Raises:
            AlreadyResolved: the call was approved or denied before.
            UnknownApproval: no such call waits for approval.
        """
        return await _resolve(self._handle, tool_call_id, "deny", reason, None)

    async def stream(self, request: Request) -> AsyncIterator[StreamState]:
        """The reply to a request as it grows, for any number of readers; the last state is what was committed.

        A new `call_id` is another model call of the run, a new `attempt` starts over.
        """
        async for state in stream_reply(self._handle, request):
            yield state

    async def status(self) -> SessionStatus:
        """What the session is doing."""
        return await read_status(self._handle)

    async def context(
        self,
        *,
        context_ref: str | None = None,
        at_seq: int | None = None,
        call_id: str | None = None,
        context_policy: ContextPolicy | None = None,
        pending: Sequence[str | Mapping[str, Any]] | None = None,
    ) -> Context:
        """The context of a lane: now, at a seq, or as a model call was shown it.

        With `pending`, messages that a user might send next, it is a preview under `context_policy`: `meta.fits` says
        whether they fit, `meta.input_cost_usd` what the prompt would cost. Nothing is committed.

        Raises:
            InvalidInput: there is no such model call, or the policy does not go together.
            InvalidTokenBudget: the policy leaves no budget.
            NotFound: there is no such session.
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
        """A lane's messages as they were said, each with its seq."""
        fields = {"context_ref": context_ref, "from_seq": from_seq, "limit": limit, "include_system": include_system}
        query = make_input(TranscriptQuery, fields)
        return [message async for message in read_transcript(self._handle, query)]

    async def window(self, token_budget: int, *, context_ref: str | None = None) -> Window:
        """The newest messages that fit a budget of tokens."""
        query = make_input(WindowQuery, {"token_budget": token_budget, "context_ref": context_ref})
        return await read_window(self._handle, query)

    async def entries(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> list[Entry]:
        """The thread's entries that meet the filters, in order."""
        return [entry async for entry in self.read(from_seq=from_seq, limit=limit, **filters)]

    async def read(
        self, *, from_seq: int = 0, limit: int | None = None, **filters: Unpack[EntryFilters]
    ) -> AsyncIterator[Entry]:
        """Like `entries`, one by one: no more than a page of the thread is held at a time."""
        query = make_input(EntriesQuery, {**filters, "from_seq": from_seq, "limit": limit})
        async for entry in read_entries(self._handle, query):
            yield entry

    async def checkpoint(self, context_ref: str | None = None, *, expires_seconds: int | None = None) -> str:
        """A lane's context, by default the active one's, and the configuration, as a signed token.

        `Clew.restore` makes a session of it until it expires, by default in 30 days. The token is signed and not
        encrypted: its holder can read the context.

        Raises:
            Busy: a request is served or waits.
            CheckpointUnavailable: the workers have no key for checkpoints.
            TooLarge: the context is larger than a token may be, or than a session takes in one message.
        """
        command = make_input(CheckpointInput, {"context_ref": context_ref, "expires_seconds": expires_seconds})
        return (await self._handle.call("checkpoint", command, CheckpointReceipt)).token

    async def hibernate(self, reason: str | None = None) -> HibernateReceipt:
        """Archive the whole session and end its workflow. `Clew.open` resumes it.

        Raises:
            ArchiveUnavailable: the archive cannot be written at present; the session goes on.
            Busy: a request is served or waits.
        """
        command = make_input(HibernateInput, {"reason": reason})
        receipt = await self._handle.call("hibernate", command, HibernateReceipt)
        await self._handle.wait_for_end()
        return receipt

    async def fork(
        self, at_seq: int | None = None, session_id: str | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> Session:
        """Start a new session that begins with this one's entries up to and with `at_seq`, by default all of them.

        The two share the archived entries and nothing after them. Requests in progress stay with this session. To get
        another answer to a question, fork right before it and ask again. Repeating a fork with the same `session_id`
        gives the same session.

        Raises:
            InvalidInput: there is no such entry, or `session_id` is another session.
            NotFound: there is no such session.
        """
        if at_seq is None:
            at_seq = await read_last_seq(self._handle)
        query = {"session_id": self.id, "at_seq": at_seq, "new_session_id": session_id, "metadata": metadata}
        receipt = await self._handle.run_service(FORK_WORKFLOW, make_input(ForkSessionInput, query))
        return Session(self._handle.client, receipt["session_id"], self._handle.task_queue)

    async def close(self, reason: str | None = None) -> CloseReceipt:
        """Cancel every request and end the session. Back when its workflow has ended and all of it is archived.

        Raises:
            ArchiveUnavailable: the archive cannot be written at present. The session is closed all the same, and ends
                once it is archived; `close` called again waits for that.
            Closed: it has ended already.
        """
        receipt = await self._handle.call("close_session", make_input(CloseInput, {"reason": reason}), CloseReceipt)
        await self._handle.wait_for_end()
        return receipt


async def _submit(
    handle: SessionHandle, kind: Literal["steer", "inject"], content: str, options: InputOptions
) -> InputReceipt:
    command = make_input(SubmitInput, {**options, "kind": kind, "content": content})
    return await handle.call("submit_input", command, InputReceipt)


async def _operate(
    handle: SessionHandle, op_id: str, context_ref: str | None, operation: dict[str, Any]
) -> OperationReceipt:
    fields = {name: value for name, value in operation.items() if value is not None}
    command = make_input(ContextOperation, {"op_id": op_id, "context_ref": context_ref, "operation": fields})
    return await handle.call("submit_context_operation", command, OperationReceipt)


async def _resolve(
    handle: SessionHandle,
    tool_call_id: str,
    decision: Literal["approve", "deny"],
    reason: str | None,
    arguments: Mapping[str, Any] | None,
) -> ApprovalReceipt:
    command = {"tool_call_id": tool_call_id, "decision": decision, "reason": reason, "arguments": arguments}
    return await handle.call("resolve_approval", make_input(ApprovalInput, command), ApprovalReceipt)


def _make_user_message(message: str | Mapping[str, Any]) -> Mapping[str, Any]:
    return {"role": "user", "content": message} if isinstance(message, str) else message
