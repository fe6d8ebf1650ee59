"""A run that is to end while its model call is in flight: what was read of the reply, and then the end."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract.payloads import AssistantMessage
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.payloads import INTERRUPTED
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.protocol import CallModel, Declined, Event, Failure, ModelStopped, Outdated, RequestedTool
from clew_workflows.session import decisions, views
from clew_workflows.session.state import State
from tests.support.session_harness import SessionHarness, interrupt_reply, make_reply
from tests.support.threads import assert_valid

READ = ModelStopped(answer=interrupt_reply("half an ans", cost_usd=0.5))
FAILED = ModelStopped(failure=Failure(type="truncated_stream", message="cut off"), answer=interrupt_reply("half"))


def begin(**config: Any) -> SessionHarness:
    """A session whose model writes a reply, and whose calls end when the test says so."""
    session = SessionHarness(**config)
    session.stopped = None
    session.ask("go", "r-1")
    return session


def stop(session: SessionHarness, how: str) -> None:
    """Let the run end before its time."""
    match how:
        case "cancelled":
            session.cancel(reason="enough")
        case "interrupted":
            session.ask("rather this", "r-2", on_busy="interrupt")
        case _:
            session.close()


@pytest.mark.parametrize("how", ["cancelled", "interrupted", "closed"])
def test_the_text_is_committed_before_the_run_ends(how: str) -> None:
    """Until the call has stopped the phase is `stopping`, and the call stays the effect in flight."""
    session = begin()
    call = session.call
    stop(session, how)
    assert (session.state.phase, session.effect) == ("stopping", call)
    assert session.entry_names == ["config", "user"]
    live = views.describe_live_status(session.state, session.thread)
    assert (live.status, live.call_id, live.request_id) == ("stopping", call.call_id, "r-1")
    session.take_event(READ)
    ends = {"cancelled": [], "interrupted": ["user"], "closed": ["session"]}[how]
    assert session.entry_names == ["config", "user", "assistant", "run", *ends]
    assert session.find_ending("r-1") == ("cancelled", how)
    entry = session.thread[2]
    reply = entry.read(AssistantMessage)
    assert (reply.content, reply.interrupted) == ("half an ans", True)
    assert reply.recipe is not None
    assert reply.recipe.stop_reason == "interrupted"
    assert entry.tokens == reply.count(load_encoding(session.state.settings.config.encoding))[1]
    counted = Usage(input_tokens=7, output_tokens=2, cost_usd=0.5, model_calls=1, estimated_calls=1)
    assert Usage.model_validate(session.find_outcome("r-1")["usage"]) == session.state.spent.own == counted
    assert session.find_outcome("r-1")["answer_seq"] is None
    if how == "interrupted":
        assert isinstance(session.effect, CallModel)
        shown = session.build_context(session.call).messages
        assert [message["content"] for message in shown] == ["go", f"half an ans{INTERRUPTED}", "rather this"]
        assert_valid(shown)


@pytest.mark.parametrize(
    "event",
    [
        ModelStopped(),
        ModelStopped(failure=Failure(type="worker_lost", message="lost")),
        Outdated(deployment="d-2"),
        Declined(calls_models=True),
        Failure(type="archived", message="the context needs more of the archive"),
    ],
)
def test_a_call_of_which_nothing_was_read_leaves_nothing(event: Event) -> None:
    """How it has ended does not matter: the run ends as the caller wanted."""
    session = begin()
    session.cancel()
    session.take_event(event)
    assert session.entry_names == ["config", "user", "run"]
    assert session.find_ending("r-1") == ("cancelled", "cancelled")
    assert session.state.spent.own == Usage()
    assert (session.state.phase, session.effect) == ("idle", None)


@pytest.mark.parametrize("text", ["", " \n"])
def test_a_reply_without_text_is_counted_and_leaves_no_entry(text: str) -> None:
    """Providers refuse messages without text."""
    session = begin()
    session.cancel()
    session.take_event(ModelStopped(answer=interrupt_reply(text)))
    assert session.entry_names == ["config", "user", "run"]
    assert session.state.spent.own.estimated_calls == 1


def test_a_reply_that_was_complete_stays_as_it_is() -> None:
    """The worker had answered before it heard of the end. The usage is the provider's."""
    session = begin()
    session.cancel()
    session.reply("all of it", usage=Usage(input_tokens=9, output_tokens=3))
    (reply,) = [entry for entry in session.thread if entry.payload.get("role") == "assistant"]
    assert (reply.payload["content"], "interrupted" in reply.payload) == ("all of it", False)
    assert session.state.spent.own == Usage(input_tokens=9, output_tokens=3, model_calls=1)
    assert session.find_ending("r-1") == ("cancelled", "cancelled")


