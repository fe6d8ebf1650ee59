"""The commands that control a run, its context, its approvals and its configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from clew.cli import options
from clew.cli.acting import act, find_waiting_approval, parse_json, parse_object
from clew.cli.names import complete_agent, complete_approval, complete_external, complete_model
from clew.cli.options import Address, AsJson, By, Namespace, OpId, SessionId, TaskQueue
from clew.session.options import InputOptions
from clew.session.session import Session
from clew_workflows.contract import TASK_QUEUE, ConfigureInput
from clew_workflows.contract.outputs import ApprovalReceipt

# The commands for summaries and pins. Each prints the session's receipt.


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


SUMMARY_COMMANDS = (summarize, compact, expand, pin, unpin)


# The commands that replace a lane's context or switch lanes. Each prints the session's receipt.


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


CONTEXT_COMMANDS = (replace, switch, reset)


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


# The commands that control a run, its approvals and the configuration. Each prints the session's receipt.


Text = Annotated[
    str, typer.Argument(metavar="TEXT", help="The message; `-` reads it from stdin.", show_default=False)
]
At = Annotated[
    options.At | None,
    typer.Option(
        help="When the run reads it: after the answer (terminal) or before the next model call (step). Default: the "
        "session's configuration."
    ),
]
InputId = Annotated[
    str | None, typer.Option("--input-id", metavar="ID", help="Id of the input. The same id again is ignored.")
]
Expect = Annotated[str | None, typer.Option(metavar="ID", help="Refuse the input unless this request is active.")]
OnFailure = Annotated[
    options.Unread | None,
    typer.Option("--on-failure", help="If the run ends before reading it: answer it in a follow-up run, or drop it."),
]
Source = Annotated[str | None, typer.Option(metavar="NAME", help="Name of the sender, stored with the entry.")]


WaitingApproval = Annotated[
    str | None,
    typer.Argument(
        metavar="TOOL_CALL_ID",
        help="Id of the tool call; `clew status` lists the waiting ones. Default: the only one that waits.",
        show_default=False,
        autocompletion=complete_approval,
    ),
]
WaitingExternal = Annotated[
    str,
    typer.Argument(
        metavar="TOOL_CALL_ID",
        help="Id of the tool call; `clew status` lists the waiting ones.",
        show_default=False,
        autocompletion=complete_external,
    ),
]


def steer(
    session: SessionId,
    text: Text,
    *,
    at: At = None,
    input_id: InputId = None,
    expect: Expect = None,
    on_failure: OnFailure = None,
    source: Source = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Correct the active run, as the user."""
    input_options = _make_input_options(at, input_id, expect, on_failure, source)
    content = options.read_text(text)
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.steer(content, **input_options), as_json)


def inject(
    session: SessionId,
    text: Text,
    *,
    at: At = None,
    input_id: InputId = None,
    expect: Expect = None,
    on_failure: OnFailure = None,
    source: Source = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Send the active run a message, as a program. Otherwise the same as steer."""
    input_options = _make_input_options(at, input_id, expect, on_failure, source)
    content = options.read_text(text)
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.inject(content, **input_options), as_json)


def cancel(
    session: SessionId,
    *,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="The request, active or waiting. Default: the active one.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, stored with the entry.")] = None,
    inputs: Annotated[
        options.Unread | None,
        typer.Option(help="Inputs that it has not read: answer them in a follow-up run, or drop them (default)."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Cancel the active request or a waiting one."""
    target = options.make_target(address, namespace, task_queue)
    unread = options.get_word(inputs)
    act(target, session, lambda reached: reached.cancel(request, reason=reason, inputs=unread), as_json)


def configure(
    session: SessionId,
    *,
    agent: Annotated[
        str | None, typer.Option(metavar="NAME", help="The agent.", autocompletion=complete_agent)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="PROVIDER:NAME", help="The model.", autocompletion=complete_model)
    ] = None,
    fallback: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PROVIDER:NAME",
            help="A model to try while the model has an outage; may be repeated. Replaces the list.",
            autocompletion=complete_model,
        ),
    ] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    tool: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A tool; may be repeated. Replaces the list.")
    ] = None,
    require_approval: Annotated[
        list[str] | None,
        typer.Option(
            "--require-approval",
            metavar="NAME",
            help="A tool whose calls wait for approval; may be repeated. Replaces the list.",
        ),
    ] = None,
    on_busy: Annotated[
        options.Busy | None,
        typer.Option("--on-busy", help="What the session does with a message while a request is active."),
    ] = None,
    steering: Annotated[options.At | None, typer.Option(help="When a run reads inputs without --at.")] = None,
    changes: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="A JSON object with the fields to change: context_policy, limits, tools, …"
        ),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Change fields of the configuration. During a run it waits until the run ends."""
    named = {
        "agent": agent,
        "model": model,
        "fallbacks": fallback or None,
        "system_prompt": system,
        "tools": tool or None,
        "require_approval": require_approval or None,
        "on_busy": on_busy,
        "steering": steering,
    }
    fields = parse_object(changes, "--changes") if changes is not None else {}
    for field in fields.keys() - ConfigureInput.model_fields.keys():
        known = ", ".join(ConfigureInput.model_fields)
        raise typer.BadParameter(f"{field!r} is not a field; the fields are {known}", param_hint="--changes")
    fields |= {field: value for field, value in named.items() if value is not None}
    if not fields:
        raise typer.BadParameter("nothing to change: name at least one field", param_hint="--changes")
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.configure(**fields), as_json)


def approve(
    session: SessionId,
    tool_call_id: WaitingApproval = None,
    *,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments that replace the model's, as a JSON object.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, stored with the entry.")] = None,
    by: By = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Approve a waiting tool call."""
    edited = None if arguments is None else parse_object(arguments, "--arguments")
    target = options.make_target(address, namespace, task_queue)
    by = by or options.find_login_name()

    async def approve_call(reached: Session) -> ApprovalReceipt:
        waiting = tool_call_id or await find_waiting_approval(reached)
        return await reached.approve(waiting, arguments=edited, reason=reason, by=by)

    act(target, session, approve_call, as_json)


def deny(
    session: SessionId,
    tool_call_id: WaitingApproval = None,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why; the model reads it.")] = None,
    by: By = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Deny a waiting tool call."""
    target = options.make_target(address, namespace, task_queue)
    by = by or options.find_login_name()

    async def deny_call(reached: Session) -> ApprovalReceipt:
        return await reached.deny(tool_call_id or await find_waiting_approval(reached), reason=reason, by=by)

    act(target, session, deny_call, as_json)


def submit(
    session: SessionId,
    tool_call_id: WaitingExternal,
    result: Annotated[
        str,
        typer.Argument(metavar="TEXT", help="The result; `-` reads it from stdin.", show_default=False),
    ],
    *,
    error: Annotated[bool, typer.Option("--error", help="The result describes a failure.")] = False,
    by: By = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Answer a waiting call of an external tool."""
    content = options.read_text(result)
    target = options.make_target(address, namespace, task_queue)
    by = by or options.find_login_name()
    act(
        target,
        session,
        lambda reached: reached.submit_tool_result(tool_call_id, content, is_error=error, by=by),
        as_json,
    )


COMMANDS = (steer, inject, cancel, configure, approve, deny, submit)


def _make_input_options(
    at: options.At | None,
    input_id: str | None,
    expect: str | None,
    on_failure: options.Unread | None,
    source: str | None,
) -> InputOptions:
    return {
        "at": options.get_word(at),
        "input_id": input_id,
        "expected_request_id": expect,
        "on_failure": options.get_word(on_failure),
        "source": source,
    }
