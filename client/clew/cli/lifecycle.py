"""The commands that fork, hibernate and delete sessions, and write and restore checkpoints."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options, reach, show
from clew.cli.acting import act
from clew.cli.failures import exit_on_error
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.session.connection import Clew
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE
from clew_workflows.contract.outputs import CheckpointReceipt, DeleteReceipt, ForkReceipt, RestoreReceipt
from clew_workflows.contract.payloads import ForkPayload


def fork(
    session: SessionId,
    *,
    at: Annotated[
        int | None,
        typer.Option(metavar="SEQ", min=0, help="The last entry that both have. Default: the newest."),
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="Id of the new session. Default: a random one.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Metadata of the fork; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Start a new session that begins with this session's entries. Afterwards the two are independent."""
    notes = dict(_parse_metadata(text) for text in metadata or ())
    target = options.make_target(address, namespace, task_queue)

    async def fork_session(_clew: Clew, reached: Session) -> ForkReceipt:
        made = await reached.fork(at, new_id, metadata=notes or None)
        forks = [entry.read(ForkPayload) async for entry in made.read(from_seq=at or 0, kind="fork")]
        seqs = [origin.fork_seq for origin in forks if origin.session_id == session]
        return ForkReceipt(session_id=made.id, fork_seq=seqs[-1])

    with exit_on_error(as_json):
        show.print_receipt(options.ask_any(target, session, fork_session), as_json)


def hibernate(
    session: SessionId,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, stored with the entry.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Archive the whole session and end its workflow. Opening the session resumes it."""
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        show.print_receipt(options.ask_existing(target, session, lambda reached: reached.hibernate(reason)), as_json)


def delete(
    session: SessionId,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """End a session and delete all its entries, and those of its subagents. Forks, and what they share, stay."""
    if not yes:
        typer.confirm(f"Delete session {show.strip_controls(session)} and all its entries?", abort=True, err=True)
    target = options.make_target(address, namespace, task_queue)

    async def delete_session(clew: Clew, reached: Session) -> DeleteReceipt:
        return await clew.delete(reached.id)

    with exit_on_error(as_json):
        show.print_receipt(options.ask_any(target, session, delete_session), as_json)


def checkpoint(
    session: SessionId,
    *,
    lane: options.Lane = None,
    expires: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", min=1, help="Seconds until the token expires. Default: 30 days."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Print a signed token with a lane's context and configuration. The token is not encrypted."""
    target = options.make_target(address, namespace, task_queue)

    async def sign(reached: Session) -> CheckpointReceipt:
        return CheckpointReceipt(token=await reached.checkpoint(lane, expires_seconds=expires))

    act(target, session, sign, as_json)


def restore(
    token: Annotated[
        str,
        typer.Argument(
            metavar="TOKEN", help="The token of a checkpoint; `-` reads it from stdin.", show_default=False
        ),
    ],
    *,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="SESSION", help="Id of the new session. Default: a random one.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Start a new session from a checkpoint and print its id."""
    checkpoint_token = options.read_text(token).strip()
    target = options.make_target(address, namespace, task_queue)

    async def work() -> RestoreReceipt:
        clew = await reach.connect(target)
        await clew.check_worker()
        return RestoreReceipt(session_id=(await clew.restore(checkpoint_token, new_id)).id)

    with exit_on_error(as_json):
        show.print_receipt(options.run(work()), as_json)


COMMANDS = (fork, hibernate, delete, checkpoint, restore)


def _parse_metadata(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--metadata")
    return name, value
