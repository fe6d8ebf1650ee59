"""A session: a method for each update, query and service workflow of the wire contract."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from types import MappingProxyType
from typing import Any, Literal, TypeVar, Unpack, overload

from pydantic import TypeAdapter
from temporalio.client import Client
from typing_extensions import TypeForm

from clew.content import AnyContent
from clew.session._encryption import encrypt_token
from clew.session.events import SessionEvent, follow_session
from clew.session.handle import SessionHandle, make_id, name_repetition
from clew.session.keywords import ConfigChanges, InputOptions, MessageOptions
from clew.session.request import Request, TypedRequest, make_request, warn_of_retries
from clew.session.session_blobs import BlobSource
from clew.session.session_reads import SessionReads, read_newest_entry, read_thread
from clew.session.transport import drop_absent, make_input
from clew_workflows.contract import (
    FORK_WORKFLOW,
    TASK_QUEUE,
    ApprovalInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ForkSessionInput,
    HibernateInput,
    MessageInput,
    ReadThreadInput,
    RunSettings,
    SubmitInput,
    SummarizeInput,
    ToolResultInput,
)
from clew_workflows.contract.content import Blob, Content
from clew_workflows.contract.errors import NotFound
from clew_workflows.contract.limits import UPLOAD_SECONDS
from clew_workflows.contract.messages import Message
from clew_workflows.contract.names import name_fork
from clew_workflows.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    CheckpointReceipt,
    CloseReceipt,
    ConfigureReceipt,
    HibernateReceipt,
    InputReceipt,
    LiveStatus,
    OperationReceipt,
    SummaryReceipt,
    ToolResultReceipt,
    UploadReceipt,
)
from clew_workflows.contract.payloads import ForkPayload

T = TypeVar("T")
Reason = Literal["manual", "restore", "compaction", "system"]
"""Why a context is replaced, stored with the operation's entry."""


