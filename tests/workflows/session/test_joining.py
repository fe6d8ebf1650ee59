"""Messages to a busy session: they are rejected, wait, or join the run."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ModelOptions
from clew.errors import Busy, InvalidInput, QueueFull
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.session import requests
from clew_workflows.session.state import MAX_WAITING_BYTES
from tests.support.session_harness import SessionHarness


def test_a_busy_session_rejects_unless_it_is_told_otherwise() -> None:
    """The message's own word goes before the session's."""
    session = SessionHarness()
    session.ask()
    with pytest.raises(Busy):
        session.ask("another", "r-2")
    assert session.ask("another", "r-2", on_busy="queue") == "r-2"
    session = SessionHarness(on_busy="queue")
    session.ask()
    session.ask("another", "r-2")
    with pytest.raises(Busy):
        session.ask("another", "r-3", on_busy="reject")
    session.reply("done")
    assert session.call.request_id == "r-2"


def test_a_message_that_joins_shares_the_outcome() -> None:
    """It is read as an input is, under a request id of its own; what was used stands with one of them."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    assert session.state.unfinished == ("r-1", "r-2")
    session.reply("first", usage=Usage(input_tokens=10, output_tokens=1))
    assert session.thread[session.thread.last_seq].refs["request_id"] == "r-2"
    running = requests.make_running_outcome(session.state, session.thread, "r-2")
    assert running.usage == Usage(shared_with="r-1")
    session.reply("both", usage=Usage(input_tokens=20, output_tokens=2))
    first, second = session.find_outcome("r-1"), session.find_outcome("r-2")
    own = {"request_id": 0, "last_seq": 0, "usage": 0}
    assert first | own == second | own
    assert second["usage"] == Usage(shared_with="r-1").model_dump()
    used = Usage.model_validate(first["usage"]).plus(Usage.model_validate(second["usage"]))
    assert used == session.state.spent.own == Usage(input_tokens=30, output_tokens=3, model_calls=2)


OWN_SETTINGS: dict[str, Any] = {
    "model": "local:smollm2",
    "model_options": ModelOptions(temperature=0),
    "context_policy": ContextPolicy(keep_last_turns=1),
    "max_iterations": 3,
    "timeout_seconds": 7,
    "output_schema": {},
}


@pytest.mark.parametrize("name", OWN_SETTINGS)
@pytest.mark.parametrize("sessions", [True, False], ids=["the session's word", "the message's word"])
def test_a_message_that_would_join_brings_no_settings(name: str, sessions: bool) -> None:
    """The run has its own: refused with what to do, and nothing has changed. One that opens a run keeps them."""
    session = SessionHarness(on_busy="steer" if sessions else "reject")
    own = {name: OWN_SETTINGS[name]} | ({} if sessions else {"on_busy": "steer"})
    session.ask("one", "r-1", **own)
    assert session.state.run is not None
    assert getattr(session.state.run.request.message, name) == OWN_SETTINGS[name]
    state = session.state
    with pytest.raises(InvalidInput, match=f"^{name}: .*leave them out, or send it with on_busy 'queue'"):
        session.ask("two", "r-2", **own)
    assert session.state is state
    session.ask("two", "r-2", **own | {"on_busy": "queue"})


def test_a_message_that_waits_because_nothing_runs_keeps_its_settings() -> None:
    """Before the first run there is none to join."""
    session = SessionHarness(on_busy="steer")
    session.configure(tools=())
    session.ask("one", "r-1")
    session.ask("two", "r-2", max_iterations=3)
    session.answer_preparation(tools=())
    session.reply("done")
    assert session.state.run is not None
    assert session.state.run.request.max_iterations == 3


def test_the_metadata_of_a_message_that_joins_is_on_its_entry() -> None:
    """Also where it is asked anew, because the run has not read it."""
    for unread in (False, True):
        session = SessionHarness(on_busy="steer")
        session.ask("one", "r-1")
        session.ask("two", "r-2", metadata={"ticket": "7"})
        session.fail() if unread else session.reply("first")
        joined = session.thread[session.thread.last_seq]
        assert (joined.refs["request_id"], joined.payload["metadata"]) == ("r-2", {"ticket": "7"})


def test_what_waits_is_counted_with_its_metadata() -> None:
    """A message is refused as `queue_full` if it fits only without its metadata."""
    session = SessionHarness(on_busy="steer")
    session.ask("one")
    content, metadata = "x" * 2100, {f"{number}": "x" * 2000 for number in range(4)}
    for number in range(MAX_WAITING_BYTES // (2100 + 4 * 2010)):
        session.ask(content, f"r-{number}", metadata=metadata)
    with pytest.raises(QueueFull):
        session.ask(content, "one more", metadata=metadata)
    session.ask("two", "short")


def test_a_message_that_joined_and_was_not_read_is_asked_anew() -> None:
    """Its request gets an outcome of its own; after a cancel it is cancelled with the run."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1")
    session.ask("two", "r-2")
    session.fail()
    assert (session.user_texts, session.call.request_id) == (["one", "two"], "r-2")
    session.ask("three", "r-3")
    session.cancel("r-3")
    assert [session.find_ending(f"r-{n}")[0] for n in (1, 2, 3)] == ["failed", "cancelled", "cancelled"]
    assert [entry["request_id"] for entry in session.events("dropped")] == ["r-3"]


def test_a_joined_message_that_asks_again_runs_under_its_own_settings() -> None:
    """Those of the session, with its own metadata; the other caller's model and time were for the other request."""
    session = SessionHarness(on_busy="steer")
    session.ask("one", "r-1", model="local:smollm2", timeout_seconds=7)
    session.ask("two", "r-2", metadata={"user": "u-2"})
    session.fail()
    run = session.state.run
    assert run is not None
    assert (run.request.request_id, session.call.model, run.clock.deadline) == ("r-2", "openai:gpt-4o", 900)
    assert session.thread[session.call.at_seq].payload["metadata"] == {"user": "u-2"}
