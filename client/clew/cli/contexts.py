"""The commands that replace a lane's context or switch lanes. Each prints the session's receipt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clew.cli import options
from clew.cli.acting import act, parse_json
from clew.cli.options import Address, AsJson, Namespace, OpId, SessionId, TaskQueue
from clew.contract import TASK_QUEUE


def replace(
    session: SessionId,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="A JSON list of messages, or an object with messages and system_prompt; `-` reads stdin.",
            show_default=False,
        ),
    ],
    *,
    op_id: OpId,
    lane: options.Lane = None,
    base_seq: Annotated[
        int | None,
        typer.Option(
            "--base-seq", metavar="SEQ", min=0, help="Keep the lane's messages after this seq. Default: none."
        ),
    ] = None,
    reason: Annotated[
        options.Reason | None, typer.Option(help="Why, stored with the entry. Default: manual.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Replace a lane's context by messages from a file. During a run it waits until the run ends."""
    messages, system_prompt = _read_snapshot(file)
    target = options.make_target(address, namespace, task_queue)
    act(
        target,
        session,
        lambda reached: reached.replace_context(
            messages,
            op_id=op_id,
            context_ref=lane,
            system_prompt=system_prompt,
            base_seq=base_seq,
            reason=options.get_word(reason),
        ),
        as_json,
        op_id,
    )


def switch(
    session: SessionId,
    lane: Annotated[
        str,
        typer.Argument(metavar="LANE", help="The lane to make active; a new one is empty.", show_default=False),
    ],
    *,
    op_id: OpId,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Make another lane active. During a run it waits until the run ends."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.switch_context(lane, op_id=op_id), as_json, op_id)


def reset(
    session: SessionId,
    *,
    op_id: OpId,
    lane: options.Lane = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Empty a lane's context; its messages stay in the thread. During a run it waits until the run ends."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.reset_context(op_id=op_id, context_ref=lane), as_json, op_id)


COMMANDS = (replace, switch, reset)


def _read_snapshot(file: str) -> tuple[list[Any], str | None]:
    """Read the messages and the system prompt from a file or from stdin."""
    try:
        text = options.read_stdin("FILE") if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    value = parse_json(text, "FILE")
    snapshot: Any = {"messages": value} if isinstance(value, list) else value
    if not isinstance(snapshot, dict) or not {"messages"} <= snapshot.keys() <= {"messages", "system_prompt"}:
        raise typer.BadParameter(
            "must be a list of messages, or an object with messages and system_prompt", param_hint="FILE"
        )
    messages = snapshot["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise typer.BadParameter("messages must be a list of objects, each with role and content", param_hint="FILE")
    return messages, snapshot.get("system_prompt")
