"""`clew report` on the command line."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from pathlib import Path

import pytest

from clew import Clew, File, Image, Session
from clew.local import Reply, ToolCall
from tests.support.command_line import run_clew as command
from tests.support.media import make_pdf, make_png
from tests.support.report_page import read_data
from tests.support.rolling import make_id
from tests.support.stack import Stack, get_last_message


@pytest.fixture(scope="module")
async def session(stack: Stack, clew: Clew) -> Session:
    """A session of a few turns, with a tool; most of it is in the archive."""
    replies = {"user": Reply(tool_calls=(ToolCall("flood", {"size": 40}),)), "tool": Reply("A **bold** answer.")}
    model = stack.add_model(lambda body: replies[get_last_message(body)["role"]])
    session = await clew.open(make_id(), model=model, tools=["flood"], metadata={"title": "Floods & <tags>"})
    for turn in range(6):
        await session.ask(f"turn {turn}")
    return session


@pytest.mark.slow
async def test_a_page_about_a_session(stack: Stack, session: Session, tmp_path: Path) -> None:
    """It has the title, every message and the window of every call, whose digests match what was sent."""
    file = tmp_path / "report.html"
    ended = await command("report", session.id, "-o", str(file), address=stack.server.address)
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"wrote {file}: ")
    page = file.read_text()
    made = read_data(page)["report"]
    assert made["title"] == {"content": "Floods & <tags>"}
    said = [item["text"]["content"] for item in made["items"] if item.get("role")]
    assert said == [text for turn in range(6) for text in (f"turn {turn}", "", "A **bold** answer.")]
    assert [call["window"]["matches_record"] for call in made["calls"]] == [True] * 12
    again = await command("report", session.id, "-o", "-", "--limit", "3", address=stack.server.address)
    assert len(read_data(again.out)["report"]["items"]) <= 3


async def test_the_report_as_json(stack: Stack, session: Session) -> None:
    """`--json` prints the same as values; without texts they have no word of the conversation."""
    ended = await command("report", session.id, "--json", "--without-texts", address=stack.server.address)
    assert ended.code == 0, ended.err
    made = ended.json
    assert (made["usage"]["model_calls"], made["tool_calls"], made["requests"]) == (12, 6, {"completed": 6})
    assert made["session_id"] == session.id
    assert [call["window"]["matches_record"] for call in made["calls"]] == [True] * 12
    assert "turn" not in ended.out.replace("turns", "")


async def test_an_exported_session_needs_no_server(
    stack: Stack, session: Session, folder: Path, tmp_path: Path
) -> None:
    """The page from a file differs from the one from the server only in the time at which it was made."""
    export, page = tmp_path / "thread", tmp_path / "page.html"
    address = stack.server.address
    exported = await command("export", session.id, str(export), address=address, CLEW_STORE=str(folder))
    assert exported.code == 0, exported.err
    offline = await command("report", "--from-file", str(export), "-o", str(page), address="127.0.0.1:1")
    assert offline.code == 0, offline.err
    online = await command("report", session.id, "-o", "-", address=address)
    assert cut_time(page.read_text()) == cut_time(online.out)


def cut_time(page: str) -> str:
    return re.sub('"made_at":"[^"]*"', "", page)


@pytest.mark.slow
async def test_media_stand_in_the_page_and_beside_it(stack: Stack, clew: Clew, folder: Path, tmp_path: Path) -> None:
    """A small image is in the page, `--media` writes all blobs; a page from an export has the same ones."""
    model = stack.add_model(lambda _: Reply("It is red."))
    session = await clew.open(make_id(), model=model)
    png, pdf = make_png(), make_pdf()
    await session.ask(["What is this?", Image.from_bytes(png, name="a.png"), File.from_bytes(pdf, name="b.pdf")])
    address, page, export = stack.server.address, tmp_path / "page.html", tmp_path / "thread"
    plain = await command("report", session.id, "-o", str(page), address=address)
    assert plain.code == 0, plain.err
    assert f"data:image/png;base64,{b64encode(png).decode()}" in page.read_text()
    exported = await command("export", session.id, str(export), address=address, CLEW_STORE=str(folder))
    assert exported.code == 0, exported.err
    for source, at in (((session.id,), address), (("--from-file", str(export)), "127.0.0.1:1")):
        media = tmp_path / f"media {len(source)}"
        ended = await command("report", *source, "-o", str(page), "--media", str(media), address=at)
        assert ended.code == 0, ended.err
        stored = {hashlib.sha256(data).hexdigest(): data for data in (png, pdf)}
        assert {file.stem: file.read_bytes() for file in media.iterdir()} == stored
        assert len(read_data(page.read_text())["links"]) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("s-1", "--from-file", "x"),
        ("s-1", "--limit", "0"),
        ("s-1", "--media", "m", "--json"),
        ("s-1", "--media", "m", "--without-texts"),
    ],
)
async def test_what_cannot_be_meant_is_refused(arguments: tuple[str, ...]) -> None:
    """Exit code 2 for neither session nor file, for both, and for a page without entries."""
    assert (await command("report", *arguments)).code == 2


async def test_a_session_that_does_not_exist(stack: Stack, tmp_path: Path) -> None:
    """It is refused, and no file is written."""
    file = tmp_path / "report.html"
    ended = await command("report", make_id(), "-o", str(file), address=stack.server.address)
    assert ended.code == 1
    assert not file.exists()