def test_the_tool_calls_of_a_complete_reply_are_not_run() -> None:
    """Their message is interrupted, and shows none of them."""
    session = begin()
    session.cancel()
    session.take_event(make_reply(content="I will", tool_calls=(RequestedTool(name="add"),), thinking="Hm."))
    assert session.entry_names == ["config", "user", "assistant", "run"]
    payload = session.thread[2].payload
    assert payload["interrupted"]
    assert payload.keys().isdisjoint({"tool_calls", "thinking"})
    assert session.state.counters.tool_calls == 0


def test_a_failed_call_keeps_what_was_read() -> None:
    """The text, the error and the outcome, in this order; an unread input is answered by a follow-up run."""
    session = begin()
    session.steer("and briefly")
    session.take_event(FAILED)
    assert session.entry_names == ["config", "user", "assistant", "error", "run", "user"]
    assert session.find_ending("r-1") == ("failed", "truncated_stream")
    assert session.state.spent.own.estimated_calls == 1
    shown = session.build_context(session.call).messages
    assert [message["content"] for message in shown] == ["go", f"half{INTERRUPTED}", "and briefly"]


def test_a_failure_while_a_call_is_stopped_is_not_the_runs() -> None:
    """A cancellation that was confirmed stays one."""
    session = begin()
    session.cancel()
    session.take_event(FAILED)
    assert session.entry_names == ["config", "user", "assistant", "run"]
    assert session.find_ending("r-1") == ("cancelled", "cancelled")


def test_an_estimate_counts_for_the_limits_and_teaches_nothing() -> None:
    """The next call is refused at the limit; the ratio of the provider's tokens stays as it was."""
    session = begin(limits={"max_total_tokens": 9})
    learned = session.state.settings.learned
    session.cancel()
    session.take_event(READ)
    assert session.state.settings.learned == learned
    session.ask("again", "r-2")
    assert session.find_ending("r-2") == ("failed", "token_limit")


def test_the_earlier_answer_of_a_run_stays_its_answer() -> None:
    """An interrupted text is never one."""
    session = begin()
    session.reply("first I add", "add")
    answer = session.thread.last_seq
    session.answer_calls("4")
    session.cancel()
    session.take_event(READ)
    assert session.find_outcome("r-1")["answer_seq"] == answer


def test_inputs_of_a_cancelled_run_may_be_answered_by_another() -> None:
    """They wait until the call has stopped, and follow the text."""
    session = begin()
    session.steer("and briefly", "i-1")
    session.cancel(inputs="follow_up")
    session.take_event(READ)
    assert session.entry_names == ["config", "user", "assistant", "run", "user"]
    assert session.user_texts == ["go", "and briefly"]


@pytest.mark.parametrize("ended", [decisions.recover, decisions.close])
def test_a_session_that_is_stopping_can_be_ended_at_once(ended: Any) -> None:
    """A recovery waits for no worker."""
    session = begin()
    session.cancel()
    session.apply(ended(session.state, session.now))
    after: State = session.state
    assert after.run is None
    assert session.find_outcome("r-1")["status"] == "cancelled"
