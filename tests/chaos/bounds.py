"""The rules of what a session may take: what providers charge for, time, history, and what others wait for it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from clew.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    RunPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.outcomes import Usage
from clew_workflows.thread.entries import Entry
from tests.chaos.model import SPARE

PROVIDER_KEY = "chaos-key-6f1d2c7a90b34e58"
"""The key of the provider, which the workers have. The provider repeats it in its errors."""
LATE_SECONDS = 300.0
"""Seconds by which an outcome may be late: the server, the workers and the store of a session that rolls over may be
away when it is due, one after the other."""
FLOOD_SIGNALS = 300
FLOOD_SECONDS = 45.0
"""Seconds within which another session answers while one is flooded with so many signals."""
TAKEOVER_SECONDS = 40.0
"""Seconds of a request of three, two of whose three workers die meanwhile: others take over its calls within ten, and
its workflow task may have waited as long for a dead worker."""
MAX_COPIES = 2
"""Most activities that get a message as a value: the check of a hook, and another one if the session rolled over."""

Served = Counter[tuple[int, int]]
"""What the provider has served: the numbers of input and output tokens of its replies."""


def check_costs(
    threads: Mapping[str, Sequence[Entry]], inherited: Mapping[str, int], served: Served
) -> Iterator[tuple[str, str]]:
    """Check that each recorded usage is that of one request that was served, and that each run's is their sum.

    A run has estimates, too, of calls that broke off and left no reply, and what a reply took that came as it ended.

    Yields sessions with what is wrong.

    Args:
        threads: The complete thread of each session.
        inherited: The seq up to which the thread of a fork is its parent's.
        served: What the provider has served, not the spare one.
    """
    left, lost = Counter(served), list[tuple[str, tuple[int, int], str]]()
    for session, entries in threads.items():
        sums: dict[str, Usage] = defaultdict(Usage)
        for entry in entries:
            run, own = entry.refs.get("run_id", ""), entry.seq > inherited.get(session, -1)
            match entry.body:
                case AssistantMessage(recipe=recipe) if recipe:
                    sums[run] = sums[run].plus(recipe.call_usage)
                    usage = recipe.usage.input_tokens, recipe.usage.output_tokens
                    if not own or recipe.model == SPARE or recipe.usage.estimated_calls:
                        continue
                    left[usage] -= 1
                    if left[usage] < 0:
                        yield session, f"the reply at {entry.seq} took {usage} tokens, which no request has served"
                case RunPayload(usage=usage, status=status, fallback=fallback) if own and usage.shared_with is None:
                    known = sums[run].output_tokens
                    found = f"{usage.output_tokens} tokens, but the replies of its run have {known}"
                    said = f"the outcome at {entry.seq} has {found}"
                    more = usage.input_tokens - sums[run].input_tokens, usage.output_tokens - known
                    if more[1] < 0 or (more[1] > 0 and status == "completed" and not usage.estimated_calls):
                        yield session, said
                    elif more[1] > 0 and not usage.estimated_calls and fallback is None:
                        lost.append((session, more, said))
    # A reply that comes as its run ends is paid for, and is not in the thread.
    for session, usage_of_reply, said in lost:
        left[usage_of_reply] -= 1
        if left[usage_of_reply] < 0:
            yield session, said


def check_deadlines(entries: Sequence[Entry]) -> Iterator[str]:
    """Check that each request ended in its time. One that waits for people or programs may take longer."""
    limit, began, waits = 0.0, dict[str, float](), set[str]()
    for entry in entries:
        request, at = entry.refs.get("request_id", ""), datetime.fromisoformat(entry.at).timestamp()
        match entry.body:
            case ConfigPayload() as config:
                limit = max(limit, config.request_timeout_seconds)
            case UserMessage():
                began.setdefault(request, at)
            case ApprovalPayload() | ToolMessage(name="wire" | "order" | "helper"):
                waits.add(request)
            case RunPayload(usage=usage) if request in began and not waits & {request, usage.shared_with}:
                # A message that was steered into a run waits for what that one waits for.
                taken = at - began[request]
                if taken > limit + LATE_SECONDS:
                    yield f"{request} took {taken:.0f} seconds, of {limit:g}"


def check_growth(inputs: Sequence[str], entries: Iterable[Entry]) -> Iterator[str]:
    """Check that a history does not hold the conversation once more for each model call.

    Args:
        inputs: The inputs of the activities of a workflow run, as JSON.
        entries: The thread.
    """
    for entry in entries:
        if isinstance(entry.body, UserMessage):
            text = json.dumps(entry.body.text)[1:-1]
            copies = sum(text in one for one in inputs)
            if copies > MAX_COPIES:
                yield f"the message at {entry.seq} is in the inputs of {copies} activities of a history"


def check_secret(place: str, data: bytes) -> Iterator[str]:
    """Check that the provider's key is not in what was stored, logged or shown."""
    if PROVIDER_KEY.encode() in data:
        yield f"{place} has the key of the provider"


def check_takeover(seconds: float) -> Iterator[str]:
    """Check how long a request took whose worker may have died."""
    if seconds > TAKEOVER_SECONDS:
        yield f"a request took {seconds:.0f} seconds, though other workers were there to take it over"


def check_flood(seconds: float) -> Iterator[str]:
    """Check how long another session took to answer while one was flooded."""
    if seconds > FLOOD_SECONDS:
        yield f"another session waited {seconds:.0f} seconds while this one was flooded with signals"
