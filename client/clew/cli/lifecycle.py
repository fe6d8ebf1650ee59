"""The commands about a session as a whole, wherever it is: fork it, put it away, delete it."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options, show
from clew.cli.ending import ending
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.contract import TASK_QUEUE
from clew.contract.outputs import DeleteReceipt, ForkReceipt
from clew.session.connection import Clew
from clew.session.session import Session


def fork(
    session: SessionId,
    *,
    at: Annotated[
        int | None,
        typer.Option(metavar="SEQ", min=0, help="The last entry that both have; the newest one unless given."),
    ] = None,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="ID", help="The new session's id; a new one unless given.")
    ] = None,
    metadata: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="What to note about the fork; may be repeated.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Begin a new session with the entries of this one. From there on each goes its own way."""
    notes = dict(_note(text) for text in metadata or ())
    place = options.place(address, namespace, task_queue)

    async def act(_clew: Clew, reached: Session) -> ForkReceipt:
        made = await reached.fork(at, new_id, metadata=notes or None)
        origin = [entry async for entry in made.read(from_seq=at or 0, kind="fork")]
        seqs = [entry.payload["fork_seq"] for entry in origin if entry.payload["session_id"] == session]
        return ForkReceipt(session_id=made.id, fork_seq=seqs[-1])

    with ending(as_json):
        show.print_receipt(options.of_any(place, session, act), as_json)


def hibernate(
    session: SessionId,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the record.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Put the session away. It is in the archive whole, and the next message takes it up again."""
    place = options.place(address, namespace, task_queue)
    with ending(as_json):
        show.print_receipt(options.of_existing(place, session, lambda reached: reached.hibernate(reason)), as_json)


def delete(
    session: SessionId,
    *,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """End the session and delete all of it. What its forks share with it stays."""
    if not yes:
        typer.confirm(f"Delete session {show.plain(session)} and all that was said in it?", abort=True, err=True)
    place = options.place(address, namespace, task_queue)

    async def act(clew: Clew, reached: Session) -> DeleteReceipt:
        return DeleteReceipt(deleted_segments=await clew.delete(reached.id))

    with ending(as_json):
        show.print_receipt(options.of_any(place, session, act), as_json)


COMMANDS = (fork, hibernate, delete)


def _note(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r}: a name, =, and a value", param_hint="--metadata")
    return name, value
