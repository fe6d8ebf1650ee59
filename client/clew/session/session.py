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

    `Clew.open` opens one, `Clew.session` makes a handle without a call of the server, in any process. A session that
    hibernates or was closed can still be read; open it again to change it.

    Attributes:
        id: The session's id.
        ignored: The fields of the call of `Clew.open` whose value differs in the session, which existed already; with
            the session's values. Empty for a new session.

    Example:
        session = await clew.open("support-4711", agent="support")
        print(await session.ask("Where is my order?"))
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

        Args:
            content: A text, a part (`Image`, `Audio`, `File`), or a list of texts and parts.
            answer: The type of the answer: any type that pydantic can turn into a JSON Schema. None: a text.
            options: The options of the message (`MessageOptions`).

        Returns:
            The text of the answer, or a value of the type `answer`.

        Raises:
            Busy: A request is active, and `on_busy` is `reject`.
            RequestFailed: The request ended without an answer; its `outcome` says why.
            RequestReused: Another message was accepted under the `request_id` before.
            Refusal: The session refused the message. Nothing has changed.
            pydantic.ValidationError: The answer does not match the type `answer`. Types may check more than their
                schemas.

        Example:
            text = await session.ask("Where is my order?", request_id="msg-93", timeout_seconds=60)
            years = await session.ask("Which years?", answer=list[int])
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

        Args:
            content: A text, a part (`Image`, `Audio`, `File`), or a list of texts and parts. Bytes are stored before.
            answer: The type of the answer: any type that pydantic can turn into a JSON Schema, which takes the place
                of `output_schema`. The answer must meet the schema. None: a text.
            options: The options of the message (`MessageOptions`).

        Returns:
            The request. `result` waits for its outcome, `answer` for its answer, and `events` follows it.

        Raises:
            Busy: A request is active, and `on_busy` is `reject`.
            Refusal: The session refused the message. Nothing has changed.
            RequestReused: Another message was accepted under the `request_id` before.
            pydantic.PydanticUserError: Pydantic makes no JSON Schema of the type.

        Example:
            request = await session.message("And the invoice?", request_id="msg-93", on_busy="queue")
            outcome = await request.result()
        """
        return await self._send_message(content, options, answer, awaits_answer=False)

    @overload
    def request(self, request_id: str, *, answer: None = None) -> Request: ...

    @overload
    def request(self, request_id: str, *, answer: TypeForm[T]) -> TypedRequest[T]: ...

    def request(self, request_id: str, *, answer: Any = None) -> Request[Any]:
        """Make a handle of a request that any client has sent, without checking that the request exists.

        Args:
            request_id: The id of the request. A session knows the newest 1 000.
            answer: The type of the answer, as in `message`.

        Example:
            outcome = await session.request("msg-93").result()
        """
        return make_request(self._handle, request_id, answer)

    async def steer(self, content: AnyContent, **options: Unpack[InputOptions]) -> InputReceipt:
        """Send the active run a user's correction. It reads it after the answer, or before the next model call.

        Args:
            content: A text, a part, or a list of texts and parts.
            options: The options of the input (`InputOptions`).

        Returns:
            The id of the input, the request whose run reads it, and its position among those that wait.

        Raises:
            Idle: No request is active or waits.
            RequestMismatch: Another request than `expected_request_id` is active.
            Refusal: The session refused it for another reason.

        Example:
            await session.steer("Only the last order, please", at="step")
        """
        return await _submit(self._handle, "steer", await self._blobs.make_content(content), options)

    async def inject(self, content: AnyContent, **options: Unpack[InputOptions]) -> InputReceipt:
        """Send the active run a program's message. Otherwise the same as `steer`, with its arguments and errors.

        Example:
            await session.inject("The parcel has just arrived", source="tracking")
        """
        return await _submit(self._handle, "inject", await self._blobs.make_content(content), options)

    async def cancel(
        self,
        request_id: str | None = None,
        *,
        reason: str | None = None,
        inputs: Literal["drop", "follow_up"] | None = None,
    ) -> CancelReceipt:
        """Cancel the active request, or one that waits. The text so far stays in the thread.

        Args:
            request_id: The request; None: the active one.
            reason: Why, for people; the outcome has it.
            inputs: What happens to inputs that the run has not read: `drop`, the default, or `follow_up`: another run
                answers them.

        Returns:
            The request, and whether it was cancelled: it may have ended before.

        Raises:
            Idle: No request is active or waits.
            RequestMismatch: `request_id` names neither the active request nor a waiting one.

        Example:
            await session.cancel(reason="the user pressed stop")
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

        Args:
            messages: The new context, oldest message first. Results of tool calls follow right after their calls.
            op_id: The id of the operation; each is applied once. A session knows the newest 128.
            context_ref: The lane; None: the active one.
            system_prompt: The lane's system prompt from then on; None: the session's.
            base_seq: The lane's messages after this seq stay; None: none does.
            reason: Stored with the entry; `manual` by default.
            meta: Names and values that are stored with the entry. No model reads them.

        Returns:
            `applied` with the seq of the entry, `deferred` to the end of the run, or `duplicate`: the id is known.

        Raises:
            InvalidOperation: The snapshot is not a valid context, or `base_seq` is not in the thread.
            RequestReused: Another operation had this `op_id`.

        Example:
            await session.replace_context([{"role": "user", "content": "My order is 1234."}], op_id="op-1")
        """
        snapshot: dict[str, Any] = {"messages": [await self._store_media(message) for message in messages]}
        if system_prompt is not None:
            snapshot["system_prompt"] = system_prompt
        operation = {"reason": reason, "result_context": snapshot, "base_seq": base_seq, "meta": meta}
        return await _operate(self._handle, op_id, context_ref, {"type": "replace", **operation})

    async def reset_context(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Empty a lane's context, by default the active lane's. The messages stay in the thread.

        Args:
            op_id: The id of the operation; each is applied once.
            context_ref: The lane; None: the active one.

        Returns:
            As `replace_context`.

        Example:
            await session.reset_context(op_id="reset-1")
        """
        return await self.replace_context([], op_id=op_id, context_ref=context_ref)

    async def switch_context(self, context_ref: str, *, op_id: str, reason: Reason | None = None) -> OperationReceipt:
        """Make another lane active; a new lane is empty. During a run the switch waits until the run ends.

        Args:
            context_ref: The name of the lane: 1 to 200 characters. The first lane of a session is `default`.
            op_id: The id of the operation; each is applied once.
            reason: Stored with the entry; `manual` by default.

        Returns:
            As `replace_context`.

        Example:
            await session.switch_context("draft", op_id="op-2")
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "switch", "reason": reason})

    async def summarize(
        self, from_seq: int | None = None, to_seq: int | None = None, *, context_ref: str | None = None
    ) -> SummaryReceipt:
        """Have a model summarize a lane, and return when the summary is committed. `expand` undoes it.

        A summary covers all messages up to `to_seq`. It continues the summary before it, unless that one covers
        `from_seq`: then all messages are read again.

        Args:
            from_seq: The first entry that the model reads anew; None: the one after the summary before.
            to_seq: The last entry that is covered; None: all but the last turns that the policy keeps.
            context_ref: The lane; None: the active one.

        Returns:
            The seq of the summary's entry, the entries that it covers, and its tokens.

        Raises:
            Busy: A request is active, or another summary is being written.
            NothingToSummarize: The lane has no messages in this range.
            Refusal: The model wrote no usable summary (`unusable_summary`), or its provider failed.

        Example:
            receipt = await session.summarize()
            print(receipt.to_seq, receipt.tokens)
        """
        command = {"context_ref": context_ref, "from_seq": from_seq, "to_seq": to_seq}
        return await self._handle.call("summarize", make_input(SummarizeInput, command), SummaryReceipt)

    async def compact(
        self, *, op_id: str, context_ref: str | None = None, to_seq: int | None = None
    ) -> OperationReceipt:
        """Have a model summarize a lane, and replace the messages up to `to_seq` by the summary. `expand` undoes it.

        Pinned messages and the last turns stay. An idle session answers when it is done. During a run the receipt is
        `deferred`: the summary is written after it, and a failure is recorded as an `error` entry.

        Args:
            op_id: The id of the operation; each is applied once.
            context_ref: The lane; None: the active one.
            to_seq: The last entry that is covered; None: all but the last turns that the policy keeps.

        Returns:
            As `replace_context`.

        Raises:
            NothingToSummarize: The session is idle, and the lane has no messages in this range.
            Refusal: The model wrote no usable summary (`unusable_summary`), or its provider failed.

        Example:
            await session.compact(op_id="compact-1")
        """
        operation = {"type": "replace", "reason": "compaction", "base_seq": to_seq}
        return await _operate(self._handle, op_id, context_ref, operation)

    async def expand(self, *, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo a lane's latest compaction or summary: contexts show the covered messages again.

        Args:
            op_id: The id of the operation; each is applied once.
            context_ref: The lane; None: the active one.

        Returns:
            As `replace_context`.

        Raises:
            InvalidOperation: The lane has no compaction and no summary.

        Example:
            await session.expand(op_id="expand-1")
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "expand"})

    async def pin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Keep messages in all contexts of their lane, unchanged, also when others are truncated or summarized.

        Args:
            seqs: The seqs of the messages, as `transcript` and `entries` have them.
            op_id: The id of the operation; each is applied once.
            context_ref: The lane; None: the active one.

        Returns:
            As `replace_context`.

        Raises:
            InvalidOperation: A seq is not a message of the lane, or the pins are too many or too large.

        Example:
            await session.pin(1, 4, op_id="pin-1")
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "pin", "seqs": list(seqs)})

    async def unpin(self, *seqs: int, op_id: str, context_ref: str | None = None) -> OperationReceipt:
        """Undo `pin` for messages of a lane. Takes the arguments of `pin`, and raises as it does.

        Example:
            await session.unpin(1, 4, op_id="unpin-1")
        """
        return await _operate(self._handle, op_id, context_ref, {"type": "unpin", "seqs": list(seqs)})

    async def configure(self, **changes: Unpack[ConfigChanges]) -> ConfigureReceipt:
        """Change fields of the configuration. During a run the change waits until the run ends.

        Args:
            changes: The fields to change (`ConfigChanges`). Others stay. `context_policy`, `model_options` and
                `limits` are overlaid field by field; a list replaces the one in force.

        Returns:
            `applied` with the seq of the `config` entry, or `deferred` to the end of the run.

        Raises:
            InvalidInput: A value is not valid, or fields of the policy contradict each other.
            InvalidTokenBudget: The policy leaves no budget for messages.

        Example:
            await session.configure(model="openai:gpt-4.1", limits={"max_cost_usd": 2.0})
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
        """Approve a waiting tool call. It runs at once.

        Args:
            tool_call_id: The call, as `list_waiting_calls` and `status` list it.
            arguments: Replace the model's arguments. The model reads the change. None: they stay.
            reason: Why, for people; at most 2 000 characters. Only the thread has it.
            by: The person that approves: a name or an id. Nobody checks it. Only the thread has it.
            settings: The run goes on with these settings; None: with those that it has.

        Raises:
            AlreadyResolved: The call was approved or denied before.
            UnknownApproval: No such call waits for approval.
            InvalidInput: The arguments do not match the tool's schema.

        Example:
            status = await session.status()
            for call in status.pending_approvals:
                await session.approve(call.tool_call_id, by="ada")
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
        """Deny a waiting tool call. It does not run, and the model reads the reason.

        Args:
            tool_call_id: The call, as `list_waiting_calls` and `status` list it.
            reason: Why, for the model; at most 2 000 characters.
            by: The person that denies: a name or an id. Only the thread has it.
            settings: The run goes on with these settings; None: with those that it has.

        Raises:
            AlreadyResolved: The call was approved or denied before.
            UnknownApproval: No such call waits for approval.

        Example:
            await session.deny("tool00001", reason="only with an invoice", by="ada")
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
        """Answer a waiting call of an external tool.

        Args:
            tool_call_id: The call, as `list_waiting_calls` and `status` list it.
            content: A text; a list of parts, of which at least one is an image, a recording or a file that was stored
                before; or any other JSON value, whose JSON text the model reads.
            is_error: Whether the model reads it as an error.
            by: The person or the program that answers: a name or an id. Only the thread has it.
            settings: The run goes on with these settings, such as another choice of tools; None: with those that it
                has.

        Raises:
            AlreadyAnswered: A result of the call was submitted before.
            CallEnded: The call has timed out, or its run has ended.
            TooLarge: The text of the result is larger than the session's `max_tool_result_bytes`.
            UnknownBlob: A part names a blob that the session does not have.
            UnknownToolCall: No external call of this id waits.

        Example:
            await session.submit_tool_result("tool00001", {"status": "sent"}, by="warehouse")
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

        Yields:
            Events of `clew.session.events`; `type` says which: `entry`, `text`, `thinking`, `tool_started`,
            `tool_progress`, `tool_finished`, `approval_required`, `result_required`, `subagent_waiting`, `retrying`,
            `restarted` and `status`.

        Raises:
            Interrupted: The session's workflow was terminated, or has timed out or failed.
            NotFound: There is no such session.

        Example:
            events = session.follow(0)
            async for event in events:
                if event.type == "entry":
                    print(event.seq, event.entry.kind)
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
            TooLarge: There are more than 50 MiB.
            UnsupportedContent: No model can read a file of that type.
            UploadUnavailable: `direct`, and the workers' store signs no URLs.

        Example:
            blob = await session.put_blob("invoice.pdf")
            await session.ask(["What is the total?", File.from_blob(blob)])
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
            expires_seconds: The URL is valid for so many seconds, and so long the upload can be finished: at most
                3 600.

        Returns:
            The `upload_id`, and the `url`, `method` and `headers` of the browser's request. The URL is a secret.

        Raises:
            ArchiveUnavailable: The store cannot be used at present.
            NotEncrypted: Encryption is on, and a browser has no keys: use `put_blob`.
            TooLarge: No blob may have so many bytes.
            UploadUnavailable: The workers' store signs no URLs, as a local folder does not: use `put_blob`.

        Example:
            upload = await session.start_upload(1_200_000, name="screen.png", media_type="image/png")
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

        Example:
            blob = await session.finish_upload(upload.upload_id)
        """
        return await self._blobs.finish_upload(upload_id)

    async def read_blob(self, blob: Blob | str) -> bytes:
        """Read the bytes of a blob. They are verified.

        Args:
            blob: The description of the blob, as parts of messages have it, or its digest.

        Raises:
            ArchiveDamaged: The stored bytes are not those of the digest.
            UnknownBlob: The session has no such blob.

        Example:
            data = await session.read_blob(part["blob"])
        """
        return b"".join([piece async for piece in self._blobs.read(blob)])

    async def stream_blob(self, blob: Blob | str) -> AsyncGenerator[bytes, None]:
        """Read a blob in pieces. After the last one the digest is verified.

        Args:
            blob: The description of the blob, or its digest.

        Raises:
            ArchiveDamaged: The stored bytes are not those of the digest. The pieces so far are not to be used.
            UnknownBlob: The session has no such blob.

        Example:
            pieces = session.stream_blob(blob)
            async for piece in pieces:
                file.write(piece)
        """
        async with aclosing(self._blobs.read(blob)) as pieces:
            async for piece in pieces:
                yield piece

    async def checkpoint(self, context_ref: str | None = None, *, expires_seconds: int | None = None) -> str:
        """Write a lane's context and the configuration into a signed token, for `Clew.restore`.

        The token is encrypted if the client has keys (`CLEW_ENCRYPTION_KEYS`); otherwise any reader of the token can
        read the context.

        Args:
            context_ref: The lane; None: the active one.
            expires_seconds: The token can be restored for so many seconds; None: 30 days.

        Raises:
            Busy: A request is active or waits.
            CheckpointUnavailable: The workers have no key for checkpoints.
            TooLarge: The context is larger than a token or a session's snapshot may be.

        Example:
            token = await session.checkpoint(expires_seconds=3600)
            copy = await clew.restore(token, session_id="support-4711-b")
        """
        command = make_input(CheckpointInput, {"context_ref": context_ref, "expires_seconds": expires_seconds})
        receipt = await self._handle.call("checkpoint", command, CheckpointReceipt)
        return encrypt_token(self._handle.client, receipt.token)

    async def hibernate(self, reason: str | None = None) -> HibernateReceipt:
        """Archive all of the session and end its workflow. `Clew.open` resumes it.

        Args:
            reason: Why, for people.

        Returns:
            The seq of the thread's last entry.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present. The session continues.
            Busy: A request is active or waits.

        Example:
            await session.hibernate()
        """
        command = make_input(HibernateInput, {"reason": reason})
        return await self._handle.end("hibernate", command, HibernateReceipt)

    async def fork(
        self, at_seq: int | None = None, session_id: str | None = None, *, metadata: Mapping[str, str] | None = None
    ) -> Session:
        """Start a new session that begins with this session's entries.

        Afterwards the sessions are independent; requests in progress stay with this one. Repeating a fork with the
        same `session_id` gives the same session.

        Args:
            at_seq: The seq of the last entry that both have; None: the newest.
            session_id: The id of the new session; None: one is made.
            metadata: Names and values of the new session, beside those that it has from this one.

        Raises:
            InvalidInput: There is no such entry.
            NotFound: There is no such session.
            RequestReused: Another session has this id.
            WorkerUnavailable: The fork may be made in part. The error names the `session_id` and the `at_seq` with
                which a repetition finishes it.

        Example:
            branch = await session.fork(at_seq=10, session_id="support-4711-alt")
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

        Its thread stays readable, and `Clew.open` continues it. `Clew.delete` deletes it.

        Args:
            reason: Why, for people.

        Returns:
            The seq of the thread's last entry.

        Raises:
            ArchiveUnavailable: The archive cannot be written at present. The session is closed, and ends once it is
                archived. Call `close` again to wait for that.
            Closed: The session has ended already.

        Example:
            await session.close("the case is solved")
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
