"""The operators' commands. They read histories and the archive's store, and need the extra `worker`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Literal

import typer
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.envconfig import ClientConfig

from clew.cli import _operators as operators
from clew.cli import show
from clew.cli.command import Invocation, command
from clew.cli.failures import FAILED
from clew.cli.reach import Misconfigured
from clew.cli.shared_options import OptionalSessionId, SessionId, argument, option, require_one_source
from clew.session.connection import Clew
from clew_workflows.encryption import Encryption, encrypt_payloads, read_encryption
from clew_workflows.thread.entries import Entry

if TYPE_CHECKING:
    from clew.operators import Archive, Evaluation, Report, Turn, TurnReply

AUDIT_FAILED = 2
"""Exit code of an audit that could not be completed."""
SHOWN_CHARACTERS = 100
"""Most characters of a text or of a call's arguments in the output for people."""
ExportedFile = Annotated[str, argument("FILE", "A file that `clew export` wrote; `-` is stdin.", show_default=True)]


@command(target=("address", "namespace"), operates=True, failure_code=AUDIT_FAILED)
def audit(
    invocation: Invocation,
    session: OptionalSessionId = None,
    *,
    save: Annotated[Path | None, option("FILE", "Save the histories, for a later audit without the server.")] = None,
    from_file: Annotated[
        Path | None, option("FILE", "Audit saved histories; needs no server.", "--from-file")
    ] = None,
) -> None:
    """Compare a session's histories, archive and live entries.

    Replays the event histories with the workflow's code, and rebuilds the context of each model call. Exit code 0: no
    differences; 1: differences; 2: the audit could not be completed.
    """
    require_one_source(session, from_file)

    async def audit_live(clew: Clew) -> Report:
        archive = _open_archive(clew.temporal.namespace)
        if save is None:
            return await operators.audit_session(clew.temporal, archive, session or "")
        with open_file(save, "wb") as file:
            return await operators.audit_session(clew.temporal, archive, session or "", file)

    async def audit_saved(path: Path) -> Report:
        with open_file(path, "rb") as file:
            saved = operators.SavedHistories(file, encrypt_payloads(pydantic_data_converter, read_keys()))
            return await operators.audit_file(saved, _open_archive(saved.namespace))

    report = asyncio.run(audit_saved(from_file)) if from_file else invocation.run(audit_live)
    invocation.print_lines(report.as_dict(), *_describe_report(report))
    raise typer.Exit(0 if report.clean else FAILED)


@command(operates=True)
def recover(
    invocation: Invocation,
    session: SessionId,
    *,
    keep: Annotated[
        Literal["archive", "history"] | None, option(None, "Which source wins when history and archive disagree.")
    ] = None,
) -> None:
    """Repair a session that was terminated, timed out or reset. It continues after its last entry."""

    async def work(clew: Clew) -> dict[str, Any]:
        archive = _open_archive(clew.temporal.namespace)
        queue = invocation.target.task_queue
        return (await operators.recover(clew.temporal, archive, session, task_queue=queue, keep=keep)).as_dict()

    done = invocation.run(work)
    invocation.print_lines(done, *_describe_recovery(done))


@command(target=("namespace",), operates=True)
def verify(invocation: Invocation, session: SessionId) -> None:
    """Check every object of a session's archive, large tool results too. Reports damaged and missing ones."""
    archive = _open_archive(_find_namespace(invocation))
    verified = asyncio.run(operators.verify_archive(archive, session)).as_dict()
    counts = ", ".join(f"{verified[name]} {name}" for name in ("segments", "nodes", "entries", "results"))
    invocation.print_lines(verified, f"{counts}; {verified['status']}", *verified["problems"])
    raise typer.Exit(FAILED if verified["problems"] else 0)


