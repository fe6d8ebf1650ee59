"""Decisions about sessions with media: when a model gets the tool that shows them again, and what is recorded."""

from __future__ import annotations

from typing import Any

import pytest

from clew.contract import ClearMedia, ContextPolicy, Limits
from clew.errors import TooLarge
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


def make_image(number: int, size: int) -> Part:
    return make_part("image", number, bytes=size)


@pytest.mark.parametrize(
    ("limits", "accepted", "refused"),
    [
        ({"max_blob_bytes": 10}, [[make_image(1, 10)], [make_image(2, 10)]], [make_image(3, 11)]),
        (
            {"max_message_blob_bytes": 10},
            [[make_image(1, 4), make_image(2, 6)], [make_image(3, 6), make_image(3, 6)]],
            [make_image(4, 4), make_image(5, 7)],
        ),
        (
            {"max_session_blob_bytes": 30},
            [[make_image(1, 10)], [make_image(2, 10), make_image(2, 10)], [make_image(1, 10)]],
            [make_image(3, 1)],
        ),
    ],
)
def test_blobs_have_limits(limits: Any, accepted: list[list[Part]], refused: list[Part]) -> None:
    """A blob counts once in a message, however often the message names it, and again in the next message."""
    session = SessionHarness(limits=Limits(**limits))
    for parts in accepted:
        session.ask(parts)
        if isinstance(session.effect, Prepare):
            session.answer_preparation()
        session.reply("seen")
    with pytest.raises(TooLarge, match=next(iter(limits))):
        session.ask(refused)


def test_the_blobs_of_results_and_replies_count_towards_the_session() -> None:
    """Once for each result, whoever has made it."""
    session = SessionHarness(limits=Limits(max_session_blob_bytes=30))
    session.ask()
    session.reply("", "look")
    session.answer_call("tool00001", [make_image(1, 10)])
    session.reply([make_image(2, 20)])
    assert session.state.counters.media_bytes == 30
    with pytest.raises(TooLarge):
        session.ask([make_image(1, 1)])
