"""The commands for summaries and pins. Each prints the session's receipt."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options
from clew.cli.acting import act
from clew.cli.options import Address, AsJson, Namespace, OpId, SessionId, TaskQueue
from clew.contract import TASK_QUEUE

UptoSeq = Annotated[
    int | None,
    typer.Option(
        "--to-seq",
        metavar="SEQ",
        min=0,
        help="The last message that the summary covers. Default: all but the last turns.",
    ),
]
Seqs = Annotated[list[int], typer.Argument(metavar="SEQ...", min=0, help="Seqs of the messages.", show_default=False)]


def summarize(
    session: SessionId,
    *,
    from_seq: Annotated[
        int | None,
        typer.Option(
            "--from-seq", metavar="SEQ", min=0, help="Read the messages again if an earlier summary covers this seq."
        ),
    ] = None,
    to_seq: UptoSeq = None,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Have a model summarize a lane. Contexts show the summary in place of the messages; `clew expand` undoes it."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.summarize(from_seq, to_seq, context_ref=lane), as_json)


def compact(
    session: SessionId,
    *,
    op_id: OpId,
    to_seq: UptoSeq = None,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Replace a lane's messages by a model's summary. `clew expand` undoes it."""
    target = options.make_target(address, namespace, task_queue)
    act(
        target, session, lambda reached: reached.compact(op_id=op_id, context_ref=lane, to_seq=to_seq), as_json, op_id
    )


def expand(
    session: SessionId,
    *,
    op_id: OpId,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Undo a lane's latest summary or compaction. Contexts show the messages again."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.expand(op_id=op_id, context_ref=lane), as_json, op_id)


def pin(
    session: SessionId,
    seqs: Seqs,
    *,
    op_id: OpId,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Keep messages in all contexts of a lane. They stay when others are truncated or summarized."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.pin(*seqs, op_id=op_id, context_ref=lane), as_json, op_id)


def unpin(
    session: SessionId,
    seqs: Seqs,
    *,
    op_id: OpId,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Undo `clew pin` for messages of a lane."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.unpin(*seqs, op_id=op_id, context_ref=lane), as_json, op_id)


COMMANDS = (summarize, compact, expand, pin, unpin)
