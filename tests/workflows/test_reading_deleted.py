"""A deleted session is gone for its readers when the deletion has answered, while the server keeps its histories."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from clew import Clew, Session
from clew.contract.content import Content
from clew.errors import ClewError, NotFound, UnknownBlob
from clew.local import Reply, scripted_model, temporal_server
from clew.schedules import Schedules
from clew.serve.mcp_server import URI_PREFIX
from clew.serve.openai.ids import ResponseName
from clew.session.events import StatusChanged
from clew_activities.archive import Store
from clew_workflows.contract import WORKFLOW_TYPE, SessionConfig
from clew_workflows.contract.config import make_start_arguments
from tests.clew.serve.test_mcp_sessions import PATH, make_request, open_session
from tests.support.command_line import run_clew
from tests.support.media import make_png
from tests.support.serving import Served, run_service
from tests.support.stack import Stack, serve
from tests.support.viewers import watch
from tests.support.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.slow

SECRET = "the-words-of-the-deleted-session"
SLOW_DELETIONS = {
    "history.transferProcessorUpdateAckInterval": "30s",
    "history.visibilityProcessorUpdateAckInterval": "30s",
}
"""The server's own defaults: it deletes no history within half a minute of the request."""
SECONDS = 5.0
"""Most seconds that a deletion takes: it does not wait for the server's own."""
STATES = ("open", "closed", "hibernated", "terminated")


@pytest.fixture(scope="module")
async def slow() -> AsyncIterator[Stack]:
    """A stack whose server deletes histories as slowly as servers do by default."""
    async with (
        temporal_server(ui=False, dynamic_config=SLOW_DELETIONS) as server,
        scripted_model(lambda _body: Reply(SECRET)) as provider,
    ):
        store = Store.from_url("memory://")
        stack = Stack(await Clew.connect(server.address), server, provider, {}, store)
        async with serve(stack.clew, stack.environ, store=store):
            yield stack


@pytest.fixture(scope="module")
async def served(slow: Stack) -> AsyncIterator[Served]:
    """The service before that stack."""
    async with run_service(slow.clew) as service:
        yield service


async def make_session(clew: Clew, session_id: str, state: str) -> tuple[Session, str, str]:
    """Make a session with a title, a prompt, an image and texts, in a state.

    Returns its request, too, and its image.
    """
    metadata = {"title": SECRET, "user": "deleted-user"}
    session = await clew.open(session_id, model="scripted:any", system_prompt=SECRET, metadata=metadata)
    blob = await session.put_blob(make_png(8, 8))
    content: Content = [{"type": "text", "text": SECRET}, {"type": "image", "blob": blob}]
    request = await session.message(content, request_id="first")
    assert await request.answer() == SECRET
    match state:
        case "closed":
            await session.close()
        case "hibernated":
            await session.hibernate()
        case "terminated":
            await clew.temporal.get_workflow_handle(session_id).terminate()
    return session, request.request_id, blob["digest"]


async def list_runs(clew: Clew, session_id: str) -> list[str]:
    """List the workflow runs of a session that the server still shows."""
    query = f'WorkflowId = "{session_id}" AND WorkflowType = "{WORKFLOW_TYPE}"'
    return [run.run_id async for run in clew.temporal.list_workflows(query)]


async def delete(clew: Clew, session_id: str) -> None:
    """Delete a session, before the server deletes its histories."""
    begin = time.monotonic()
    await clew.delete(session_id)
    assert time.monotonic() - begin < SECONDS
    assert await list_runs(clew, session_id), "the server has deleted the histories: the test would show nothing"


def list_reading_routes(served: Served) -> list[str]:
    """List the paths of all routes that read a session, from the application."""
    paths = [path for path, methods in served.app.openapi()["paths"].items() if "get" in methods and "_id}" in path]
    assert len(paths) > 15
    return paths


async def read(served: Served, path: str, name: str, request_id: str, digest: str) -> tuple[int, str]:
    """Read a route of a session: the status and the body, without the names in them."""
    response_id = ResponseName(name, request_id).id
    names = {"request_id": request_id, "digest": digest, "response_id": response_id, "item_id": "item"}
    url = re.sub(r"\{(\w+)\}", lambda part: names.get(part[1], name), path)
    answer = await served.http.get(url, params={"from_seq": 0} if path.endswith("/events") else {})
    body = answer.text.replace(response_id, "RESPONSE").replace(name, "NAME")
    return answer.status_code, body


