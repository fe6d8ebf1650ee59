"""The live channel on a real Redis: words, decisions and progress come by it, and nothing depends on it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from bench.actions import read_actions
from bench.streaming import count_calls
from clew import Session
from clew.contract.payloads import AssistantMessage
from clew.local import Reply, ToolCall
from clew.local.child import LOOPBACK
from clew.session.events import (
    EntryCommitted,
    Restarted,
    SessionEvent,
    TextAdded,
    ToolProgressed,
    follow,
    live_view,
)
from clew.session.live import channel
from clew.session.live.reader import find_reader
from clew_activities import live_writer
from tests.support.live import MODEL, WORDS, LiveStack, connect, run_live
from tests.support.proxy import SPLITS, Proxy, run_proxy
from tests.support.redis_server import RedisServer, run_redis, run_redis_cluster, run_secured_redis
from tests.support.rolling import make_id
from tests.support.serving import run_service
from tests.support.stack import Stack
from tests.support.toolbox import get_gate
from tests.support.viewers import Viewer, check_events, collect, select, watch
from tests.support.waiting import PATIENCE_SECONDS, wait_until


@pytest.fixture
def patient_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a busy machine be late: else viewers ask the session, and read heartbeats."""
    monkeypatch.setattr(follow, "TELLING_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(live_view, "SILENT_SECONDS", PATIENCE_SECONDS)


@pytest.fixture
async def redis() -> AsyncIterator[RedisServer]:
    """Run a server for one test."""
    async with run_redis() as server:
        yield server


def cut_off(redis: RedisServer) -> AbstractAsyncContextManager[Proxy]:
    """Run a proxy before a server, which cuts it off."""
    return run_proxy(f"{LOOPBACK}:{redis.port}")


def read_text(events: Sequence[SessionEvent]) -> str:
    """Read what a viewer has seen of the newest reply."""
    text = ""
    for event in events:
        match event:
            case TextAdded():
                text = text[: event.offset] + event.text
            case Restarted():
                text = ""
    return text


async def see(viewer: Viewer, live: LiveStack, count: int) -> None:
    """Wait until a viewer has seen so many words."""
    wanted = "".join(live.speaker.words[:count])
    await viewer.wait_for(lambda events: read_text(events) == wanted)


async def run_turn(live: LiveStack, session: Session) -> None:
    """Have a session answer a message."""
    live.speaker.begin()
    live.speaker.end()
    assert await session.ask("go") == live.speaker.text


@pytest.mark.usefixtures("patient_viewers")
async def test_each_word_comes_by_the_channel(stack: Stack, redis: RedisServer) -> None:
    """A viewer sees it when it was said; neither the server nor the session is asked for it."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        await run_turn(live, sent)
        with count_calls(live.viewer.temporal) as calls:
            live.speaker.begin()
            async with watch(followed) as viewer:
                request = await sent.message("again")
                for count in range(1, WORDS + 1):
                    live.speaker.say()
                    await see(viewer, live, count)
                await request.result()
                await viewer.wait_for(lambda events: events and events[-1].type == "status")
                check_events(viewer.events)
        assert calls.keys() <= {
            "describe_workflow_execution",
            "get_workflow_execution_history",
            "get_workflow_execution_history_reverse",
        }


@pytest.mark.usefixtures("patient_viewers")
async def test_a_session_that_was_just_opened_is_not_asked(stack: Stack, redis: RedisServer) -> None:
    """Its first decisions come by the channel a moment later."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        with count_calls(live.viewer.temporal) as calls:
            live.speaker.begin()
            async with watch(followed) as viewer:
                await viewer.wait_for(lambda events: events)
                await sent.message("go")
                live.speaker.say()
                await see(viewer, live, 1)
                live.speaker.end()
                await viewer.wait_for(lambda events: any(is_reply(event) for event in events))
                check_events(viewer.events)
        assert calls["query_workflow"] == 0


@pytest.mark.usefixtures("patient_viewers")
@pytest.mark.parametrize("hibernates", [False, True])
async def test_a_session_that_is_being_prepared_is_not_asked(
    stack: Stack, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, *, hibernates: bool
) -> None:
    """It decides about a request when it is prepared, or read from its archive. Its viewer waits for that."""
    monkeypatch.setattr(follow, "PREPARING_SECONDS", PATIENCE_SECONDS)
    async with run_live(stack, redis.address) as live:
        session = await live.viewer.open(make_id(), model=MODEL)
        if hibernates:
            await run_turn(live, session)
            await session.hibernate()
            await live.viewer.open(session.id)
        live.speaker.begin()
        live.speaker.end()
        with count_calls(live.viewer.temporal) as calls:
            request = await session.message("go")
            events = [event async for event in request.events()]
        assert read_text(events) == live.speaker.text
        assert calls["query_workflow"] == 0


@pytest.mark.usefixtures("patient_viewers")
@pytest.mark.parametrize(("path", "queries"), [("/v1/ui/chat", 0), ("/v1/responses", 1)])
async def test_a_turn_by_http_asks_as_often_as_its_price_says(
    stack: Stack, redis: RedisServer, path: str, queries: int
) -> None:
    """`useChat`'s next message is sent and followed without a query of the session; Responses reads its status."""
    async with run_live(stack, redis.address) as live, run_service(live.viewer) as served:
        conversation = (await served.http.post("/v1/conversations", json={})).json()["id"]
        chat = make_id()

        async def say() -> None:
            live.speaker.begin()
            live.speaker.end()
            message = {"id": make_id(), "role": "user", "parts": [{"type": "text", "text": "go"}]}
            if path == "/v1/ui/chat":
                body: dict[str, Any] = {"id": chat, "model": MODEL, "messages": [message]}
            else:
                body = {"conversation": conversation, "model": MODEL, "input": "go", "stream": True}
            answered = await served.http.post(path, json=body)
            assert live.speaker.words[-1] in answered.text

        await say()
        with count_calls(live.viewer.temporal) as calls:
            await say()
        assert calls["update_workflow_execution"] == 1
        assert calls["query_workflow"] == queries


@pytest.mark.usefixtures("patient_viewers")
async def test_viewers_cost_no_action(stack: Stack, redis: RedisServer) -> None:
    """The server counts the same for a turn that is followed, from its message to its outcome, as for another one."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        await run_turn(live, sent)
        kinds = "grpc_QueryWorkflow", "grpc_RecordActivityTaskHeartbeat"

        async def count(*, is_followed: bool) -> Counter[str]:
            before = await read_actions(stack.server)
            live.speaker.begin()
            request = await (followed if is_followed else sent).message("go on")
            events = asyncio.create_task(collect(request)) if is_followed else None
            for _ in range(WORDS):
                live.speaker.say()
                await asyncio.sleep(0.1)
            await request.result()
            if events:
                check_events(await events)
            after = await read_actions(stack.server)
            return Counter({kind: after[kind] - before[kind] for kind in kinds})

        assert await count(is_followed=True) == await count(is_followed=False)


async def test_who_comes_late_sees_all_that_was_said(stack: Stack, redis: RedisServer) -> None:
    """Also in another process, which has seen nothing of the reply before."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        live.speaker.begin()
        request = await sent.message("go")
        live.speaker.say(5)
        async with watch(followed) as first:
            await see(first, live, 5)
            late = await connect(stack, live.sender.task_queue, redis.address)
            async with watch(late.session(sent.id)) as second:
                await see(second, live, 5)
                live.speaker.say()
                await see(second, live, 6)
                live.speaker.end()
                await request.result()
                for viewer in (first, second):
                    await see(viewer, live, WORDS)
                    check_events(viewer.events)


async def lose_by_kill(redis: RedisServer) -> None:
    await redis.kill()


async def lose_by_pause(redis: RedisServer) -> None:
    redis.pause()


@pytest.mark.parametrize("lose", [lose_by_kill, lose_by_pause])
async def test_without_the_server_heartbeats_tell(stack: Stack, redis: RedisServer, lose: Any) -> None:
    """Nothing is missing, and nothing is there twice; when the server is back, words come by it again."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        live.speaker.begin()
        request = await sent.message("go")
        async with watch(followed) as viewer:
            live.speaker.say(2)
            await see(viewer, live, 2)
            await lose(redis)
            live.speaker.say(2)
            await see(viewer, live, 4)
            if lose is lose_by_kill:
                await redis.start()
            else:
                redis.resume()

            async def is_back() -> bool:
                return b"word" in await redis.read_all()

            await wait_until(is_back)
            for count in range(5, WORDS + 1):
                live.speaker.say()
                await see(viewer, live, count)
            await request.result()
            await viewer.wait_for(lambda events: any(is_reply(event) for event in events))
            check_events(viewer.events)


@pytest.mark.parametrize("how", SPLITS)
async def test_a_split_network_loses_no_word(
    stack: Stack, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Nobody reaches the server, which lives on: heartbeats tell meanwhile. Afterwards viewers read it again."""
    async with cut_off(redis) as proxy, run_live(stack, f"redis://{proxy.address}") as live:
        sent, followed = await live.open()
        reader = find_reader(followed._handle.client)
        assert reader
        live.speaker.begin()
        request = await sent.message("go")
        async with watch(followed) as first:
            live.speaker.say(2)
            await see(first, live, 2)
            proxy.split(how)
            live.speaker.say(2)
            await see(first, live, 4)
            await wait_until(lambda: not reader.is_up)
            late = await connect(stack, live.sender.task_queue, reader.channel.address)
            async with watch(late.session(sent.id)) as second:
                await see(second, live, 4)
                monkeypatch.setattr(follow, "read_flights", read_no_heartbeats)
                await proxy.restore()
                for count in range(5, WORDS):
                    live.speaker.say()
                    await see(first, live, count)
                    await see(second, live, count)
                live.speaker.end()
                await request.result()
                for viewer in (first, second):
                    await viewer.wait_for(lambda events: any(is_reply(event) for event in events))
                    check_events(viewer.events)


async def read_no_heartbeats(*_arguments: object) -> tuple[()]:
    """Have heartbeats tell nothing: what viewers see comes by the channel."""
    return ()


@pytest.mark.parametrize("how", SPLITS)
async def test_no_call_waits_for_the_server(
    stack: Stack, redis: RedisServer, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """A session answers while the server cannot be reached. The writer's patience is longer than the test's."""
    monkeypatch.setattr(live_writer, "WRITE_SECONDS", 10 * PATIENCE_SECONDS)
    monkeypatch.setattr(channel, "CONNECT_SECONDS", 10 * PATIENCE_SECONDS)
    async with cut_off(redis) as proxy, run_live(stack, f"redis://{proxy.address}") as live:
        sent, _ = await live.open()
        await run_turn(live, sent)
        live.speaker.begin()
        request = await sent.message("again")
        live.speaker.say()
        proxy.split(how)
        live.speaker.end()
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert await request.answer() == live.speaker.text
            await run_turn(live, sent)


def is_reply(event: SessionEvent) -> bool:
    """Whether an event is the entry of a reply."""
    return isinstance(event, EntryCommitted) and isinstance(event.body, AssistantMessage)


async def test_an_emptied_server_is_filled_again(stack: Stack, redis: RedisServer) -> None:
    """A viewer who comes after that sees all that was said, within a second."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        live.speaker.begin()
        request = await sent.message("go")
        async with watch(followed) as viewer:
            live.speaker.say(3)
            await see(viewer, live, 3)
            await redis.call("FLUSHALL")
            live.speaker.say()
            await see(viewer, live, 4)
            late = await connect(stack, live.sender.task_queue, redis.address)
            async with watch(late.session(sent.id)) as second:
                await see(second, live, 4)
                live.speaker.end()
                await request.result()
                for each in (viewer, second):
                    await see(each, live, WORDS)
                    check_events(each.events)


async def test_a_worker_without_the_channel_is_read_by_heartbeats(stack: Stack, redis: RedisServer) -> None:
    """The viewers have one, and hear nothing: workers are being replaced, or theirs is cut off."""
    async with run_live(stack, redis.address, worker_address=None) as live:
        sent, followed = await live.open()
        live.speaker.begin()
        request = await sent.message("go")
        async with watch(followed) as viewer:
            live.speaker.say(3)
            await see(viewer, live, 3)
            live.speaker.end()
            await request.result()
            await viewer.wait_for(lambda events: any(is_reply(event) for event in events))
            check_events(viewer.events)


async def test_an_ended_attempt_is_not_heard(stack: Stack, redis: RedisServer) -> None:
    """A provider fails in the middle of a reply: viewers are told, and see the next attempt alone."""
    async with run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        live.speaker.server.answer(b'data: {"choices": [{"index": 0, "delta": {"content": "void"}}]}\n\n', None)
        live.speaker.begin()
        request = await sent.message("go")
        async with watch(followed) as viewer:
            await viewer.wait_for(lambda events: select(events, Restarted))
            live.speaker.end()
            await request.result()
            await see(viewer, live, WORDS)
            await viewer.wait_for(lambda events: any(is_reply(event) for event in events))
            check_events(viewer.events)


async def test_a_deleted_session_leaves_nothing(stack: Stack, redis: RedisServer) -> None:
    """Its streams vanish with it."""
    async with run_live(stack, redis.address) as live:
        sent, _ = await live.open()
        await run_turn(live, sent)

        async def is_written() -> bool:
            return b"word0" in await redis.read_all()

        await wait_until(is_written)
        await live.sender.delete(sent.id)
        assert await redis.call("KEYS", "clew:*") == []


async def test_tools_show_their_progress(stack: Stack, redis: RedisServer) -> None:
    """By the channel, while they run."""
    async with run_live(stack, redis.address) as live:
        gate = make_id()
        calls = (ToolCall("report_and_wait", {"gate": gate}),)
        model = stack.add_model(
            lambda body: Reply("fine") if body["messages"][-1]["role"] == "tool" else Reply("", calls)
        )
        session = await live.sender.open(make_id(), model=model, tools=["report_and_wait"])
        async with watch(live.viewer.session(session.id), None) as viewer:
            request = await session.message("go")
            await viewer.wait_for(lambda events: select(events, ToolProgressed))
            get_gate(gate).set()
            await request.result()
        (progress,) = select(viewer.events, ToolProgressed)
        assert (progress.text, progress.fraction) == ("half of it", 0.5)
        assert b"half of it" in await redis.read_all()


@pytest.mark.slow
async def test_a_cluster_is_found(stack: Stack) -> None:
    """The address is that of one server; the streams of sessions are on all of them."""
    async with run_redis_cluster() as servers, run_live(stack, servers[0].address) as live:
        for _ in range(6):
            sent, followed = await live.open()
            live.speaker.begin()
            async with watch(followed) as viewer:
                request = await sent.message("go")
                live.speaker.say(3)
                await see(viewer, live, 3)
                live.speaker.end()
                await request.result()
                await see(viewer, live, WORDS)
        sizes = await asyncio.gather(*(server.call("DBSIZE") for server in servers))
        assert sum(map(bool, sizes)) > 1


async def test_the_connection_is_encrypted_and_authenticated(stack: Stack) -> None:
    """By the address alone: TLS, a certificate's authority, and a password."""
    async with run_secured_redis() as redis, run_live(stack, redis.address) as live:
        sent, followed = await live.open()
        live.speaker.begin()
        async with watch(followed) as viewer:
            request = await sent.message("go")
            live.speaker.say(3)
            await see(viewer, live, 3)
            assert b"word2" in await redis.read_all()
            live.speaker.end()
            await request.result()
