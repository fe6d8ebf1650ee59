"""Images, recordings and files that tools return and that models draw, in sessions on a real server."""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import pytest
from temporalio import activity
from temporalio.worker import Worker

from clew import Audio, File, Image, Session, ToolContext, tool
from clew.content import AnyContent
from clew.errors import UnknownBlob, UnsupportedContent
from clew.hooks import CheckedAnswer, CheckedMessage, Refuse, check_answer, check_message
from clew.testing import Reply, ToolCall
from clew.testing import stack as open_stack
from clew.testing.view import ThreadView
from clew.tools import external_tool, remote_tool
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.stack import Stack, make_client, run_deployment, serve


@tool
def draw_chart() -> list[Any]:
    """Draw a chart."""
    return ["the chart:", Image.from_bytes(make_png(33, 44), name="chart.png"), File.from_bytes(make_pdf(2))]


@tool
async def measure(context: ToolContext) -> list[int]:
    """Measure what the user has sent."""
    return [len(await context.read_blob(media)) for media in await context.list_media()]


@tool
def show_again(context: ToolContext) -> Any:
    """Show what the user has sent once more."""
    media = context.list_media_sync()
    return ["again:", *media, f"{len(context.read_blob_sync(media[0]))} bytes"]


scan = external_tool("scan", "Scans a page.", {"type": "object", "properties": {}})


@check_message
async def check_images(message: CheckedMessage) -> None:
    """Refuse an image of 1 x 1 pixels."""
    for part in message.media:
        if make_png(1, 1) == await message.read_blob(part):
            raise Refuse("a tracking pixel")


@check_answer
def check_drawings(answer: CheckedAnswer) -> None:
    """Refuse a drawing of 2 x 2 pixels."""
    if any(make_png(2, 2) == answer.read_blob_sync(part) for part in answer.media):
        raise Refuse("no such drawings")


async def read_media(session: Session, role: str) -> list[Any]:
    """Read the media of all messages of a role: the kind, and the bytes of the session's blob."""
    entries = [entry.as_dict()["payload"] for entry in await session.entries(kind="ai_message")]
    contents = [payload["content"] for payload in entries if payload["role"] == role]
    parts = [part for content in contents if isinstance(content, list) for part in content if "blob" in part]
    return [(part["type"], await session.read_blob(part["blob"])) for part in parts]


async def test_a_tools_image_is_in_the_thread_and_its_bytes_are_in_the_archive() -> None:
    """The result has texts and parts in order; a test finds the parts at the call; the next call goes on."""
    async with open_stack(tools=[draw_chart]) as s:
        session = await s.open([Reply(tool_calls=[ToolCall("draw_chart", {})]), "nice"], tools=["draw_chart"])
        assert await session.ask("draw") == "nice"
        assert await read_media(session, "tool") == [("image", make_png(33, 44)), ("file", make_pdf(2))]
        view = await ThreadView.read(session)
        call = view.expect_call("draw_chart")
        assert [part["type"] for part in call.media] == ["image", "file"]
        assert "chart.png" in str(view)


async def test_tools_read_what_the_user_has_sent() -> None:
    """Async and sync tools list the media of the request, read it, and may show it again."""
    async with open_stack(tools=[measure, show_again]) as s:
        calls = [ToolCall("measure", {}), ToolCall("show_again", {})]
        session = await s.open([Reply(tool_calls=calls), "done"], tools=["measure", "show_again"])
        await session.ask(["look", Image.from_bytes(make_png(9, 8)), Audio.from_bytes(make_wav(1))])
        view = await ThreadView.read(session)
        assert view.expect_call("measure").result == str([len(make_png(9, 8)), len(make_wav(1))]).replace(" ", "")
        assert await read_media(session, "tool") == [("image", make_png(9, 8)), ("audio", make_wav(1))]


async def test_the_sender_learns_what_the_model_did_not_get(stack: Stack) -> None:
    """The outcome of the request names the part and the reason; later requests are not told again."""
    session = await stack.open("I see nothing.")
    picture = Image.from_bytes(make_png(9, 8))
    outcome = await (await session.message(["What is it?", picture])).result()
    assert outcome.unread
    assert outcome.unread.keys() == {hashlib.sha256(picture.read()).hexdigest()[:12]}
    assert (await session.entries(kind="run"))[-1].payload["unread"] == outcome.unread
    assert (await (await session.message("And now?")).result()).unread is None