@pytest.mark.parametrize("state", STATES)
async def test_no_route_tells_a_deleted_session_from_one_that_never_was(
    slow: Stack, served: Served, state: str
) -> None:
    """Every route that reads answers the same as for an id that no session ever had, once DELETE has answered."""
    name, never = f"d-{uuid.uuid4().hex}", f"n-{uuid.uuid4().hex}"
    _, request_id, digest = await make_session(slow.clew, served.scope(name), state)
    begin = time.monotonic()
    assert (await served.http.delete(f"/v1/sessions/{name}")).status_code == 200
    assert time.monotonic() - begin < SECONDS
    assert await list_runs(slow.clew, served.scope(name))
    listed = await served.http.get("/v1/sessions")
    assert name not in listed.text
    for path in list_reading_routes(served):
        found = await read(served, path, name, request_id, digest)
        assert SECRET not in found[1]
        assert found == await read(served, path, never, request_id, digest), path
    assert (await served.http.delete(f"/v1/sessions/{name}")).status_code == 404


@pytest.mark.parametrize("state", STATES)
async def test_no_resource_is_a_deleted_session(slow: Stack, served: Served, state: str) -> None:
    """An MCP client reads of it what it reads of an id that no session ever had, and lists do not have it."""
    name, never = f"d-{uuid.uuid4().hex}", f"n-{uuid.uuid4().hex}"
    await make_session(slow.clew, served.scope(name), state)
    headers = await open_session(served.http)

    async def ask(method: str, **params: str) -> str:
        answer = await served.http.post(PATH, json=make_request(method, params), headers=headers)
        assert answer.status_code == 200
        return answer.text

    async def is_listed() -> bool:
        return name in await ask("resources/list")

    await wait_until(is_listed)
    assert (await served.http.delete(f"/v1/sessions/{name}")).status_code == 200
    found = await ask("resources/read", uri=f"{URI_PREFIX}{name}")
    assert found.replace(name, never) == await ask("resources/read", uri=f"{URI_PREFIX}{never}")
    assert "not_found" in found
    assert name not in await ask("resources/list")


@pytest.mark.parametrize("state", STATES)
async def test_a_deleted_session_is_gone_for_the_client(slow: Stack, state: str) -> None:
    """Each call of the client that reads it, or sends to it, raises an error; lists do not have it."""
    session, request_id, digest = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", state)
    await delete(slow.clew, session.id)
    clew = await Clew.connect(slow.server.address)
    again = clew.session(session.id)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "status": again.status,
        "entries": again.entries,
        "transcript": again.transcript,
        "context": again.context,
        "window": lambda: again.window(100),
        "waiting calls": again.list_waiting_calls,
        "the thread": lambda: collect(clew.read_thread(session.id)),
        "events": lambda: collect(again.follow(0)),
        "an outcome": again.request(request_id).result,
        "an answer": again.request(request_id).answer,
        "events of a request": lambda: collect(again.request(request_id).events()),
        "a blob": lambda: again.read_blob(digest),
        "a checkpoint": again.checkpoint,
        "a message": lambda: again.message("hello"),
        "a cancellation": again.cancel,
        "a fork": again.fork,
        "opening": lambda: clew.open(session.id),
    }
    found = {name: await find_error(call) for name, call in calls.items()}
    # Blobs may be stored before their session is opened.
    assert found == dict.fromkeys(calls, NotFound) | {"a blob": UnknownBlob}
    lists = (
        clew.sessions(),
        clew.sessions(query='ClewUser = "deleted-user"'),
        clew.sessions(status="interrupted"),
        clew.sessions(prefix=session.id),
    )
    for listed in lists:
        assert session.id not in [summary.session_id async for summary in listed]


async def find_error(call: Callable[[], Awaitable[object]]) -> object:
    """Find the type of the error that a call raises; without one, its answer."""
    try:
        return await call()
    except ClewError as error:
        return type(error)


