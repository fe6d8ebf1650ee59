"""A request whose model has an outage is answered by a fallback, by real calls of two providers."""

from __future__ import annotations

import uuid
from http import HTTPStatus

import pytest

from clew.local import Reply
from clew_activities.archive import Archive
from clew_activities.model import call_model
from clew_activities.model.model_table import find_prices
from clew_audit.audit import audit_session
from clew_workflows.contract.outcomes import compute_cost_usd
from tests.support.stack import Stack

PRICED = "scripted:gpt-4o"
"""A model whose price is known by its name."""


WAIT = {"Retry-After": "60"}


@pytest.mark.parametrize(
    ("outage", "error_type"),
    [
        (Reply("it burns", status=HTTPStatus.INTERNAL_SERVER_ERROR, headers=WAIT), "provider_unavailable"),
        (Reply("too much", status=HTTPStatus.TOO_MANY_REQUESTS, headers=WAIT), "rate_limited"),
        pytest.param(None, "provider_unavailable", marks=pytest.mark.slow),
    ],
    ids=["500", "429", "unreachable"],
)
async def test_a_fallback_answers_while_the_model_has_an_outage(
    stack: Stack, outage: Reply | None, error_type: str
) -> None:
    """The answer has the fallback's price; the thread, the outcome and the audit agree on which model answered."""
    stack.scripts["gpt-4o"] = lambda _body: Reply("the other one")
    first = "unreachable:m" if outage is None else stack.add_model(lambda _body: outage)
    session = await stack.clew.open(f"fallback-{uuid.uuid4().hex}", model=first, fallbacks=[PRICED])
    request = await session.message("hello")
    assert await request.answer() == "the other one"
    outcome = await request.result()
    assert (outcome.status, outcome.fallback, outcome.iterations) == ("completed", PRICED, 1)
    failed, answer = (await session.entries())[2:4]
    assert (failed.kind, failed.payload["type"]) == ("error", error_type)
    assert failed.payload["details"]["retried"] == {"call_id": answer.refs["call_id"], "model": PRICED}
    recipe = answer.recipe
    assert recipe
    assert (recipe.model, recipe.prices) == (PRICED, find_prices("openai:gpt-4o"))
    assert outcome.usage.cost_usd == compute_cost_usd(recipe.prices, recipe.usage) != 0
    report = await audit_session(stack.clew.temporal, Archive(stack.store, "default"), session.id)
    assert (report.clean, report.calls.verified) == (True, 1), report.differences


@pytest.mark.slow
async def test_an_outage_is_remembered(stack: Stack) -> None:
    """Later messages make one attempt, not three, while the model is away, and all of them once it has answered."""
    replies: list[Reply] = []

    def burn(_body: object) -> Reply:
        replies.append(Reply("it burns", status=HTTPStatus.INTERNAL_SERVER_ERROR, headers={"Retry-After": "0"}))
        return replies[-1] if is_away else Reply("back")

    is_away = True
    session = await stack.open(burn, fallbacks=[stack.add_model("the other one")])
    for attempts in (3, 1, 1):
        replies.clear()
        assert await session.ask("hello") == "the other one"
        assert len(replies) == attempts
    is_away = False
    assert await session.ask("hello") == "back"
    is_away = True
    replies.clear()
    assert await session.ask("hello") == "the other one"
    assert len(replies) == 3


def test_a_worker_forgets_old_outages(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, and the oldest ones when there are many."""
    monkeypatch.setattr(call_model, "MAX_AWAY", 2)
    now = 0.0
    outages = call_model.Outages(lambda: now)
    for model in ("a", "b", "c"):
        outages.note(model)
    assert [outages.has(model) for model in "abc"] == [False, True, True]
    now = call_model.AWAY_SECONDS
    assert not outages.has("b")


async def test_a_fallback_that_the_worker_does_not_know_fails_before_it_is_needed(stack: Stack) -> None:
    session = await stack.open(fallbacks=["nowhere:gpt"])
    outcome = await (await session.message("hello")).result()
    assert outcome.error
    assert (outcome.error.type, "nowhere" in outcome.error.message) == ("unknown_model", True)
    await session.configure(fallbacks=[])
    assert await session.ask("hello again") == "fine"
