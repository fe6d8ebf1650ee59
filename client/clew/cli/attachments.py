"""Files that are sent with a message: found by what is typed or pasted, checked, stored, and named as parts."""

from __future__ import annotations

import asyncio
import mimetypes
import shlex
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import typer

from clew.cli.reach import Misconfigured
from clew.content import AnyContent, clean_name
from clew.session.session import Session
from clew_workflows.contract.content import Blob, MediaKind, Part
from clew_workflows.contract.errors import ContentMismatch, TooLarge, UnsupportedContent
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_PARTS

STDIN = "-"
MAX_PATHS_CHARACTERS = 8192
"""Longest text in which paths are looked for. A longer one is no path that was pasted."""
MAX_ATTACHMENTS = MAX_PARTS - 1
"""Most files of a message, beside its text."""
_DECLARED = {".m4a": "audio/mp4", ".m4b": "audio/mp4", ".weba": "audio/webm"}
"""The types of recordings whose first bytes may also be those of a film, by their endings."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """A file that is sent with a message.

    Attributes:
        path: The file; None: standard input.
        size: Its bytes when it was attached; None: not known.
    """

    path: Path | None
    size: int | None = None

    @property
    def name(self) -> str | None:
        """The name that the message has of it; None: none."""
        return clean_name(self.path.name) if self.path else None

    @property
    def title(self) -> str:
        """The name, and the size if it is known."""
        size = "" if self.size is None else f", {self.size} bytes"
        return f"{self.name or 'stdin'}{size}"


def attach_file(path: Path) -> Attachment:
    """Attach a file, which is read when the message is sent.

    Raises:
        Misconfigured: There is no such file, or it is a folder.
        TooLarge: It is larger than a blob may be.
    """
    try:
        path = path.expanduser()
        found = path.stat()
    except (OSError, RuntimeError, ValueError) as error:
        raise Misconfigured(f"{str(path)!r} cannot be attached: {_explain(error)}") from None
    if path.is_dir():
        raise Misconfigured(f"{str(path)!r} cannot be attached: it is a folder")
    if found.st_size > MAX_BLOB_BYTES:
        raise TooLarge(f"{path.name} has {found.st_size} bytes, at most {MAX_BLOB_BYTES} are stored")
    return Attachment(path, found.st_size if path.is_file() else None)


def attach_arguments(arguments: Sequence[Path] | None, text: str) -> list[Attachment]:
    """Attach the files that `--attach` names; `text` is the argument TEXT.

    Raises:
        typer.BadParameter: Standard input is named twice, or there are too many files.
        Misconfigured: A file does not exist.
        TooLarge: A file is larger than a blob may be.
    """
    arguments = arguments or ()
    if [text, *map(str, arguments)].count(STDIN) > 1:
        raise typer.BadParameter("stdin is read once: for TEXT or for one --attach", param_hint="--attach")
    if len(arguments) > MAX_ATTACHMENTS:
        raise typer.BadParameter(f"a message has at most {MAX_ATTACHMENTS} files", param_hint="--attach")
    return list(map(_attach_argument, arguments))


def _attach_argument(path: Path) -> Attachment:
    return Attachment(None) if str(path) == STDIN else attach_file(path)


def change_attached(attached: Sequence[Attachment], argument: str) -> list[Attachment]:
    """Change what is attached as `/attach` says: more files, none with `clear`, the same without an argument.

    Raises:
        Misconfigured: The argument names no file.
        TooLarge: There are too many files, or one is larger than a blob may be.
    """
    if argument == "clear":
        return []
    if not argument:
        return list(attached)
    # Without a file the error says what is wrong with the path.
    paths = find_files(argument) or [Path(argument)]
    return add_files(attached, paths)


def add_files(attached: Sequence[Attachment], paths: Sequence[Path]) -> list[Attachment]:
    """Attach more files; each once.

    Raises:
        Misconfigured: A file does not exist.
        TooLarge: There are too many files, or one is larger than a blob may be.
    """
    files = {each.path: each for each in (*attached, *map(attach_file, paths))}
    if len(files) > MAX_ATTACHMENTS:
        raise TooLarge(f"a message has at most {MAX_ATTACHMENTS} files")
    return list(files.values())


def format_attached(attached: Sequence[Attachment]) -> str:
    """Say what is attached."""
    return f"attached: {'; '.join(each.title for each in attached)}" if attached else "nothing is attached"


async def make_content(session: Session, text: str, attachments: Sequence[Attachment]) -> AnyContent:
    """Make the content of a message: its text, and behind it the files, which are stored first.

    Raises:
        Misconfigured: A file cannot be read.
        Refusal: The session does not store a file: it is too large, of a type that no model reads, or damaged.
    """
    if not attachments:
        return text
    texts: list[Part] = [{"type": "text", "text": text}] if text.strip() else []
    # One by one: the bytes of one file are in memory.
    return [*texts, *[await _store(session, attachment) for attachment in attachments]]


async def _store(session: Session, attachment: Attachment) -> Part:
    data = await asyncio.to_thread(_read, attachment)
    return make_part(await store_bytes(session, data, attachment.name))


async def store_bytes(session: Session, data: bytes, name: str | None, media_type: str | None = None) -> Blob:
    """Store the bytes of a file.

    Raises:
        ContentMismatch: It is named like an image or a recording, and is none.
        Refusal: The session does not store it.
    """
    label = name or "stdin"
    if not data:
        raise UnsupportedContent(f"{label} is empty")
    declared = media_type or _DECLARED.get(Path(name or "").suffix.lower())
    try:
        blob = await session.put_blob(data, media_type=declared, name=name)
    except (ContentMismatch, TooLarge, UnsupportedContent) as error:
        raise type(error)(f"{label}: {error}") from None
    named = (mimetypes.guess_type(name)[0] if name and not media_type else None) or ""
    kind = named.partition("/")[0]
    if kind in ("image", "audio") and not named.endswith("xml") and find_kind(blob) != kind:
        raise ContentMismatch(f"{label} is named like {named}, and its first bytes are those of {blob['media_type']}")
    return blob


def find_kind(blob: Blob) -> MediaKind:
    """Find the kind of the part that shows a blob, by its type."""
    match blob["media_type"].partition("/")[0]:
        case "image":
            return "image"
        case "audio":
            return "audio"
    return "file"


def make_part(blob: Blob) -> Part:
    """Make the part that shows a blob."""
    part: Any = {"type": find_kind(blob), "blob": blob}
    return cast("Part", part)


def read_argument(path: Path) -> tuple[bytes, str | None]:
    """Read the file that an argument names, `-` for standard input. Returns its bytes and its name.

    Raises:
        Misconfigured: It cannot be read.
        TooLarge: It is larger than a blob may be.
    """
    attachment = _attach_argument(path)
    return _read(attachment), attachment.name


def _read(attachment: Attachment) -> bytes:
    """Read a file, no further than a blob may reach: a device has no end."""
    try:
        if attachment.path is None:
            data = sys.stdin.buffer.read(MAX_BLOB_BYTES + 1)
        else:
            with attachment.path.open("rb") as file:
                data = file.read(MAX_BLOB_BYTES + 1)
    except OSError as error:
        raise Misconfigured(f"{attachment.title} cannot be read: {_explain(error)}") from None
    if len(data) > MAX_BLOB_BYTES:
        raise TooLarge(f"{attachment.name or 'stdin'} has more than {MAX_BLOB_BYTES} bytes, the most that are stored")
    return data


def _explain(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


# The paths in a text that a person has typed, or that a terminal has pasted for files that were dropped on it.


def find_files(text: str, *, absolute: bool = False) -> list[Path]:
    """Find the files that a text names.

    Terminals paste a path as it is, quoted or escaped as for a shell, or as a `file://` address.

    Args:
        text: A path, or several: a line for each, or as words of a shell.
        absolute: Take absolute paths only, as terminals paste them.

    Returns:
        The files; empty: the text is something else than the paths of files that exist.
    """
    text = text.strip()
    if not text or len(text) > MAX_PATHS_CHARACTERS:
        return []
    for words in ([text], text.splitlines(), _split_words(text)):
        paths = [_read_address(word.strip()) for word in words]
        files = [path for path in paths if path and (path.is_absolute() or not absolute) and _is_file(path)]
        if files and len(files) == len(words):
            return files
    return []


def _split_words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return []


def _read_address(word: str) -> Path | None:
    """Read a path, or a `file://` address of this machine."""
    try:
        if word.startswith("file://"):
            address = urlsplit(word)
            here = ("", "localhost", socket.gethostname())
            return Path(unquote(address.path)) if address.netloc in here else None
        return Path(word).expanduser()
    except (RuntimeError, ValueError):
        return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
