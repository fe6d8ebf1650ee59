"""The service workflows. They give clients in any language what needs the archive or a worker's keys.

A malformed input fails the workflow. The type of its failure is the word of the refusal.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, timedelta
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel
from pydantic_core import to_json
from temporalio import exceptions, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy, SearchAttributeKey, WorkflowIDReusePolicy
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    TemporalError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from clew_workflows.contract import (
        AGENTS_WORKFLOW,
        DELETE_WORKFLOW,
        FINISH_UPLOAD_WORKFLOW,
        FORK_WORKFLOW,
        GET_BLOB_WORKFLOW,
        LIST_WORKFLOW,
        PUT_BLOB_WORKFLOW,
        READ_CONTEXT_WORKFLOW,
        READ_WORKFLOW,
        RESTORE_WORKFLOW,
        SEND_WORKFLOW,
        START_UPLOAD_WORKFLOW,
        CancelInput,
        CloseInput,
        DeleteSessionInput,
        FinishUploadInput,
        ForkSessionInput,
        GetBlobInput,
        ListAgentsInput,
        ListSessionsInput,
        PutBlobInput,
        ReadContextInput,
        ReadThreadInput,
        RestoreInput,
        SendMessageInput,
        SessionConfig,
        StartUploadInput,
    )
    from clew_workflows.contract.calls import (
        AWAIT_REQUEST,
        SEND_MESSAGE,
        AwaitRequestCall,
        RequestAnswer,
        SendMessageCall,
        SessionCall,
    )
    from clew_workflows.contract.config import make_start_arguments
    from clew_workflows.contract.errors import (
        WORDS,
        ArchiveUnavailable,
        ContentMismatch,
        NotFound,
        Refusal,
        TooLarge,
        UnsupportedContent,
        WorkerUnavailable,
    )
    from clew_workflows.contract.limits import MAX_CHUNK_BYTES, MAX_MESSAGE_BYTES, MAX_TOKEN_BYTES
    from clew_workflows.contract.messages import compute_digest
    from clew_workflows.contract.names import DELETED_WORKFLOW, DELIVER_WORKFLOW, name_caller_queue, name_fork
    from clew_workflows.contract.outcomes import RequestOutcome
    from clew_workflows.contract.outputs import EntriesPage, RestoreReceipt, SendMessageReceipt
    from clew_workflows.contract.webhooks import Webhook
    from clew_workflows.host import ingress
    from clew_workflows.host.execution import HEARTBEAT_TIMEOUT, make_failure
    from clew_workflows.host.runtime import STAMPS
    from clew_workflows.protocol import (
        Delivery,
        EndUpload,
        Fork,
        Notice,
        NoticeSent,
        OpenCheckpoint,
        OpenedCheckpoint,
        SendNotice,
    )
    from clew_workflows.session.checkpoints import RESTORE_MEMO, make_op_id

CONTEXT_TIMEOUT = timedelta(seconds=90)
CHANGE_TIMEOUT = timedelta(seconds=90)
BLOB_TIMEOUT = timedelta(seconds=90)
MAX_CHUNK_ARGUMENT_BYTES = 4 * MAX_CHUNK_BYTES // 3 + 10_000
"""Largest argument of `PutBlob`, in bytes of JSON."""
RESTORE_STEP_TIMEOUT = timedelta(seconds=45)
"""The time for each of the two activities of a restore."""
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5))
CALL_RETRIES = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=15))
"""The waits between two attempts to reach a session that is being called."""
M = TypeVar("M", bound=BaseModel)
_FINAL_FOR_BLOBS = (ContentMismatch.type, TooLarge.type, UnsupportedContent.type)
"""The refusals of a blob that no repetition changes."""
NO_ARGUMENT = RawValue(Payload())
"""The argument of a service that was started without one."""


# Any exception ends the workflow: the SDK would otherwise repeat a task that cannot decode its input without end.
@workflow.defn(name=READ_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class ReadThread:
    """Answers one page of a thread, its archived and its live entries: `{entries, next_seq?}`.

    Attributes:
        timeout: The time for all attempts to read the page.
    """

    timeout: ClassVar[timedelta] = timedelta(seconds=30)

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Read a page. `next_seq` is the `from_seq` of the next page."""
        try:
            return await run_activity("read_thread", decode(argument, ReadThreadInput), self.timeout)
        except ApplicationError as error:
            if error.type != NotFound.type:
                raise
            # Clients ask whether there is a session: an answer is no failure, which would stand red in the UI.
            return EntriesPage(entries=[], not_found=error.message).as_dict()


