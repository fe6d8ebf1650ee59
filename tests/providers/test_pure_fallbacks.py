"""Sessions without Temporal and without a network: fallbacks to each other dialect, and calls left in the text."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.providers.chat_completions import ChatCompletions
from tests.providers.dialects import DIALECTS, FORMATS
from tests.providers.matrix import list_report
from tests.providers.pure_loop import PureSession, Servers, run_pure_servers
from tests.providers.scenarios import assert_has_media, call_add, list_media
from tests.providers.strict_server import Call, Dialect, Fault, Turn

OUTAGE = Turn(fault=Fault("before", status=503))


def iterate_pairs() -> Iterator[Any]:
    """List each row with each format in both orders, and each row with the next one.

    Rows of one wire share its code: all pairs of them would play that again. The quick run has two formats in one
    order, and each other row once with a format; the gate has all pairs of formats, and a quarter of the others.
    """
    for number, first in enumerate(DIALECTS):
        for place, other in enumerate(DIALECTS):
            follows = place == (number + 1) % len(DIALECTS)
            if first is other or not ({first.name, other.name} & {*FORMATS} or follows):
                continue
            if {first.name, other.name} <= {*FORMATS}:
                is_quick = (number < place) == ((number + place) % 2 == 0)
            else:
                is_quick = FORMATS[number % len(FORMATS)] == other.name
            marks = [] if is_quick else [pytest.mark.slow]
            if not is_quick and (number + place) % 4 and not {first.name, other.name} <= {*FORMATS}:
                marks.append(pytest.mark.long)
            yield pytest.param(first, other, id=f"{first.name}-to-{other.name}", marks=marks)


def iterate_texts(value: Any) -> Iterator[str]:
    """List the texts of a request, in order, in whatever format."""
    if isinstance(value, list):
        for item in value:
            yield from iterate_texts(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            if name in ("text", "content") and isinstance(item, str):
                yield item
            else:
                yield from iterate_texts(item)


@pytest.fixture(scope="module")
async def servers() -> AsyncIterator[Servers]:
    """The servers of all dialects."""
    async with run_pure_servers(DIALECTS) as running:
        yield running


@pytest.mark.parametrize(("first", "other"), list(iterate_pairs()))
async def test_a_loop_goes_on_at_another_dialect_and_back(servers: Servers, first: Dialect, other: Dialect) -> None:
    """Each server takes the calls, the results, the images and the texts of both; its own reasoning comes back."""
    one, two = servers.by_name[first.name], servers.by_name[other.name]
    one.play(
        Turn("I begin.", (call_add(1, 2), Call("show_report", {})), thinks=True),
        Turn("", (call_add(3, 4),), thinks=True),
        OUTAGE,
        Turn("", (call_add(20, 1),), thinks=True),
        OUTAGE,
        Turn("I have the last word."),
    )
    two.play(
        Turn("", (call_add(7, 7),), thinks=True),
        Turn("I go on.", (call_add(8, 8), call_add(9, 9)), thinks=True),
        Turn("It is eighteen.", thinks=True),
        Turn("", (call_add(30, 1),), thinks=True),
        Turn("It is thirty-one."),
    )
    session = PureSession.open(
        servers,
        first,
        tools=("add", "show_report"),
        fallbacks=(other.full_model,),
        system_prompt="You add.",
        model_options={**other.thinking_options, **first.thinking_options},
    )
    for content, fallback in (("Add up.", True), ("And one.", True), ("Bye.", False)):
        media = list_media() if content == "Add up." else []
        outcome = await session.ask(content, *media)
        one.check_verdicts()
        two.check_verdicts()
        assert outcome["status"] == "completed", outcome
        assert outcome["fallback"] == (other.full_model if fallback else None)
    one.check()
    two.check()
    sums = [text for text in session.list_results() if isinstance(text, str)]
    assert sums == ["3", "7", "14", "16", "18", "21", "31"]
    recipes = session.list_recipes()
    for dialect, server in ((first, one), (other, two)):
        assert_has_media(dialect, server.exchanges[-1], recipes, list_media(), list_report())
        # Gemini may sign a piece of a text, which stays a part of its own.
        said = "".join(iterate_texts(server.last))
        assert all(text in said for text in ("I begin.", "I go on.", "It is eighteen.")), said


LEAKING = [dialect for dialect in DIALECTS if isinstance(dialect.wire, ChatCompletions) and dialect.wire.leak]


@pytest.mark.parametrize("dialect", [pytest.param(one, id=one.name) for one in LEAKING])
async def test_a_call_that_the_server_leaves_in_the_text_is_no_answer(servers: Servers, dialect: Dialect) -> None:
    """The reply is asked for again, and the tool runs."""
    server = servers.by_name[dialect.name]
    server.play(
        Turn("I add. ", (call_add(1, 2),), thinks=True, leaks=True),
        Turn("I add.", (call_add(1, 2),), thinks=True),
        Turn("It is three."),
    )
    session = PureSession.open(servers, dialect, tools=("add",))
    outcome = await session.ask("Add.")
    server.check()
    assert (outcome["status"], outcome["termination_reason"]) == ("completed", "final_answer")
    assert session.list_results() == ["3"]
    replies = [entry.payload for entry in session.harness.thread if entry.recipe]
    assert [reply["content"] for reply in replies] == ["I add.", "It is three."]


async def test_a_server_that_leaves_every_call_in_the_text_fails_the_run(servers: Servers) -> None:
    """After as many attempts as a truncated reply has. Without tools, the same text is an answer."""
    (dialect,) = (one for one in LEAKING if one.name == "vllm-qwen")
    server = servers.by_name[dialect.name]
    leak = Turn("", (call_add(1, 2),), leaks=True)
    server.play(leak, leak, leak)
    session = PureSession.open(servers, dialect, tools=("add",))
    outcome = await session.ask("Add.")
    server.check()
    assert (outcome["status"], outcome["error"]["type"]) == ("failed", "truncated_stream")
    server.play(leak)
    session = PureSession.open(servers, dialect, tools=())
    assert (await session.ask("How do you call tools?"))["status"] == "completed"
