"""Pictures in terminals: which terminals show them, what is drawn, and what is not."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from clew import Image, Session
from clew.cli.chat.pictures import MAX_BYTES, SETTING, Pictures, Room, draw, find_protocol
from clew.local import Reply
from clew_workflows.contract.content import Blob, iterate_blobs
from tests.support.command_line import open_terminal
from tests.support.media import make_png
from tests.support.stack import Stack
from tests.support.typing_terminal import CTRL_D, ENTER, open_chat
from tests.support.waiting import wait_until

SIXEL, KITTY, PLACEHOLDER = "\x1bP", "\x1b_G", "\U0010eeee"


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "sixel"),
        ({"TERM": "xterm-256color", "LC_TERMINAL": "iTerm2"}, "sixel"),
        ({"TERM": "foot"}, "sixel"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "230800"}, "sixel"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "210800"}, None),
        ({"TERM": "xterm-256color"}, None),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/tmux"}, None),
        ({"TERM": "dumb", SETTING: "sixel"}, "sixel"),
        ({"TERM": "xterm-kitty", SETTING: "none"}, None),
    ],
)
def test_terminals_are_known_by_their_variables(environment: dict[str, str], protocol: str | None) -> None:
    """The terminal is not asked; a variable of the user's decides where its own say nothing."""
    assert find_protocol(environment) == protocol


async def test_a_picture_is_drawn_within_its_room() -> None:
    """Both protocols draw an image in as many cells as it needs, and at most as many as there are."""
    sixel = await draw(make_png(300, 200), "sixel", Room(60, 15, (10, 20)))
    assert '"1;1;300;200' in sixel
    wide = await draw(make_png(3000, 200), "sixel", Room(60, 15, (10, 20)))
    assert '"1;1;600;40' in wide
    kitty = await draw(make_png(300, 200), "kitty", Room(60, 15, (10, 20)))
    assert KITTY in kitty
    assert kitty.count(PLACEHOLDER) == 30 * 10


def make_bomb() -> bytes:
    """Make a PNG of 15 000 x 15 000 pixels in few bytes."""
    small = make_png(1, 1)
    header = small[12:29].replace((1).to_bytes(4), (15_000).to_bytes(4), 2)
    return small[:12] + header + zlib.crc32(header).to_bytes(4) + small[33:]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        make_png()[:40],
        make_bomb(),
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n",
    ],
)
async def test_other_bytes_are_not_drawn(data: bytes) -> None:
    """Damaged images, bombs, and formats that run programs give nothing."""
    assert await draw(data, "sixel", Room(60, 15)) == ""


async def test_of_many_pictures_the_newest_are_shown() -> None:
    """At most four wait; one whose bytes exceed its description is not drawn."""
    shown: list[int] = []
    pictures = Pictures("sixel", lambda: Room(10, 5), lambda _blob, _painted, place: shown.append(place))

    class Shelf:
        async def stream_blob(self, blob: Blob) -> AsyncIterator[bytes]:
            yield make_png(30, 20)
            if blob["digest"].startswith("5"):
                yield bytes(MAX_BYTES)

    session: Any = Shelf()
    for place in range(7):
        blob: Blob = {"digest": str(place) * 64, "media_type": "image/png", "bytes": 100}
        pictures.want(session, [{"type": "text", "text": "Look."}, {"type": "image", "blob": blob}], place)
    running = asyncio.ensure_future(pictures.run())
    await wait_until(lambda: 6 in shown)
    running.cancel()
    assert shown == [3, 4, 6]


def see(_body: dict[str, Any]) -> Reply:
    """A model that answers."""
    return Reply("It is red.")


@pytest.mark.slow
async def test_the_chat_shows_pictures_below_their_lines(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A resumed session shows the image of its last turn; one that is too large, and a bomb, have a line."""
    monkeypatch.setenv(SETTING, "sixel")
    session = await stack.open(see)
    await session.ask(["Look.", Image.from_bytes(make_png(300, 200), name="red.png")])
    large = Image.from_bytes(make_png(40, 40, size=5 * 1024 * 1024 + 1), name="large.png")
    await session.ask(["And this?", large, Image.from_bytes(make_bomb()[:-1], name="bomb.png")])
    async with open_chat(stack, session) as terminal:
        await terminal.wait_for("[image: red.png, image/png, 300 x 200")
        await terminal.wait_for("[image: large.png")
        await terminal.wait_for("[image: bomb.png")
        await wait_until(lambda: _has(terminal.raw, SIXEL))
        terminal.press("done" + ENTER)
        await terminal.wait_for("> done")
        terminal.press(CTRL_D)
        assert await terminal.wait_for_end() == 0
    assert terminal.raw.count(SIXEL) == 1


async def _has(text: str, part: str) -> bool:
    return part in text


async def test_a_terminal_that_shows_none_gets_none(stack: Stack) -> None:
    """The line names the image, and no picture is written: in another terminal, and by `clew transcript`."""
    session = await stack.open(see)
    await session.ask(["Look.", Image.from_bytes(make_png(300, 200), name="red.png")])
    address = stack.server.address
    async with open_terminal("transcript", session.id, address=address, TERM="xterm-kitty") as terminal:
        assert await terminal.wait_for_end() == 0
        await terminal.wait_for("[image: red.png")
        assert KITTY not in terminal.raw
    async with open_terminal("chat", session.id, address=address) as terminal:
        await terminal.wait_until_shown("[image: red.png")
        assert await terminal.leave() == 0
        assert not [start for start in (SIXEL, KITTY) if start in terminal.raw]


async def test_a_file_is_attached_on_a_real_terminal(stack: Stack, tmp_path: Path) -> None:
    """`clew chat` sends the file with the line and draws it; what was pasted is replaced by Tab."""
    session = await stack.open(see)
    (tmp_path / "red.png").write_bytes(make_png(300, 200))
    settings = {SETTING: "kitty"}
    async with open_terminal("chat", session.id, address=stack.server.address, anew=False, **settings) as terminal:
        await terminal.wait_until_shown("/help lists the commands")
        terminal.type(f"/attach {tmp_path}/red.png\r")
        await terminal.wait_until_shown("+ red.png, ")
        terminal.type("Look.\r")
        await terminal.wait_until_shown("[image: red.png, image/png, 300 x 200")
        await terminal.wait_for(PLACEHOLDER)
        await terminal.wait_until_shown("It is red.")
        terminal.type(f"\x1b[200~'{tmp_path}/red.png' \x1b[201~")
        await terminal.wait_until_shown("Tab attaches red.png")
        terminal.type("\tAnd now?\r")
        await terminal.wait_until_shown("> And now?")
        assert await terminal.leave() == 0
    await wait_until(lambda: _count_named(session, 2))


async def _count_named(session: Session, count: int) -> bool:
    contents: list[Any] = [message["content"] for message in await session.transcript()]
    return [blob.get("name") for blob in iterate_blobs(contents)] == ["red.png"] * count
