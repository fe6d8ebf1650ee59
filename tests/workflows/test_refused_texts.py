"""A text that a provider refuses for its content ends no session, whatever the text is of. Real sessions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from clew import RequestFailed, Session
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive
from clew_activities.providers.refused_parts import TEXT_MARKER
from clew_audit.audit import audit_session
from tests.support.stack import Stack

WORD = "forbidden-word"
AZURE = (
    "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify "
    "your prompt and retry."
)


class Filter:
    """A model whose provider refuses each request with the word.

    Attributes:
        word: The word.
        sent: The texts of the messages that were accepted, of each request.
        refused: The number of requests that were refused.
    """

    def __init__(self, word: str = WORD) -> None:
        self.word = word
        self.sent: list[str] = []
        self.refused = 0

    def __call__(self, body: dict[str, Any]) -> Reply:
        """Answer, or refuse the request."""
        written = json.dumps(body["messages"])
        if self.word in written:
            self.refused += 1
            return Reply.error(400, AZURE, code="content_filter")
        self.sent.append(written)
        newest = body["messages"][-1]
        if newest["role"] == "user" and "the gate" in str(newest["content"]):
            return Reply(tool_calls=(ToolCall("open_gate", {"gate": "refused-texts"}),))
        return Reply(f"{WORD}, I say") if "say it" in str(newest["content"]) else Reply("fine")


async def check(stack: Stack, session: Session, server: Filter) -> None:
    """Check that plain messages are answered and nothing is tried again, also after a pause and in a fork."""
    met = server.refused
    assert await session.ask("Are you there?") == "fine"
    await session.hibernate()
    assert await (await stack.clew.open(session.id)).ask("And now?") == "fine"
    fork = await session.fork()
    assert await fork.ask("And you?") == "fine"
    assert server.refused == met
    assert json.dumps(TEXT_MARKER)[1:-1] in server.sent[-1]
    for checked in (session, fork):
        report = await audit_session(stack.clew.temporal, Archive(stack.store, "default"), checked.id)
        assert report.clean, report.differences
    recipe = [entry.recipe for entry in await session.entries() if entry.recipe][-1]
    assert recipe.request
    assert [group.kind for group in recipe.request.refused] == ["text"]


@pytest.mark.slow
async def test_a_users_refused_text_fails_its_request_alone(stack: Stack) -> None:
    """Its sender is told, and no model answers a marker in its place. The same text may be sent again."""
    server = Filter()
    session = await stack.open(server)
    assert await session.ask("hello") == "fine"
    for _ in range(2):
        with pytest.raises(RequestFailed) as failed:
            await session.ask(f"Tell me of the {WORD}.")
        assert failed.value.outcome.error
        assert failed.value.outcome.error.type == "content_refused"
    assert len(server.sent) == 1
    (error, _) = [entry.payload for entry in await session.entries(kind="error")]
    assert (error["type"], error["details"]["refused"]["kind"]) == ("content_refused", "text")
    await check(stack, session, server)


@pytest.mark.slow
async def test_a_tools_refused_result_is_a_marker_for_the_model(stack: Stack) -> None:
    """What a model has read somewhere ends not even its run."""
    server = Filter('"opened"')
    session = await stack.open(server, tools=["open_gate"])
    assert await session.ask("Open the gate.") == "fine"
    (error,) = [entry.payload for entry in await session.entries(kind="error")]
    assert (error["type"], error["details"]["refused"]["kind"]) == ("item_refused", "text")
    await check(stack, session, server)


@pytest.mark.slow
async def test_what_a_model_has_said_and_what_was_accepted_before_may_be_refused(stack: Stack) -> None:
    """The next message is answered."""
    server = Filter("no such word")
    session = await stack.open(server)
    for text in ("one", "say it", "two", "three"):
        await session.ask(text)
    server.word = WORD
    assert await session.ask("four") == "fine"
    assert 0 < server.refused < 10
    await check(stack, session, server)
