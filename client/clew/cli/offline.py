"""The operators' commands. They read histories and the archive's store, and need the extra `worker`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter
from temporalio.envconfig import ClientConfig

from clew.cli import _operators as operators
from clew.cli import failures, options, reach, show
from clew.cli.failures import exit_on_error
from clew.cli.groups import OPERATE, SESSIONS
from clew.cli.options import Address, AsJson, Namespace, OptionalSessionId, SessionId, TaskQueue
from clew.cli.reach import Misconfigured
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.encryption import Sealer, encrypt_payloads, read_encryption
from clew_workflows.thread.entries import Entry

if TYPE_CHECKING:
    from clew.operators import Archive, Report

AUDIT_FAILED = 2
"""Exit code of an audit that could not be completed."""


class Keep(StrEnum):
    """Which source wins when history and archive disagree."""

    ARCHIVE = "archive"
    HISTORY = "history"


def audit(
    session: OptionalSessionId = None,
    *,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the histories, for a later audit without the server.")
    ] = None,
    from_file: Annotated[
        Path | None, typer.Option("--from-file", metavar="FILE", help="Audit saved histories; needs no server.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
) -> None:
    """Compare a session's histories, archive and live entries.

    Replays the event histories with the workflow's code, and rebuilds the context of each model call. Exit code 0: no
    differences; 1: differences; 2: the audit could not be completed.
    """
    if (session is None) is (from_file is None):
        raise typer.BadParameter("name either a session or --from-file", param_hint="SESSION")
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> Report:
        if from_file:
            with open_file(from_file, "rb") as file:
                saved = operators.SavedHistories(file, make_converter())
                return await operators.audit_file(saved, _open_archive(saved.namespace))
        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        if save is None:
            return await operators.audit_session(client, archive, session or "")
        with open_file(save, "wb") as file:
            return await operators.audit_session(client, archive, session or "", file)

    with exit_on_error(as_json, code=AUDIT_FAILED):
        operators.require_worker_extra()
        report = options.run(work())
        if as_json:
            show.print_document(report.as_dict())
        else:
            _print_report(report)
    raise typer.Exit(0 if report.clean else failures.FAILED)


def recover(
    session: SessionId,
    *,
    keep: Annotated[Keep | None, typer.Option(help="Which source wins when history and archive disagree.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Repair a session that was terminated, timed out or reset. It continues after its last entry."""
    target = options.make_target(address, namespace, task_queue)
    source: Literal["archive", "history"] | None = options.get_word(keep)

    async def work() -> dict[str, Any]:
        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        recovery = await operators.recover(client, archive, session, task_queue=task_queue, keep=source)
        return recovery.as_dict()

    with exit_on_error(as_json):
        operators.require_worker_extra()
        done = options.run(work())
        if as_json:
            show.print_document(done)
        else:
            _print_recovery(done)


def verify(session: SessionId, *, as_json: AsJson = False, namespace: Namespace = None) -> None:
    """Check every object of a session's archive, large tool results too. Reports damaged and missing ones."""

    async def work() -> dict[str, Any]:
        verified = await operators.verify_archive(_open_archive(namespace or _read_namespace()), session)
        return verified.as_dict()

    with exit_on_error(as_json):
        operators.require_worker_extra()
        verified = options.run(work())
        if as_json:
            show.print_document(verified)
        else:
            counts = ", ".join(f"{verified[name]} {name}" for name in ("segments", "nodes", "entries", "results"))
            _print_lines(f"{counts}; {verified['status']}", *verified["problems"])
    raise typer.Exit(failures.FAILED if verified["problems"] else 0)


def rekey(*, as_json: AsJson = False, namespace: Namespace = None) -> None:
    """Encrypt all archives of a namespace anew, with the first key of CLEW_ENCRYPTION_KEYS.

    Sessions may run meanwhile. Repeat it if it was interrupted. Exit code 1: some objects could not be decrypted.
    """

    async def work() -> dict[str, Any]:
        if not read_sealer().is_on:
            raise Misconfigured("CLEW_ENCRYPTION_KEYS is not set: its first key is the one that archives get")
        return (await operators.rekey_archive(_open_archive(namespace or _read_namespace()))).as_dict()

    with exit_on_error(as_json):
        operators.require_worker_extra()
        done = options.run(work())
        if as_json:
            show.print_document(done)
        else:
            counts = f"{done['rewritten']} objects encrypted anew, {done['current']} had the key already"
            changed = f", {done['changed']} were written or deleted meanwhile" if done["changed"] else ""
            failed = f", {done['failed']} FAILED" if done["failed"] else ""
            _print_lines(*done["problems"], counts + changed + failed)
    raise typer.Exit(failures.FAILED if done["failed"] else 0)


def export(
    session: SessionId,
    file: Annotated[str, typer.Argument(metavar="FILE", help="The file to write; `-` is stdout.")] = "-",
    *,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
) -> None:
    """Write all entries of a session to a file. JSON Lines, with a checksum at the end."""
    target = options.make_target(address, namespace, TASK_QUEUE)

    async def work() -> int:
        client = (await reach.connect(target)).temporal
        with open_file(file, "wb") as to:
            return await operators.export_session(client, _open_archive(client.namespace), session, to)

    with exit_on_error(as_json):
        operators.require_worker_extra()
        count = options.run(work())
    if file != "-":
        _print_receipt({"session_id": session, "entries": count}, f"wrote {count} entries to {file}", as_json)


