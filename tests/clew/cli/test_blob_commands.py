"""`clew blob`: store, list and read the images and files of a session."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from clew import Entry, File, Image
from clew.session.session_blobs import list_named
from tests.support.command_line import open_terminal, read_error, run_clew
from tests.support.media import make_pdf, make_png
from tests.support.stack import Stack

ABSENT = "0" * 64


async def test_a_blob_is_put_and_got(stack: Stack, tmp_path: Path) -> None:
    """The part that `put` prints is one of a message; `get` writes the same bytes to a pipe or a file."""
    session, address = await stack.open(), stack.server.address
    data = make_png(31, 20)
    (tmp_path / "a.png").write_bytes(data)
    stored = await run_clew("blob", "put", session.id, str(tmp_path / "a.png"), address=address)
    part = stored.json
    digest = part["blob"]["digest"]
    assert (part["type"], part["blob"]["name"], digest) == ("image", "a.png", hashlib.sha256(data).hexdigest())
    await session.ask(["Look.", part])
    got = await run_clew("blob", "get", session.id, digest, "-o", str(tmp_path / "b.png"), "--json", address=address)
    assert got.json == {"digest": digest, "bytes": len(data), "file": str(tmp_path / "b.png")}
    assert (tmp_path / "b.png").read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png"]


async def test_put_takes_a_type_and_a_name(stack: Stack) -> None:
    """Standard input has a name and a type only by the options, which must be those of its bytes."""
    session, address = await stack.open(), stack.server.address
    stored = await run_clew(
        *("blob", "put", session.id, "-", "--type", "text/csv", "--name", "sums.csv"), stdin="a,b\n", address=address
    )
    assert (stored.json["type"], stored.json["blob"]["media_type"], stored.json["blob"]["name"]) == (
        *("file", "text/csv", "sums.csv"),
    )
    wrong = await run_clew("blob", "put", session.id, "-", "--type", "image/png", stdin="a,b\n", address=address)
    assert read_error(wrong) == (1, "content_mismatch")


async def test_blobs_of_the_thread_are_listed_and_named_by_their_first_digits(stack: Stack, tmp_path: Path) -> None:
    """Each digest stands once, with the entry that names it first; some of its digits are enough to read it."""
    session, address = await stack.open(), stack.server.address
    pages = File.from_bytes(make_pdf(1), name="bill.pdf")
    await session.ask(["One.", Image.from_bytes(make_png(32, 20), name="a.png"), pages])
    await session.ask(["Again.", pages])
    listed = await run_clew("blob", "list", session.id, "--json", address=address)
    image, document = listed.json["blobs"]
    assert (image["name"], image["width"], image["type"], image["seq"]) == ("a.png", 32, "image", 1)
    assert (document["pages"], document["type"], document["seq"]) == (1, "file", 1)
    plain = await run_clew("blob", "list", session.id, address=address)
    assert [line.split("\t")[0] for line in plain.out.splitlines()] == [image["digest"], document["digest"]]
    written = tmp_path / "bill.pdf"
    got = await run_clew("blob", "get", session.id, document["digest"][:8], "-o", str(written), address=address)
    assert (got.code, got.err) == (0, "")
    assert written.read_bytes() == make_pdf(1)


async def test_blobs_that_are_not_there(stack: Stack, tmp_path: Path) -> None:
    """A digest of another session, digits of none, and words are refused, and no file is left."""
    session, other, address = await stack.open(), await stack.open(), stack.server.address
    foreign = await other.put_blob(make_png(33, 20))
    output = ("-o", str(tmp_path / "x"))
    codes = [
        read_error(await run_clew("blob", "get", session.id, digest, *output, address=address))
        for digest in (ABSENT, foreign["digest"], foreign["digest"][:10])
    ]
    assert codes == [(1, "unknown_blob")] * 3
    assert (await run_clew("blob", "get", session.id, "x.png", *output, address=address)).code == 2
    assert os.listdir(tmp_path) == []
    folder = await run_clew("blob", "get", other.id, foreign["digest"], "-o", "/absent/x", address=address)
    assert read_error(folder) == (2, "misconfigured")


def test_what_looks_like_a_part_elsewhere_is_none() -> None:
    """A model's arguments, a forged entry and another kind name no blob; a message and a snapshot do."""
    blob = {"digest": "0" * 64, "media_type": "image/png", "bytes": 7, "name": "a.png"}
    forged: list[Any] = [{"type": "image", "blob": {"digest": {"a": 7}}}]
    call = {"id": "t", "name": "t", "arguments": {"part": {"type": "image", "blob": blob}, "other": forged}}
    message = {"context_ref": "default", "role": "assistant", "content": [{"type": "image", "blob": blob}]}
    replace = {"type": "replace", "reason": "manual", "result_context": {"messages": [message]}}
    operation = {"op_id": "o", "context_ref": "default", "operation": replace}
    rows: list[tuple[Any, Any, int]] = [
        ("ai_message", {**message, "content": "", "tool_calls": [call]}, 0),
        ("ai_message", {**message, "content": forged}, 0),
        ("error", {"type": "internal", "message": "", "details": {"part": message["content"]}}, 0),
        ("ai_message", message, 1),
        ("ai_context_operation", operation, 1),
    ]
    for kind, payload, count in rows:
        named = list(list_named(Entry(7, "e", kind, "", payload, {}, 0)))
        assert named == [{"blob": blob, "type": "image", "seq": 7}] * count


async def test_a_terminal_gets_texts_only(stack: Stack) -> None:
    """An image, and a text with control characters, are not written to a terminal; a plain text is."""
    session, address = await stack.open(), stack.server.address
    image = await session.put_blob(make_png(34, 20))
    evil = await session.put_blob(b"plain \x1b[31mred", name="evil.txt")
    text = await session.put_blob("Zeile für Zeile\n".encode(), name="good.txt")
    for blob, shown, code in ((image, "--output FILE", 2), (evil, "--output FILE", 2), (text, "Zeile für Zeile", 0)):
        async with open_terminal("blob", "get", session.id, blob["digest"], address=address) as terminal:
            await terminal.wait_for(shown)
            assert await terminal.wait_for_end() == code
            assert "PNG" not in terminal.raw
