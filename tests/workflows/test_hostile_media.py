"""Hostile and lost media on a real server: no input stops a session, and each failure has its word."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
import re
import uuid
from base64 import b64decode
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from temporalio.client import WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError

from clew import Clew, Image, RequestFailed, RequestOutcome, Session
from clew.errors import ArchiveUnavailable, Closed, NotFound, UnknownBlob
from clew.local import Reply, ToolCall
from clew_activities.archive import Archive, Store, StoreUnavailable
from clew_activities.model.model_table import OwnModel, OwnModels
from clew_audit.audit import audit_session
from clew_audit.verification import verify_archive
from clew_workflows.host.intake import MAX_CHECKED
from tests.support.archives import Failing, list_objects
from tests.support.hostile_input import assert_unharmed
from tests.support.media import make_png
from tests.support.stack import Stack, get_last_message, serve

SEERS = OwnModels(sizes={"scripted:*": OwnModel(window=100_000, takes=("image", "pdf", "text"))})
"""The scripted models, which take images."""


class Breaking(Failing):
    """A store whose blobs cannot be reached while it `is_down`."""

    is_down = False

    @contextmanager
    def _operation(self, name: str, path: str) -> Iterator[None]:
        if self.is_down and "/blobs/" in path:
            raise StoreUnavailable(path, "the network is gone")
        yield


@asynccontextmanager
async def serve_seers(stack: Stack, task_queue: str, store: Store | None = None) -> AsyncIterator[Clew]:
    """Run a worker whose models take images, with nothing in memory."""
    connection = await Clew.connect(stack.server.address, task_queue=task_queue)
    async with serve(connection, stack.environ, store=store or stack.store, own_models=SEERS) as clew:
        yield clew


def make_queue() -> str:
    return f"queue-{uuid.uuid4().hex}"


async def open_on(clew: Clew, stack: Stack, script: Any = "fine", **config: Any) -> Session:
    return await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(script), **config)


async def count_checks(clew: Clew, session: Session) -> int:
    """Count the activities that have looked up blobs for a session's newest workflow run."""
    history = await clew.temporal.get_workflow_handle(session.id).fetch_history()
    scheduled = [event.activity_task_scheduled_event_attributes for event in history.events]
    return sum(attributes.activity_type.name == "check_blobs" for attributes in scheduled)


def name_image(data: bytes) -> dict[str, Any]:
    """Name an image that is not stored."""
    digest = hashlib.sha256(data).hexdigest()
    return {"type": "image", "blob": {"digest": digest, "media_type": "image/png", "bytes": len(data)}}


async def test_malformed_parts_leave_nothing(stack: Stack) -> None:
    """An update is refused with its word; a signal becomes an `input` entry; the session answers."""
    session = await stack.open()
    await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    before = (await handle.describe()).raw_description.workflow_execution_info.history_length
    both = {**name_image(b"x"), "url": "https://images.example/a.png"}
    for content in ([{"type": "image"}], [both], [{"type": "video"}], [], [7], [{"type": "text", "text": "a"}] * 101):
        for name, more in (("message", {}), ("submit_input", {"kind": "steer"})):
            with pytest.raises(WorkflowUpdateFailedError) as refused:
                await handle.execute_update(name, {"content": content, **more})
            assert isinstance(refused.value.cause, ApplicationError)
            assert refused.value.cause.type == "invalid_input"
    assert (await handle.describe()).raw_description.workflow_execution_info.history_length == before
    await handle.signal("inject", {"content": [{"type": "image"}], "input_id": "i-1"})
    await assert_unharmed(stack, session.id)
    (noted,) = await session.entries(kind="input")
    assert (noted.payload["event"], noted.payload["kind"]) == ("rejected", "inject")
    assert "PutBlob" in noted.payload["reason"]


async def test_a_flood_of_unknown_blobs_takes_few_activities(stack: Stack) -> None:
    """Hundreds of signals that name blobs are checked together, and each is refused in its entry.

    A check of each would add six events: the server ends a workflow at 51 200.
    """
    queue, count = make_queue(), 4 * MAX_CHECKED
    async with serve_seers(stack, queue) as clew:
        session = await open_on(clew, stack)
        await session.ask("hello")
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    images = [name_image(f"image {number}".encode()) for number in range(count)]
    await asyncio.gather(
        *(handle.signal("inject", {"content": [image], "input_id": f"i-{n}"}) for n, image in enumerate(images))
    )
    async with serve_seers(stack, queue) as clew:
        session = clew.session(session.id)
        assert await session.ask("still there?") == "fine"
        entries = await session.entries(kind="input")
        assert {entry.payload["event"] for entry in entries} == {"rejected"}
        assert len(entries) == count
        named = [image["blob"]["digest"][:12] for image in images]
        assert sorted(named) == sorted(name for name in named for e in entries if name in e.payload["reason"])
        assert 1 <= await count_checks(clew, session) <= 8


