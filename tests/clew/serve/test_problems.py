"""The status and the body of each error."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from clew.serve.error_words import TENANT, WORDS, make_reader
from clew.serve.problems import (
    Problem,
    RateLimited,
    Unauthorized,
    find_retry_seconds,
    find_status,
    make_body,
    make_headers,
)
from clew_workflows.contract import errors
from clew_workflows.contract.errors import (
    REFUSALS,
    Busy,
    ClewError,
    NotFound,
    QueueFull,
    Refusal,
    WorkerUnavailable,
    find_word,
)
from clew_workflows.contract.outcomes import RequestOutcome


def list_contract_errors() -> Iterator[type[ClewError]]:
    """List every error class of the contract."""
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, ClewError):
            yield value


@pytest.mark.parametrize("cls", list(list_contract_errors()), ids=lambda cls: cls.__name__)
def test_each_error_has_a_status(cls: type[ClewError]) -> None:
    """The table has a row for each class, so that none falls to that of its base unnoticed."""
    assert 400 <= WORDS[find_word(cls)][0] <= 599


def test_each_refusal_is_in_the_table() -> None:
    """Every word of the contract has a status."""
    assert REFUSALS.keys() <= WORDS.keys()


@pytest.mark.parametrize(
    ("error", "status", "word", "retry"),
    [
        (Busy("x"), 409, "busy", None),
        (NotFound("x"), 404, "not_found", None),
        (QueueFull("x"), 429, "queue_full", 2),
        (WorkerUnavailable("x"), 503, "worker_unavailable", 2),
        (errors.ServerUnreachable("x"), 503, "server_unreachable", 2),
        (errors.Interrupted("x"), 409, "interrupted", None),
        (errors.ContextOverflow("tools", 2, 1), 400, "context_overflow", None),
        (
            errors.RequestFailed(RequestOutcome(request_id="r", status="failed", last_seq=1)),
            409,
            "request_failed",
            None,
        ),
        (Refusal("new_word: x"), 409, "refused", None),
        (RateLimited("x", retry_seconds=0.2), 429, "rate_limited", 1),
        (Problem("x", param="limit"), 400, "invalid_request", None),
    ],
)
def test_an_error_is_told(error: ClewError, status: int, word: str, retry: int | None) -> None:
    """Its status, its word in `type` and `code`, and when a repetition helps."""
    assert find_status(error) == status
    body = make_body(error, TENANT)["error"]
    assert (body["type"], body["code"]) == (word, word)
    assert find_retry_seconds(error) == retry
    assert make_headers(error).get("Retry-After") == (None if retry is None else str(retry))


def test_a_message_has_the_names_that_callers_know() -> None:
    """Without the tenant, and as valid Unicode."""
    acme = make_reader("acme", is_operator=False)
    body = make_body(NotFound("there is no session 'acme:chat' \ud800"), acme)
    assert body["error"]["message"] == "there is no session 'chat' ?"
    for tenant, message in (("d", "session_id: 'd:d:d' is used"), ("session_id", "session_id: it has letters")):
        kept = message.replace("'d:d:d'", "'d:d'")
        assert make_body(NotFound(message), make_reader(tenant, is_operator=False))["error"]["message"] == kept


def test_who_has_no_key_is_told_how_to_send_one() -> None:
    """The header that HTTP has for it."""
    assert make_headers(Unauthorized("x"))["WWW-Authenticate"] == "Bearer"
