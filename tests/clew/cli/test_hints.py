"""Every command that is printed for a person to type runs as it stands."""

from __future__ import annotations

import os
import re
import shlex
import sysconfig
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from clew.cli import hints
from clew.cli.app import app
from clew.cli.reach import Target
from clew.local import TemporalServer
from clew.local.development import Development
from tests.support.command_line import open_terminal, run_clew
from tests.support.stack import Stack

SCRIPTS = sysconfig.get_path("scripts")
FULL = Target("temporal.example:7233", "a b", "orders")


@pytest.fixture
def full_target(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A running command that was given a server, a namespace and a task queue; `clew` is on the PATH."""
    monkeypatch.setenv("PATH", SCRIPTS, prepend=os.pathsep)
    token = hints._target.set(FULL)
    yield
    hints._target.reset(token)


def list_commands(group: Any, *names: str) -> Iterator[tuple[tuple[str, ...], set[str]]]:
    """List the commands of the command line, each with its options."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from list_commands(command, *names, name)
        else:
            yield (*names, name), {option for parameter in command.params for option in parameter.opts}


@pytest.mark.usefixtures("full_target")
def test_every_command_takes_the_options_that_it_gets() -> None:
    """A completed command names server, namespace and queue by all options that the command has, and no others."""
    for words, options in list_commands(get_command(app)):
        # The worker has a parser of its own.
        known = {"--task-queue"} if words == ("worker",) else options
        completed = shlex.split(hints.complete_commands(f"`clew {' '.join(words)} x`").strip("`"))
        added = {word for word in completed if word.startswith("--")}
        assert added == known & {"--address", "--namespace", "--task-queue"}, words
        settings = {word for word in completed if word.startswith("TEMPORAL_")}
        assert bool(settings) is (words == ("worker",))


@pytest.mark.usefixtures("full_target")
def test_a_command_is_completed_once() -> None:
    """Options that it has stay, values are quoted, and only commands of `clew` change."""
    assert hints.complete_commands("`clew ask s 'a b' --task-queue own` or `y`; clew is fine") == (
        "`clew ask s 'a b' --task-queue own --address temporal.example:7233 --namespace 'a b'` or `y`; clew is fine"
    )


def test_the_program_is_named_as_the_shell_finds_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """By its name on the PATH, else by its path; another installation on the PATH is not this one."""
    other = tmp_path / "clew"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    script = Path(SCRIPTS, "clew")
    monkeypatch.setenv("PATH", SCRIPTS)
    assert hints.find_program() == "clew"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert hints.find_program() == str(script)
    monkeypatch.chdir(script.parents[2])
    assert hints.find_program() == str(script.relative_to(script.parents[2]))
    monkeypatch.setattr(sysconfig, "get_path", lambda _name: str(tmp_path / "none"))
    assert hints.find_program().endswith(" -m clew.cli")


@pytest.mark.slow
async def test_printed_commands_go_to_the_server_that_was_named(stack: Stack) -> None:
    """Without an environment, each command in an error or a status is typed as printed, and does what it says."""
    options = ("--address", stack.server.address, "--namespace", stack.server.namespace)
    model, name = stack.add_model("fine"), f"hint-{uuid.uuid4().hex}"
    absent = await run_clew("status", name, *options)
    (start,) = re.findall("`clew (.+?)`", absent.err)
    opened = await run_clew(*shlex.split(start.replace("PROVIDER:NAME", model)), stdin="hi\n")
    assert (opened.code, opened.out) == (0, "fine\n"), opened.err
    await stack.clew.session(name).hibernate()
    for ended in (await run_clew("status", name, *options), await run_clew("steer", name, "x", *options)):
        (command,) = re.findall("`clew (.+?)`", ended.out + ended.err)
        assert (await run_clew(*shlex.split(command))).out == "fine\n"
        await stack.clew.session(name).hibernate()


async def test_a_missing_worker_is_started_for_the_queue_that_lacks_it(stack: Stack) -> None:
    """The command has the queue as an option, and the server in its environment, as workers read it."""
    address = stack.server.address
    ended = await run_clew("ask", "s", "hi", "--model", "a:b", "--task-queue", "deserted", "--address", address)
    assert f"`TEMPORAL_ADDRESS={address} clew worker --task-queue deserted`" in ended.err


async def test_the_goodbye_of_a_chat_resumes_it(stack: Stack) -> None:
    """With the server, the namespace and the model that were named; the model is the one that the session has now."""
    options = ("--address", stack.server.address, "--namespace", stack.server.namespace)
    model, other = stack.add_model("first"), stack.add_model("second")
    name = f"goodbye-{uuid.uuid4().hex}"
    async with open_terminal("chat", name, "--model", model, *options) as screen:
        await screen.wait_until_shown("· idle")
        screen.type(f"/model {other}\r")
        await screen.wait_until_shown(f"the model is {other}")
        await screen.leave()
        (command,) = re.findall("resume it with `clew (.+?)`", screen.screen)
    assert shlex.split(command) == ["chat", name, "--model", other, *options]
    resumed = await run_clew(*shlex.split(command), stdin="hi\n")
    assert (resumed.out, resumed.err) == ("second\n", "")


async def test_a_command_on_a_terminal_has_no_line_breaks(stack: Stack) -> None:
    """Neither in the box of the status nor in an error of a chat, however narrow the terminal: it can be copied."""
    name, address = f"narrow-{uuid.uuid4().hex}-{'x' * 60}", stack.server.address
    session = await stack.clew.open(name, model=stack.add_model("fine"))
    await session.hibernate()
    command = f"`clew ask {session.id} TEXT --address {address}`"
    async with open_terminal("status", session.id, "--address", address) as screen:
        assert await screen.wait_for_end() == 0
        await screen.wait_for(command)
    async with open_terminal("chat", session.id, "--address", address) as screen:
        await screen.wait_until_shown("· idle")
        screen.type("/status\r")
        await screen.wait_until_shown("status")
        screen.type("/open nowhere\r")
        await screen.wait_for(f"`clew chat nowhere --model PROVIDER:NAME --address {address}`")


async def test_a_program_that_runs_the_chat_says_how_it_is_resumed(stack: Stack) -> None:
    """`--resume-with` has its command, for the session in which the chat ends."""
    session = await stack.open("fine")
    command = "make chat SESSION={session} MODEL={model}"
    options = ("--resume-with", command, "--address", stack.server.address)
    async with open_terminal("chat", session.id, *options) as screen:
        await screen.wait_until_shown("· idle")
        await screen.leave()
        shown = " ".join(screen.screen.split())
    assert f"`make chat SESSION={session.id} MODEL={(await session.status()).model}`" in shown


@asynccontextmanager
async def start_nothing(_server: TemporalServer) -> AsyncIterator[str]:
    yield ""


def test_a_stack_that_cannot_start_repeats_its_options() -> None:
    """The command with another model has all that the person has typed."""
    development = Development(
        tools=["my tools"],
        task_queue="orders",
        port=7000,
        folder=Path("a b"),
        studio=start_nothing,
    )
    assert shlex.split(development.write_command("openai:gpt-4o")) == [
        *("clew", "dev", "--model", "openai:gpt-4o", "--tools", "my tools", "--task-queue", "orders"),
        *("--port", "7000", "--folder", "a b"),
    ]
