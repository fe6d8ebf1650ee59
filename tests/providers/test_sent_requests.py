"""What providers received can be proved: the bytes of each request follow from the thread, long after."""

from __future__ import annotations

import hashlib
import io
import uuid
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest

from clew import Clew, Image, Session
from clew.content import AnyContent
from clew_activities.archive import Archive, Store
from clew_activities.model.model_table import OwnModel, OwnModels
from clew_activities.model.summary_calls import decode_earlier_calls
from clew_activities.tools.registry import load_tools
from clew_audit.audit import audit_session
from clew_audit.differences import Calls, verify_calls
from clew_audit.exports import export_session, import_session
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread
from tests.providers.dialects import DIALECTS
from tests.providers.matrix import Matrix
from tests.providers.media_rules import list_received
from tests.providers.scenarios import POLICY, call_add
from tests.providers.strict_server import Dialect, StrictServer, Turn
from tests.support import toolbox
from tests.support.media import make_png
from tests.support.rolling import OFTEN
from tests.support.scenarios import wait_until_idle
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
@pytest.mark.long
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


SUMMARIZING = ("openai", "openai-responses", "anthropic", "google", "bedrock", "deepseek")
"""The dialects that write summaries: those of every codec."""
WINDOW = 1800
"""Tokens of the models' windows: a long message is summarized in several pieces."""


async def read_recorded(entries: list[Entry], archive: Archive, family: str) -> list[str]:
    """Read the digests of all requests that a thread records, of runs and of summaries, in the order of the calls."""
    digests = []
    for entry in entries:
        if entry.recipe and entry.recipe.request:
            digests.append(entry.recipe.request.digest)
        if recipe := entry.summary_recipe:
            earlier = []
            if recipe.earlier_calls:
                data, _ = await archive.get_result(family, recipe.earlier_calls)
                earlier = decode_earlier_calls(data)
            assert len(earlier) + 1 == recipe.calls
            digests += [*(call.request.digest for call in earlier), recipe.request.digest]
    return digests


@pytest.mark.slow
async def test_the_requests_of_summaries_are_proved(matrix: Matrix) -> None:
    """Each body of a summary, in pieces and in a compaction, is the one recorded, also of a fork and after an import.

    A changed message of the range is a difference of the call that has read it.
    """
    clew, store = Clew(matrix.clew.temporal, f"proof-{uuid.uuid4().hex}"), Store.from_url("memory://")
    archive, dialects = Archive(store, "default"), [one for one in DIALECTS if one.name in SUMMARIZING]
    received: list[str] = []
    policy = ContextPolicy(max_input_tokens=100_000, reserve_output_tokens=200, keep_last_turns=0)
    own = OwnModels({dialect.full_model: OwnModel(window=WINDOW) for dialect in dialects}, {})
    async with AsyncExitStack() as stack:
        for name in sorted(SUMMARIZING):
            await stack.enter_async_context(matrix.servers[name].free)
        await stack.enter_async_context(serve(clew, matrix.environ, store=store, thresholds=OFTEN, own_models=own))
        session_id = f"proof-{uuid.uuid4().hex}"
        session = await clew.open(session_id, model=dialects[0].full_model, context_policy=policy)
        for number, dialect in enumerate(dialects):
            server = matrix.servers[dialect.name]
            server.play(Turn("It is."), Turn("First."), Turn("Second."), Turn("Third."), Turn("Fourth."))
            picture = Image.from_bytes(make_png(number + 1), name=f"{dialect.name}.png")
            await session.ask([f"{dialect.name}: " + "many words of it " * 700, picture], model=dialect.full_model)
            await session.configure(
                context_policy=policy.model_copy(update={"summarization_model": dialect.full_model})
            )
            if number % 2:
                await session.compact(op_id=f"compact-{number}")
                await wait_until_idle(session)
            else:
                await session.summarize()
            server.check_verdicts()
            assert len(server.exchanges) > 3
            received += [exchange.digest for exchange in server.exchanges]
        entries = await session.entries()
        recipes = [entry.summary_recipe for entry in entries if entry.summary_recipe]
        assert [recipe.builds_on is None for recipe in recipes] == [True, *[False] * (len(dialects) - 1)]
        assert await read_recorded(entries, archive, session_id) == received
        await session.hibernate()
        forked = await (await clew.open(session_id)).fork(session_id=f"{session_id}-fork")
        file = io.BytesIO()
        await export_session(clew.temporal, archive, session_id, file)
        imported, _ = await import_session(
            clew.temporal,
            archive,
            io.BytesIO(file.getvalue()),
            session_id=f"{session_id}-new",
            task_queue=clew.task_queue,
        )
        for audited in (session_id, forked.id, imported):
            report = await audit_session(clew.temporal, archive, audited)
            assert report.clean, (audited, report.differences)
            assert (report.calls.sent, report.calls.verified) == (len(received), len(received))
        calls = Calls()
        assert [one async for one in verify_calls(Thread(entries), calls, session.read_blob)] == []
        assert calls.other_encoders["the earlier calls of a summary are missing or damaged"] > len(dialects)

        async def read_result(digest: str) -> bytes:
            return (await archive.get_result(session_id, digest))[0]

        question = next(entry for entry in entries if entry.payload.get("role") == "user")
        changed = {**question.payload, "content": [{"type": "text", "text": "a" * 20_000}]}
        edited = [replace(entry, payload=changed) if entry is question else entry for entry in entries]
        found = [one async for one in verify_calls(Thread(edited), Calls(), session.read_blob, read_result)]
        assert ("summary-1", "payload.recipe.request.digest") in {(one.name, one.field) for one in found}
        assert not {one.name for one in found} & {f"summary-{number}" for number in range(2, 9)}
        await (await clew.open(session_id)).close()
