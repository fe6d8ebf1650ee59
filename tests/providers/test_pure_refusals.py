"""A random search over what providers refuse: after it every session answers its next plain message."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from clew import Image
from clew.content import Media
from tests.providers.dialects import DIALECTS, FORMATS
from tests.providers.matrix import REPORT, list_report
from tests.providers.pure_loop import PureSession, Servers, run_pure_servers
from tests.providers.refusals import WORDS, Kind, Refusing, Words, find_format, make_refusing
from tests.providers.scenarios import call_add, list_media
from tests.providers.strict_server import Call, Dialect, Turn
from tests.support.media import make_png

LATE = make_png(57)
MOMENTS = 4
"""The messages before which something is refused for the first time."""
TEXTS = (REPORT, "What is this?", "Show me the report.", "And this?", "Goodbye.", "A square.", "Seen.")
"""Texts of a session that may be refused: of its user, of its model and of a tool."""
SEARCHED = 8
"""Random sessions with each dialect."""


@pytest.fixture(scope="module")
async def servers() -> AsyncIterator[Servers]:
    """The servers of all dialects."""
    async with run_pure_servers(DIALECTS) as running:
        yield running


def list_rows() -> list[Any]:
    """List the rows. The quick run has one of each format, the gate a third of the others, too."""
    others = [dialect for dialect in DIALECTS if dialect.name not in FORMATS]
    rows = [pytest.param(dialect, id=dialect.name) for dialect in DIALECTS if dialect.name in FORMATS]
    for number, dialect in enumerate(others):
        marks = [pytest.mark.slow, pytest.mark.long] if number % 3 else [pytest.mark.slow]
        rows.append(pytest.param(dialect, id=dialect.name, marks=marks))
    return rows


def list_wordings(dialect: Dialect) -> Iterator[tuple[Kind, Words]]:
    """List what the servers of a dialect's format refuse, with their words."""
    for kind, wordings in WORDS[find_format(dialect)].items():
        for words in wordings:
            yield kind, words


def list_session_media() -> list[Media]:
    """List the images and files of a session."""
    return [*list_media(), *list_report(), Image.from_bytes(LATE, name="late.png")]


async def play(
    servers: Servers, dialect: Dialect, kind: Kind, words: Words, chooser: random.Random
) -> list[Refusing]:
    """Play a session whose server refuses something from a moment on, and perhaps something else from another one."""
    server = servers.by_name[dialect.name]
    server.play(
        Turn("A square.", (call_add(1, 1),), thinks=True),
        Turn("Two.", thinks=True),
        Turn("", (Call("show_report", {}), call_add(1, 4)), thinks=True),
        Turn("Seen.", thinks=True),
        Turn("", (call_add(2, 2),), thinks=True),
        Turn("", (call_add(1, 2),), thinks=True),
        Turn("Three."),
        Turn("Bye."),
        Turn("Still here."),
    )
    planned: dict[int, tuple[Kind, Words]] = {chooser.randrange(MOMENTS): (kind, words)}
    if chooser.random() < 0.3:
        planned |= {chooser.randrange(MOMENTS): chooser.choice(list(list_wordings(dialect)))}
    session = PureSession.open(servers, dialect, tools=("add", "show_report"), model_options=dialect.thinking_options)
    plain: tuple[str, tuple[Media, ...]] = ("Are you there?", ())
    described = dialect.name
    contents = [
        ("What is this?", tuple(list_media())),
        ("Show me the report.", ()),
        ("And this?", (Image.from_bytes(LATE, name="late.png"),)),
        ("Goodbye.", ()),
        plain,
    ]
    for number, (text, media) in enumerate(contents):
        waiting = [moment for moment in planned if moment <= number]
        for moment in waiting:
            what, how = planned[moment]
            if refusing := make_refusing(server, what, how, list_session_media(), chooser, texts=TEXTS):
                del planned[moment]
                server.refusing.append(refusing)
        outcome = await session.ask(text, *media)
        described = f"{dialect.name}, {kind} ({words.message}), message {number}: {outcome['error']}"
        switches = [one for one in server.refusing if isinstance(one, Refusing)]
        # The sender of a text that is refused is told. Whatever waits in the script, waits for the next message.
        is_refused = any(one.has({"text": text}) for one in switches)
        expected = ("failed", "content_refused") if is_refused else ("completed", None)
        assert (outcome["status"], outcome["error"] and outcome["error"]["type"]) == expected, described
    server.check_verdicts()
    switches = [one for one in server.refusing if isinstance(one, Refusing)]
    for refusing in switches:
        check(session, refusing, described)
    return switches


def check(session: PureSession, refusing: Refusing, described: str) -> None:
    """Check that one call alone has met a refusal, and that the thread and the newest recipe say so."""
    server = next(one for one in session.servers.by_name.values() if refusing in one.refusing)
    tries = [number for number, one in enumerate(server.exchanges) if one in refusing.refused]
    if not tries:
        return
    switches = [one for one in server.refusing if isinstance(one, Refusing)]
    accepted = [number for number, one in enumerate(server.exchanges) if is_accepted(switches, one)]
    assert not any(tries[0] < number < tries[-1] for number in accepted), f"{described}: it was sent again"
    errors = [entry.payload for entry in session.harness.thread.filter_by_kind("error")]
    assert errors, described
    assert {error["type"] for error in errors} <= {"item_refused", "content_refused"}, described
    newest = session.list_recipes()[-1].request
    assert newest, described
    assert newest.refused, described


def is_accepted(switches: list[Refusing], exchange: object) -> bool:
    """Whether no switch has refused a request."""
    return not any(exchange in one.refused for one in switches)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", list_rows())
async def test_what_a_server_refuses_in_its_own_words_ends_no_session(servers: Servers, dialect: Dialect) -> None:
    """Each wording once: whatever it names, later calls are without it, and the thread says so."""
    met = 0
    for number, (kind, words) in enumerate(list_wordings(dialect)):
        switches = await play(servers, dialect, kind, words, random.Random(f"{dialect.name} {number}"))
        met += any(one.refused for one in switches)
    assert met > 3


@pytest.mark.slow
@pytest.mark.parametrize("dialect", list_rows())
async def test_no_refusal_of_one_thing_ends_a_session(servers: Servers, dialect: Dialect) -> None:
    """One thing or two, at random, in random words from a random moment on."""
    for seed in range(SEARCHED):
        chooser = random.Random(f"{dialect.name} search {seed}")
        kind, words = chooser.choice(list(list_wordings(dialect)))
        await play(servers, dialect, kind, words, chooser)