async def collect(values: AsyncIterator[object]) -> list[object]:
    """Read all values, within the time that a test waits."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        return [value async for value in values]


@pytest.mark.parametrize("state", STATES)
async def test_a_new_session_of_a_deleted_id_has_nothing_of_it(slow: Stack, state: str) -> None:
    """It begins with entry 0, also if its caller starts it without saying what it comes after."""
    session, _, _ = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", state)
    await delete(slow.clew, session.id)
    new = await slow.clew.open(session.id, model="scripted:any", system_prompt="new")
    assert await new.ask("hello") == SECRET
    assert [message["content"] for message in await new.transcript(include_system=True)][:2] == ["new", "hello"]
    assert (await new.entries())[0].seq == 0
    assert session.id in [listed.session_id async for listed in slow.clew.sessions(prefix=session.id)]
    await new.close()
    await delete(slow.clew, session.id)
    start = make_start_arguments(session.id, SessionConfig(model="scripted:any"))
    await slow.clew.temporal.start_workflow(
        start.workflow, start.argument, id=start.id, task_queue=slow.clew.task_queue
    )
    assert await slow.clew.session(session.id).ask("again") == SECRET


async def test_what_a_fork_keeps_is_not_read_by_the_id_of_the_deleted_session(slow: Stack) -> None:
    """The fork reads its image, which the archive has in the folder of the session that it was forked from."""
    session, _, digest = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", "hibernated")
    fork = await session.fork()
    await delete(slow.clew, session.id)
    assert await fork.read_blob(digest) == make_png(8, 8)
    with pytest.raises(UnknownBlob):
        await session.read_blob(digest)


async def test_a_viewer_that_comes_after_the_deletion_gets_nothing_from_one_that_came_before(slow: Stack) -> None:
    """The process has the texts of a session that hibernates, for the viewer that waits for it."""
    session, _, _ = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", "hibernated")
    async with watch(session) as viewer:
        await viewer.wait_for(
            lambda events: any(isinstance(event, StatusChanged) and event.status == "hibernated" for event in events)
        )
        await delete(slow.clew, session.id)
        with pytest.raises(NotFound):
            await collect(slow.clew.session(session.id).follow(0))


async def test_a_checkpoint_is_restored_under_a_deleted_id(slow: Stack) -> None:
    """The new session has the context of the checkpoint."""
    session = await slow.clew.open(f"test-{uuid.uuid4().hex}", model="scripted:any")
    await session.ask("hello")
    token = await session.checkpoint()
    await delete(slow.clew, session.id)
    restored = await slow.clew.restore(token, session.id)
    assert [message["role"] for message in (await restored.context()).messages][-1] == "assistant"


async def test_a_deletion_deletes_the_schedules_of_its_session(slow: Stack) -> None:
    """A schedule of another session, and one that makes new sessions, stay."""
    session, _, _ = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", "open")
    schedules, names = Schedules(slow.clew), [f"schedule-{uuid.uuid4().hex[:12]}" for _ in range(3)]
    yearly = "0 0 1 1 *"
    await schedules.create(names[0], "tick", cron=yearly, session_id=session.id)
    await schedules.create(names[1], "tick", session_id=f"{session.id}-other", cron=yearly)
    await schedules.create(names[2], "tick", session_prefix=session.id, agent="any", cron=yearly)

    async def are_listed() -> bool:
        return {each.schedule_id async for each in schedules.list()} >= set(names)

    await wait_until(are_listed)
    await delete(slow.clew, session.id)
    with pytest.raises(NotFound):
        await schedules.show(names[0])
    for name in names[1:]:
        await schedules.delete(name)


async def test_a_command_finds_no_deleted_session(slow: Stack) -> None:
    """`clew show` says that there is no session, and exits as it does for one that never was."""
    session, _, _ = await make_session(slow.clew, f"test-{uuid.uuid4().hex}", "closed")
    await delete(slow.clew, session.id)
    shown = await run_clew("show", session.id, address=slow.server.address)
    never = await run_clew("show", "never-was", address=slow.server.address)
    assert SECRET not in shown.out + shown.err
    assert (shown.code, shown.err.replace(session.id, "never-was")) == (never.code, never.err)
