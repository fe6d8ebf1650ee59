"""Files that are sent with messages: by `--attach`, and as terminals paste their paths."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest

from clew.cli.attachments import add_files, attach_file, change_attached, find_files, format_attached
from clew.cli.reach import Misconfigured
from clew.local import Reply
from clew_workflows.contract.content import get_text, iterate_blobs
from clew_workflows.contract.errors import TooLarge
from clew_workflows.contract.limits import MAX_BLOB_BYTES
from tests.support.command_line import open_terminal, read_error, run_clew
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.scripts import PausedModel
from tests.support.stack import Stack


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with files of several kinds."""
    (tmp_path / "screen shot.png").write_bytes(make_png(30, 20))
    (tmp_path / "bill.pdf").write_bytes(make_pdf(1))
    (tmp_path / "note.wav").write_bytes(make_wav(2))
    (tmp_path / "wrong.png").write_bytes(b"<html><script>alert(1)</script></html>")
    (tmp_path / "tool.bin").write_bytes(b"\x7fELF" + bytes(100))
    return tmp_path


async def read_message(stack: Stack, session_id: str) -> Any:
    """Read the content of the newest user's message."""
    entries = await stack.clew.session(session_id).entries(kind="ai_message")
    return [entry.payload["content"] for entry in entries if entry.payload["role"] == "user"][-1]


async def test_ask_sends_files_by_their_kinds(stack: Stack, files: Path) -> None:
    """An image, a recording and a document follow the text, each with what its header says; JSON has the parts."""
    attached = [word for name in ("screen shot.png", "note.wav", "bill.pdf") for word in ("--attach", files / name)]
    ended = await run_clew(
        *("ask", "attached-1", "Look.", "--model", stack.add_model("seen"), "--json", *map(str, attached)),
        address=stack.server.address,
    )
    assert ended.code == 0
    content = await read_message(stack, "attached-1")
    assert [part["type"] for part in content] == ["text", "image", "audio", "file"]
    image, recording, document = iterate_blobs([content])
    assert (image.get("name"), image.get("width"), image.get("height")) == ("screen shot.png", 30, 20)
    assert (recording.get("seconds"), document.get("pages")) == (2, 1)
    assert ended.json["content"] == content
    assert await stack.clew.session("attached-1").read_blob(image) == make_png(30, 20)


async def test_a_file_comes_from_stdin(stack: Stack) -> None:
    """A dash reads the bytes of stdin, once; an empty text is left out."""
    address, model = stack.server.address, stack.add_model("seen")
    ended = await run_clew(
        "ask", "attached-2", "", "--model", model, "--attach", "-", stdin=make_pdf(2), address=address
    )
    assert (ended.code, ended.out) == (0, "seen\n")
    (part,) = await read_message(stack, "attached-2")
    assert (part["type"], part["blob"]["pages"]) == ("file", 2)
    twice = await run_clew("ask", "attached-2", "-", "--attach", "-", stdin="text", address=address)
    assert twice.code == 2


async def test_files_that_cannot_be_sent(stack: Stack, files: Path) -> None:
    """Each is refused with its reason, before a message is sent."""
    address, model = stack.server.address, stack.add_model("seen")
    with (files / "huge.png").open("wb") as file:
        file.truncate(MAX_BLOB_BYTES + 1)
    (files / "empty.txt").touch()
    await stack.clew.open("attached-3", model=model)
    refusals = {
        "absent.png": (2, "misconfigured"),
        "": (2, "misconfigured"),
        "huge.png": (1, "too_large"),
        "empty.txt": (1, "unsupported_content"),
        "tool.bin": (1, "unsupported_content"),
        "wrong.png": (1, "content_mismatch"),
    }
    ended = await asyncio.gather(
        *(run_clew("ask", "attached-3", "Look.", "--attach", str(files / name), address=address) for name in refusals)
    )
    assert list(map(read_error, ended)) == list(refusals.values())
    as_json = await run_clew(
        "ask", "attached-3", "Look.", "--attach", str(files / "wrong.png"), "--json", address=address
    )
    assert (as_json.code, as_json.json["error"]["type"]) == (1, "content_mismatch")
    assert await stack.clew.session("attached-3").transcript() == []


async def test_steer_and_inject_send_files(stack: Stack, files: Path) -> None:
    """A correction of the active run has its file, and so has a message of a program."""
    model = PausedModel()
    session = await stack.open(model)
    request = await session.message("one")
    await model.called.wait()
    for verb, name in (("steer", "screen shot.png"), ("inject", "bill.pdf")):
        ended = await run_clew(
            verb, session.id, "this one", "--attach", str(files / name), address=stack.server.address
        )
        assert ended.code == 0, ended.err
    model.free.set()
    await request.result()
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    named = [blob.get("name") for blob in iterate_blobs(contents)]
    assert named == ["screen shot.png", "bill.pdf"]


