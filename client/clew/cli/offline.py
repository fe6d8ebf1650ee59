"""The operator's commands. They work on histories and on the archive's store, with the extra `worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from temporalio.envconfig import ClientConfig

from clew.cli import failures, options, reach, show
from clew.cli.failures import exit_on_error
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.cli.reach import Misconfigured
from clew.contract import TASK_QUEUE

if TYPE_CHECKING:
    from clew.operators import Archive, Report

AUDIT_FAILED = 2
"""The exit code of an audit that could not be made."""


class Keep(StrEnum):
    """Which source wins when history and archive disagree."""

    ARCHIVE = "archive"
    HISTORY = "history"


def audit(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="The session's id.")] = None,
    *,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the histories there, for an audit without the server.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Audit what was kept; no server is needed.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
) -> None:
    """Compare a session's histories, its archive and itself, entry for entry; make every model call's context again.

    The histories are replayed here, with the workflow's own code. Exit code 0: all is equal; 1: something differs;
    2: it could not be audited.
    """
    if (session is None) is (from_file is None):
        raise typer.BadParameter("either a session's id or --from-file", param_hint="SESSION")
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> Report:
        from clew import operators  # noqa: PLC0415 - the extra may be missing

        if from_file:
            with open_file(from_file, "rb") as file:
                saved = operators.SavedHistories(file)
                return await operators.audit_file(saved, _open_archive(saved.namespace))
        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        if save is None:
            return await operators.audit_session(client, archive, session or "")
        with open_file(save, "wb") as file:
            return await operators.audit_session(client, archive, session or "", file)

    with exit_on_error(as_json, code=AUDIT_FAILED), require_worker_extra():
        report = options.run(work())
        if as_json:
            show.print_document(report.as_json())
        else:
            _print_report(report)
    raise typer.Exit(0 if report.clean else failures.FAILED)


def recover(
    session: SessionId,
    *,
    keep: Annotated[
        Keep | None, typer.Option(help="What to keep where history and archive tell different things.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Put a session together again that was terminated, has timed out or was reset, and let it go on."""
    target = options.make_target(address, namespace, task_queue)
    kept: Literal["archive", "history"] | None = options.get_word(keep)

    async def work() -> dict[str, Any]:
        from clew import operators  # noqa: PLC0415 - the extra may be missing

        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        found = await operators.recover(client, archive, session, task_queue=task_queue, keep=kept)
        return found.as_json()

    with exit_on_error(as_json), require_worker_extra():
        done = options.run(work())
        if as_json:
            show.print_document(done)
        else:
            _print_recovery(done)


def verify(session: SessionId, *, as_json: AsJson = False, namespace: Namespace = None) -> None:
    """Read every object of a session's archive, and say of each whether it is whole."""

    async def work() -> dict[str, Any]:
        from clew import operators  # noqa: PLC0415 - the extra may be missing

        found = await operators.verify(_open_archive(namespace or _read_namespace()), session)
        return found.as_json()

    with exit_on_error(as_json), require_worker_extra():
        found = options.run(work())
        if as_json:
            show.print_document(found)
        else:
            what = (
                f"{found['segments']} segments, {found['nodes']} nodes, {found['entries']} entries; {found['status']}"
            )
            _print_lines(what, *found["problems"])
    raise typer.Exit(failures.FAILED if found["problems"] else 0)


