"""Outcomes that a session remembers."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from base64 import b64encode
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import to_json

from clew_workflows.contract.outcomes import OutcomeError, RequestOutcome, Usage
from clew_workflows.session.requests import MAX_OUTCOMES
from clew_workflows.session.state import Remembered, make_columns, read_columns

IDS = st.text(min_size=1, max_size=200)
SEQS = st.integers(0, 2**53)
USAGES = st.builds(Usage, input_tokens=SEQS, cost_usd=st.none() | st.floats(0, 10), shared_with=st.none() | IDS)
RUN_IDS = st.integers(0, 10**9).map("run-{}".format) | IDS | st.sampled_from((None, "run-007", "run-" + "9" * 5_000))
OUTCOMES = st.builds(
    RequestOutcome,
    request_id=IDS,
    run_id=RUN_IDS,
    status=st.sampled_from(("completed", "failed", "cancelled")),
    termination_reason=st.none() | st.text(max_size=10),
    reason=st.none() | st.text(max_size=10),
    answer_seq=st.none() | SEQS,
    last_seq=SEQS,
    iterations=SEQS,
    fallback=st.none() | st.text(max_size=10),
    usage=USAGES,
    subagent_usage=st.none() | USAGES,
    error=st.none() | st.builds(OutcomeError, type=IDS, message=st.text(max_size=10), retryable=st.booleans()),
)


@given(st.lists(OUTCOMES, max_size=20, unique_by=lambda outcome: outcome.request_id), IDS)
def test_what_is_remembered_is_what_it_was(known: list[RequestOutcome], other: str) -> None:
    """All fields of all outcomes, in order, found by the whole id alone."""
    remembered = Remembered.pack(known)
    assert remembered.unpack() == known
    for outcome in known:
        assert outcome.request_id in remembered
        assert remembered.find(outcome.request_id) == outcome
    is_known = other in {outcome.request_id for outcome in known}
    assert (other in remembered) is is_known
    assert (remembered.find(other) is not None) is is_known


@given(st.lists(OUTCOMES, max_size=20))
def test_outcomes_can_be_written_as_json(known: list[RequestOutcome]) -> None:
    """The next workflow run gets the same outcomes."""
    assert read_columns(json.loads(to_json(make_columns(known)))) == known


@pytest.mark.parametrize(
    "changed",
    [
        {"last_seq": 3},
        {"last_seq": []},
        {"last_seq": ["three"]},
        {"run_id": [["run-1"]]},
        {"request_id": [None]},
        {"status": ["sleeping"]},
        {"usage": ["none"]},
        {"answer_seq": None},
    ],
)
def test_malformed_columns_are_refused(changed: dict[str, Any]) -> None:
    """The error comes when they are read, not when an outcome is asked for."""
    columns = {**make_columns([make_outcome(1)]), **changed}
    with pytest.raises((KeyError, TypeError, ValueError)):
        read_columns(columns)


def test_a_full_memory_is_small() -> None:
    """Of a worker's memory, and of the history, in which a rollover carries it."""
    known = [make_outcome(number) for number in range(MAX_OUTCOMES)]
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        remembered = Remembered.pack(known)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert remembered.unpack() == known
    assert after - before < 60 * MAX_OUTCOMES
    random_bytes = 8 * MAX_OUTCOMES
    assert len(b64encode(zlib.compress(to_json(make_columns(known))))) < 2.5 * random_bytes


def make_outcome(number: int) -> RequestOutcome:
    """Make the outcome of a short turn."""
    return RequestOutcome(
        request_id=UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % 2**128).hex[:16],
        run_id=f"run-{number + 1}",
        status="completed",
        termination_reason="final_answer",
        answer_seq=3 * number + 1,
        last_seq=3 * number + 2,
        iterations=1,
        usage=Usage(input_tokens=5_900 + number * 7919 % 200, output_tokens=188, model_calls=1),
    )
