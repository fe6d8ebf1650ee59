"""The rules of costs, time, history and secrets find what is not as it should be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from clew_workflows.thread.entries import Entry
from tests.chaos.bounds import (
    FLOOD_SECONDS,
    LATE_SECONDS,
    MAX_COPIES,
    PROVIDER_KEY,
    check_costs,
    check_deadlines,
    check_flood,
    check_growth,
    check_secret,
)
from tests.chaos.model import FIRST, SPARE
from tests.chaos.test_rules import change, change_model, is_outcome, make_thread


def make_paid_thread(tokens: int = 9) -> list[Entry]:
    """A reply of so many tokens by the first model, and an outcome that says so."""
    entries = change_model(make_thread("fine"), FIRST)
    usage = {"input_tokens": 40, "output_tokens": tokens, "cached_input_tokens": 0, "model_calls": 1}
    recipe = next(entry.payload["recipe"] for entry in entries if "recipe" in entry.payload)
    entries = change(entries, lambda entry: "recipe" in entry.payload, recipe={**recipe, "usage": usage})
    return change(entries, is_outcome, usage=usage)


def list_costs(entries: Sequence[Entry], *served: tuple[int, int], inherited: int = -1) -> list[str]:
    return [problem for _, problem in check_costs({"s-1": entries}, {"s-1": inherited}, Counter(served))]


def test_each_usage_is_that_of_a_request_that_was_served() -> None:
    """A usage that no request has, one that is there twice, and a run with another sum are violations."""
    entries = make_paid_thread()
    assert list_costs(entries, (40, 9)) == []
    assert "which no request has served" in "".join(list_costs(entries, (40, 8)))
    twice = [problem for _, problem in check_costs({"s-1": entries, "s-2": entries}, {}, Counter([(40, 9)]))]
    assert len(twice) == 1
    (other,) = list_costs(change(entries, is_outcome, usage={"input_tokens": 80, "output_tokens": 18}), (40, 9))
    assert "18 tokens, but the replies of its run have 9" in other
    cancelled = change(entries, is_outcome, usage={"input_tokens": 80, "output_tokens": 18}, status="cancelled")
    assert list_costs(cancelled, (40, 9), (40, 9)) == []
    assert len(list_costs(cancelled, (40, 9))) == 1
    estimated = {"input_tokens": 80, "output_tokens": 18, "estimated_calls": 1}
    assert list_costs(change(entries, is_outcome, usage=estimated), (40, 9)) == []
    (fewer,) = list_costs(change(entries, is_outcome, usage={**estimated, "output_tokens": 8}), (40, 9))
    assert "8 tokens, but the replies of its run have 9" in fewer


def test_a_fork_has_not_paid_for_its_parent() -> None:
    """Nor is the spare model behind the proxy that counts."""
    entries = make_paid_thread()
    assert list_costs(entries, inherited=entries[-1].seq) == []
    assert list_costs(change_model(entries, SPARE)) == []


def test_an_outcome_after_the_time_of_its_request_is_a_violation() -> None:
    """The time that the server and the workers may be away counts as lateness that is allowed."""
    entries = make_thread("fine")
    limit = next(entry.payload["request_timeout_seconds"] for entry in entries if entry.kind == "config")
    entries = [replace(entry, at="2026-01-01T00:00:00.000Z") for entry in entries]

    def end_after(seconds: float) -> list[str]:
        at = f"2026-01-01T{int(seconds) // 3600:02}:{int(seconds) % 3600 // 60:02}:{int(seconds) % 60:02}.000Z"
        return list(check_deadlines([replace(one, at=at) if is_outcome(one) else one for one in entries]))

    assert end_after(limit + LATE_SECONDS) == []
    assert "seconds, of" in end_after(limit + LATE_SECONDS + 5)[0]


def test_a_message_may_wait_for_what_its_run_waits_for() -> None:
    """Another request's run asks a person, and the message was steered into it."""
    entries = change(make_thread("fine"), is_outcome, usage={"shared_with": "r-9"})
    late = [replace(one, at="2026-01-02T00:00:00.000Z") if is_outcome(one) else one for one in entries]
    assert len(list(check_deadlines(late))) == 1
    approval = {"tool_call_id": "tool00001", "decision": "approve"}
    asked = replace(entries[0], kind="approval", payload=approval, refs={"request_id": "r-9"})
    assert list(check_deadlines([asked, *late])) == []


def test_a_history_that_holds_the_conversation_for_each_call_is_a_violation() -> None:
    """A model call has a reference; the check of a hook has the message."""
    entries = make_thread("fine")
    inputs = ['{"text": "r-0: say it"}', '{"basis_seq": 1}', '{"basis_seq": 3}']
    assert list(check_growth(inputs, entries)) == []
    by_value = ['{"messages": [{"content": "r-0: say it"}]}'] * (MAX_COPIES + 1)
    assert "activities of a history" in "".join(check_growth(by_value, entries))


def test_a_place_with_the_key_of_the_provider_is_a_violation() -> None:
    """A log, a database or a thread that has it is named."""
    assert list(check_secret("worker-1.log", b"broken for Bearer [redacted]")) == []
    (problem,) = check_secret("worker-1.log", f"broken for Bearer {PROVIDER_KEY}".encode())
    assert problem == "worker-1.log has the key of the provider"


@pytest.mark.parametrize(("seconds", "is_violation"), [(FLOOD_SECONDS, False), (FLOOD_SECONDS + 1, True)])
def test_a_session_that_waits_for_another_ones_flood_is_a_violation(seconds: float, is_violation: bool) -> None:
    """Within the bound it is none."""
    assert bool(list(check_flood(seconds))) is is_violation
