"""What should be going on is a function of the session: each part begins and ends with what it is for.

The harness of all tests of decisions checks that the plan that is kept up to date is the one that is made anew.
"""

from __future__ import annotations

import pytest

from clew.contract import Task, ToolResultInput
from clew_workflows.contract.webhooks import Webhook
from clew_workflows.session import outside, runs, subagents, webhooks
from clew_workflows.session.plan import Expire, Plan, plan
from tests.support.session_harness import SessionHarness


def list_kinds(session: SessionHarness) -> list[str]:
    """List the kinds of what should be going on."""
    return [key[0] for key in plan(session.session)]


def test_a_session_at_rest_wants_nothing() -> None:
    """Also before it is prepared, and when it is closed."""
    session = SessionHarness(prepare=False)
    assert list_kinds(session) == []
    session.answer_preparation()
    assert list_kinds(session) == []
    session.close()
    assert list_kinds(session) == []


def test_each_call_of_a_round_goes_on_until_it_has_returned() -> None:
    """A call that has returned is gone, and with the run all are."""
    session = SessionHarness()
    session.ask()
    session.reply("", "add", "look")
    first, second = (call.tool_call_id for call, _ in session.round.calls)
    assert list(plan(session.session)) == [("call", first), ("call", second)]
    session.answer_call(first, "3")
    assert list(plan(session.session)) == [("call", second)]
    session.cancel()
    assert list_kinds(session) == []


def test_a_call_that_was_approved_begins_beside_the_others() -> None:
    """The bar is shown while a person is awaited: not a moment longer."""
    session = SessionHarness(tools=("add", "ask_a"))
    session.ask()
    session.reply("", "add", "ask_a")
    assert list_kinds(session) == ["call", "approval"]
    [(other, _)] = session.round.calls
    session.answer_call(other.tool_call_id, "3")
    [(kind, run_id, iteration)] = plan(session.session)
    assert (kind, iteration) == ("approval", "1")
    assert session.state.run is not None
    assert run_id == session.state.run.run_id
    [waiting] = outside.list_pending_approvals(session.state)
    session.approve(waiting.tool_call_id)
    assert list(plan(session.session)) == [("call", waiting.tool_call_id)]


def test_the_call_that_expires_next_has_the_timer() -> None:
    """When it has got its result, the timer is another one."""
    session = SessionHarness(tools=("slow_outside", "slower_outside"))
    session.ask()
    session.reply("", "slow_outside", "slower_outside")
    [(key, wanted)] = plan(session.session).items()
    expiry = outside.find_next_expiry(session.state)
    assert wanted == Expire(expiry or 0.0)
    assert key == ("expiry", str(expiry))
    for call in outside.list_pending_results(session.state):
        session.do(ToolResultInput(tool_call_id=call.tool_call_id, content="3"))
    assert list_kinds(session) == []


def test_a_subagent_is_started_and_cancelled() -> None:
    """Once each: what was begun is recorded in the state."""
    session = SessionHarness(tools=("ask_me_agent", "look_agent"))
    session.ask()
    session.reply("", "look_agent")
    [child] = session.state.children
    assert list(plan(session.session))[-1] == ("start", child.session_id)
    session.apply(subagents.mark_started(session.state, child))
    assert "start" not in list_kinds(session)
    session.cancel()
    [child] = session.state.children
    assert list(plan(session.session)) == [("cancel", child.session_id)]
    session.apply(subagents.mark_cancelled(session.state, child))
    assert list_kinds(session) == []


def test_a_subagent_reports_and_closes() -> None:
    """It reports when its request has ended, and closes when it has reported."""
    task = Task(
        content="do it",
        request_id="task",
        session_id="parent",
        tool_call_id="call_1",
        depth=1,
        timeout_seconds=60,
        max_result_bytes=1_000,
    )
    session = SessionHarness(task=task)
    assert list_kinds(session) == []
    session.reply("done")
    assert list_kinds(session) == ["report"]
    session.apply(subagents.note_reported(session.state))
    assert list_kinds(session) == ["close"]
    session.close()
    assert list_kinds(session) == []


def test_a_notice_is_wanted_until_its_delivery_has_begun() -> None:
    """Each notice has a key of its own."""
    hook = Webhook(url="https://example.com/hook", secret="main", events=("request.ended",))
    session = SessionHarness(webhooks=(hook,))
    for _ in range(2):
        session.ask()
        session.reply("fine")
    assert list_kinds(session) == ["webhook", "webhook"]
    [first, second] = session.state.notices
    session.apply(webhooks.drop_notice(session.state, first))
    assert list(plan(session.session)) == [("webhook", second.notice_id)]


@pytest.mark.parametrize("seconds", [None, 60])
def test_an_idle_session_waits_for_its_hibernation(seconds: int | None) -> None:
    """If it has an idle time, while nothing runs."""
    session = SessionHarness(idle_timeout_seconds=seconds)
    assert list_kinds(session) == ([] if seconds is None else ["idle"])
    session.ask()
    assert list_kinds(session) == []


def test_a_part_is_not_made_anew_when_nothing_that_it_reads_has_changed() -> None:
    """Nor is the whole another object."""
    session = SessionHarness(tools=("slow_outside",))
    session.ask()
    session.reply("", "slow_outside")
    kept = Plan()
    kept.update(session.session)
    before = kept.wanted
    session.steer()
    kept.update(session.session)
    assert kept.wanted is before
    now = session.now
    session.apply(outside.expire_calls(session.state, now).then(runs.proceed, now))
    kept.update(session.session)
    assert kept.wanted == plan(session.session)
