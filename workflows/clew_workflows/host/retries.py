"""When an activity is attempted again: Temporal's policies, and the last attempt of a model call.

The server repeats a failed attempt by the activity's policy, or after the wait that the failure names, as long as the
time of the activity lasts. Of a model call most failures say for themselves whether they are final:
`clew_activities.providers.provider_errors`. These are final although an attempt could follow:

| failure | the last attempt |
| --- | --- |
| a reply that is empty or broken off | the third of them: each was paid for |
| an outage, where the run has a fallback | the third, or the last that begins within 5 seconds; the first, if the model was away a while ago |
| no connection to a provider that this process has never reached | the last that begins within 5 seconds: the address may be wrong |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from temporalio.common import RetryPolicy
from temporalio.exceptions import ApplicationError

from clew_workflows.protocol import OUTAGES

PATIENT = RetryPolicy(
    initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_interval=timedelta(seconds=30)
)
"""For model calls, until the request's time is over, and for the archive, until the store answers."""
SUMMARY_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=4)
"""A session is busy while a summary is written, and can do without it."""
HOOK_RETRIES = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=3)
"""Nothing passes unchecked, so that a request fails if its hooks do."""
STORE_ATTEMPTS = RetryPolicy(initial_interval=timedelta(seconds=1), backoff_coefficient=2, maximum_attempts=3)
"""For the archive while a caller waits. More than one attempt, because a worker may be lost."""

WASTED = ("empty_reply", "truncated_stream")
"""The failures of attempts that were paid for, and came to nothing."""
MAX_WASTED_ATTEMPTS = 3
"""So many of them, and the last is final. An attempt that failed otherwise, or was lost, does not count."""
ATTEMPTS_BEFORE_FALLBACK = 3
"""Attempts after which an outage is final, if the run has a fallback."""
TIME_BEFORE_FALLBACK = timedelta(seconds=5)
"""Time after which no other attempt begins, if the run has a fallback."""
TIME_FOR_FIRST_CONTACT = timedelta(seconds=5)
"""Time after which no other attempt begins, if this process has never had a connection to the provider."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """An attempt of an activity, when it fails.

    Attributes:
        number: Its number; the first is 1.
        policy: The activity's policy; None: the server repeats it without a pause.
        passed: The time since the activity was scheduled, by the server's clock.
        time_left: The time for this attempt and all that follow; None: it has no limit.
    """

    number: int
    policy: RetryPolicy | None
    passed: timedelta
    time_left: timedelta | None

    def compute_delay(self, failure: ApplicationError) -> timedelta | None:
        """Compute when the server starts the next attempt; None: it starts none."""
        delay = self._find_delay(failure)
        return None if delay is None or (self.time_left is not None and delay >= self.time_left) else delay

    def is_last(
        self,
        failure: ApplicationError,
        *,
        has_fallback: bool = False,
        is_away: bool = False,
        is_unknown: bool = False,
    ) -> bool:
        """Whether no attempt of a model call is to follow, although the server would start one.

        Args:
            failure: What it failed with.
            has_fallback: Whether the run calls another model after an outage.
            is_away: Whether the model was away a while ago, too.
            is_unknown: Whether this process has never reached the provider.
        """
        delay = self._find_delay(failure)
        if delay is None:
            return False
        begins = self.passed + delay
        if is_unknown and begins >= TIME_FOR_FIRST_CONTACT:
            return True
        if not has_fallback or failure.type not in OUTAGES:
            return False
        return is_away or self.number >= ATTEMPTS_BEFORE_FALLBACK or begins >= TIME_BEFORE_FALLBACK

    def _find_delay(self, failure: ApplicationError) -> timedelta | None:
        """Find the wait before the next attempt; None: the failure or the policy says that there is none."""
        policy = self.policy
        if failure.non_retryable or (policy and 0 < policy.maximum_attempts <= self.number):
            return None
        delay = failure.next_retry_delay
        if delay is None and policy:
            delay = policy.initial_interval * policy.backoff_coefficient ** min(self.number - 1, 30)
            delay = min(delay, policy.maximum_interval or delay)
        return delay or timedelta()