@command(target=("namespace",), operates=True)
def rekey(invocation: Invocation) -> None:
    """Encrypt all archives of a namespace anew, with the first key of CLEW_ENCRYPTION_KEYS.

    Sessions may run meanwhile. Repeat it if it was interrupted. Exit code 1: some objects could not be decrypted.
    """
    if not read_keys().is_on:
        raise Misconfigured("CLEW_ENCRYPTION_KEYS is not set: its first key is the one that archives get")
    done = asyncio.run(operators.rekey_archive(_open_archive(_find_namespace(invocation)))).as_dict()
    counts = f"{done['rewritten']} objects encrypted anew, {done['current']} had the key already"
    changed = f", {done['changed']} were written or deleted meanwhile" if done["changed"] else ""
    failed = f", {done['failed']} FAILED" if done["failed"] else ""
    invocation.print_lines(done, *done["problems"], counts + changed + failed)
    raise typer.Exit(FAILED if done["failed"] else 0)


@command(target=("address", "namespace"), operates=True)
def export(
    invocation: Invocation,
    session: SessionId,
    file: Annotated[str, argument("FILE", "The file to write; `-` is stdout.", show_default=True)] = "-",
) -> None:
    """Write all entries of a session to a file. JSON Lines, with a checksum at the end."""

    async def work(clew: Clew) -> int:
        with open_file(file, "wb") as to:
            return await operators.export_session(clew.temporal, _open_archive(clew.temporal.namespace), session, to)

    count = invocation.run(work)
    if file != "-":
        invocation.print_lines({"session_id": session, "entries": count}, f"wrote {count} entries to {file}")


@command(operates=True)
def import_(
    invocation: Invocation,
    file: ExportedFile,
    *,
    as_id: Annotated[
        str | None, option("ID", "Id of the new session. Default: the exported session's id.", "--as")
    ] = None,
) -> None:
    """Make a session from an exported one, with the same entries. It continues after the last one."""

    async def work(clew: Clew) -> tuple[str, int]:
        archive, queue = _open_archive(clew.temporal.namespace), invocation.target.task_queue
        with open_file(file, "rb") as source:
            return await operators.import_session(clew.temporal, archive, source, session_id=as_id, task_queue=queue)

    session_id, count = invocation.run(work)
    invocation.print_lines({"session_id": session_id, "entries": count}, f"session {session_id} has {count} entries")


@command(target=(), operates=True)
def evaluate(
    invocation: Invocation,
    file: ExportedFile,
    *,
    agents: Annotated[str, option("MODULES", "Modules that define agents, separated by commas.")],
    agent: Annotated[str | None, option("NAME", "The agent. Default: the only one of the modules.")] = None,
    tools: Annotated[
        str, option("MODULES", "Modules with the tools that the agent names. Default: the recorded schemas.")
    ] = "",
    model: Annotated[str | None, option("PROVIDER:NAME", "Ask this model instead of the agent's.")] = None,
) -> None:
    """Ask each model call of an exported session again, under another agent, and compare the replies.

    Each call gets the context that it had, with the agent's prompt, tools, policy and model. No tool is called. The
    variables of the model providers are those of a worker; the models' calls cost money.
    """
    # The modules may be those of the current folder, as for `clew worker`.
    if not {"", os.getcwd()} & set(sys.path):
        sys.path.insert(0, os.getcwd())
    chosen, known, providers = operators.load_evaluation_settings(
        os.environ, _split(agents), _split(tools), agent, model
    )
    own_models = operators.read_own_models(os.environ)
    evaluating = operators.evaluate_thread(read_export(file), chosen, providers, tools=known, own_models=own_models)
    evaluation: Evaluation = asyncio.run(evaluating)
    invocation.print_lines(evaluation.as_dict(), *_describe_evaluation(evaluation))


def _split(names: str) -> list[str]:
    return [name for name in map(str.strip, names.split(",")) if name]


def _open_archive(namespace: str) -> Archive:
    """Open the archive of a namespace, in the store that CLEW_STORE names."""
    try:
        return operators.Archive(operators.open_store(os.environ), namespace)
    except ValueError as error:
        raise Misconfigured(f"the archive's store cannot be opened: {error}") from None


def _find_namespace(invocation: Invocation) -> str:
    if invocation.target.namespace:
        return invocation.target.namespace
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


def read_keys() -> Encryption:
    """Read the keys of the environment.

    Raises:
        Misconfigured: A key is not valid.
    """
    try:
        return read_encryption(os.environ)
    except ValueError as error:
        raise Misconfigured(str(error)) from None


