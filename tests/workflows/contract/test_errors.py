"""The error tree."""

from __future__ import annotations

import inspect
import re

import pytest

from clew.errors import REFUSALS, ClewError, ContextOverflow, Refusal, RequestFailed, make_refusal
from clew_workflows.contract import errors
from clew_workflows.contract.errors import Busy, WorkerUnavailable, make_error
from clew_workflows.contract.outcomes import OutcomeError, RequestOutcome

CLASSES = {name: cls for name, cls in vars(errors).items() if inspect.isclass(cls) and issubclass(cls, ClewError)}
# What the updates of the contract may be refused with.
WORDS = {
    *("archive_unavailable", "busy", "closed", "empty_content", "idle", "invalid_input", "invalid_operation"),
    *("invalid_token_budget", "nothing_to_summarize", "queue_full", "request_mismatch", "too_large"),
    *("unknown_approval", "unknown_lane", "unknown_request", "unsupported_strategy"),
}


def test_the_tree_is_drawn_as_it_is() -> None:
    """The drawing at the top of the module shows every error under its parent, and no other."""
    drawn: dict[str, str] = {}
    path: list[str] = []
    for branch, name in re.findall(r"^((?:│   )*(?:[├└]── )?)([A-Z]\w+)", errors.__doc__ or "", re.MULTILINE):
        depth = len(branch) // 4
        path[depth:] = [name]
        if name in CLASSES:
            drawn[name] = path[depth - 1] if depth else "Exception"
    assert drawn == {name: cls.__base__.__name__ for name, cls in CLASSES.items() if cls.__base__}


def test_every_word_of_the_contract_has_its_error() -> None:
    """A refusal's word is its class's `type`, and each class has its own."""
    assert REFUSALS.keys() >= WORDS
    assert len(REFUSALS) == len([cls for cls in CLASSES.values() if issubclass(cls, Refusal)]) - 1
    for word, cls in REFUSALS.items():
        assert re.sub(r"(?<!^)([A-Z])", r"_\1", cls.__name__).lower() == word == cls.type


@pytest.mark.parametrize("word", sorted(REFUSALS))
def test_a_refusal_is_raised_by_its_word(word: str) -> None:
    """The word that travels gives the exception, with the message that travelled."""
    error = make_refusal(word, "send it later")
    assert type(error) is REFUSALS[word]
    assert (error.message, str(error)) == ("send it later", "send it later")
    assert isinstance(error, ClewError)


def test_a_word_from_the_future() -> None:
    """A refusal that is not known yet is still one, and keeps its word."""
    error = make_refusal("too_late", "come earlier")
    assert type(error) is Refusal
    assert str(error) == "too_late: come earlier"


def test_a_missing_worker_is_no_refusal() -> None:
    """It has a word, like the refusals, so that a service workflow can fail with it."""
    error = make_error("worker_unavailable", "send it later")
    assert (type(error), str(error)) == (WorkerUnavailable, "send it later")
    assert type(make_error("busy", "send it later")) is Busy
    assert not issubclass(WorkerUnavailable, Refusal)


def test_an_overflow_carries_its_numbers() -> None:
    """An overflow says what does not fit, how large it is, how much room there is, and what to do."""
    error = ContextOverflow("system_prompt", 40, 30)
    assert (error.part, error.needed, error.available, error.type) == ("system_prompt", 40, 30, "context_overflow")
    assert str(error).startswith("system_prompt needs 40 tokens and 30 are left")
    assert "max_input_tokens" in str(error)


@pytest.mark.parametrize(
    ("error", "reason"),
    [(OutcomeError(type="provider", message="overloaded"), "overloaded"), (None, "max_iterations")],
)
def test_a_failed_request_carries_its_outcome(error: OutcomeError | None, reason: str) -> None:
    """A request that ended without an answer says why, and gives its outcome."""
    outcome = RequestOutcome(
        request_id="r1", status="failed", termination_reason="max_iterations", last_seq=3, error=error
    )
    failed = RequestFailed(outcome)
    assert failed.outcome is outcome
    assert str(failed) == f"request r1 failed: {reason}"