async def test_a_model_that_draws_and_speaks_answers_in_parts() -> None:
    """The answer's text is as ever, the thread has the parts, and the history none of the bytes."""
    async with open_stack() as s:
        image = Image.from_bytes(make_png(50, 40, size=3_000_000), "image/png")
        model = s.model([Reply("Here it is.", images=[image], audio=make_wav(1)), "more"], "an-image-model")
        session = await s.open(model=model)
        assert (await session.ask("draw")).startswith("Here it is.")
        assert await read_media(session, "assistant") == [("image", image.read()), ("audio", make_wav(1))]
        assert await session.ask("again") == "more"
        view = await ThreadView.read(session)
        assert [part["type"] for part in view.drawn] == ["image", "audio"]


async def test_a_drawing_that_is_none_is_a_text() -> None:
    """What a model sends as an image, and is none, is a text that says so: HTML is never an image."""
    async with open_stack() as s:
        session = await s.open(Reply("", images=[b"<html><script>alert(1)</script></html>"]))
        assert "is not shown" in await session.ask("draw")
        assert await read_media(session, "assistant") == []


async def test_a_result_from_outside_may_have_parts_of_stored_blobs() -> None:
    """Parts whose blobs are stored are taken; unknown blobs and wrong kinds are refused; other JSON stays text."""
    async with open_stack(tools=[scan]) as s:
        session = await s.open([Reply(tool_calls=[ToolCall("scan", {})]), "seen"], tools=["scan"])
        request = await session.message("go")
        assert await s.wait_for_external(session) == "tool00001"
        blob = await session.put_blob(make_png(71, 72))
        unknown = {"type": "image", "blob": {**blob, "digest": hashlib.sha256(b"").hexdigest()}}
        wrong = {"type": "audio", "blob": blob}
        for part, refusal in ((unknown, UnknownBlob), (wrong, UnsupportedContent)):
            with pytest.raises(refusal):
                await session.submit_tool_result("tool00001", [part])
        await session.submit_tool_result(
            "tool00001", [{"type": "text", "text": "page 1"}, {"type": "image", "blob": blob}]
        )
        assert await request.answer() == "seen"
        assert await read_media(session, "tool") == [("image", make_png(71, 72))]


async def test_a_remote_tool_names_blobs_that_its_activity_has_stored(stack: Stack) -> None:
    """A worker without anything of Clew's returns parts; those of unknown blobs are errors that the model reads."""
    clew, queue = make_client(stack), f"photos-{uuid.uuid4().hex}"

    @activity.defn(name="photograph")
    async def photograph(arguments: dict[str, Any]) -> Any:
        blob = await clew.session(activity.info().workflow_id or "").put_blob(make_png(81, 82))
        return [{"type": "image", "blob": {**blob, **arguments}}]

    parameters = {"type": "object", "properties": {}}
    remote = remote_tool("photograph", "Takes a picture.", parameters, task_queue=queue)
    calls = [ToolCall("photograph", {}), ToolCall("photograph", {"digest": "0" * 64})]

    def script(body: dict[str, Any]) -> Reply:
        return (
            Reply(tool_calls=calls)
            if body["messages"][-1]["role"] != "tool" and len(body["messages"]) < 3
            else Reply("seen")
        )

    async with (
        Worker(stack.clew.temporal, task_queue=queue, activities=[photograph]),
        run_deployment(stack, clew, tools=(remote,)),
    ):
        session = await clew.open(f"test-{uuid.uuid4().hex}", model=stack.add_model(script), tools=["photograph"])
        await session.ask("go")
        assert await read_media(session, "tool") == [("image", make_png(81, 82))]
        results = {call.tool_call_id: call for call in (await ThreadView.read(session)).calls}
        assert not results["tool00001"].is_error
        assert results["tool00002"].is_error
        assert UnknownBlob.type in (results["tool00002"].result or "")


async def test_hooks_read_the_images_of_messages_and_answers(stack: Stack) -> None:
    """A guard gets the parts, reads their bytes, and refuses a message or an answer by them."""
    replies = [Reply("ok"), Reply("", images=[make_png(2, 2)])]
    model = stack.add_model(lambda _body: replies.pop(0))
    async with serve(make_client(stack), stack.environ, hooks=[check_images, check_drawings]) as clew:
        session = await clew.open(f"test-{uuid.uuid4().hex}", model=model)
        assert await session.ask(["fine", Image.from_bytes(make_png(3, 3))]) == "ok"
        contents: list[AnyContent] = [["bad", Image.from_bytes(make_png(1, 1))], "draw"]
        for content in contents:
            outcome = await (await session.message(content)).result()
            assert outcome.error is not None
            assert outcome.error.type == "refused_by_hook"