def import_(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A file that `clew export` wrote; `-` is stdin.")],
    *,
    as_id: Annotated[
        str | None,
        typer.Option("--as", metavar="ID", help="Id of the new session. Default: the exported session's id."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Make a session from an exported one, with the same entries. It continues after the last one."""
    target = options.make_target(address, namespace, task_queue)

    async def work() -> tuple[str, int]:
        client = (await reach.connect(target)).temporal
        archive = _open_archive(client.namespace)
        with open_file(file, "rb") as source:
            return await operators.import_session(client, archive, source, session_id=as_id, task_queue=task_queue)

    with exit_on_error(as_json):
        operators.require_worker_extra()
        session_id, count = options.run(work())
    _print_receipt({"session_id": session_id, "entries": count}, f"session {session_id} has {count} entries", as_json)


def register(app: typer.Typer) -> None:
    """Add the operators' commands to the command line."""
    archive = typer.Typer(help="Check a session's archive.", no_args_is_help=True, rich_markup_mode=None)
    archive.command()(verify)
    for command in (audit, recover, rekey):
        app.command(rich_help_panel=OPERATE)(command)
    app.add_typer(archive, name="archive", rich_help_panel=OPERATE)
    app.command(rich_help_panel=SESSIONS)(export)
    app.command("import", rich_help_panel=SESSIONS)(import_)


def _open_archive(namespace: str) -> Archive:
    """Open the archive of a namespace, in the store that CLEW_STORE names."""
    try:
        return operators.Archive(operators.open_store(os.environ), namespace)
    except ValueError as error:
        raise Misconfigured(f"the archive's store cannot be opened: {error}") from None


def _read_namespace() -> str:
    try:
        return ClientConfig.load_client_connect_config().get("namespace") or "default"
    except (RuntimeError, OSError, ValueError) as error:
        raise Misconfigured(f"Temporal's environment configuration is not valid: {error}") from error


@contextmanager
def open_file(path: str | Path, mode: Literal["rb", "wb"]) -> Iterator[BinaryIO]:
    """Open a file; `-` is stdin or stdout."""
    if str(path) == "-":
        yield sys.stdin.buffer if mode == "rb" else sys.stdout.buffer
        return
    try:
        file = Path(path).open(mode)  # noqa: SIM115 - only errors of opening are caught
    except OSError as error:
        raise Misconfigured(f"{path}: {error.strerror}") from None
    with file:
        yield file


def make_converter() -> DataConverter:
    """Make the data converter of saved histories, with the keys of the environment.

    Raises:
        Misconfigured: A key is not valid.
    """
    try:
        return encrypt_payloads(pydantic_data_converter, read_encryption(os.environ))
    except ValueError as error:
        raise Misconfigured(str(error)) from None


def read_sealer() -> Sealer:
    """Read the keys of the environment, for files that are encrypted.

    Raises:
        Misconfigured: A key is not valid.
    """
    try:
        return read_encryption(os.environ).sealer
    except ValueError as error:
        raise Misconfigured(str(error)) from None


def read_export(file: Path) -> list[Entry]:
    """Read the entries of a file that `clew export` wrote.

    Raises:
        FileDamaged: The file is not complete, or no export.
        Misconfigured: The file cannot be read, or the extra `worker` is not installed.
    """
    operators.require_worker_extra()
    with open_file(file, "rb") as source:
        return operators.read_export(source, read_sealer())


def _print_receipt(document: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        show.print_document(document)
    else:
        _print_lines(text)


def _print_lines(*lines: str) -> None:
    to = show.make_console()
    for line in lines:
        to.print(show.make_text(line), soft_wrap=True)


def _print_report(report: Report) -> None:
    alone = f" ({report.in_archive_alone} only there)" if report.in_archive_alone else ""
    live = "live entries not read" if report.live is None else f"{report.live} live"
    sources = f"{report.in_history} in histories, {report.in_archive} in the archive{alone}"
    _print_lines(
        *(
            f"workflow run {run.run_id}: {run.ended}, {run.events} events, {run.bytes} bytes"
            + (f", entries {run.from_seq} to {run.to_seq}" if run.to_seq is not None else "")
            for run in report.runs
        ),
        f"{report.entries} entries: {sources}; {live}",
        f"{report.calls.verified} contexts of model calls rebuilt"
        + (f", {len(report.calls.unverified)} could not be" if report.calls.unverified else ""),
        *report.remarks,
        *(f"DIFFERS: {difference}" for difference in report.differences),
        "no differences" if report.clean else f"{len(report.differences)} differences",
    )


_RECOVERED = {
    "running": "is running: nothing to recover, nothing was changed",
    "whole": "ended normally and can be opened: nothing was changed",
    "restarted": "was complete in its archive and has been resumed",
    "recovered": "has been repaired and resumed",
}


def _print_recovery(done: dict[str, Any]) -> None:
    _print_lines(f"session {done['session_id']} {_RECOVERED[done['status']]}", *done["remarks"])
    if done["status"] == "recovered":
        _print_lines(
            f"kept the {done['source']}: wrote {done['written']} entries to the archive, {done['closing']} of them "
            f"to end active requests; the last entry is {done['last_seq']}"
        )
    if done["dropped"]:
        _print_lines(f"dropped {done['dropped']} entries of the other source")
