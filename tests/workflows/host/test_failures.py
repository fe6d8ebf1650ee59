"""Failed activities, told as a caller can act on them."""

from __future__ import annotations

from typing import Any

import pytest
from temporalio import exceptions
from temporalio.exceptions import ActivityError, ApplicationError, CancelledError, RetryState, TimeoutType

from clew_workflows.contract.outcomes import Usage
from clew_workflows.host.execution import LOST_BEGINNING, make_failure, make_stopped
from clew_workflows.protocol import Failure
from tests.support.session_harness import make_reply


def make_activity_error(
    cause: BaseException | None, retry_state: RetryState = RetryState.MAXIMUM_ATTEMPTS_REACHED, started: int = 6
) -> ActivityError:
    """An activity's failure as the workflow sees it."""
    error = ActivityError(
        "Activity task failed",
        scheduled_event_id=5,
        started_event_id=started,
        identity="worker",
        activity_type="call_model",
        activity_id="1",
        retry_state=retry_state,
    )
    error.__cause__ = cause
    return error


def make_timeout(
    kind: TimeoutType | None, last: BaseException | None = None, beat: Any = None, *more: Any
) -> exceptions.TimeoutError:
    beats = [] if beat is None else [beat, *more]
    error = exceptions.TimeoutError("activity timeout", type=kind, last_heartbeat_details=beats)
    error.__cause__ = last
    return error


@pytest.mark.parametrize("kind", [TimeoutType.SCHEDULE_TO_CLOSE, TimeoutType.SCHEDULE_TO_START])
def test_a_request_that_ran_out_of_time_is_a_timeout(kind: TimeoutType) -> None:
    """The error is retryable, and its message names the last failure."""
    assert make_failure(make_activity_error(make_timeout(kind), RetryState.NON_RETRYABLE_FAILURE)) == Failure(
        type="timeout", message="the work was under way", retryable=True
    )
    last = ApplicationError("slow down", type="rate_limited")
    message = make_failure(make_activity_error(make_timeout(kind, last), RetryState.TIMEOUT)).message
    assert message == "the last attempt failed: rate_limited: slow down"


@pytest.mark.parametrize(
    ("beat", "started", "says"),
    [
        ({"call_id": "call-1", "offset": 100, "text": "abc"}, 6, "the reply was being streamed, 103 characters"),
        ({"call_id": "call-1", "offset": 0, "text": ""}, 6, "the model had not begun to reply"),
        (None, 0, "no worker took up the work in time"),
        ("no object", 6, "the work was under way"),
    ],
)
def test_a_timeout_says_what_was_happening(beat: Any, started: int, says: str) -> None:
    """The message is made from the last heartbeat of the activity that the deadline ended."""
    error = make_activity_error(make_timeout(TimeoutType.SCHEDULE_TO_CLOSE, beat=beat), started=started)
    assert make_failure(error).message.startswith(says)


@pytest.mark.parametrize("kind", [TimeoutType.HEARTBEAT, TimeoutType.START_TO_CLOSE])
def test_a_worker_that_went_away_is_worker_lost_while_there_was_time(kind: TimeoutType) -> None:
    """And a timeout where the request's time ended the attempts."""
    lost = make_failure(make_activity_error(make_timeout(kind)))
    assert (lost.type, lost.retryable) == ("worker_lost", True)
    late = make_failure(make_activity_error(make_timeout(kind), RetryState.TIMEOUT))
    assert (late.type, late.retryable) == ("timeout", True)


@pytest.mark.parametrize("details", [(), ({"status": 400},), ("no object",), (None,), ({"limit": 8}, {"other": 1})])
def test_an_application_error_keeps_its_type_message_and_details(details: tuple[Any, ...]) -> None:
    """The details are those of its first one, where that is an object."""
    error = ApplicationError("too long", *details, type="context_length_exceeded", non_retryable=True)
    failure = make_failure(make_activity_error(error, RetryState.NON_RETRYABLE_FAILURE))
    assert (failure.type, failure.message, failure.retryable) == ("context_length_exceeded", "too long", False)
    assert failure.details == (details[0] if details and isinstance(details[0], dict) else {})