class Session(SessionReads):
    """One durable session. It serves one request at a time: use two sessions for two conversations.

    Attributes:
        id: The session's id.
        ignored: The fields of the call of `Clew.open` whose value differs in the session, which existed already; with
            the session's values.
    """

    def __init__(
        self,
        client: Client,
        session_id: str,
        task_queue: str = TASK_QUEUE,
        ignored: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(SessionHandle(client, session_id, task_queue))
        self.id = session_id
        self.ignored = ignored

    def __repr__(self) -> str:
        return f"<session {self.id}>"

    @overload
    async def ask(self, content: AnyContent, *, answer: None = None, **options: Unpack[MessageOptions]) -> str: ...

    @overload
    async def ask(self, content: AnyContent, *, answer: TypeForm[T], **options: Unpack[MessageOptions]) -> T: ...

    async def ask(self, content: AnyContent, *, answer: Any = None, **options: Unpack[MessageOptions]) -> Any:
        """Send a message and wait for the answer. Takes the options of `message`. Logs why a model call is retried.

        Raises:
            RequestFailed: The request ended without an answer.
            Refusal: The session refused the message. Nothing has changed.
            pydantic.ValidationError: The answer does not match the type `answer`. Types may check more than their
                schemas.
        """
        async with warn_of_retries(self._handle):
            return await (await self._send_message(content, options, answer, awaits_answer=True)).answer()

    @overload
    async def message(
        self, content: AnyContent, *, answer: None = None, **options: Unpack[MessageOptions]
    ) -> Request: ...

    @overload
    async def message(
        self, content: AnyContent, *, answer: TypeForm[T], **options: Unpack[MessageOptions]
    ) -> TypedRequest[T]: ...

    async def message(
        self, content: AnyContent, *, answer: Any = None, **options: Unpack[MessageOptions]
    ) -> Request[Any]:
        """Send a message and return when it is accepted. From then on it is durable.

        While the session starts, or ends a run that was cancelled, it takes the message in and decides afterwards:
        then `Request.result` raises the refusal. So it does with a message that names blobs, which a worker checks
        before the session decides: an `UnknownBlob` is raised by `Request.result`.

        `answer` is the type of the answer: any type that pydantic can turn into a JSON Schema, which takes the place
        of `output_schema`. The answer must meet the schema.

        Raises:
            Refusal: The session refused the message. Nothing has changed.
            RequestReused: Another message was accepted under the `request_id` before.
            pydantic.PydanticUserError: Pydantic makes no JSON Schema of the type.
        """
        return await self._send_message(content, options, answer, awaits_answer=False)

    @overload
    def request(self, request_id: str, *, answer: None = None) -> Request: ...

    @overload
    def request(self, request_id: str, *, answer: TypeForm[T]) -> TypedRequest[T]: ...

    def request(self, request_id: str, *, answer: Any = None) -> Request[Any]:
        """Make a handle of a request that any client has sent, without checking that the request exists.

        `answer`: the type of the answer, as in `message`.
        """
        return make_request(self._handle, request_id, answer)

    async def steer(self, content: AnyContent, **options: Unpack[InputOptions]) -> InputReceipt:
        """Send the active run a user's correction. It reads it after the answer, or before the next model call.

        Raises:
            Idle: No request is active or waits.
            RequestMismatch: Another request than `expected_request_id` is active.
            Refusal: The session refused it for another reason.
        """
        return await _submit(self._handle, "steer", await self._blobs.make_content(content), options)

    async def inject(self, content: AnyContent, **options: Unpack[InputOptions]) -> InputReceipt:
        """Send the active run a program's message. Otherwise the same as `steer`."""
        return await _submit(self._handle, "inject", await self._blobs.make_content(content), options)

    async def cancel(
        self,
        request_id: str | None = None,
        *,
        reason: str | None = None,
        inputs: Literal["drop", "follow_up"] | None = None,
    ) -> CancelReceipt:
        """Cancel the active request, or the one that `request_id` names. Unread inputs are dropped by default.

        Raises:
            Idle: No request is active or waits.
            RequestMismatch: `request_id` names neither the active request nor a waiting one.
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
        """Replace a lane's context by a snapshot. During a run the operation waits until the run ends.

        An `op_id` is applied once. With `base_seq` the lane's messages after that seq stay, else none does. `reason`
        (`manual` by default) and `meta` are stored with the entry.

        Raises:
            InvalidOperation: The snapshot is not a valid context, or `base_seq` is not in the thread.
        """
        snapshot: dict[str, Any] = {"messages": [await self._store_media(message) for message in messages]}
        if system_prompt is not None:
            snapshot["system_prompt"] = system_prompt
        operation = {"reason": reason, "result_context": snapshot, "base_seq": base_seq, "meta": meta}
        return await _operate(self._handle, op_id, context_ref, {"type": "replace", **operation})

    async def reset_context(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Empty a lane's context, by default the active lane's. The messages stay in the thread."""
        return await self.replace_context([], op_id=op_id, context_ref=context_ref)

    async def switch_context(self, context_ref: str, *, op_id: str, reason: Reason | None = None) -> OperationReceipt:
        """Make another lane active; a new lane is empty. During a run the switch waits until the run ends."""
        return await _operate(self._handle, op_id, context_ref, {"type": "switch", "reason": reason})

    async def summarize(
        self, from_seq: int | None = None, to_seq: int | None = None, *, context_ref: str | None = None
    ) -> SummaryReceipt:
        """Have a model summarize a lane, and return when the summary is committed. `expand` undoes it.

        A summary covers all messages up to `to_seq`, by default all but the last turns that the policy keeps. It
        continues the summary before it, unless that one covers `from_seq`: then all messages are read again.

        Raises:
            Busy: A request is active, or another summary is being written.
            NothingToSummarize: The lane has no messages in this range.
            Refusal: The model wrote no usable summary (`unusable_summary`), or its provider failed.
        """
        command = {"context_ref": context_ref, "from_seq": from_seq, "to_seq": to_seq}
        return await self._handle.call("summarize", make_input(SummarizeInput, command), SummaryReceipt)

    async def compact(
        self, *, op_id: str, context_ref: str | None = None, to_seq: int | None = None
    ) -> OperationReceipt:
        """Have a model summarize a lane, and replace the messages up to `to_seq` by the summary. `expand` undoes it.

        Pinned messages and the last turns stay. An idle session answers when it is done. During a run the receipt is
        `deferred`: the summary is written after it, and a failure is recorded as an `error` entry.

        Raises:
            NothingToSummarize: The session is idle, and the lane has no messages in this range.
            Refusal: The model wrote no usable summary (`unusable_summary`), or its provider failed.
        """
        operation = {"type": "replace", "reason": "compaction", "base_seq": to_seq}
        return await _operate(self._handle, op_id, context_ref, operation)

    async def expand(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo a lane's latest compaction or summary: contexts show the covered messages again.

        Raises:
            InvalidOperation: The lane has no compaction and no summary.
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "expand"})

    async def pin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Keep messages in all contexts of their lane, unchanged, also when others are truncated or summarized.

        Raises:
            InvalidOperation: A seq is not a message of the lane, or the pins are too many or too large.
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "pin", "seqs": list(seqs)})

    async def unpin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo `pin` for messages of a lane."""
        return await _operate(self._handle, op_id, context_ref, {"type": "unpin", "seqs": list(seqs)})

    async def configure(self, **changes: Unpack[ConfigChanges]) -> ConfigureReceipt:
        """Change fields of the configuration. During a run the change waits until the run ends.

        Raises:
            InvalidInput: A value is not valid, or fields of the policy contradict each other.
            InvalidTokenBudget: The policy leaves no budget for messages.
        """
        return await self._handle.call("configure", make_input(ConfigureInput, changes), ConfigureReceipt)

    async def approve(
        self,
        tool_call_id: str,
        *,
        arguments: Mapping[str, Any] | None = None,
        reason: str | None = None,
        by: str | None = None,
        settings: RunSettings | Mapping[str, Any] | None = None,
    ) -> ApprovalReceipt:
        """Approve a waiting tool call. `arguments` replace those of the model.

        The run goes on with the `settings`; None: with those that it has.

        Only the thread has the `reason` and `by`, the person that approves: no model reads them.

        Raises:
            AlreadyResolved: The call was approved or denied before.
            UnknownApproval: No such call waits for approval.
            InvalidInput: The arguments do not match the tool's schema.
        """
        fields = {"reason": reason, "by": by, "arguments": arguments, "settings": settings}
        return await _resolve(self._handle, tool_call_id, "approve", **fields)

    async def deny(
        self,
        tool_call_id: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        settings: RunSettings | Mapping[str, Any] | None = None,
    ) -> ApprovalReceipt:
        """Deny a waiting tool call. The model reads the reason. `by` is a name or an id, for the thread alone.

        The run goes on with the `settings`; None: with those that it has.

        Raises:
            AlreadyResolved: The call was approved or denied before.
            UnknownApproval: No such call waits for approval.
        """
        return await _resolve(self._handle, tool_call_id, "deny", reason=reason, by=by, settings=settings)

    async def submit_tool_result(
        self,
        tool_call_id: str,
        content: Any,
        *,
        is_error: bool = False,
        by: str | None = None,
        settings: RunSettings | Mapping[str, Any] | None = None,
    ) -> ToolResultReceipt:
        """Answer a waiting call of an external tool. `content` is a text, or any other JSON value.

        The run goes on with the `settings`, such as another choice of tools; None: with those that it has.

        `by` is the name or the id of the person or program that answers; only the thread has it.

        Raises:
            AlreadyAnswered: A result of the call was submitted before.
            CallEnded: The call has timed out, or its run has ended.
            TooLarge: The text of the result is larger than the session's `max_tool_result_bytes`.
            UnknownToolCall: No external call of this id waits.
        """
        command = {
            "tool_call_id": tool_call_id,
            "content": "null" if content is None else content,
            "is_error": is_error,
            "by": by,
            "settings": settings,
        }
        return await self._handle.call("submit_tool_result", make_input(ToolResultInput, command), ToolResultReceipt)

    async def follow(self, from_seq: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        """Follow the session: yield each entry once and in order, and what happens between the entries.

        It costs the session nothing: all viewers of a process share one reader, which waits at the server. It goes on
        over rollovers, hibernation, lost workers and lost connections, and ends after the session has been closed.
        The events between the entries are for display: a slow viewer gets fewer and larger ones.

        Args:
            from_seq: Seq of the first entry; None: begin with the next entry that is committed.

        Raises:
            Interrupted: The session's workflow was terminated, or has timed out or failed.
            NotFound: There is no such session.
        """
        async with aclosing(follow_session(self._handle, from_seq)) as events:
            async for event in events:
                if not isinstance(event, LiveStatus):
                    yield event

    async def put_blob(
        self, source: BlobSource, *, media_type: str | None = None, name: str | None = None, direct: bool = False
    ) -> Blob:
        """Store an image, a recording or a file, and return its description, which parts of messages name.

        The session need not exist yet. The methods that send content store what they are given; this one is for bytes
        that are sent later, or several times.

        Args:
            source: The bytes, the path of a file, or a stream of bytes, of which one chunk is in memory.
            media_type: The type, such as `application/pdf`; None: that of the first bytes.
            name: The name of the file; None: that of a path.
            direct: Upload the bytes to the workers' store itself instead of through Temporal. The store must sign
                URLs, as S3, Google Cloud Storage and Azure do. Where encryption is on they are encrypted before. They
                are all in memory.

        Raises:
            ArchiveUnavailable: The store has not taken the upload.
            ContentMismatch: The bytes have another type than `media_type`.
            TooLarge: There are too many.
            UnsupportedContent: No model can read a file of that type.
            UploadUnavailable: `direct`, and the workers' store signs no URLs.
        """
        return await self._blobs.put(source, media_type, name, direct=direct)

    async def start_upload(
        self,
        size: int,
        *,
        media_type: str | None = None,
        name: str | None = None,
        digest: str | None = None,
        expires_seconds: int = UPLOAD_SECONDS,
    ) -> UploadReceipt:
        """Have a URL of the store signed, to which a browser uploads a file without passing through the backend.

        The browser sends the bytes to the answer's `url`, with its `method` and its `headers`. `finish_upload` makes
        a blob of them. The bucket must allow the page's origin (CORS).

        Args:
            size: The number of bytes. More are refused.
            media_type: The type that they must have; None: that of the first bytes.
            name: The name of the file.
            digest: The SHA-256 that they must have; None: any.
            expires_seconds: The URL is valid for so long, and so long the upload can be finished.

        Raises:
            ArchiveUnavailable: The store cannot be used at present.
            NotEncrypted: Encryption is on, and a browser has no keys: use `put_blob`.
            TooLarge: No blob may have so many bytes.
            UploadUnavailable: The workers' store signs no URLs, as a local folder does not: use `put_blob`.
        """
        return await self._blobs.start_upload(
            bytes=size, media_type=media_type, name=name, digest=digest, expires_seconds=expires_seconds
        )

    async def finish_upload(self, upload_id: str) -> Blob:
        """Verify what was uploaded, and store it. Return its description, which parts of messages name.

        It can be repeated. What is refused for its content is deleted: start another upload.

        Raises:
            ContentMismatch: The bytes have another number, type or digest than was declared.
            TooLarge: There are more than was declared.
            UnknownUpload: The session has no such upload, or nothing was uploaded.
            UnsupportedContent: No model can read a file of that type.
            UploadExpired: The time of the upload is over.
        """
        return await self._blobs.finish_upload(upload_id)

    async def read_blob(self, blob: Blob | str) -> bytes:
        """Read the bytes of a blob, which a description or a digest names. They are verified.

        Raises:
            ArchiveDamaged: The stored bytes are not those of the digest.
            UnknownBlob: The session has no such blob.
        """
        return b"".join([piece async for piece in self._blobs.read(blob)])

    async def stream_blob(self, blob: Blob | str) -> AsyncGenerator[bytes, None]:
        """Read a blob in pieces. After the last one the digest is verified; raises as `read_blob` does."""
        async with aclosing(self._blobs.read(blob)) as pieces:
            async for piece in pieces:
                yield piece

    async def checkpoint(self, context_ref: str | None = None, *, expires_seconds: int | None = None) -> str:
        """Write a lane's context and the configuration into a signed token, for `Clew.restore`.

        The token is encrypted if the client has keys (`CLEW_ENCRYPTION_KEYS`); otherwise any reader of the token can
        read the context. It expires after 30 days by default.

        Raises:
            Busy: A request is active or waits.
            CheckpointUnavailable: The workers have no key for checkpoints.
            TooLarge: The context is larger than a token or a session's snapshot may be.
        """
        command = make_input(CheckpointInput, {"context_ref": context_ref, "expires_seconds": expires_seconds})
        receipt = await self._handle.call("checkpoint", command, CheckpointReceipt)
        return encrypt_token(self._handle.client, receipt.token)

    async def hibernate(self, reason: str | None = None) -> HibernateReceipt:
        """Archive all of the session and end its workflow. `Clew.open` resumes it.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present. The session continues.
            Busy: A request is active or waits.
        """
        command = make_input(HibernateInput, {"reason": reason})
        return await self._handle.end("hibernate", command, HibernateReceipt)

    async def fork(
        self, at_seq: int | None = None, session_id: str | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> Session:
        """Start a new session that begins with this session's entries.

        `at_seq` is the last entry that both have, by default the newest. Afterwards the sessions are independent;
        requests in progress stay with this one. Repeating a fork with the same `session_id` gives the same session.

        Raises:
            InvalidInput: There is no such entry.
            NotFound: There is no such session.
            RequestReused: Another session has this id.
            WorkerUnavailable: The fork may be made in part. The error names the `session_id` and the `at_seq` with
                which a repetition finishes it.
        """
        fork_id = name_fork(self.id, uuid.uuid4().hex) if session_id is None else session_id
        if at_seq is None and session_id is not None:
            # A repetition has the first call's entry: the newest one tells of the fork by now.
            at_seq = await self._find_fork(session_id)
        if at_seq is None:
            newest = await read_newest_entry(self._handle)
            at_seq = newest.seq if newest else -1
        query = {"session_id": self.id, "at_seq": at_seq, "new_session_id": fork_id, "metadata": metadata}
        with name_repetition(fork_id, f" and the entry {at_seq}"):
            await self._handle.run_service(FORK_WORKFLOW, make_input(ForkSessionInput, query))
        return Session(self._handle.client, fork_id, self._handle.task_queue)

    async def _find_fork(self, session_id: str) -> int | None:
        """Find the last entry that a fork shares with this session; None: there is no such fork yet."""
        handle, origin = SessionHandle(self._handle.client, session_id, self._handle.task_queue), None
        query = make_input(ReadThreadInput, {"session_id": session_id, "kind": "fork"})
        with suppress(NotFound):
            async for entry in read_thread(handle, query):
                body = entry.read(ForkPayload)
                origin = body if body.event == "forked_from" else origin
        return origin.fork_seq if origin and origin.session_id == self.id else None

    async def close(self, reason: str | None = None) -> CloseReceipt:
        """Cancel every request and end the session. Return when all of it is archived and its workflow has ended.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present. The session is closed, and ends once it is
                archived. Call `close` again to wait for that.
            Closed: The session has ended already.
        """
        return await self._handle.end("close_session", make_input(CloseInput, {"reason": reason}), CloseReceipt)

    async def _send_message(
        self, content: AnyContent, options: MessageOptions, answer: Any, *, awaits_answer: bool
    ) -> Request[Any]:
        if answer is not None:
            options = {**options, "output_schema": TypeAdapter[Any](answer).json_schema()}
        # Without a `request_id` the Update's id names the request. A caller's id is never used as the Update's:
        # Temporal would answer a repeated message with the first one's refusal.
        update_id = make_id()
        fields: dict[str, Any] = {**options, "content": await self._blobs.make_content(content)}
        if replies := options.get("replies"):
            fields["replies"] = [await self._store_media(reply) for reply in replies]
        message = make_input(MessageInput, fields)
        update = await self._handle.send("message", message, update_id, awaits_answer=awaits_answer)
        return make_request(self._handle, options.get("request_id") or update_id, answer, update)


async def _submit(
    handle: SessionHandle, kind: Literal["steer", "inject"], content: Content, options: InputOptions
) -> InputReceipt:
    command = make_input(SubmitInput, {**options, "kind": kind, "content": content})
    return await handle.call("submit_input", command, InputReceipt)


async def _operate(
    handle: SessionHandle, op_id: str, context_ref: str | None, operation: dict[str, Any]
) -> OperationReceipt:
    fields = {"op_id": op_id, "context_ref": context_ref, "operation": drop_absent(operation)}
    command = make_input(ContextOperation, fields)
    return await handle.call("submit_context_operation", command, OperationReceipt)


async def _resolve(
    handle: SessionHandle, tool_call_id: str, decision: Literal["approve", "deny"], **fields: Any
) -> ApprovalReceipt:
    command = {"tool_call_id": tool_call_id, "decision": decision} | fields
    return await handle.call("resolve_approval", make_input(ApprovalInput, command), ApprovalReceipt)
