"""`clew import-history`: a session that begins with a history of another library."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Unpack, cast

from clew.cli import reach
from clew.cli.command import Invocation, command
from clew.cli.reach import Misconfigured
from clew.cli.shared_options import StartOptions, argument, option
from clew.content import Image, Media
from clew.session.connection import Clew
from clew.session.keywords import SessionOptions
from clew.session.session import Session
from clew_workflows.contract.errors import ClewError, NotFound, ThreadMismatch, TooLarge
from clew_workflows.contract.extras import name_install
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BYTES
from clew_workflows.contract.messages import canonicalize
from clew_workflows.contract.payloads import OperationPayload

if TYPE_CHECKING:
    from clew.serve.openai.history_files import History

MAX_FILE_BYTES = 100 * 1024 * 1024
"""Largest file of JSON, and most bytes of the items of one session in a database."""
SQLITE_HEAD = b"SQLite format 3\0"
MAX_NAMED = 20
"""Most sessions of a database that an error names."""
MARGIN_BYTES = 1024
"""Bytes of an operation beside its messages, at most."""

Found = Literal["absent", "empty", "imported"]
"""What there is under the id of a session: none, one without messages, or one that has the history."""


@command()
def import_history(
    invocation: Invocation,
    file: Annotated[
        Path, argument("FILE", "JSON or JSON Lines, or a database of the OpenAI Agents SDK's SQLiteSession.")
    ],
    *,
    session: Annotated[str, option("ID", "The id of the new session.")],
    source: Annotated[
        str | None, option("ID", "The session of the database. Default: the only one, or the one named as --session.")
    ] = None,
    **configuration: Unpack[StartOptions],
) -> None:
    """Start a session with a history of Chat Completions, Responses, LangGraph, the Agents SDK or Pydantic AI.

    Its system messages become the system prompt, unless --agent or --system names another. The same file imported
    again under the same id changes nothing.
    """
    history = _read(file, source, session)
    typed = {name: value for name, value in configuration.items() if value not in (None, False, [])}
    if history.system_prompt and "agent" not in typed:
        typed.setdefault("system_prompt", history.system_prompt)
    if "agent" not in typed and "model" not in typed:
        raise Misconfigured("name an --agent or a --model with which the session goes on")

    async def work(clew: Clew) -> bool:
        connection = await reach.use_task_queue(clew, session)
        return await _import(connection, session, history, cast("SessionOptions", typed))

    is_new = invocation.run(work)
    document = {
        "session_id": session,
        "format": history.format,
        "messages": len(history.messages),
        "status": "imported" if is_new else "duplicate",
    }
    done = f"session {session} begins with {len(history.messages)} messages"
    invocation.print_lines(document, done if is_new else f"session {session} has this history: nothing has changed")


async def _import(clew: Clew, session_id: str, history: History, options: SessionOptions) -> bool:
    """Start the session, and put the history under its lane. Returns whether that is new.

    Raises:
        ThreadMismatch: There is a session of that id, which has not begun with this history.
        TooLarge: The history is larger than a session takes at once.
        ClewError: The session refused the history. It was deleted, if it was new.
    """
    op_id = f"import-{history.digest[:32]}"
    found = await _find(clew, session_id, op_id)
    if found == "imported":
        return False
    session = clew.session(session_id)
    try:
        # The blobs first: a session need not exist yet to have them.
        messages = [await _store_media(session, message) for message in history.messages]
        _check_size(messages)
        session = (await reach.open_session(clew, session_id, **options)).session
        meta = {"imported": {"format": history.format, "sha256": history.digest}}
        await session.replace_context(messages, op_id=op_id, reason="restore", meta=meta)
    except ClewError:
        if found == "absent":
            with suppress(ClewError):
                await clew.delete(session_id)
        raise
    return True


async def _find(clew: Clew, session_id: str, op_id: str) -> Found:
    """Find what there is under an id.

    Raises:
        ThreadMismatch: Another session.
    """
    is_used, found = False, "absent"
    with suppress(NotFound):
        async for entry in clew.read_thread(session_id):
            found = "empty"
            if isinstance(operation := entry.body, OperationPayload) and operation.op_id == op_id:
                return "imported"
            is_used = is_used or entry.kind != "config"
    if is_used:
        raise ThreadMismatch(f"session {session_id!r} exists, and has not begun with this history: name another id")
    return cast("Found", found)


def _check_size(messages: Sequence[Mapping[str, Any]]) -> None:
    size = len(canonicalize(messages)) + MARGIN_BYTES
    if size > MAX_MESSAGE_BYTES:
        raise TooLarge(
            f"the history has {size} bytes without its images and files, at most {MAX_MESSAGE_BYTES} are imported: "
            "remove its oldest messages, or long results of tools. Nothing was imported"
        )


async def _store_media(session: Session, message: Mapping[str, Any]) -> dict[str, Any]:
    """Store what a message has of bytes, and name it in its place."""
    content = message["content"]
    if isinstance(content, str):
        return dict(message)
    return {**message, "content": [await _store_part(session, part) for part in content]}


async def _store_part(session: Session, part: str | Media) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "text", "text": part}
    detail = {"detail": part.detail} if isinstance(part, Image) and part.detail else {}
    if isinstance(part, Image) and part.url is not None:
        return {"type": "image", "url": part.url, **detail}
    blob = await session.put_blob(part.read(MAX_BLOB_BYTES), media_type=part.media_type, name=part.name)
    return {"type": part.kind, "blob": dict(blob), **detail}


# The file.


def _read(path: Path, source: str | None, session_id: str) -> History:
    """Read a file.

    Raises:
        HistoryInvalid: It holds no history, or an item cannot be imported.
        Misconfigured: It cannot be read, or the extra `serve` is not installed.
    """
    try:
        from clew.serve.openai import history_files  # noqa: PLC0415 - the extra may be missing
    except ImportError as error:
        raise Misconfigured(f"import-history needs the extra `serve`: {name_install('serve')} ({error})") from None
    try:
        with path.open("rb") as file:
            is_database = file.read(len(SQLITE_HEAD)) == SQLITE_HEAD
            file.seek(0)
            data = b"" if is_database else file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}") from None
    if is_database:
        return history_files.read_rows(_read_database(path, source, session_id), path.name)
    if source is not None:
        raise Misconfigured(f"{path}: it is no database of sessions: leave --source out")
    if len(data) > MAX_FILE_BYTES:
        raise _make_too_large(path)
    return history_files.read_file(data, path.name)


def _make_too_large(path: Path) -> TooLarge:
    return TooLarge(f"{path}: the history has more than {MAX_FILE_BYTES} bytes. Nothing was imported")


def _read_database(path: Path, source: str | None, session_id: str) -> list[str]:
    """Read the items of a session of the Agents SDK, each as JSON, in their order.

    Raises:
        Misconfigured: It is no such database, or it has several sessions and none is chosen.
        TooLarge: The session has more bytes than are read.
    """
    try:
        with closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if "agent_messages" not in tables:
                raise Misconfigured(f"{path}: it has no table `agent_messages`: it is no database of SQLiteSession")
            if "message_structure" in tables:
                raise Misconfigured(
                    f"{path}: it has the branches of an AdvancedSQLiteSession: write what `get_items()` returns to a "
                    "JSON file, and import that"
                )
            known = [name for (name,) in database.execute("SELECT DISTINCT session_id FROM agent_messages")]
            chosen = _choose(path, known, source, session_id)
            where = "FROM agent_messages WHERE session_id = ?"
            (size,) = database.execute(f"SELECT TOTAL(LENGTH(message_data)) {where}", (chosen,)).fetchone()
            if size > MAX_FILE_BYTES:
                raise _make_too_large(path)
            return [row for (row,) in database.execute(f"SELECT message_data {where} ORDER BY id", (chosen,))]
    except sqlite3.Error as error:
        raise Misconfigured(f"{path}: the database cannot be read: {error}") from None


def _choose(path: Path, known: Sequence[str], source: str | None, session_id: str) -> str:
    wanted = source if source is not None else known[0] if len(known) == 1 else session_id
    if wanted in known:
        return wanted
    named = ", ".join(known[:MAX_NAMED]) + (", …" if len(known) > MAX_NAMED else "")
    has = f"it has {len(known)} sessions ({named}): name one with --source" if known else "it has no session"
    raise Misconfigured(f"{path}: {has}")