def test_what_may_pass_is_retryable() -> None:
    """For the caller, although the attempts have come to their end."""
    assert make_failure(make_activity_error(ApplicationError("later", type="overloaded"))).retryable is True


def test_retries_that_the_deadline_ended_are_a_timeout() -> None:
    """The error is a timeout with the last failure in its message."""
    failure = make_failure(make_activity_error(ApplicationError("try later", type="overloaded"), RetryState.TIMEOUT))
    assert failure == Failure(type="timeout", message="overloaded: try later", retryable=True)


@pytest.mark.parametrize("cause", [None, CancelledError("Cancelled"), ValueError("who knows")])
def test_anything_else_is_internal(cause: BaseException | None) -> None:
    """Never an exception of its own."""
    failure = make_failure(make_activity_error(cause))
    assert failure.type == "internal"
    assert failure.message


def test_an_error_without_a_type_is_internal() -> None:
    assert make_failure(make_activity_error(ApplicationError("?"))).type == "internal"


@pytest.mark.parametrize(
    "error",
    [
        make_activity_error(ApplicationError("x" * 100_000, type="KeyError")),
        make_activity_error(ApplicationError("x" * 100_000, type="KeyError"), RetryState.TIMEOUT),
        make_activity_error(make_timeout(TimeoutType.SCHEDULE_TO_CLOSE, ApplicationError("x" * 100_000))),
        make_activity_error(ValueError("x" * 100_000)),
    ],
)
def test_a_message_has_an_end(error: ActivityError) -> None:
    """An activity may fail with whatever a library put into its message; the thread keeps the beginning."""
    assert len(make_failure(error).message) == 2000


def make_beat(**progress: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Make what a heartbeat of a model call holds."""
    answer = make_reply(stop_reason="interrupted", usage=Usage(input_tokens=7, estimated_calls=1))
    names = {"request_id": "r-1", "run_id": "run-1", "call_id": "call-1", "attempt": 2, "iteration": 1}
    return names | progress, answer.model_dump(mode="json", exclude_defaults=True)


@pytest.mark.parametrize("kind", [TimeoutType.HEARTBEAT, TimeoutType.SCHEDULE_TO_CLOSE])
def test_what_a_lost_worker_has_read_is_in_its_last_heartbeat(kind: TimeoutType) -> None:
    """A reply of which only the end is known begins with a note."""
    for offset, content in ((0, "half"), (9, f"{LOST_BEGINNING.format(9)}half")):
        stopped = make_stopped(make_activity_error(make_timeout(kind, None, *make_beat(offset=offset, text="half"))))
        assert stopped.failure is not None
        assert stopped.answer is not None
        assert stopped.answer.reply.content == content
        assert stopped.answer.reply.usage.estimated_calls == 1


@pytest.mark.parametrize(
    "beats",
    [
        (),
        (make_beat()[0],),
        ("no object", make_beat()[1]),
        ({"text": "of something else"}, make_beat()[1]),
        (make_beat()[0], {"no": "answer"}),
        (make_beat()[0], "no object"),
        (make_beat()[0], None, {"input_tokens": 5}),
    ],
)
def test_another_heartbeat_holds_no_reply(beats: tuple[Any, ...]) -> None:
    """It fails nothing."""
    timeout = make_timeout(TimeoutType.HEARTBEAT, None, *beats)
    assert make_stopped(make_activity_error(timeout)).answer is None


def test_a_failure_has_what_its_worker_has_read() -> None:
    """The details of the error stay apart from it."""
    answer = make_beat()[1] | {"reply": {"content": "half", "stop_reason": "interrupted"}}
    cause = ApplicationError("cut off", {"status": 500}, answer, type="truncated_stream", non_retryable=True)
    stopped = make_stopped(make_activity_error(cause, RetryState.NON_RETRYABLE_FAILURE))
    assert stopped.failure == Failure(type="truncated_stream", message="cut off", details={"status": 500})
    assert stopped.answer is not None
    assert stopped.answer.reply.content == "half"
    for odd in ("no answer", {"reply": 1}):
        cause = ApplicationError("cut off", {}, odd, type="truncated_stream")
        assert make_stopped(make_activity_error(cause)).answer is None