def export(
    session: SessionId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; `-` is stdout.")] = "-",
    *,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
) -> None:
    """Write the whole thread to a file, archived and live as one: JSON Lines, with a checksum at its end."""
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> int:
        from clew import operators  # noqa: PLC0415 - the extra may be missing

        client = (await reach.connect(target)).temporal
        with open_file(file, "wb") as to:
            return await operators.export_session(client, _open_archive(client.namespace), session, to)

    with exit_on_error(as_json), require_worker_extra():
        count = options.run(work())
    if file != "-":
        _print_receipt({"session_id": session, "entries": count}, f"{count} entries are in {file}", as_json)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="What `clew export` has written; `-` is stdin.")],
    *,
    as_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The new session's id; the exported one's unless given.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Make a session of an exported thread, every entry as it was. It goes on where the thread ends."""
    target = options.make_target(address, namespace, task_queue)

    async def work() -> tuple[str, int]:
        from clew import operators  # noqa: PLC0415 - the extra may be missing

        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        with open_file(file, "rb") as source:
            return await operators.import_session(client, archive, source, session_id=as_id, task_queue=task_queue)

    with exit_on_error(as_json), require_worker_extra():
        session_id, count = options.run(work())
    _print_receipt({"session_id": session_id, "entries": count}, f"session {session_id} has {count} entries", as_json)


def register(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    archive = typer.Typer(help="A session's archive.", no_args_is_help=True, rich_markup_mode=None)
    archive.command()(verify)
    app.add_typer(archive, name="archive")
    for command in (audit, recover, export):
        app.command()(command)
    app.command("import")(import_)


@contextmanager
def require_worker_extra() -> Iterator[None]:
    """Within, `clew.operators` can be imported, or it is said what to install.

    Raises:
        Misconfigured: the extra `worker` is not installed.
    """
    try:
        yield
    except ImportError as error:
        if error.name != "clew.operators":
            raise
        raise Misconfigured(str(error)) from error


def _open_archive(namespace: str) -> Archive:
    """The archive that the workers of a namespace write, where CLEW_STORE says."""
    from clew import operators  # noqa: PLC0415 - the extra may be missing

    try:
        return operators.Archive(operators.open_store(os.environ), namespace)
    except ValueError as error:
        raise Misconfigured(f"the archive cannot be used: {error}") from None


def _read_namespace() -> str:
    try:
        return ClientConfig.load_client_connect_config().get("namespace") or "default"
    except (RuntimeError, OSError, ValueError) as error:
        raise Misconfigured(f"Temporal's configuration cannot be used: {error}") from error


@contextmanager
def open_file(path: str | Path, mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    """A file, or the process's own stream for a dash."""
    if str(path) == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        file = Path(path).open(mode)  # noqa: SIM115 - errors of what is done with it are not errors of its opening
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}") from None
    with file:
        yield file


def _print_receipt(document: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        show.print_document(document)
    else:
        _print_lines(words)


def _print_lines(*lines: str) -> None:
    to = show.make_console()
    for line in lines:
        to.print(show.make_text(line), soft_wrap=True)


def _print_report(report: Report) -> None:
    alone = f" ({report.in_archive_alone} of them there alone)" if report.in_archive_alone else ""
    live = "the session was not asked" if report.live is None else f"{report.live} live"
    places = f"{report.in_history} in histories, {report.in_archive} in the archive{alone}"
    _print_lines(
        *(
            f"run {run.run_id}: {run.ended}, {run.events} events, {run.bytes} bytes"
            + (f", entries {run.from_seq} to {run.to_seq}" if run.to_seq is not None else "")
            for run in report.runs
        ),
        f"{report.entries} entries: {places}; {live}",
        f"{report.calls.verified} model calls made again"
        + (f", {len(report.calls.unverified)} could not be" if report.calls.unverified else ""),
        *report.remarks,
        *(f"DIFFERS: {found}" for found in report.differences),
        "all is equal" if report.clean else f"{len(report.differences)} differences",
    )


_RECOVERED = {
    "running": "is running: there is nothing to recover, and nothing was changed",
    "whole": "ended in good order: it goes on when it is opened, and nothing was changed",
    "restarted": "was whole in its archive, and goes on from there",
    "recovered": "is put together, and goes on",
}


def _print_recovery(done: dict[str, Any]) -> None:
    _print_lines(f"session {done['session_id']} {_RECOVERED[done['status']]}", *done["remarks"])
    if done["status"] == "recovered":
        _print_lines(
            f"its {done['source']} was the newer or the chosen one: {done['written']} entries were written to the "
            f"archive, {done['closing']} of them to end what ran; entry {done['last_seq']} is the last"
        )
    if done["dropped"]:
        _print_lines(f"{done['dropped']} entries of the other one were given up")
