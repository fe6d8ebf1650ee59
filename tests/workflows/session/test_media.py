"""Decisions about sessions with media: when a model gets the tool that shows them again, and what is recorded."""

from __future__ import annotations

from clew.contract import ClearMedia, ContextPolicy
from clew_workflows.contract.content import Part
from clew_workflows.protocol import CallModel, Prepare
from tests.support.generated_threads import make_part
from tests.support.session_harness import SessionHarness, carry_over

IMAGE = make_part("image", 1, width=1024, height=1024)
SEEN: list[Part] = [{"type": "text", "text": "look"}, IMAGE]


def test_the_first_message_with_media_has_the_tools_prepared_anew() -> None:
    """Its run waits for that, and so does no other one."""
    session = SessionHarness(tools=("add",))
    session.ask("hello")
    assert isinstance(session.session.effect, CallModel)
    session.reply("hi")
    session.ask(SEEN)
    assert isinstance(session.session.effect, Prepare)
    assert session.session.effect.views
    session.answer_preparation(tools=("add", "view_blob"))
    assert isinstance(session.session.effect, CallModel)
    assert session.thread.filter_by_kind("config")[-1].payload["changes"] == ["tools"]
    session.reply("I see")
    session.ask(SEEN)
    assert isinstance(session.session.effect, CallModel)


def test_a_text_only_session_asks_for_no_viewer() -> None:
    """Its preparation names neither the tool nor the rule that need media."""
    session = SessionHarness(tools=("add",))
    assert "views" not in session.state.preparation.model_dump_json()
    assert "clears_media" not in session.state.preparation.model_dump_json()


def test_a_session_that_continues_remembers_its_media() -> None:
    """A later preparation asks for the tool again, although the message may be in the archive alone."""
    session = SessionHarness(tools=("add",))
    session.ask(SEEN)
    session.answer_preparation(tools=("add", "view_blob"))
    session.reply("I see")
    continued = carry_over(session)
    assert continued.state.preparation.views
    assert continued.state.settings.has_viewer


def test_a_policy_that_clears_media_asks_for_the_tool() -> None:
    """Before there are any."""
    session = SessionHarness(context_policy=ContextPolicy(clear_media=ClearMedia(keep=1)))
    assert session.state.preparation.clears_media
    assert not session.state.preparation.views


def test_media_are_counted_by_the_formula_of_the_sessions_model() -> None:
    """When the message is committed, also if it waited in the queue; the entry has the count of each."""
    session = SessionHarness(on_busy="queue")
    session.ask(SEEN)
    session.answer_preparation()
    session.ask(SEEN, request_id="request-b")
    session.reply("I see")
    first, second = (entry for entry in session.thread if entry.payload.get("role") == "user")
    assert first.payload["media_tokens"] == second.payload["media_tokens"] == [765]
    text = session.thread.filter_by_kind("ai_message")
    assert first.tokens == second.tokens > 765
    assert all("media_tokens" not in entry.payload for entry in text if entry.payload["role"] == "assistant")