async def test_reading_commands_show_markers(stack: Stack, files: Path) -> None:
    """Each command for people prints a part as a line that names it, and its name cannot control the terminal."""
    session = await stack.open(lambda _body: Reply("seen"))
    evil = files / "a\x1b[31mb.png"
    evil.write_bytes(make_png(30, 20))
    sent = await run_clew("ask", session.id, "Look.", "--attach", str(evil), address=stack.server.address)
    assert sent.code == 0, sent.err
    marker = get_text((await read_message(stack, session.id))[1:])
    assert marker.startswith("[image: ")
    commands = ("transcript", "context", "entries")
    for command in commands:
        ended = await run_clew(command, session.id, address=stack.server.address)
        assert marker in ended.out
        assert "{'type'" not in ended.out
        assert "\x1b" not in ended.out
    async with open_terminal("transcript", session.id, address=stack.server.address) as terminal:
        await terminal.wait_for("[image: ")
        assert await terminal.wait_for_end() == 0


async def test_a_chat_in_a_pipe_attaches_files(stack: Stack, files: Path) -> None:
    """`/attach` sends a file with the next message only; `clear` takes it back; a wrong path is an error."""
    session = await stack.open(lambda _body: Reply("seen"))
    lines = [
        f"/attach {files / 'bill.pdf'}",
        "/attach clear",
        f"/attach {files / 'screen shot.png'}",
        "/attach /absent.png",
        "/attach",
        "first",
        "second",
    ]
    ended = await run_clew("chat", session.id, stdin="\n".join(lines), address=stack.server.address)
    assert ended.out == "seen\nseen\n"
    assert ended.code == 2
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    assert [blob.get("name") for blob in iterate_blobs(contents)] == ["screen shot.png"]
    assert contents[2] == "second"


@pytest.mark.parametrize(
    "pasted",
    [
        "{folder}/screen shot.png",
        "'{folder}/screen shot.png' ",
        '"{folder}/screen shot.png"',
        "{folder}/screen\\ shot.png ",
        "file://{folder}/screen%20shot.png\n",
        "file://localhost{folder}/screen%20shot.png",
    ],
)
def test_a_pasted_path_is_found(files: Path, pasted: str) -> None:
    """Terminals paste the path of a dropped file as it is, quoted, escaped, or as an address."""
    assert find_files(pasted.format(folder=files), absolute=True) == [files / "screen shot.png"]


def test_several_pasted_paths_are_found(files: Path) -> None:
    """Several files come as words of a shell, or as lines; all of them must exist."""
    expected = [files / "bill.pdf", files / "screen shot.png"]
    assert find_files(f"{files}/bill.pdf '{files}/screen shot.png'", absolute=True) == expected
    assert find_files(f"file://{files}/bill.pdf\nfile://{files}/screen%20shot.png\n", absolute=True) == expected
    assert find_files(f"{files}/bill.pdf /absent.png", absolute=True) == []


@pytest.mark.parametrize(
    "text",
    ["", "bill.pdf", "look at {folder}/bill.pdf", "{folder}", "file://host{folder}/bill.pdf", "~none/x", "/\0", "'"],
)
def test_other_text_is_no_path(files: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder, a name without its folder, an address of another machine and prose are text."""
    monkeypatch.chdir(files)
    assert find_files(text.format(folder=files), absolute=True) == []


def test_a_device_is_not_read_to_its_end(tmp_path: Path) -> None:
    """A named pipe is attached without a size, a file with it, and a folder is refused."""
    os.mkfifo(tmp_path / "pipe")
    assert attach_file(tmp_path / "pipe").size is None
    (tmp_path / "five").write_bytes(b"12345")
    assert format_attached([attach_file(tmp_path / "five")]) == "attached: five, 5 bytes"
    with pytest.raises(Misconfigured):
        attach_file(tmp_path)


def test_a_message_has_a_limited_number_of_files(tmp_path: Path) -> None:
    """The same file counts once, and files beyond the limit are refused."""
    paths = [tmp_path / f"{number}.txt" for number in range(101)]
    for path in paths:
        path.write_text("text")
    assert len(change_attached(change_attached([], str(paths[0])), str(paths[0]))) == 1
    with pytest.raises(TooLarge):
        add_files([], paths)
