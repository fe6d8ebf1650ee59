"""The short workflows beside sessions: they do for clients in any language what needs the archive or a worker's keys.

A malformed input fails the workflow, and the type of its failure is the word of the refusal.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel
from pydantic_core import to_json
from temporalio import exceptions, workflow
from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue, RetryPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import ActivityError, ApplicationError, WorkflowAlreadyStartedError

with workflow.unsafe.imports_passed_through():
    from clew.contract import (
        DELETE_WORKFLOW,
        FORK_WORKFLOW,
        MAX_MESSAGE_BYTES,
        MAX_TOKEN_BYTES,
        READ_CONTEXT_WORKFLOW,
        READ_WORKFLOW,
        RESTORE_WORKFLOW,
        DeleteSessionInput,
        ForkSessionInput,
        ReadContextInput,
        ReadThreadInput,
        RestoreInput,
        SessionConfig,
    )
    from clew.contract.outputs import RestoreReceipt
    from clew.contract.starting import make_start_arguments
    from clew.errors import ArchiveUnavailable, InvalidInput, Refusal
    from clew_workflows.protocol import Fork, OpenCheckpoint, OpenedCheckpoint
    from clew_workflows.shell import ingress
    from clew_workflows.shell.execution import HEARTBEAT_TIMEOUT
    from clew_workflows.shell.runtime import STAMPS

CONTEXT_TIMEOUT = timedelta(seconds=90)
CHANGE_TIMEOUT = timedelta(seconds=90)
RESTORE_STEP_TIMEOUT = timedelta(seconds=45)
"""For each of both steps of a restore."""
RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), maximum_interval=timedelta(seconds=5))
M = TypeVar("M", bound=BaseModel)
NO_ARGUMENT = RawValue(Payload())
"""The input of a service that was started without one."""


# What the SDK itself finds wrong with an input ends the workflow too: a failing task would be repeated for ever.
@workflow.defn(name=READ_WORKFLOW, failure_exception_types=[Exception])
class ReadThread:
    """Answers one page of a thread, archived and live as one: `{entries, next_seq?}`.

    Attributes:
        timeout: For all attempts together to read the page.
    """

    timeout: ClassVar[timedelta] = timedelta(seconds=30)

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """One page, and where the next one begins."""
        return await run_activity("read_thread", decode(argument, ReadThreadInput), self.timeout)


@workflow.defn(name=READ_CONTEXT_WORKFLOW, failure_exception_types=[Exception])
class ReadContext:
    """Answers one page of a context, as the query `context` does, of any call and at any seq, archived or not."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """One page, and with which `page` and `at_seq` the next one is asked for."""
        return await run_activity("read_context", decode_context(argument), CONTEXT_TIMEOUT)


@workflow.defn(name=FORK_WORKFLOW, failure_exception_types=[Exception])
class ForkSession:
    """Makes a new session of another one's thread up to an entry: `{session_id, fork_seq}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Back when the new session answers."""
        fields = decode(argument, ForkSessionInput)
        fork = Fork(
            session_id=fields.session_id,
            at_seq=fields.at_seq,
            new_session_id=fields.new_session_id or f"{fields.session_id[:160]}-{workflow.uuid4().hex}",
            metadata=fields.metadata,
            at=STAMPS.make_timestamp(),
            entry_ids=(STAMPS.make_entry_id(), STAMPS.make_entry_id()),
        )
        return await run_activity("fork_session", fork, CHANGE_TIMEOUT)


@workflow.defn(name=RESTORE_WORKFLOW, failure_exception_types=[Exception])
class RestoreSession:
    """Starts a session that goes on from a checkpoint: `{token, session_id?}` -> `{session_id}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """The session has the context under its lane when this answers."""
        fields = decode(argument, RestoreInput, MAX_TOKEN_BYTES + 1_000)
        session_id = fields.session_id or str(workflow.uuid4())
        checkpoint = OpenCheckpoint(token=fields.token, session_id=session_id)
        opened = OpenedCheckpoint.model_validate(
            await run_activity("open_checkpoint", checkpoint, RESTORE_STEP_TIMEOUT)
        )
        start = make_start_arguments(session_id, SessionConfig.model_validate_json(to_json(opened.config)))
        try:
            session = await workflow.start_child_workflow(
                start.workflow,
                start.argument,
                id=start.id,
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                static_summary=start.static_summary,
            )
        except WorkflowAlreadyStartedError:
            raise ingress.make_application_error(InvalidInput(f"there is a session {session_id!r} already")) from None
        try:
            await run_activity("put_context", checkpoint, RESTORE_STEP_TIMEOUT)
        except ApplicationError:
            # Without the context it would be another session than the one that was asked for.
            await session.signal("close", {"reason": "it could not be restored"})
            raise
        return RestoreReceipt(session_id=session_id).as_json()


@workflow.defn(name=DELETE_WORKFLOW, failure_exception_types=[Exception])
class DeleteSession:
    """Ends a session and deletes its archive, without what its forks need: `{deleted_segments}`."""

    @workflow.run
    async def run(self, argument: RawValue = NO_ARGUMENT) -> dict[str, Any]:
        """Back when there is nothing left of it to be read."""
        return await run_activity("delete_session", decode(argument, DeleteSessionInput), CHANGE_TIMEOUT)


SERVICES = (ReadThread, ReadContext, ForkSession, RestoreSession, DeleteSession)


def decode(argument: RawValue, model: type[M], max_bytes: int = MAX_MESSAGE_BYTES) -> M:
    """The input of a service.

    Raises:
        ApplicationError: `invalid_input` or `too_large`, for what cannot be used.
    """
    try:
        return ingress.decode_service([argument], model, max_bytes)
    except Refusal as refusal:
        raise ingress.make_application_error(refusal) from None


def decode_context(argument: RawValue) -> dict[str, Any]:
    """The input of `ReadContext`, with the fields that were given: others would overlay a policy.

    Raises:
        ApplicationError: `invalid_input`, `empty_content` or `too_large`, for what cannot be used.
    """
    try:
        checked = ingress.check_context(decode(argument, ReadContextInput))
    except Refusal as refusal:
        raise ingress.make_application_error(refusal) from None
    return checked.model_dump(mode="json", exclude_unset=True)


async def run_activity(name: str, argument: BaseModel | dict[str, Any], patience: timedelta) -> dict[str, Any]:
    """The answer of an activity; its failure as the workflow's own, under its own word.

    Raises:
        ApplicationError: it was refused, or there was no answer in time: `archive_unavailable`.
    """
    try:
        answer: dict[str, Any] = await workflow.execute_activity(
            name,
            argument,
            result_type=dict,
            schedule_to_close_timeout=patience,
            heartbeat_timeout=HEARTBEAT_TIMEOUT,
            retry_policy=RETRIES,
        )
    except ActivityError as error:
        cause = error.cause
        if isinstance(cause, ApplicationError):
            raise ApplicationError(cause.message, type=cause.type, non_retryable=True) from None
        if isinstance(cause, exceptions.TimeoutError):
            raise ingress.make_application_error(
                ArchiveUnavailable(f"no answer within {patience.total_seconds():g} s")
            ) from None
        raise
    return answer
