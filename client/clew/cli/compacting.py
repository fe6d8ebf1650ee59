"""The commands that decide what a lane's contexts keep. Each prints the receipt that the session answers with."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options
from clew.cli.acting import act
from clew.cli.options import Address, AsJson, Namespace, OpId, SessionId, TaskQueue
from clew.contract import TASK_QUEUE

UptoSeq = Annotated[
    int | None,
    typer.Option("--to-seq", metavar="SEQ", min=0, help="The last entry of it; all but the last turns unless given."),
]
Seqs = Annotated[
    list[int], typer.Argument(metavar="SEQ...", min=0, help="The messages, by their seqs.", show_default=False)
]


def summarize(
    session: SessionId,
    *,
    from_seq: Annotated[
        int | None,
        typer.Option("--from-seq", metavar="SEQ", min=0, help="From here on it is read again, if summed up before."),
    ] = None,
    to_seq: UptoSeq = None,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Have a summary written, which stands for what it sums up from then on; `clew expand` undoes it."""
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
    """Have a summary written and put under the lane in place of what it sums up; `clew expand` undoes it."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.compact(op_id=op_id, context_ref=lane, to_seq=to_seq), as_json)


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
    """Undo the lane's latest compaction: its contexts are made of what was there before."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.expand(op_id=op_id, context_ref=lane), as_json)


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
    """Keep messages in every context of a lane, word for word, whatever is cut or summed up."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.pin(*seqs, op_id=op_id, context_ref=lane), as_json)


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
    """Let messages go again that were pinned."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.unpin(*seqs, op_id=op_id, context_ref=lane), as_json)


COMMANDS = (summarize, compact, expand, pin, unpin)
