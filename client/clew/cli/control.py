"""The commands that control a run, its approvals and the configuration. Each prints the session's receipt."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options
from clew.cli.acting import act, find_waiting_approval, parse_object
from clew.cli.names import complete_agent, complete_approval, complete_external, complete_model
from clew.cli.options import Address, AsJson, By, Namespace, SessionId, TaskQueue
from clew.contract import TASK_QUEUE, ConfigureInput
from clew.contract.receipts import ApprovalReceipt
from clew.session.options import InputOptions
from clew.session.session import Session

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