async def test_a_store_that_is_down_refuses_together_and_holds_nobody_up(stack: Stack) -> None:
    """What waits behind a message with a blob is checked with it, and texts are answered as soon as it is refused."""
    store = Breaking(stack.store)
    async with serve_seers(stack, make_queue(), store) as clew:
        session = await open_on(clew, stack, on_busy="queue")
        await session.ask("hello")
        blob = await session.put_blob(make_png(200, 1))
        store.is_down = True
        images = [session.ask([Image.from_blob(blob)]) for _ in range(6)]
        *refused, answer = await asyncio.gather(*images, session.ask("hello"), return_exceptions=True)
        assert {type(error) for error in refused} == {ArchiveUnavailable}
        assert answer == "fine"
        assert await count_checks(clew, session) <= 3
        store.is_down = False
        assert await session.ask([Image.from_blob(blob)]) == "fine"


@pytest.mark.parametrize("altered", [None, make_png(202, 1)], ids=["lost", "altered"])
async def test_a_blob_that_the_store_loses_fails_calls_until_it_is_sent_again(
    stack: Stack, altered: bytes | None
) -> None:
    """The request fails with `unknown_blob`, and says which one; the session goes on, and sees the image again."""
    queue, image = make_queue(), make_png(201, 1)
    path_of = "default/families/s-{}/blobs/{}".format
    async with serve_seers(stack, queue) as clew:
        session = await open_on(clew, stack)
        await session.ask(["look", Image.from_bytes(image)])
    path = path_of(session.id, hashlib.sha256(image).hexdigest())
    await (stack.store.delete(path) if altered is None else stack.store.put(path, altered))
    async with serve_seers(stack, queue) as clew:
        session = clew.session(session.id)
        with pytest.raises(RequestFailed) as failed:
            await session.ask("and now?")
        assert failed.value.outcome.error
        assert failed.value.outcome.error.type == "unknown_blob"
        assert hashlib.sha256(image).hexdigest()[:12] in failed.value.outcome.error.message
        await session.put_blob(image)
        assert await session.ask("and now?") == "fine"
        body = json.dumps(stack.list_requests((await session.status()).model)[-1])
        assert body.count("data:image/png;base64,") == 1
        await session.close()
        report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
        assert report.clean, report.differences
        assert not (await verify_archive(Archive(stack.store, "default"), session.id)).problems


async def test_a_client_sends_again_what_the_store_has_lost(stack: Stack) -> None:
    """After the refusal a handle that has stored an image before stores it again."""
    session, image = await stack.open(), Image.from_bytes(make_png(203, 1))
    await session.ask([image])
    digest = hashlib.sha256(make_png(203, 1)).hexdigest()
    await stack.store.delete(f"default/families/s-{session.id}/blobs/{digest}")
    with pytest.raises(UnknownBlob):
        await session.ask([image])
    assert await session.ask([image]) == "fine"
    assert await session.read_blob(digest) == make_png(203, 1)


@pytest.mark.parametrize("deleted", ["origin", pytest.param("fork", marks=pytest.mark.slow)])
async def test_a_family_reads_on_while_a_member_is_deleted(stack: Stack, deleted: str) -> None:
    """A read that has begun goes on when the other session is deleted that shares the blob."""
    origin, data = await stack.open(), make_png(204, 1, size=1_300_000)
    await origin.ask(["look", Image.from_bytes(data)])
    fork = await origin.fork()
    reader, other = (fork, origin) if deleted == "origin" else (origin, fork)
    pieces = reader.stream_blob(hashlib.sha256(data).hexdigest())
    read = [await anext(pieces)]
    await stack.clew.delete(other.id)
    read += [piece async for piece in pieces]
    assert b"".join(read) == data
    assert await reader.ask("still there?") == "fine"
    await reader.close()
    assert not (await verify_archive(Archive(stack.store, "default"), reader.id)).problems


