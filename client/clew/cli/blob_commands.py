"""`clew blob`: store images, recordings and files in a session, list those that its thread names, and read them."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from clew.cli import attachments, show
from clew.cli.command import Invocation, command
from clew.cli.reach import Misconfigured
from clew.cli.shared_options import SessionId, argument, option
from clew.session.session import Session
from clew.session.session_blobs import NamedBlob, read_named
from clew_workflows.contract.content import Blob
from clew_workflows.contract.errors import InvalidInput, UnknownBlob

DIGITS = 64
"""Hexadecimal digits of a digest."""
MIN_DIGITS = 4
"""Fewest digits that name a blob."""
SHOWN_DIGITS = 12
_PREFIX = re.compile(rf"[0-9a-f]{{{MIN_DIGITS},{DIGITS}}}")


@command(json_help="Print JSON, which is always printed.")
def put(
    invocation: Invocation,
    session: SessionId,
    path: Annotated[Path, argument("PATH", "The file; `-` reads it from stdin.", allow_dash=True)],
    *,
    media_type: Annotated[
        str | None, option("TYPE", "Its type, such as image/png. Default: by its bytes.", "--type")
    ] = None,
    name: Annotated[str | None, option("NAME", "Its name. Default: that of the path.")] = None,
) -> None:
    """Store a file in a session and print the part of a message that names it, as JSON."""
    data, own_name = attachments.read_argument(path)

    async def store(reached: Session) -> Blob:
        return await attachments.store_bytes(reached, data, name or own_name, media_type)

    show.print_document(attachments.make_part(invocation.ask_existing(session, store)))


@command()
def get(
    invocation: Invocation,
    session: SessionId,
    digest: Annotated[
        str, argument("DIGEST", "The digest. Its first digits are enough for a blob that the thread names.")
    ],
    *,
    output: Annotated[Path | None, option("FILE", "Write to this file. Default: stdout.", "--output", "-o")] = None,
) -> None:
    """Read a blob. A terminal gets it only if it is a text."""
    digest = digest.lower()
    if not _PREFIX.fullmatch(digest):
        raise typer.BadParameter(
            f"a digest has {DIGITS} hexadecimal digits, of which at least {MIN_DIGITS} are named", param_hint="DIGEST"
        )
    if output is None and invocation.as_json:
        raise typer.BadParameter("needs --output: stdout would have the bytes", param_hint="--json")

    async def read(reached: Session) -> tuple[str, bytes | int]:
        found = digest if len(digest) == DIGITS else await _find_digest(reached, digest)
        if output is None:
            return found, await reached.read_blob(found)
        return found, await _write_file(reached, found, output)

    found, read_data = invocation.ask_any(session, read)
    if isinstance(read_data, bytes):
        _write_stdout(read_data, found)
    else:
        document = {"digest": found, "bytes": read_data, "file": str(output)}
        invocation.print_lines(document, f"{output} has {read_data} bytes of blob {found[:SHOWN_DIGITS]}")


@command()
def list_(invocation: Invocation, session: SessionId) -> None:
    """List the blobs that a session's thread names, each with the first entry that names it."""

    async def read(reached: Session) -> list[NamedBlob]:
        return [named async for named in read_named(reached.read())]

    named = invocation.ask_any(session, read)
    rows = [{**each["blob"], "type": each["type"], "seq": each["seq"]} for each in named]
    invocation.print({"blobs": rows}, lambda to: _print_blobs(to, named))


async def _find_digest(session: Session, prefix: str) -> str:
    """Find the digest that begins with some digits, of the blobs that the thread names.

    Raises:
        InvalidInput: Several begin with them.
        UnknownBlob: None does.
    """
    matching = [
        named["blob"]["digest"]
        async for named in read_named(session.read())
        if named["blob"]["digest"].startswith(prefix)
    ]
    if not matching:
        raise UnknownBlob(f"the thread of session {session.id!r} names no blob whose digest begins with {prefix}")
    if len(matching) > 1:
        shown = ", ".join(each[: max(SHOWN_DIGITS, len(prefix) + 4)] for each in matching[:8])
        raise InvalidInput(f"{len(matching)} digests begin with {prefix}: {shown}")
    return matching[0]


async def _write_file(session: Session, digest: str, path: Path) -> int:
    """Write a blob to a file, which appears once the digest is verified. Returns the number of its bytes."""
    size = 0
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise Misconfigured(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            async for piece in session.stream_blob(digest):
                size += file.write(piece)
        _give_usual_mode(partial)
        os.replace(partial, path)
    except OSError as error:
        raise Misconfigured(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    finally:
        with suppress(OSError):
            os.unlink(partial)
    return size


def _give_usual_mode(path: str) -> None:
    """Give a temporary file, which only its owner reads, the mode of other new files."""
    mask = os.umask(0)
    os.umask(mask)
    os.chmod(path, 0o666 & ~mask)


def _write_stdout(data: bytes, digest: str) -> None:
    if sys.stdout.isatty():
        try:
            text = data.decode()
        except UnicodeDecodeError:
            text = "\0"
        if show.strip_controls(text.replace("\r\n", "\n")) != text.replace("\r\n", "\n"):
            raise Misconfigured(
                f"blob {digest[:SHOWN_DIGITS]} is no text that a terminal shows: write it with --output FILE, "
                "or into a pipe"
            )
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print_blobs(to: Console, blobs: list[NamedBlob]) -> None:
    rows = [_format_row(each, SHOWN_DIGITS if to.is_terminal else DIGITS) for each in blobs]
    titles = ("digest", "type", "bytes", "details", "entry", "name")
    show.print_table(to, titles, rows, right=("bytes", "entry"), wrapped=("name",))


def _format_row(named: NamedBlob, digits: int) -> tuple[str, str, str, str, str, str]:
    blob = named["blob"]
    details = [f"{blob['width']} x {blob['height']}"] if "width" in blob and "height" in blob else []
    details += [f"{blob['pages']} pages"] if "pages" in blob else []
    details += [f"{blob['seconds']:g} s"] if "seconds" in blob else []
    name = show.shorten(blob.get("name", ""), 255)
    size = str(blob["bytes"])
    return blob["digest"][:digits], blob["media_type"], size, ", ".join(details), str(named["seq"]), name
