"""What a provider refuses one day does not end a session: real sessions, whose servers refuse it from a moment on.

`test_pure_refusals` has every wording, and the random search.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from clew import ContextPolicy, File, Session
from clew.content import Media
from clew_workflows.contract.payloads import Recipe
from tests.providers.dialects import DIALECTS
from tests.providers.matrix import REPORT, Matrix, list_report
from tests.providers.refusals import WORDS, Kind, Refusing, find_format, make_refusing
from tests.providers.scenarios import Cell, call_add, list_media, list_recipes
from tests.providers.strict_server import Call, Exchange, Refusal, Turn

ROWS = {dialect.name: dialect for dialect in DIALECTS}
TEXTS = (REPORT, "A square.")
"""What a tool or the model has said, which a provider may refuse."""


@dataclass(frozen=True)
class Case:
    """A refusal: what is refused, in the words of the given number, from a message on.

    Attributes:
        row: The name of the dialect.
        kind: What is refused.
        words: The number of the words.
        before: The message before which it begins, from 0 on.
    """

    row: str
    kind: Kind
    words: int = 0
    before: int = 1


CASES = (
    Case("anthropic", "media", 0, before=0),
    Case("anthropic", "own_data", 0),
    Case("openai-responses", "own_data", 0),
    Case("bedrock", "media", 2),
    Case("google", "media", 3),
    Case("openai", "name", 0),
    Case("google", "schema", 0),
    Case("anthropic-litellm", "text", 0),
    Case("google", "text", 0),
)


async def begin(cell: Cell, case: Case) -> tuple[Session, Refusing]:
    """Play three messages of a session whose server begins to refuse something."""
    words = WORDS[find_format(cell.dialect)][case.kind][case.words]
    media = [*list_media(), *list_report()]
    cell.play(
        Turn("A square.", (call_add(1, 1),), thinks=True),
        Turn("Two.", thinks=True),
        Turn("", (Call("show_report", {}),), thinks=True),
        Turn("Seen.", thinks=True),
        Turn("", (call_add(2, 2),), thinks=True),
        Turn("Four."),
        Turn("Bye."),
        Turn("Still here."),
    )
    session = await cell.open(tools=["add", "show_report"])
    contents: list[Any] = [["What is this?", *list_media()], "Show me the report.", "Add."]
    refusing: Refusing | None = None
    for number, content in enumerate(contents):
        if number == case.before:
            refusing = make_refusing(cell.server, case.kind, words, media, random.Random(case.row), texts=TEXTS)
            assert refusing, "there is nothing to refuse"
            cell.server.refusing = [refusing]
        await cell.ask(session, content)
    assert refusing, "nothing was to be refused"
    assert refusing.refused, "nothing was refused"
    return session, refusing


async def read_refused(session: Session) -> tuple[set[str], Recipe]:
    """Read the ids of what was refused, as the `error` entries say, and the newest recipe."""
    errors = [entry.payload for entry in await session.entries(kind="error")]
    assert {error["type"] for error in errors} == {"item_refused"}
    recipes = await list_recipes(session)
    return {name for error in errors for name in error["details"]["refused"]["ids"]}, recipes[-1]


def list_cases() -> list[Any]:
    """List the cases. The gate has each third one: `test_pure_refusals` plays every wording."""
    return [
        pytest.param(case, id=f"{case.row}-{case.kind}", marks=pytest.mark.long if number % 3 else ())
        for number, case in enumerate(CASES)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("case", list_cases())
async def test_what_a_provider_refuses_is_left_out_of_later_calls(matrix: Matrix, case: Case) -> None:
    """Visibly in recipe and thread, so that the audit makes the same bytes; also after hibernation and in a fork."""
    cell = Cell(matrix.clew, matrix.servers, ROWS[case.row])
    async with cell.server.free:
        try:
            session, refusing = await begin(cell, case)
            refused, recipe = await read_refused(session)
            met = len(refusing.refused)
            assert refused
            assert recipe.request
            assert {name for group in recipe.request.refused for name in group.ids} == refused
            assert recipe.fitting
            await session.hibernate()
            await cell.ask(await matrix.clew.open(session.id), "Goodbye.")
            fork = cell.adopt(await session.fork())
            await cell.ask(fork, "Are you there?")
            assert len(refusing.refused) == met, "it was sent again"
            cell.server.check()
            await cell.check_requests()
        finally:
            await cell.end()


@pytest.mark.slow
async def test_a_refusal_that_remains_fails_its_request_alone(matrix: Matrix) -> None:
    """What is wrong cannot be left out: the request fails in the provider's words, and the next one is answered."""
    cell = Cell(matrix.clew, matrix.servers, ROWS["anthropic"])
    words = WORDS["anthropic"]["media"][0]
    async with cell.server.free:
        try:
            cell.play(Turn("A square."), Turn("Fine."))
            session = await cell.open(tools=["add"])
            await cell.ask(session, ["What is this?", *list_media()])
            refusing = Refusing("anthropic", words, lambda _: ())
            cell.server.refusing = [refusing]
            outcome = await cell.wait(await session.message("And now?"))
            assert (outcome.status, outcome.termination_reason) == ("failed", "bad_request")
            assert outcome.error
            assert outcome.error.message == words.message
            assert 1 < len(refusing.refused) < 14
            cell.server.refusing = []
            await cell.ask(session, "Better?")
            request = (await list_recipes(session))[-1].request
            assert request
            assert not request.refused
        finally:
            await cell.end()


@pytest.mark.slow
async def test_a_text_that_is_refused_in_unknown_words_fails_its_request_alone(matrix: Matrix) -> None:
    """The next one is answered without it, and later ones do not try it again."""
    cell = Cell(matrix.clew, matrix.servers, ROWS["unknown"])

    def refuse(exchange: Exchange) -> Iterator[Refusal]:
        if "the forbidden word" in str(exchange.body):
            yield Refusal("That is not how we talk here.")

    async with cell.server.free:
        try:
            cell.play(Turn("One."), Turn("Three."), Turn("Four."))
            session = await cell.open()
            await cell.ask(session, "one")
            cell.server.refusing = [refuse]
            outcome = await cell.wait(await session.message("the forbidden word"))
            assert (outcome.status, outcome.termination_reason) == ("failed", "bad_request")
            await cell.ask(session, "three")
            met = len(cell.server.exchanges)
            await cell.ask(session, "four")
            assert len(cell.server.exchanges) == met + 1
            cell.server.check()
        finally:
            await cell.end()


async def test_with_no_markers_allowed_the_request_fails(matrix: Matrix) -> None:
    """`unsupported_content: "refuse"` holds for what the provider refuses, too."""
    cell = Cell(matrix.clew, matrix.servers, ROWS["anthropic"])
    async with cell.server.free:
        try:
            cell.play(Turn("Fine."))
            session = await cell.open()
            media: list[Media] = [one for one in list_media() if not isinstance(one, File)]
            refusing = make_refusing(cell.server, "media", WORDS["anthropic"]["media"][0], media, random.Random(0))
            assert refusing
            cell.server.refusing = [refusing]
            policy = ContextPolicy(unsupported_content="refuse")
            outcome = await cell.wait(await session.message(["Look.", *media], context_policy=policy))
            assert (outcome.status, outcome.termination_reason) == ("failed", "unsupported_content")
            await cell.ask(session, "Without it, then.")
        finally:
            await cell.end()