async def test_a_session_is_deleted_while_its_blob_is_read(stack: Stack) -> None:
    """The read ends with `unknown_blob`, not with bytes of another session and not without an end."""
    session, data = await stack.open(), make_png(205, 1, size=1_300_000)
    await session.ask(["look", Image.from_bytes(data)])
    pieces = session.stream_blob(hashlib.sha256(data).hexdigest())
    await anext(pieces)
    await stack.clew.delete(session.id)
    with pytest.raises(UnknownBlob):
        _ = [piece async for piece in pieces]


async def test_a_session_is_deleted_while_a_model_looks(stack: Stack) -> None:
    """The call is given up, its caller gets an outcome or a refusal, and no byte of the image is left."""
    called, over = asyncio.Event(), asyncio.Event()

    async def look(_body: dict[str, Any]) -> Reply:
        called.set()
        await over.wait()
        return Reply("too late")

    async with serve_seers(stack, make_queue()) as clew:
        session = await open_on(clew, stack, look)
        request = await session.message(["look", Image.from_bytes(make_png(206, 1, size=1_500_000))])
        await called.wait()
        await clew.delete(session.id)
        over.set()
        (end,) = await asyncio.gather(request.result(), return_exceptions=True)
        assert isinstance(end, NotFound | Closed) or (isinstance(end, RequestOutcome) and end.status == "cancelled")
        assert not [path for path in await list_objects(stack.store) if f"s-{session.id}" in path]


async def test_older_images_are_cleared_in_steps_and_seen_again(stack: Stack) -> None:
    """Markers replace older images, in steps between which each call begins like the one before it.

    The model sees one again with `view_blob`, and the audit makes every call again, byte for byte.
    """
    images = [make_png(512, 400 + number) for number in range(8)]

    def script(body: dict[str, Any]) -> Reply:
        last = get_last_message(body)
        if "show me the first" not in json.dumps(last) or last["role"] != "user":
            return Reply("seen")
        found = re.search(r"view_blob\(blob='([0-9a-f]+)'\)", json.dumps(body))
        assert found, "no marker names the tool"
        return Reply(tool_calls=(ToolCall("view_blob", {"blob": found[1]}),))

    policy = {"clear_media": {"keep": 2, "min_tokens": 400}, "window": "epoch", "max_input_tokens": 90_000}
    async with serve_seers(stack, make_queue()) as clew:
        session = await open_on(clew, stack, script, context_policy=policy)
        for number, image in enumerate(images):
            await session.ask([f"image {number}", Image.from_bytes(image)])
        bodies = [body["messages"] for body in stack.list_requests((await session.status()).model)]
        shown = [json.dumps(body).count("data:image/png;base64,") for body in bodies]
        assert max(shown) < len(images) - 2
        steps = [number for number, (one, two) in enumerate(itertools.pairwise(bodies)) if two[: len(one)] != one]
        assert 1 <= len(steps) < len(images) - 3
        assert len(bodies) == len(images)

        assert await session.ask("show me the first") == "seen"
        last = json.dumps(stack.list_requests((await session.status()).model)[-1])
        (data,) = re.findall('data:image/png;base64,([^"]+)', last)[-1:]
        assert b64decode(data) == images[0]
        await session.close()
        report = await audit_session(clew.temporal, Archive(stack.store, "default"), session.id)
        assert report.clean, report.differences
        assert report.calls.sent == report.calls.verified == len(images) + 2


async def test_blobs_for_a_session_that_never_began_are_no_session(stack: Stack) -> None:
    """They can be stored before it starts, and it has them; nobody else does. They can be deleted without it."""
    session = stack.clew.session(f"test-{uuid.uuid4().hex}")
    blob = await session.put_blob(make_png(207, 1))
    other = stack.clew.session(f"test-{uuid.uuid4().hex}")
    with pytest.raises(UnknownBlob):
        await other.read_blob(blob)
    never = await other.put_blob(make_png(208, 1))
    await stack.clew.delete(other.id)
    with pytest.raises(UnknownBlob):
        await other.read_blob(never)
    with pytest.raises(NotFound):
        await stack.clew.delete(other.id)
    started = await stack.clew.open(session.id, model=stack.add_model("fine"))
    assert await started.ask([Image.from_blob(blob)]) == "fine"
