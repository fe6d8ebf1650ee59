"""Fallbacks: a run whose model has an outage goes on with the next model that is named."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ContextPolicy
from clew.contract.payloads import ErrorPayload
from clew.errors import InvalidInput
from clew_workflows.contract.outcomes import Usage
from clew_workflows.protocol import OUTAGES, DescribeModel, Failure, ModelStopped
from clew_workflows.session import requests
from tests.support.session_harness import SessionHarness, carry_over, interrupt_reply, make_agent

FIRST, SECOND, THIRD = "anthropic:claude-sonnet-4-5", "openai:gpt-4o", "local:tiny"


def begin(*fallbacks: str, **config: Any) -> SessionHarness:
    return SessionHarness(model=FIRST, fallbacks=fallbacks or (SECOND, THIRD), **config)


def fail(session: SessionHarness, error_type: str = "overloaded") -> None:
    session.take_event(ModelStopped(failure=Failure(type=error_type, message="it is down")))


@pytest.mark.parametrize("error_type", sorted(OUTAGES))
def test_a_call_that_fails_by_an_outage_is_made_again_with_the_next_model(error_type: str) -> None:
    """The error is on the thread with the call that follows; the reply's recipe and the outcome name the fallback."""
    session = begin(table=True)
    request_id = session.ask()
    first = session.call
    assert (first.model, first.has_fallback) == (FIRST, True)
    fail(session, error_type)
    again = session.call
    assert (again.model, again.iteration, again.call_id) == (SECOND, 1, "call-2")
    assert again.context_policy == session.state.settings.profiles[SECOND].policy
    assert again.parent_call_id is None
    error = list(session.thread)[-1]
    assert isinstance(error.body, ErrorPayload)
    assert error.payload["details"] == {"retried": {"call_id": "call-2", "model": SECOND}}
    assert error.refs["call_id"] == first.call_id
    running = requests.make_running_outcome(state=session.state, thread=session.thread, request_id=request_id)
    assert running.fallback == SECOND
    session.reply("fine")
    assert list(session.thread)[-2].payload["recipe"]["model"] == SECOND
    outcome = session.find_outcome(request_id)
    assert (outcome["status"], outcome["fallback"], outcome["iterations"]) == ("completed", SECOND, 1)


def test_a_run_keeps_its_fallback_and_the_next_run_begins_with_the_first_model() -> None:
    session = begin(SECOND)
    session.ask()
    fail(session)
    second = session.call
    assert (second.model, second.has_fallback) == (SECOND, False)
    session.reply("", "look")
    session.answer_calls("seen")
    assert (session.call.model, session.call.parent_call_id) == (SECOND, second.call_id)
    session.reply("fine")
    session.ask("and?")
    assert session.call.model == FIRST


def test_models_are_tried_in_order_each_once_and_the_last_outage_is_the_failure() -> None:
    """The session's own model among the fallbacks is no second try."""
    session = begin(SECOND, FIRST, SECOND, THIRD)
    request_id = session.ask()
    called = []
    for _ in range(3):
        called.append(session.call.model)
        fail(session)
    assert called == [FIRST, SECOND, THIRD]
    assert session.find_ending(request_id) == ("failed", "overloaded")
    assert session.find_outcome(request_id)["fallback"] == THIRD
    assert "retried" not in list(session.thread)[-2].payload["details"]


@pytest.mark.parametrize("error_type", ["bad_request", "content_refused", "unauthorized", "unknown_model", "timeout"])
def test_other_failures_are_no_outages(error_type: str) -> None:
    """Another model would be refused as well, or the caller must know."""
    session = begin()
    request_id = session.ask()
    fail(session, error_type)
    assert session.find_ending(request_id) == ("failed", error_type)
    assert session.find_outcome(request_id)["fallback"] is None


def test_a_message_has_fallbacks_of_its_own_or_none() -> None:
    session = begin()
    none = session.ask("a", fallbacks=())
    assert not session.call.has_fallback
    fail(session)
    assert session.find_ending(none) == ("failed", "overloaded")
    session.ask("b", model="openai:gpt-4", fallbacks=(THIRD,))
    fail(session)
    assert session.call.model == THIRD
    with pytest.raises(InvalidInput, match="fallbacks: a message that joins a run"):
        session.ask("c", on_busy="steer", fallbacks=(SECOND,))


def test_a_fallback_may_be_the_sessions_own_model() -> None:
    """A message that names another model falls back to what the session has, under the session's own policy."""
    session = begin(table=True)
    session.ask(model=THIRD, fallbacks=(FIRST,))
    fail(session)
    assert (session.call.model, session.call.context_policy) == (FIRST, None)


def test_a_fallback_that_cannot_take_the_context_shortens_it() -> None:
    """Also where the first model has refused the context already: each model may do so once."""
    session = begin(table=True, context_policy=ContextPolicy(max_input_tokens=2_000, reserve_output_tokens=100))
    session.ask("x" * 400)
    for model in (FIRST, SECOND):
        assert session.call.model == model
        session.take_event(Failure(type="context_length_exceeded", message="long", details={"counted": 900}))
        assert session.call.model == model
        assert session.call.context_policy
        fail(session)
    assert session.call.model == THIRD


def test_the_worker_describes_a_fallback_that_the_session_does_not_know() -> None:
    """Once, between the two calls, which have one number."""
    session = begin()
    session.describing = False
    session.ask()
    fail(session)
    assert isinstance(session.effect, DescribeModel)
    assert session.effect.model == SECOND
    session.take_event(session.make_profile(SECOND))
    assert (session.call.model, session.call.iteration) == (SECOND, 1)
    session.reply("fine")
    session.ask("again")
    fail(session)
    assert session.call.model == SECOND


def test_tokens_of_a_reply_that_broke_off_are_counted() -> None:
    """Its text is not kept: the fallback begins anew."""
    session = begin()
    request_id = session.ask()
    outage = Failure(type="truncated_stream", message="it broke")
    session.take_event(ModelStopped(failure=outage, answer=interrupt_reply("")))
    session.reply("fine", usage=Usage(input_tokens=5, output_tokens=1))
    assert session.entry_names == ["config", "user", "error", "assistant", "run"]
    usage = session.find_outcome(request_id)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["model_calls"]) == (12, 3, 2)


def test_fallbacks_are_the_agents_unless_the_session_has_its_own() -> None:
    session = SessionHarness(prepare=False, agent="support")
    session.answer_preparation(agent=make_agent(model=FIRST, fallbacks=(SECOND,)))
    assert session.thread[0].payload["fallbacks"] == [SECOND]
    assert session.state.preparation.fallbacks is None
    session.configure(fallbacks=(THIRD,))
    session.answer_preparation(agent=make_agent(model=FIRST, fallbacks=(SECOND,)))
    assert session.state.preparation.fallbacks == (THIRD,)
    session.ask()
    fail(session)
    assert session.call.model == THIRD


def test_a_run_with_a_fallback_is_carried_to_the_next_workflow_run() -> None:
    session = begin()
    session.ask()
    fail(session)
    state = carry_over(session).state
    assert state.run
    assert (state.run.fallback, state.run.request.fallbacks) == (SECOND, (THIRD,))
