"""When a model call is attempted again, and when it is not although it could be."""

from dataclasses import replace
from datetime import timedelta

import pytest
from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from clew_workflows.host.retries import PATIENT, Attempt

FIRST = Attempt(number=1, policy=PATIENT, passed=timedelta(0), time_left=timedelta(seconds=60))


def fail(kind: str = "overloaded", *, wait: float | None = None, final: bool = False) -> ApplicationError:
    delay = None if wait is None else timedelta(seconds=wait)
    return ApplicationError("no", type=kind, non_retryable=final, next_retry_delay=delay)


@pytest.mark.parametrize(
    ("attempt", "failure", "seconds"),
    [
        (FIRST, fail(), 1),
        (replace(FIRST, number=4), fail(), 8),
        (replace(FIRST, number=400), fail(), 30),
        (FIRST, fail(wait=7), 7),
        (FIRST, fail(wait=0), 0),
        (FIRST, fail(wait=60), None),
        (replace(FIRST, time_left=None), fail(wait=3600), 3600),
        (FIRST, fail(final=True), None),
        (replace(FIRST, policy=RetryPolicy(maximum_attempts=1)), fail(), None),
        (replace(FIRST, policy=None), fail(), 0),
    ],
)
def test_the_next_attempt_begins_when_the_server_starts_it(
    attempt: Attempt, failure: ApplicationError, seconds: float | None
) -> None:
    """By the policy, or after the wait that the failure names; not at all once the time would be over."""
    assert attempt.compute_delay(failure) == (None if seconds is None else timedelta(seconds=seconds))


def test_a_run_with_a_fallback_waits_neither_often_nor_long() -> None:
    late = replace(FIRST, passed=timedelta(seconds=4.5))
    for attempt, failure, is_away, is_last in (
        (FIRST, fail(), False, False),
        (FIRST, fail(), True, True),
        (replace(FIRST, number=3), fail(), False, True),
        (FIRST, fail(wait=5), False, True),
        (late, fail(), False, True),
        (late, fail("empty_reply"), True, False),
    ):
        assert attempt.is_last(failure, has_fallback=True, is_away=is_away) == is_last
        assert not attempt.is_last(failure, is_away=is_away)


def test_a_provider_that_was_never_reached_is_given_up_soon() -> None:
    """Its address may be wrong, and the caller learns it."""
    assert not FIRST.is_last(fail("provider_unavailable"), is_unknown=True)
    assert replace(FIRST, passed=timedelta(seconds=4)).is_last(fail("provider_unavailable"), is_unknown=True)