@workflow.defn(name=READ_CONTEXT_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class ReadContext:
    """Answers one page of a context, as the query `context` does, for archived calls and entries too."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Read a page. The answer names the `page` and the `at_seq` of the next query."""
        return await run_activity("read_context", decode_context(argument), CONTEXT_TIMEOUT)


@workflow.defn(name=FORK_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class ForkSession:
    """Makes a new session from another session's thread up to an entry: `{session_id, fork_seq}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Fork the session. Returns when the fork answers."""
        fields = decode(argument, ForkSessionInput)
        fork = Fork(
            session_id=fields.session_id,
            at_seq=fields.at_seq,
            new_session_id=fields.new_session_id or name_fork(fields.session_id, workflow.uuid4().hex),
            metadata=fields.metadata,
            at=STAMPS.make_timestamp(),
            entry_ids=(STAMPS.make_entry_id(), STAMPS.make_entry_id()),
        )
        return await run_activity("fork_session", fork, CHANGE_TIMEOUT, changes=fork.new_session_id)


@workflow.defn(name=RESTORE_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class RestoreSession:
    """Starts a session that continues from a checkpoint: `{token, session_id?}` -> `{session_id}`.

    A repetition finishes an interrupted restore: the session's memo names the token that it was started for.
    """

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Start the session. Returns when its lane holds the checkpoint's context."""
        fields = decode(argument, RestoreInput, MAX_TOKEN_BYTES + 1_000)
        session_id = fields.session_id or str(workflow.uuid4())
        receipt = RestoreReceipt(session_id=session_id).as_dict()
        checkpoint = OpenCheckpoint(token=fields.token, session_id=session_id)
        opened = OpenedCheckpoint.model_validate(
            await run_activity("open_checkpoint", checkpoint, RESTORE_STEP_TIMEOUT)
        )
        if opened.restored == "done":
            return receipt
        start = make_start_arguments(session_id, SessionConfig.model_validate_json(to_json(opened.config)))
        reuse = WorkflowIDReusePolicy
        # `put_context` refuses a session that was not started for this token.
        with suppress(WorkflowAlreadyStartedError):
            await workflow.start_child_workflow(
                start.workflow,
                start.argument,
                id=start.id,
                # A session that has ended before it held the context is opened again.
                id_reuse_policy=reuse.REJECT_DUPLICATE if opened.restored == "no" else reuse.ALLOW_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                memo={RESTORE_MEMO: make_op_id(fields.token)},
                static_summary=start.static_summary,
            )
        await run_activity("put_context", checkpoint, RESTORE_STEP_TIMEOUT, changes=session_id)
        return receipt


@workflow.defn(name=DELETE_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class DeleteSession:
    """Ends a session and its subagents, and deletes their archives, except segments that its forks need.

    It answers `{deleted_segments, deleted_subagents}`.
    """

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Delete the session. The server deletes its histories in the background, which may take a minute or two."""
        deletion = decode(argument, DeleteSessionInput)
        return await run_activity("delete_session", deletion, CHANGE_TIMEOUT, changes=deletion.session_id)


@workflow.defn(name=DELETED_WORKFLOW, sandboxed=False)
class DeletedSession:
    """Answers for a session that was deleted: there is none.

    The server deletes the histories of a session in its own time, and could answer readers from them until then. It
    asks the newest workflow run of an id, which is this one.
    """

    @workflow.run
    async def run(self) -> None:
        """End at once, so that the id can have a new session."""

    @workflow.query(dynamic=True)
    def query(self, _name: str, _args: Sequence[RawValue]) -> dict[str, Any]:
        """Refuse any query."""
        raise ingress.make_query_error(NotFound(f"there is no session {workflow.info().workflow_id!r}"))


@workflow.defn(name=LIST_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class ListSessions:
    """Answers one page of the sessions that have an archive: `{sessions, next_after?}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """List a page. `next_after` is the `after` of the next page."""
        return await run_activity("list_sessions", decode(argument, ListSessionsInput), CHANGE_TIMEOUT)


@workflow.defn(name=AGENTS_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class ListAgents:
    """Answers the agents of the worker that takes its activity: `{agents}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """List the agents."""
        return await run_activity("list_agents", decode(argument, ListAgentsInput), CHANGE_TIMEOUT)


@workflow.defn(name=PUT_BLOB_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class PutBlob:
    """Stores a chunk of a blob: `{session_id, data, ...}` -> `{blob?}`.

    With the last chunk the blob is checked and stored; the other chunks, and the event histories of the workflows
    that have brought them, are deleted then. This workflow's own history is the caller's to delete.
    """

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Store the chunk. The answer has the blob's description once the blob is complete."""
        fields = decode(argument, PutBlobInput, MAX_CHUNK_ARGUMENT_BYTES)
        try:
            # The activity reads the bytes from this workflow's first event. The history has them once.
            receipt = await run_activity("put_blob", fields.model_copy(update={"data": ""}), BLOB_TIMEOUT)
        except ApplicationError as error:
            if error.type in _FINAL_FOR_BLOBS:
                await _end_upload(fields)
            raise
        await _end_upload(fields)
        return receipt


async def _end_upload(fields: PutBlobInput) -> None:
    """Delete the chunks of a blob with the last one. Best effort: what is left is deleted with the session."""
    if fields.upload_id and fields.last:
        with suppress(ApplicationError):
            end = EndUpload(session_id=fields.session_id, upload_id=fields.upload_id)
            await run_activity("end_upload", end, BLOB_TIMEOUT)


@workflow.defn(name=GET_BLOB_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class GetBlob:
    """Answers one page of a blob's bytes: `{session_id, digest, offset?}` -> `{blob, data, next_offset?}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Read a page. `next_offset` is the `offset` of the next page."""
        return await run_activity("get_blob", decode(argument, GetBlobInput), BLOB_TIMEOUT)


@workflow.defn(name=START_UPLOAD_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class StartUpload:
    """Signs a URL of the store for the bytes of one blob: `{session_id, bytes, ...}` -> `{upload_id, url, ...}`.

    The URL is in this workflow's event history, which is the caller's to delete.
    """

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Sign the URL. `FinishUpload` makes a blob of what is uploaded to it."""
        return await run_activity("start_upload", decode(argument, StartUploadInput), BLOB_TIMEOUT)


@workflow.defn(name=FINISH_UPLOAD_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class FinishUpload:
    """Verifies what was uploaded, and stores it as a blob: `{session_id, upload_id}` -> `{blob}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Store the blob. Repeated, it answers the same."""
        return await run_activity("finish_upload", decode(argument, FinishUploadInput), BLOB_TIMEOUT)


@workflow.defn(name=SEND_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class SendMessage:
    """Opens or resumes a session, sends a message, and waits for its outcome: `{session_id, request_id, outcome}`.

    Schedules start it. It fails with the word of the error, or of the refusal, if the request does not complete. If
    it is cancelled, so is the request. The same workflow id is the same request: a second run has no second effect.
    """

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Send the message and wait for the request, for as long as it takes."""
        fields = decode(argument, SendMessageInput)
        session_id = fields.session_id or _make_session_id(fields.session_prefix or "")
        request_id = fields.message.request_id or _make_request_id()
        queue = workflow.info().task_queue
        config = fields.config.model_dump(mode="json", exclude_unset=True) if fields.config else {}
        message = fields.message.model_copy(update={"request_id": request_id})
        call = SendMessageCall(session_id=session_id, task_queue=queue, config=config, message=message)
        closes = fields.session_prefix is not None if fields.close is None else fields.close
        try:
            await _call(SEND_MESSAGE, call)
            outcome = await _await_outcome(session_id, request_id, queue)
        except (asyncio.CancelledError, TemporalError) as error:
            if is_cancelled_exception(error):
                await _cancel_request(session_id, request_id)
                if closes:
                    await _close_session(session_id)
            raise
        if outcome is None:
            # The history is nearly full. The next run finds the same request.
            own = {"session_id": session_id, "session_prefix": None, "message": message, "close": closes}
            again = fields.model_copy(update=own)
            workflow.continue_as_new(again.model_dump(mode="json", exclude_unset=True, exclude_none=True))
        if closes:
            await _close_session(session_id)
        if outcome.status != "completed":
            word = outcome.error.type if outcome.error else outcome.termination_reason or outcome.status
            about = f"request {request_id} of session {session_id} is {outcome.status}"
            message_text = outcome.error.message if outcome.error else outcome.reason
            raise ApplicationError(
                f"{about}: {message_text}" if message_text else about,
                outcome.as_dict(),
                type=word,
                non_retryable=True,
            )
        return SendMessageReceipt(session_id=session_id, request_id=request_id, outcome=outcome).as_dict()


SCHEDULED_AT = SearchAttributeKey.for_datetime("TemporalScheduledStartTime")
"""The search attribute of workflows that a schedule has started: the time that it was due."""
AWAIT_SECONDS = 600
"""Longest time that one activity waits for a request, in seconds. Then the next one is started."""
AWAIT_STEPS = 500
"""Most of these activities in one workflow run. Each adds six events to its history."""
CALL_TIMEOUT = timedelta(minutes=2)
"""The time of one attempt to reach a session."""


def _make_session_id(prefix: str) -> str:
    """Make the id of a new session: by the time that was scheduled, or else by the id of this workflow."""
    info = workflow.info()
    at = info.typed_search_attributes.get(SCHEDULED_AT)
    if at is None:
        return f"{prefix}-{compute_digest(info.workflow_id)[:16]}"
    return f"{prefix}-{at.astimezone(UTC):%Y%m%dT%H%M%SZ}"


def _make_request_id() -> str:
    """Make the request's id of this workflow's, which has the id of a schedule and the scheduled time."""
    workflow_id = workflow.info().workflow_id
    return workflow_id if len(workflow_id) <= 200 else f"sent-{compute_digest(workflow_id)}"


async def _await_outcome(session_id: str, request_id: str, queue: str) -> RequestOutcome | None:
    """Wait for the outcome of a request; None: this workflow run should continue as new first."""
    for _ in range(AWAIT_STEPS):
        step = AwaitRequestCall(
            session_id=session_id, task_queue=queue, request_id=request_id, wait_seconds=AWAIT_SECONDS
        )
        answer = RequestAnswer.model_validate(await _call(AWAIT_REQUEST, step, AWAIT_SECONDS))
        if answer.outcome is not None:
            return answer.outcome
    return None


async def _call(name: str, call: SessionCall, wait_seconds: int = 0) -> dict[str, Any]:
    """Run an activity on the callers' task queue until it succeeds, or is refused for good.

    Raises:
        ApplicationError: The session refused it; the type is the word of the refusal.
    """
    try:
        answer: dict[str, Any] = await workflow.execute_activity(
            name,
            call.model_dump(mode="json", exclude_unset=True, exclude_none=True),
            result_type=dict,
            task_queue=name_caller_queue(call.task_queue),
            start_to_close_timeout=CALL_TIMEOUT + timedelta(seconds=wait_seconds),
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=CALL_RETRIES,
            # The message must have been sent or not when its request is cancelled.
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
            summary=call.session_id,
        )
    except ActivityError as error:
        if isinstance(error.cause, ApplicationError) and error.cause.type:
            raise ApplicationError(error.cause.message, type=error.cause.type, non_retryable=True) from None
        raise
    return answer


async def _cancel_request(session_id: str, request_id: str) -> None:
    """Cancel the request by a signal. A session that has ended has no request."""
    command = CancelInput(request_id=request_id, reason=f"the workflow {workflow.info().workflow_id} was cancelled")
    await _signal(session_id, "cancel", command)


async def _close_session(session_id: str) -> None:
    """Close the session by a signal. One that has ended needs none."""
    await _signal(session_id, "close", CloseInput(reason="the request that it was made for is over"))


async def _signal(session_id: str, name: str, command: CancelInput | CloseInput) -> None:
    with suppress(ApplicationError):
        session = workflow.get_external_workflow_handle(session_id)
        await session.signal(name, command.model_dump(mode="json", exclude_unset=True))


# Deliveries of webhooks: each receiver has attempts of its own, for days.


DELIVERY_TIME = timedelta(days=3)
"""The time for all attempts to reach a receiver."""
ATTEMPT_TIMEOUT = timedelta(seconds=45)
"""The time for one attempt. The activity gives up earlier: this is for a worker that is lost."""
SEND_NOTICE = "send_notice"
"""The activity that sends a notice to one webhook."""
FAILED = "webhook_failed"
"""The type of the failure of a delivery that a receiver has not taken."""


@workflow.defn(name=DELIVER_WORKFLOW, failure_exception_types=[Exception], sandboxed=False)
class DeliverWebhook:
    """Sends one notice to each of its webhooks: `{deliveries: [{host, status, attempt}]}`. Sessions start it.

    It fails if a receiver has not taken the notice within `DELIVERY_TIME`.

    Attributes:
        retries: The waits between two attempts.
    """

    retries: ClassVar[RetryPolicy] = RetryPolicy(
        initial_interval=timedelta(seconds=5), backoff_coefficient=3, maximum_interval=timedelta(hours=6)
    )

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Send the notice."""
        delivery = decode(argument, Delivery)
        ends = await asyncio.gather(*(self._send(delivery.notice, webhook) for webhook in delivery.webhooks))
        if problems := [end for end in ends if isinstance(end, str)]:
            raise ApplicationError("; ".join(problems)[:2000], type=FAILED, non_retryable=True)
        return {"deliveries": ends}

    async def _send(self, notice: Notice, webhook: Webhook) -> dict[str, Any] | str:
        """Send a notice to a webhook; return what came of it, or why the receiver has not taken it."""
        host = urlsplit(webhook.url).hostname or ""
        try:
            sent = await workflow.execute_activity(
                SEND_NOTICE,
                SendNotice(notice=notice, webhook=webhook),
                result_type=NoticeSent,
                task_queue=name_caller_queue(workflow.info().task_queue),
                schedule_to_close_timeout=DELIVERY_TIME,
                start_to_close_timeout=ATTEMPT_TIMEOUT,
                heartbeat_timeout=HEARTBEAT_TIMEOUT,
                retry_policy=self.retries,
                summary=f"{notice.message.type} to {host}"[:200],
            )
        except ActivityError as error:
            failure = make_failure(error)
            return f"{host}: {failure.type}: {failure.message}"
        return {"host": host, **sent.model_dump(mode="json")}


SERVICES = (
    ReadThread,
    ReadContext,
    ForkSession,
    RestoreSession,
    DeleteSession,
    ListAgents,
    ListSessions,
    PutBlob,
    GetBlob,
    StartUpload,
    FinishUpload,
    SendMessage,
)
"""The workflows that callers start."""
WORKFLOWS = (*SERVICES, DeletedSession, DeliverWebhook)
"""All workflows beside the session."""


def decode(argument: RawValue, model: type[M], max_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """Decode the input of a service.

    Raises:
        ApplicationError: The input is malformed (`invalid_input`), larger than `max_bytes` (`too_large`), not
            encrypted where it must be (`not_encrypted`), or cannot be decrypted (`unknown_key`).
    """
    try:
        args = [] if argument is NO_ARGUMENT else [argument]
        if not workflow.unsafe.is_replaying() and (refusal := ingress.find_refusal(args)):
            raise refusal
        return ingress.decode_service([argument], model, max_bytes)
    except Refusal as refusal:
        raise ingress.make_application_error(refusal) from None


def decode_context(argument: RawValue) -> dict[str, Any]:
    """Decode the input of `ReadContext`, without fields at their defaults: they would override the policy in force.

    Raises:
        ApplicationError: The input is malformed (`invalid_input`), a pending message is empty (`empty_content`), or
            the input or a prompt is too large (`too_large`).
    """
    try:
        query = ingress.check_context(decode(argument, ReadContextInput))
    except Refusal as refusal:
        raise ingress.make_application_error(refusal) from None
    return query.model_dump(mode="json", exclude_unset=True)


async def run_activity(
    name: str, argument: BaseModel | dict[str, Any], time_limit: timedelta, *, changes: str | None = None
) -> dict[str, Any]:
    """Run an activity and return its answer.

    Args:
        name: The activity.
        argument: What it receives.
        time_limit: The time for all attempts.
        changes: The session that an attempt may change, or make; None: there is none.

    Raises:
        ApplicationError: The activity failed. The type is the activity's own if that is a word of the contract. It is
            `archive_unavailable` if the time is over and nothing has changed, else `worker_unavailable`.
    """
    try:
        answer: dict[str, Any] = await workflow.execute_activity(
            name,
            argument,
            result_type=dict,
            schedule_to_close_timeout=time_limit,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
    except ActivityError as error:
        cause, seconds = error.cause, time_limit.total_seconds()
        # A final failure was raised with a word. Of the others the server reports the last one when the time is over.
        if isinstance(cause, ApplicationError) and (cause.non_retryable or cause.type in WORDS):
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from None
        if isinstance(cause, exceptions.TimeoutError) and changes is None:
            raise ingress.make_application_error(ArchiveUnavailable(f"no answer within {seconds:g} s")) from None
        if is_cancelled_exception(error):
            raise
        about = "" if changes is None else f" for session {changes!r}"
        message = f"{name}{about} has not ended within {seconds:g} s, it may be done yet: repeat it with the same ids"
        raise ingress.make_application_error(WorkerUnavailable(f"{message} ({str(cause)[:500]})")) from None
    return answer
