"""The activities through which other workflows reach sessions: their names, their task queue, inputs and answers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from clew_workflows.contract.inputs import MessageInput, SubmitInput
from clew_workflows.contract.names import Id, SessionId
from clew_workflows.contract.outcomes import Output, RequestOutcome
from clew_workflows.contract.validation import Input

OPEN_SESSION = "open_session"
SEND_MESSAGE = "send_message"
AWAIT_REQUEST = "await_request"
SUBMIT_INPUT = "submit_input"
READ_LAST_SEQ = "read_last_seq"


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
