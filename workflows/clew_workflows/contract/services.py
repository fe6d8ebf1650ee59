"""The inputs of service workflows, of the calls that other workflows make, and of a session's start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from clew_workflows.contract.commands import MessageInput, SubmitInput
from clew_workflows.contract.config import SessionConfig, SessionStart
from clew_workflows.contract.names import WORKFLOW_TYPE, Id, Metadata, Seq, SessionId
from clew_workflows.contract.outcomes import Output, RequestOutcome
from clew_workflows.contract.queries import ContextQuery, EntriesQuery
from clew_workflows.contract.validation import Input

# The activities through which other workflows reach sessions: their names, their task queue, inputs and answers.


OPEN_SESSION = "open_session"
SEND_MESSAGE = "send_message"
AWAIT_REQUEST = "await_request"
SUBMIT_INPUT = "submit_input"
READ_LAST_SEQ = "read_last_seq"


def name_caller_queue(task_queue: str) -> str:
    """Name the task queue of these activities. One may wait minutes for a request, and takes no slot of sessions."""
    return f"{task_queue}-callers"


class SessionCall(Input):
    """A call to a session. It is the argument of `read_last_seq`.

    Attributes:
        session_id: The session.
        task_queue: The sessions' task queue.
    """

    session_id: SessionId
    task_queue: str


class OpenSessionCall(SessionCall):
    """The argument of `open_session`.

    Attributes:
        config: Fields of the configuration; an existing session keeps its own.
    """

    config: dict[str, Any]


class SendMessageCall(SessionCall):
    """The argument of `send_message`. A session that does not run is opened first.

    Attributes:
        config: Fields of the configuration of a new session.
        message: The message; its `request_id` makes the call repeatable.
    """

    config: dict[str, Any]
    message: MessageInput


class AwaitRequestCall(SessionCall):
    """The argument of `await_request`.

    Attributes:
        request_id: The request.
        wait_seconds: Seconds after which the answer has no outcome if the request has not ended.
    """

    request_id: Id
    wait_seconds: Annotated[int, Field(ge=1, le=3600)]


class SubmitInputCall(SessionCall):
    """The argument of `submit_input`.

    Attributes:
        input: The input, as the update `submit_input` takes it.
    """

    input: SubmitInput


class RequestAnswer(Output):
    """The answer of `await_request`.

    Attributes:
        outcome: The request's outcome. Absent: it has not ended in time.
        text: The text of the answer.
    """

    outcome: RequestOutcome | None = None
    text: str | None = None


# The arguments of the service workflows.


class ReadThreadInput(EntriesQuery):
    """The argument of the workflow `ReadThread`: the filters of the query `entries`, over archive and live session.

    Attributes:
        session_id: The session.
        to_seq: End with this entry.
        newest: Return at most this many of the newest matching entries, in ascending order. Excludes `limit`.
    """

    session_id: SessionId
    to_seq: Seq | None = None
    newest: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _check_limits(self) -> Self:
        if self.newest is not None and self.limit is not None:
            raise ValueError("newest is a limit of its own: leave limit out")
        return self


class ReadContextInput(ContextQuery):
    """The argument of the workflow `ReadContext`: that of the query `context`, for any session, archived or not.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId


class ForkSessionInput(Input):
    """The argument of the workflow `ForkSession`.

    Attributes:
        session_id: The session to fork.
        at_seq: The last entry that the session and the fork share.
        new_session_id: The id of the fork. Absent: one is made.
        metadata: The caller's own names and values; the `fork` entries have them.
    """

    session_id: SessionId
    at_seq: Seq
    new_session_id: SessionId | None = None
    metadata: Metadata | None = None


class RestoreInput(Input):
    """The argument of the workflow `RestoreSession`.

    Attributes:
        token: The token that `checkpoint` returned.
        session_id: The id of the new session. Absent: one is made.
    """

    token: str
    session_id: SessionId | None = None


class DeleteSessionInput(Input):
    """The argument of the workflow `DeleteSession`.

    Attributes:
        session_id: The session.
    """

    session_id: SessionId


# The arguments that start a session's workflow, for a client, a fork, a restore and a recovery alike.


MAX_TITLE = 60
"""Most characters of a title in a summary."""


@dataclass(frozen=True, slots=True)
class StartArguments:
    """The arguments of Temporal's `start_workflow` for a session.

    Attributes:
        workflow: The workflow type.
        argument: The workflow's only argument, as JSON: a `SessionStart`.
        id: The workflow id, which is the session id.
        static_summary: The text beside the workflow in the Temporal UI.
    """

    workflow: str
    argument: dict[str, Any]
    id: str
    static_summary: str


def make_start_arguments(session_id: str, config: SessionConfig) -> StartArguments:
    """Make the arguments that start a session, or wake one from its archive."""
    argument = SessionStart(config=config).model_dump(mode="json", exclude_unset=True)
    summary = f"session · {config.agent or config.model}"
    if title := " ".join(config.metadata.get("title", "").split()):
        summary += f" · {title[:MAX_TITLE]}"
    return StartArguments(WORKFLOW_TYPE, argument, session_id, summary)
