"""What providers received can be proved: the bytes of each request follow from the thread, long after."""

from __future__ import annotations

import hashlib
import uuid
from contextlib import AsyncExitStack

import pytest

from clew import Clew, Image, Session
from clew.content import AnyContent
from clew_activities.archive import Archive, Store
from clew_activities.tools.registry import load_tools
from clew_audit.audit import audit_session
from clew_audit.differences import Calls, verify_calls
from clew_workflows.thread.thread import Thread
from tests.providers.dialects import DIALECTS
from tests.providers.matrix import Matrix
from tests.providers.media_rules import list_received
from tests.providers.scenarios import POLICY, call_add
from tests.providers.strict_server import Dialect, StrictServer, Turn
from tests.support import toolbox
from tests.support.media import make_png
from tests.support.rolling import OFTEN
from tests.support.stack import serve

HIBERNATE_EVERY = 12
"""Dialects after which the session is hibernated."""


async def add_twice(session: Session, dialect: Dialect, server: StrictServer, number: int) -> None:
    """Have a model think and add in two rounds. A server without ids knows its calls by `number`.

    A model that takes images gets one that no other model has got.
    """
    server.play(
        Turn(f"{dialect.name} adds.", (call_add(number, 2),), thinks=True),
        Turn("", (call_add(number, 3), call_add(number, 4)), thinks=True),
        Turn(f"{dialect.name} has added."),
    )
    options = dict(dialect.thinking_options) or None
    image = Image.from_bytes(make_png(number + 1), name=f"{dialect.name}.png")
    content: AnyContent = ["Add, please.", image] if "image/png" in dialect.media else "Add, please."
    await session.ask(content, model=dialect.full_model, model_options=options)
    server.check()
    if "image/png" in dialect.media:
        assert hashlib.sha256(image.read()).hexdigest() in {one.digest for one in list_received(server.last)}


@pytest.mark.slow
async def test_the_requests_to_all_dialects_are_proved_over_rollover_and_archive(matrix: Matrix) -> None:
    """One session talks to every dialect, rolls over and hibernates; its audit encodes each request to the byte."""
    clew, store = Clew(matrix.clew.temporal, f"proof-{uuid.uuid4().hex}"), Store.from_url("memory://")
    received: dict[str, str] = {}
    async with AsyncExitStack() as stack:
        for name in sorted(matrix.servers):
            await stack.enter_async_context(matrix.servers[name].free)
        tools = load_tools([toolbox.__name__])
        await stack.enter_async_context(serve(clew, matrix.environ, store=store, thresholds=OFTEN, tools=tools))
        session_id = f"proof-{uuid.uuid4().hex}"
        session = await clew.open(
            session_id, model=DIALECTS[0].full_model, tools=["add"], system_prompt="You add.", context_policy=POLICY
        )
        for number, dialect in enumerate(DIALECTS):
            server = matrix.servers[dialect.name]
            await add_twice(session, dialect, server, number)
            received |= {exchange.digest: dialect.full_model for exchange in server.exchanges}
            if number % HIBERNATE_EVERY == HIBERNATE_EVERY - 1:
                await session.hibernate()
                session = await clew.open(session_id)
        entries = await session.entries()
        recipes = [entry.recipe for entry in entries if entry.recipe]
        assert {recipe.request.digest: recipe.model for recipe in recipes if recipe.request} == received
        calls = Calls()
        assert [one async for one in verify_calls(Thread(entries), calls, session.read_blob)] == []
        assert calls.sent == len(received)
        blind = Calls()
        assert [one async for one in verify_calls(Thread(entries), blind)] == []
        assert blind.sent < len(received), "requests with images cannot be compared without the images"
        assert blind.sent + blind.other_encoders.total() == len(received)
        report = await audit_session(clew.temporal, Archive(store, "default"), session_id)
        assert report.clean, report.differences
        assert {"completed", "continued"} <= {run.ended for run in report.runs}
        assert report.in_archive > 50
        assert (report.calls.sent, report.calls.verified) == (len(received), len(received))
        await session.close()