def read_export(file: str | Path) -> list[Entry]:
    """Read the entries of a file that `clew export` wrote.

    Raises:
        FileDamaged: The file is not complete, or no export.
        Misconfigured: The file cannot be read, or the extra `worker` is not installed.
    """
    operators.require_worker_extra()
    with open_file(file, "rb") as source:
        return operators.read_export(source, read_keys().sealer)


def read_exported_blobs(file: str | Path) -> Iterator[tuple[str, bytes]]:
    """Read the images, recordings and files of an exported session, with their digests, one at a time.

    Raises:
        FileDamaged: The file is not complete, or no export.
        Misconfigured: The file cannot be read, or the extra `worker` is not installed.
    """
    operators.require_worker_extra()
    with open_file(file, "rb") as source:
        yield from operators.read_exported_blobs(source, read_keys().sealer)


def _describe_report(report: Report) -> Iterator[str]:
    alone = f" ({report.in_archive_alone} only there)" if report.in_archive_alone else ""
    live = "live entries not read" if report.live is None else f"{report.live} live"
    sources = f"{report.in_history} in histories, {report.in_archive} in the archive{alone}"
    for run in report.runs:
        entries = f", entries {run.from_seq} to {run.to_seq}" if run.to_seq is not None else ""
        yield f"workflow run {run.run_id}: {run.ended}, {run.events} events, {run.bytes} bytes{entries}"
    yield f"{report.entries} entries: {sources}; {live}"
    unverified = f", {len(report.calls.unverified)} could not be" if report.calls.unverified else ""
    yield f"{report.calls.verified} contexts of model calls rebuilt{unverified}"
    yield f"{report.calls.sent} requests to models encoded again, the same to the byte"
    yield from (f"{count} requests not compared: {reason}" for reason, count in report.calls.other_encoders.items())
    yield from report.remarks
    yield from (f"DIFFERS: {difference}" for difference in report.differences)
    yield "no differences" if report.clean else f"{len(report.differences)} differences"


_RECOVERED = {
    "running": "is running: nothing to recover, nothing was changed",
    "whole": "ended normally and can be opened: nothing was changed",
    "restarted": "was complete in its archive and has been resumed",
    "recovered": "has been repaired and resumed",
}


def _describe_recovery(done: dict[str, Any]) -> Iterator[str]:
    yield f"session {done['session_id']} {_RECOVERED[done['status']]}"
    yield from done["remarks"]
    if done["status"] == "recovered":
        yield (
            f"kept the {done['source']}: wrote {done['written']} entries to the archive, {done['closing']} of them "
            f"to end active requests; the last entry is {done['last_seq']}"
        )
    if done["dropped"]:
        yield f"dropped {done['dropped']} entries of the other source"


def _describe_evaluation(evaluation: Evaluation) -> Iterator[str]:
    turns = evaluation.turns
    for turn in turns:
        yield from _describe_turn(turn)
    same_text, same_calls = sum(turn.same_text for turn in turns), sum(turn.same_calls for turn in turns)
    yield (
        f"{len(turns)} model calls: {same_text} with the same text, {same_calls} with the same tool calls, "
        f"{sum(turn.reply is None for turn in turns)} without a reply"
    )
    yield f"recorded: {show.format_usage(evaluation.recorded_usage)}"
    yield f"{evaluation.agent} with {evaluation.model}: {show.format_usage(evaluation.usage)}"


def _describe_turn(turn: Turn) -> Iterator[str]:
    """Describe a turn in one line, or where the replies differ, in one line for each."""
    title = f"{turn.call_id or turn.seq}"
    if turn.reply is None:
        yield f"{title}  no reply: {turn.problem}"
    elif turn.same_text and turn.same_calls:
        yield f"{title}  same: {_describe_reply(turn.reply)}"
    else:
        yield f"{title}  was: {_describe_reply(turn.recorded)}"
        yield f"{title}  now: {_describe_reply(turn.reply)}"


def _describe_reply(reply: TurnReply) -> str:
    calls = [f"{name}({json.dumps(dict(arguments))})" for name, arguments in reply.tool_calls]
    return " ".join(show.shorten(part, SHOWN_CHARACTERS) for part in (reply.text, *calls) if part)
