"""Lists of sessions: live ones, archived ones, and interrupted ones, each once."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from clew import Clew, Session
from clew.errors import InvalidInput, SearchAttributesMissing
from clew.local import Reply, temporal_server
from clew.session.session_lists import parse_since
from clew_activities.archive import Archive, Head, Store, archived_sessions
from clew_workflows.contract.lists import ListSessionsInput, SessionSummary
from tests.support.rolling import make_id, run_rolling_worker
from tests.support.stack import Stack
from tests.support.waiting import wait_until


async def collect(clew: Clew, **filters: Any) -> list[SessionSummary]:
    return [summary async for summary in clew.sessions(**filters)]


async def find(clew: Clew, session: Session, **filters: Any) -> SessionSummary | None:
    """Find a session in a list that must not have it twice."""
    (*found,) = (summary for summary in await collect(clew, **filters) if summary.session_id == session.id)
    assert len(found) <= 1
    return found[0] if found else None


async def wait_for(clew: Clew, session: Session, **filters: Any) -> SessionSummary:
    """Wait until the server lists a session."""

    async def is_listed() -> bool:
        return await find(clew, session, **filters) is not None

    await wait_until(is_listed)
    found = await find(clew, session, **filters)
    assert found
    return found


async def test_sessions_of_a_user_that_failed_today(stack: Stack) -> None:
    """One line; the name may have any characters."""
    user = "o'neill \"\\ ) OR 1=1 " + make_id()
    metadata = {"user": user, "tags": "a,b", "title": "Refund"}
    session = await stack.open(lambda _body: Reply("no", status=HTTPStatus.BAD_REQUEST), metadata=metadata)
    other = await stack.open(metadata=metadata)
    await other.ask("hello")
    await (await session.message("hello")).result()
    found = await wait_for(stack.clew, session, user=user, status="failed", since="today")
    status = await session.status()
    assert (found.status, found.title, found.user, found.tags) == ("failed", "Refund", user, ("a", "b"))
    assert (found.model, found.metadata, found.archived) == (status.model, metadata, False)
    assert found.started_at
    assert found.active_at
    assert found.started_at < found.active_at
    assert await collect(stack.clew, user=user, status="awaiting_approval") == []
    assert await collect(stack.clew, user=user, since=timedelta(seconds=-60)) == []
    assert {one.session_id for one in await collect(stack.clew, user=user)} == {session.id, other.id}
    assert await find(stack.clew, session, query=f'WorkflowId = "{session.id}"')


async def test_archived_sessions_are_listed_when_the_server_has_forgotten_them(stack: Stack) -> None:
    """A session that hibernates is listed once, from the archive, with all that the server would show."""
    user = make_id()
    session = await stack.open(metadata={"user": user})
    await session.ask("how are you?")
    live = await wait_for(stack.clew, session, user=user, status="idle")
    await session.hibernate()

    async def is_archived() -> bool:
        # The server's list shows a moment later that the workflow has ended.
        return [one.archived for one in await collect(stack.clew, user=user)] == [True]

    await wait_until(is_archived)
    (archived,) = await collect(stack.clew, user=user)
    expected = live.model_copy(update={"status": "hibernated", "archived": True, "active_at": archived.active_at})
    assert archived == expected
    archive = Archive(stack.store, stack.clew.temporal.namespace)
    head = await archive.read_head(session.id)
    assert head
    forgotten = make_id()
    await archive.set_head(head.model_copy(update={"session_id": forgotten}), None)
    listed = await collect(stack.clew, user=user, status="hibernated", since="24h")
    assert session.id in {one.session_id for one in listed}


async def test_interrupted_sessions_are_listed(stack: Stack) -> None:
    """One that was terminated before it had an archive, and one with an archive."""
    user = make_id()
    async with run_rolling_worker(stack) as clew:
        sessions = [await clew.open(make_id(), model=stack.add_model("fine"), metadata={"user": user}) for _ in "ab"]
        await sessions[0].ask("hello")
        for turn in range(8):
            await sessions[1].ask(f"turn {turn}")
        archive = Archive(stack.store, clew.temporal.namespace)

        async def is_archived() -> bool:
            return await archive.read_head(sessions[1].id) is not None

        await wait_until(is_archived)
        for session in sessions:
            await clew.temporal.get_workflow_handle(session.id).terminate()

        async def are_interrupted() -> bool:
            return {(one.session_id, one.status) for one in await collect(clew, user=user)} == {
                (session.id, "interrupted") for session in sessions
            }

        await wait_until(are_interrupted)
        assert len(await collect(clew, user=user, status="interrupted")) == 2


@pytest.mark.slow
async def test_a_namespace_without_search_attributes_lists_what_it_can(stack: Stack) -> None:
    """Titles and metadata come from the memo; a filter is refused with the command that helps."""
    async with temporal_server(ui=False, search_attributes={}) as server:
        other = replace(stack, clew=await Clew.connect(server.address))
        async with run_rolling_worker(other, store=Store.from_url("memory://")) as clew:
            session = await clew.open(make_id(), model=stack.add_model("fine"), metadata={"user": "ann"})
            await session.ask("hello")
            found = await wait_for(clew, session)
            assert (found.status, found.title, found.user, found.tokens) == (None, "hello", "ann", None)
            with pytest.raises(SearchAttributesMissing, match="clew setup-namespace"):
                await collect(clew, user="ann")
            with pytest.raises(SearchAttributesMissing):
                await collect(clew, query="ClewTokens > 5")


@pytest.mark.parametrize(
    "filters",
    [{"since": "yesterday"}, {"since": "99999999d"}, {"status": "sleeping"}, {"query": "no ("}, {"agent": "a b"}],
)
async def test_bad_filters_are_refused(stack: Stack, filters: dict[str, Any]) -> None:
    """Before anything is listed."""
    with pytest.raises(InvalidInput):
        await collect(stack.clew, **filters)


def test_times() -> None:
    """`today` is the local midnight; durations are until now; a date without a zone is local."""
    now = datetime.now().astimezone()
    assert parse_since("today") == now.replace(hour=0, minute=0, second=0, microsecond=0)
    for text, age in (("90m", timedelta(minutes=90)), ("24h", timedelta(days=1)), ("2w", timedelta(days=14))):
        assert abs(now - age - parse_since(text)) < timedelta(seconds=5)
    assert parse_since("2026-11-01") == datetime(2026, 11, 1).astimezone()


@pytest.mark.parametrize("kind", ["folder", "memory"])
async def test_pages_have_each_archived_session_once(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of their ids, whatever the pages' size; a damaged head hides no other session."""
    monkeypatch.setattr(archived_sessions, "MAX_ROWS", 7)
    monkeypatch.setattr(archived_sessions, "BATCH", 5)
    store = Store.from_url(tmp_path.as_uri() if kind == "folder" else "memory://")
    archive = Archive(store, "default")
    ids = [f"s.{number}-{'x' * (number % 3)}" for number in range(40)]
    summaries = (SessionSummary(session_id=one, user="ann" if index % 4 else "bob") for index, one in enumerate(ids))
    for summary in summaries:
        head = Head(session_id=summary.session_id, family=summary.session_id, status="closed", summary=summary)
        await archive.set_head(head, None)
    await store.put("default/sessions/s-s.99.json", b"{")
    activities = archived_sessions.ListingActivities(archive)

    async def read_all(**filters: Any) -> list[str]:
        listed: list[str] = []
        query = ListSessionsInput(**filters)
        while True:
            page = await activities._fill_page(query)
            assert len(page.sessions) <= 7
            listed += [summary.session_id for summary in page.sessions]
            if page.next_after is None:
                return listed
            query = query.model_copy(update={"after": page.next_after})

    assert sorted(await read_all()) == sorted([*ids, "s.99"])
    assert sorted(await read_all(user="bob")) == sorted(ids[::4])
    assert sorted(await read_all(prefix="s.1")) == sorted(one for one in ids if one.startswith("s.1"))


@pytest.mark.slow
async def test_a_prefix_selects_the_sessions_of_one_tenant(stack: Stack) -> None:
    """Live and archived sessions whose ids begin with it, also where an id goes on with a sign; no other ones."""
    tenant = make_id()
    names = (f"{tenant}:a", f"{tenant}:-b", f"{tenant}:.c", f"{tenant}-2:d", f"{tenant}:e", f"{tenant}.x:f")
    model = stack.add_model("fine")
    sessions = [await stack.clew.open(name, model=model) for name in names]
    for session in sessions[:4]:
        await session.ask("hello")
        await session.hibernate()

    async def are_listed() -> bool:
        listed = {one.session_id: one.archived for one in await collect(stack.clew, prefix=f"{tenant}:")}
        return listed == {**dict.fromkeys(names[:3], True), names[4]: False}

    await wait_until(are_listed)
    assert await collect(stack.clew, prefix=f"{tenant}:", status="closed") == []
    with pytest.raises(InvalidInput):
        await collect(stack.clew, prefix=f'{tenant}" OR ""="')
