"""A chat on a terminal, with a real session."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from clew import Agent, tool
from clew.cli.shared_options import list_names
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from clew_workflows.contract.content import iterate_blobs
from tests.support.media import make_png
from tests.support.rolling import make_id
from tests.support.scripts import PausedModel, call_add_twice
from tests.support.stack import Stack, get_last_message, make_client, run_deployment
from tests.support.typing_terminal import CTRL_C, CTRL_D, ENTER, ESCAPE, open_chat
from tests.support.waiting import wait_until


async def test_what_is_typed_during_a_reply_steers(stack: Stack) -> None:
    """A message is answered in Markdown; a line during a reply is taken, read and answered, in order."""
    model = PausedModel()
    session = await stack.open(model)
    async with open_chat(stack, session) as terminal:
        await terminal.wait_for(f"session {session.id} · ")
        terminal.press("**one**" + ENTER)
        await terminal.wait_for("> **one**")
        await model.called.wait()
        await terminal.wait_for("waiting for the model")
        terminal.press("two" + ENTER)
        await terminal.wait_for("» two")
        await terminal.wait_for("… taken, not read yet: two")
        model.free.set()
        await terminal.wait_for("read: two")
        await terminal.wait_for("<two>")
        terminal.press(CTRL_D)
        assert await terminal.wait_for_end() == 0
        await terminal.wait_for("the session stays: resume it with `")
        # The reply's Markdown is painted, and each block stands on the screen once.
        assert [terminal.screen.count(text) for text in ("<one>", "<two>", "> **one**")] == [1, 1, 1]
    contents = [message["content"] for message in await session.transcript()]
    assert contents == ["**one**", "<**one**>", "two", "<two>"]


@pytest.mark.slow
async def test_files_are_attached(stack: Stack, tmp_path: Path) -> None:
    """What `/attach` names goes with the next message only; until then it stands above the line."""
    session = await stack.open(lambda body: Reply("seen"))
    (tmp_path / "a picture.png").write_bytes(make_png(30, 20))
    (tmp_path / "b.png").write_bytes(make_png(31, 20))
    (tmp_path / "wrong.png").write_bytes(b"<html></html>")
    async with open_chat(stack, session) as terminal:
        terminal.press(f"/attach {tmp_path}/a")
        await terminal.wait_for("a picture.png")
        terminal.press("\t" + ENTER)
        await terminal.wait_for("attached: a picture.png, ")
        terminal.press("/attach clear" + ENTER)
        await terminal.wait_for("nothing is attached")
        terminal.press(f"/attach /absent.png{ENTER}")
        await terminal.wait_for("misconfigured: ")
        # A file that is refused stays, and so does the message's text in the history.
        terminal.press(f"/attach {tmp_path}/wrong.png{ENTER}first{ENTER}")
        await terminal.wait_for("content_mismatch: wrong.png")
        await terminal.wait_for("+ wrong.png, ")
        terminal.press(
            f"/attach clear{ENTER}/attach '{tmp_path}/a picture.png'{ENTER}/attach {tmp_path}/b.png{ENTER}"
        )
        await terminal.wait_for("+ a picture.png, ")
        await terminal.wait_for(" · b.png, ")
        terminal.press("second" + ENTER)
        await terminal.wait_for("[image: a picture.png, image/png, 30 x 20, ")
        await terminal.wait_for("[image: b.png, image/png, 31 x 20, ")
        await terminal.wait_for("seen")
        terminal.press("third" + ENTER)
        await terminal.wait_for("seen", 2)
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    assert [blob.get("name") for blob in iterate_blobs(contents)] == ["a picture.png", "b.png"]
    assert contents[0][0] == {"type": "text", "text": "second"}
    assert contents[2] == "third"


async def test_the_path_of_a_dropped_file_is_offered(stack: Stack, tmp_path: Path) -> None:
    """Tab attaches the file of a pasted path in place of the path; without it the path is text."""
    session = await stack.open(lambda body: Reply("seen"))
    path = tmp_path / "drop ped.png"
    path.write_bytes(make_png(30, 20))
    async with open_chat(stack, session) as terminal:
        terminal.paste(f"'{path}' ")
        await terminal.wait_for("Tab attaches drop ped.png to the message")
        terminal.press("what is it?\t")
        await terminal.wait_for("+ drop ped.png, ")
        await terminal.wait_for("> what is it?")
        terminal.press(ENTER)
        await terminal.wait_for("seen")
        terminal.paste(f"{path}")
        terminal.press(ENTER)
        await terminal.wait_for("seen", 2)
        # A terminal that does not mark pasted text types it.
        terminal.press(f"file://{tmp_path}/drop%20ped.png\t")
        await terminal.wait_for("+ drop ped.png, ")
        terminal.press("again" + ENTER)
        await terminal.wait_for("seen", 3)
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    assert [content if isinstance(content, str) else content[0]["text"] for content in contents[::2]] == [
        *("what is it?", str(path), "again")
    ]
    assert [blob.get("name") for blob in iterate_blobs(contents)] == ["drop ped.png"] * 2


async def test_a_correction_has_its_files(stack: Stack, tmp_path: Path) -> None:
    """What is attached during a reply goes with the line that corrects it."""
    model = PausedModel()
    session = await stack.open(model)
    (tmp_path / "a.png").write_bytes(make_png(30, 20))
    async with open_chat(stack, session) as terminal:
        terminal.press("one" + ENTER)
        await model.called.wait()
        await terminal.wait_for("waiting for the model")
        terminal.press(f"/attach {tmp_path}/a.png{ENTER}two{ENTER}")
        await terminal.wait_for("… taken, not read yet: two")
        model.free.set()
        await terminal.wait_for("read: two")
        await terminal.wait_for("[image: a.png")
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    assert [blob.get("name") for blob in iterate_blobs(contents)] == ["a.png"]


@pytest.mark.slow
async def test_escape_cancels_the_run_and_not_the_chat(stack: Stack) -> None:
    """Esc and Ctrl-C cancel; without a run they give a hint; the chat goes on."""
    model = PausedModel()
    session = await stack.open(model)
    async with open_chat(stack, session) as terminal:
        for times, key, text in ((1, ESCAPE, "first"), (2, CTRL_C, "second")):
            await terminal.wait_for("/help lists the commands and the keys")
            terminal.press(key)
            await terminal.wait_for("nothing is running")
            terminal.press(text + ENTER)
            await terminal.wait_for("waiting for the model")
            terminal.press(key)
            await terminal.wait_for("cancelled", times)
        model.free.set()
        terminal.press("not sent" + CTRL_C + "third" + ENTER)
        await terminal.wait_for("<third>")
        terminal.press("/quit" + ENTER)
        assert await terminal.wait_for_end() == 0
    assert [entry.payload["status"] for entry in await session.entries(kind="run")] == [
        *("cancelled", "cancelled", "completed")
    ]


def pay_thrice(body: dict[str, Any]) -> Reply:
    """A model that calls `add` three times in one round, and repeats the results."""
    if get_last_message(body)["role"] == "user":
        return Reply("", tuple(ToolCall("add", {"a": number, "b": 1}) for number in (10, 20, 30)))
    return Reply(" / ".join(message["content"] for message in body["messages"] if message["role"] == "tool"))


@pytest.mark.slow
async def test_an_approval_is_answered_in_place(stack: Stack) -> None:
    """Each call is asked with its arguments: yes, no with a reason, or other arguments."""
    session = await stack.open(pay_thrice, tools=["add"], require_approval=["add"])
    async with open_chat(stack, session) as terminal:
        terminal.press("Pay" + ENTER)
        await terminal.wait_for('{"a": 30, "b": 1}')
        await terminal.wait_for("run add?  y yes")
        terminal.press("y" + ENTER)
        await terminal.wait_for("tool00001 is approved")
        terminal.press("n too dear" + ENTER)
        await terminal.wait_for("tool00002 is denied: too dear")
        terminal.press("e" + ENTER)
        await terminal.wait_for('arguments of add> {"a": 30, "b": 1}')
        terminal.press("\x01\x0boops" + ENTER)
        await terminal.wait_for("not valid JSON")
        await terminal.wait_for("arguments of add> oops")
        terminal.press(CTRL_C)
        await terminal.wait_for("run add?")
        terminal.press("e" + ENTER)
        await terminal.wait_for('arguments of add> {"a": 30, "b": 1}')
        terminal.press("\x7f" * len('30, "b": 1}') + '1, "b": 1}' + ENTER)
        await terminal.wait_for("tool00003 is approved with other arguments")
        await terminal.wait_for("→ add(a=10, b=1)")
        await terminal.wait_for("11 / denied: too dear / ")
    assert len(await session.entries(kind="approval")) == 3


@pytest.mark.slow
async def test_commands_control_a_run(stack: Stack) -> None:
    """Commands while a run waits or works: see its status, approve, deny; steer another one, cancel it."""
    model, resumed = PausedModel(), asyncio.Event()

    async def script(body: dict[str, Any]) -> Reply:
        if get_last_message(body)["role"] == "tool":
            await resumed.wait()
        return await model(body) if get_last_message(body)["content"] == "slowly" else call_add_twice(body)

    session = await stack.open(script, tools=["add"], require_approval=["add"])
    async with open_chat(stack, session) as terminal:
        terminal.press("Add" + ENTER)
        await terminal.wait_for("run add?")
        terminal.press("/status" + ENTER)
        await terminal.wait_for("approve tool00001?  → add(a=40, b=2)")
        terminal.press("/approve tool00001" + ENTER)
        await terminal.wait_for("tool00001 is approved")
        terminal.press("/deny tool00002 too easy" + ENTER)
        await terminal.wait_for("tool00002 is denied")
        resumed.set()
        await terminal.wait_for("42 and denied: too easy")
        terminal.press("slowly" + ENTER)
        await model.called.wait()
        await terminal.wait_for("waiting for the model")
        terminal.press("/steer only the last one" + ENTER)
        await terminal.wait_for("… taken, not read yet: only the last one")
        terminal.press("/cancel enough" + ENTER)
        await terminal.wait_for("cancelled")
        terminal.press("/steer too late" + ENTER)
        await terminal.wait_for("idle: ")
        terminal.press(CTRL_D)
        assert await terminal.wait_for_end() == 0
    model.free.set()


async def test_names_are_completed(stack: Stack) -> None:
    """The external call that waits, by `/submit`; sessions and models of the server, by `/open` and `/model`."""

    def order(body: dict[str, Any]) -> Reply:
        last = get_last_message(body)
        return Reply(last["content"], (ToolCall("order", {"item": "tea"}),) if last["role"] == "user" else ())

    model = f"scripted:{make_id()}"
    other = await stack.clew.open(f"completed-{make_id()}", model=model)
    session = await stack.open(order, tools=["order"])
    await wait_until(lambda: _are_listed(stack, other.id, model))
    async with open_chat(stack, session) as terminal:
        terminal.press("Tea" + ENTER)
        await terminal.wait_for("waiting for a result")
        terminal.press("/submit t")
        await terminal.wait_for("tool00001", 3)  # twice in the notice, and in the menu
        terminal.press("\t")
        await terminal.wait_for("> /submit tool00001")
        terminal.press(" it is ready" + ENTER)
        await terminal.wait_for("\nit is ready\n")
        for command, name in (("model", model), ("open", other.id)):
            before = terminal.screen.count(name)
            terminal.press(CTRL_C + f"/{command} {name[:-1]}")
            await terminal.wait_for(name, before + 1)
            terminal.press("\t")
            await terminal.wait_for(f"> /{command} {name}")


async def _are_listed(stack: Stack, session_id: str, model: str) -> bool:
    names = await list_names(stack.clew)
    return session_id in names.sessions and model in names.models


@pytest.mark.slow
async def test_commands(stack: Stack) -> None:
    """An unknown command is said to be one; lanes, models, contexts and forks are a line each."""
    session = await stack.open(lambda body: Reply(f"<{get_last_message(body)['content']}>"))
    other = stack.add_model("from the other model")
    async with open_chat(stack, session) as terminal:
        terminal.press("/bogus" + ENTER)
        await terminal.wait_for("unknown command /bogus")
        terminal.press("hello" + ENTER)
        await terminal.wait_for("<hello>")
        terminal.press("/context" + ENTER)
        await terminal.wait_for("hello")
        await terminal.wait_for("tokens in all · 2 of ")
        terminal.press("/switch draft" + ENTER)
        await terminal.wait_for("lane draft is active")
        terminal.press(f"/model {other}" + ENTER)
        await terminal.wait_for(f"the model is {other}")
        terminal.press("again" + ENTER)
        await terminal.wait_for("from the other model")
        # What is typed after a fork goes to the fork, also while it is being made.
        terminal.press(f"/fork {session.id}-b" + ENTER + "in the fork" + ENTER)
        await terminal.wait_for("this is a fork of ")
        await terminal.wait_for("from the other model", 2)
        terminal.press(f"/open {session.id}" + ENTER)
        await terminal.wait_for(f"`/open {session.id}-b` returns")
        terminal.press("/help" + ENTER)
        await terminal.wait_for("leave; the session stays", 2)
    fork = stack.clew.session(f"{session.id}-b")
    assert [message["content"] for message in await fork.transcript()][-2:] == ["in the fork", "from the other model"]
    assert len(await session.transcript()) == 2


async def test_a_session_that_hibernates_is_woken_by_a_message(stack: Stack) -> None:
    """The chat goes on after hibernation; the last turns are shown when a session is resumed."""
    session = await stack.open(lambda body: Reply(f"<{get_last_message(body)['content']}>"))
    await asyncio.gather(session.ask("before"))
    async with open_chat(stack, session) as terminal:
        await terminal.wait_for("> before")
        await terminal.wait_for("<before>")
        await session.hibernate()
        await terminal.wait_for("the session hibernates: a message wakes it")
        terminal.press("after" + ENTER)
        await terminal.wait_for("<after>")
        # A line before the end is sent.
        terminal.press("last" + ENTER + CTRL_D)
        assert await terminal.wait_for_end() == 0
    assert [message["content"] for message in await session.transcript()][4] == "last"


@tool
def double(number: int) -> int:
    """Twice a number."""
    return 2 * number


async def test_an_approval_in_a_subagent_is_answered_in_place(stack: Stack) -> None:
    """The call is asked with the name of its session, and the answer goes there."""
    clew = make_client(stack)

    def call_once(name: str, arguments: dict[str, Any]) -> Script:
        def script(body: dict[str, Any]) -> Reply:
            last = get_last_message(body)
            return (
                Reply(tool_calls=(ToolCall(name, arguments),)) if last["role"] == "user" else Reply(last["content"])
            )

        return script

    doubling = stack.add_model(call_once("double", {"number": 21}))
    helper = Agent("helper", model=doubling, tools=[double], require_approval=["double"])
    boss = Agent("boss", model=stack.add_model(call_once("helper", {"task": "sum"})), tools=[helper.as_tool()])
    async with run_deployment(stack, clew, boss, tools=(double,)):
        session = await clew.open(make_id(), agent="boss")
        async with open_chat(stack, session, clew=clew) as terminal:
            terminal.press("go" + ENTER)
            await terminal.wait_for(f"tool00001 of {session.id}.tool00001 waits for approval")
            terminal.press("y" + ENTER)
            await terminal.wait_for("\n42\n")
