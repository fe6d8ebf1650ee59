"""The commands that change a session: its run, its approvals, its configuration, its contexts, its copies."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypedDict, Unpack

import typer

from clew.cli import attachments, reach, shared_options, show
from clew.cli.command import Action, Invocation, action, command
from clew.cli.shared_options import (
    At,
    Attach,
    By,
    Lane,
    MessageText,
    OpId,
    SessionId,
    Unread,
    argument,
    complete_agent,
    complete_approval,
    complete_external,
    complete_model,
    flag,
    option,
)
from clew.content import AnyContent
from clew.session.connection import Clew
from clew.session.session import Reason, Session
from clew_workflows.contract import ConfigureInput, OnBusy
from clew_workflows.contract.invalid import describe_unknown_field
from clew_workflows.contract.outputs import (
    ApprovalReceipt,
    CheckpointReceipt,
    DeleteReceipt,
    ForkReceipt,
    InputReceipt,
    RestoreReceipt,
)
from clew_workflows.contract.payloads import ForkPayload

# A run, its approvals and the configuration.


class InputSettings(TypedDict, total=False):
    """The options of an input, as `Session.steer` has them."""

    at: Annotated[
        At | None,
        option(
            None,
            "When the run reads it: after the answer (terminal) or before the next model call (step). Default: "
            "the session's configuration.",
        ),
    ]
    input_id: Annotated[str | None, option("ID", "Id of the input. The same id again is ignored.", "--input-id")]
    expected_request_id: Annotated[
        str | None, option("ID", "Refuse the input unless this request is active.", "--expect")
    ]
    on_failure: Annotated[
        Unread | None,
        option(None, "If the run ends before reading it: answer it in a follow-up run, or drop it.", "--on-failure"),
    ]
    source: Annotated[str | None, option("NAME", "Name of the sender, stored with the entry.")]


Why = Annotated[str | None, option("TEXT", "Why, stored with the entry.")]
WaitingApproval = Annotated[
    str | None,
    argument(
        "TOOL_CALL_ID",
        "Id of the tool call; `clew status` lists the waiting ones. Default: the only one that waits.",
        complete=complete_approval,
    ),
]
WaitingExternal = Annotated[
    str,
    argument(
        "TOOL_CALL_ID", "Id of the tool call; `clew status` lists the waiting ones.", complete=complete_external
    ),
]


@command()
def steer(
    invocation: Invocation,
    session: SessionId,
    text: MessageText,
    *,
    attach: Attach = None,
    **settings: Unpack[InputSettings],
) -> None:
    """Correct the active run, as the user."""
    _send_input(invocation, session, text, attach, lambda reached, content: reached.steer(content, **settings))


@command()
def inject(
    invocation: Invocation,
    session: SessionId,
    text: MessageText,
    *,
    attach: Attach = None,
    **settings: Unpack[InputSettings],
) -> None:
    """Send the active run a message, as a program. Otherwise the same as steer."""
    _send_input(invocation, session, text, attach, lambda reached, content: reached.inject(content, **settings))


def _send_input(
    invocation: Invocation,
    session_id: str,
    text: str,
    attach: list[Path] | None,
    send: Callable[[Session, AnyContent], Coroutine[Any, Any, InputReceipt]],
) -> None:
    attached = attachments.attach_arguments(attach, text)
    typed = shared_options.read_text(text)

    async def store_and_send(reached: Session) -> InputReceipt:
        content = await attachments.make_content(reached, typed, attached)
        return await reach.wait_for_change(send(reached, content), session_id, "command")

    invocation.print_receipt(invocation.ask_existing(session_id, store_and_send))


@action
def cancel(
    *,
    request: Annotated[str | None, option("ID", "The request, active or waiting. Default: the active one.")] = None,
    reason: Why = None,
    inputs: Annotated[
        Unread | None,
        option(None, "Inputs that it has not read: answer them in a follow-up run, or drop them (default)."),
    ] = None,
) -> Action:
    """Cancel the active request or a waiting one."""
    return lambda session: session.cancel(request, reason=reason, inputs=inputs)


class Changes(TypedDict, total=False):
    """Fields of the configuration that have options of their own."""

    agent: Annotated[str | None, option("NAME", "The agent.", complete=complete_agent)]
    model: Annotated[str | None, option("PROVIDER:NAME", "The model.", complete=complete_model)]
    fallbacks: Annotated[
        list[str] | None,
        option(
            "PROVIDER:NAME",
            "A model to try while the model has an outage; may be repeated. Replaces the list.",
            "--fallback",
            complete=complete_model,
        ),
    ]
    system_prompt: Annotated[str | None, option("TEXT", "The system prompt.", "--system")]
    tools: Annotated[list[str] | None, option("NAME", "A tool; may be repeated. Replaces the list.", "--tool")]
    provider_tools: Annotated[
        list[str] | None,
        option(
            "NAME",
            f"A tool that the model's provider runs itself: {shared_options.PROVIDER_TOOLS}; may be repeated. "
            "Replaces the list.",
            "--provider-tool",
            callback=shared_options.check_provider_tools,
            complete=shared_options.complete_provider_tool,
        ),
    ]
    require_approval: Annotated[
        list[str] | None,
        option(
            "NAME", "A tool whose calls wait for approval; may be repeated. Replaces the list.", "--require-approval"
        ),
    ]
    on_busy: Annotated[
        OnBusy | None, option(None, "What the session does with a message while a request is active.", "--on-busy")
    ]
    steering: Annotated[At | None, option(None, "When a run reads inputs without --at.")]


@action
def configure(
    *,
    changes: Annotated[
        str | None, option("JSON", "A JSON object with the fields to change: context_policy, limits, tools, …")
    ] = None,
    **named: Unpack[Changes],
) -> Action:
    """Change fields of the configuration. During a run it waits until the run ends."""
    fields = _parse_object(changes, "--changes") if changes is not None else {}
    for field in fields.keys() - ConfigureInput.model_fields.keys():
        words = describe_unknown_field(field, ConfigureInput.model_fields)
        raise typer.BadParameter(f"{field}: {words}", param_hint="--changes")
    fields |= {field: value for field, value in named.items() if value not in (None, [])}
    if not fields:
        raise typer.BadParameter("nothing to change: name at least one field", param_hint="--changes")
    return lambda session: session.configure(**fields)


@action
def approve(
    tool_call_id: WaitingApproval = None,
    *,
    arguments: Annotated[str | None, option("JSON", "Arguments that replace the model's, as a JSON object.")] = None,
    reason: Why = None,
    by: By,
) -> Action:
    """Approve a waiting tool call."""
    edited = None if arguments is None else _parse_object(arguments, "--arguments")

    async def approve_call(session: Session) -> ApprovalReceipt:
        waiting = tool_call_id or await reach.find_waiting_approval(session)
        return await session.approve(waiting, arguments=edited, reason=reason, by=by)

    return approve_call


@action
def deny(
    tool_call_id: WaitingApproval = None,
    *,
    reason: Annotated[str | None, option("TEXT", "Why; the model reads it.")] = None,
    by: By,
) -> Action:
    """Deny a waiting tool call."""

    async def deny_call(session: Session) -> ApprovalReceipt:
        return await session.deny(tool_call_id or await reach.find_waiting_approval(session), reason=reason, by=by)

    return deny_call


@action
def submit(
    tool_call_id: WaitingExternal,
    result: Annotated[str, argument("TEXT", "The result; `-` reads it from stdin.")],
    *,
    error: Annotated[bool, flag("The result describes a failure.", "--error")] = False,
    by: By,
) -> Action:
    """Answer a waiting call of an external tool."""
    content = shared_options.read_text(result)
    return lambda session: session.submit_tool_result(tool_call_id, content, is_error=error, by=by)


# The contexts of a lane: replacing them, summaries and pins.


@action
def replace(
    file: Annotated[
        str,
        argument("FILE", "A JSON list of messages, or an object with messages and system_prompt; `-` reads stdin."),
    ],
    *,
    op_id: OpId,
    lane: Lane = None,
    base_seq: Annotated[
        int | None, option("SEQ", "Keep the lane's messages after this seq. Default: none.", "--base-seq", min=0)
    ] = None,
    reason: Annotated[Reason | None, option(None, "Why, stored with the entry. Default: manual.")] = None,
) -> Action:
    """Replace a lane's context by messages from a file. During a run it waits until the run ends."""
    messages, system_prompt = _read_snapshot(file)
    return lambda session: session.replace_context(
        messages, op_id=op_id, context_ref=lane, system_prompt=system_prompt, base_seq=base_seq, reason=reason
    )


@action
def switch(
    lane: Annotated[str, argument("LANE", "The lane to make active; a new one is empty.")], *, op_id: OpId
) -> Action:
    """Make another lane active. During a run it waits until the run ends."""
    return lambda session: session.switch_context(lane, op_id=op_id)


@action
def reset(*, op_id: OpId, lane: Lane = None) -> Action:
    """Empty a lane's context; its messages stay in the thread. During a run it waits until the run ends."""
    return lambda session: session.reset_context(op_id=op_id, context_ref=lane)


def _read_snapshot(file: str) -> tuple[list[Any], str | None]:
    """Read the messages and the system prompt from a file or from stdin."""
    try:
        text = shared_options.read_stdin("FILE") if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    value = _parse_json(text, "FILE")
    snapshot: Any = {"messages": value} if isinstance(value, list) else value
    if not isinstance(snapshot, dict) or not {"messages"} <= snapshot.keys() <= {"messages", "system_prompt"}:
        raise typer.BadParameter(
            "must be a list of messages, or an object with messages and system_prompt", param_hint="FILE"
        )
    messages = snapshot["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise typer.BadParameter("messages must be a list of objects, each with role and content", param_hint="FILE")
    return messages, snapshot.get("system_prompt")


UptoSeq = Annotated[
    int | None,
    option("SEQ", "The last message that the summary covers. Default: all but the last turns.", "--to-seq", min=0),
]
Seqs = Annotated[list[int], argument("SEQ...", "Seqs of the messages.", min=0)]


@action
def summarize(
    *,
    from_seq: Annotated[
        int | None,
        option("SEQ", "Read the messages again if an earlier summary covers this seq.", "--from-seq", min=0),
    ] = None,
    to_seq: UptoSeq = None,
    lane: Lane = None,
) -> Action:
    """Have a model summarize a lane. Contexts show the summary in place of the messages; `clew expand` undoes it."""
    return lambda session: session.summarize(from_seq, to_seq, context_ref=lane)


@action
def compact(*, op_id: OpId, to_seq: UptoSeq = None, lane: Lane = None) -> Action:
    """Replace a lane's messages by a model's summary. `clew expand` undoes it."""
    return lambda session: session.compact(op_id=op_id, context_ref=lane, to_seq=to_seq)


@action
def expand(*, op_id: OpId, lane: Lane = None) -> Action:
    """Undo a lane's latest summary or compaction. Contexts show the messages again."""
    return lambda session: session.expand(op_id=op_id, context_ref=lane)


@action
def pin(seqs: Seqs, *, op_id: OpId, lane: Lane = None) -> Action:
    """Keep messages in all contexts of a lane. They stay when others are truncated or summarized."""
    return lambda session: session.pin(*seqs, op_id=op_id, context_ref=lane)


@action
def unpin(seqs: Seqs, *, op_id: OpId, lane: Lane = None) -> Action:
    """Undo `clew pin` for messages of a lane."""
    return lambda session: session.unpin(*seqs, op_id=op_id, context_ref=lane)


# Copies, archived and deleted sessions, and checkpoints.


@command()
def fork(
    invocation: Invocation,
    session: SessionId,
    *,
    at: Annotated[int | None, option("SEQ", "The last entry that both have. Default: the newest.", min=0)] = None,
    new_id: Annotated[str | None, option("ID", "Id of the new session. Default: a random one.", "--as")] = None,
    metadata: Annotated[list[str] | None, option("NAME=VALUE", "Metadata of the fork; may be repeated.")] = None,
) -> None:
    """Start a new session that begins with this session's entries. Afterwards the two are independent."""
    notes = dict(_parse_metadata(text) for text in metadata or ())

    async def fork_session(reached: Session) -> ForkReceipt:
        made = await reached.fork(at, new_id, metadata=notes or None)
        forks = [entry.read(ForkPayload) async for entry in made.read(from_seq=at or 0, kind="fork")]
        seqs = [origin.fork_seq for origin in forks if origin.session_id == session]
        return ForkReceipt(session_id=made.id, fork_seq=seqs[-1])

    invocation.print_receipt(invocation.ask_any(session, fork_session))


@command()
def hibernate(invocation: Invocation, session: SessionId, *, reason: Why = None) -> None:
    """Archive the whole session and end its workflow. Opening the session resumes it."""
    invocation.print_receipt(invocation.ask_existing(session, lambda reached: reached.hibernate(reason)))


@command()
def delete(
    invocation: Invocation,
    session: SessionId,
    *,
    yes: Annotated[bool, flag("Do not ask for confirmation.", "--yes", "-y")] = False,
) -> None:
    """End a session and delete all its entries, and those of its subagents. Forks, and what they share, stay."""
    if not yes:
        typer.confirm(f"Delete session {show.strip_controls(session)} and all its entries?", abort=True, err=True)

    async def delete_session(clew: Clew) -> DeleteReceipt:
        return await (await reach.use_task_queue(clew, session)).delete(session)

    invocation.print_receipt(invocation.run(delete_session))


@action
def checkpoint(
    *,
    lane: Lane = None,
    expires: Annotated[
        int | None, option("SECONDS", "Seconds until the token expires. Default: 30 days.", min=1)
    ] = None,
) -> Action:
    """Print a signed token with a lane's context and configuration. The token is not encrypted."""

    async def sign(session: Session) -> CheckpointReceipt:
        return CheckpointReceipt(token=await session.checkpoint(lane, expires_seconds=expires))

    return sign


@command()
def restore(
    invocation: Invocation,
    token: Annotated[str, argument("TOKEN", "The token of a checkpoint; `-` reads it from stdin.")],
    *,
    new_id: Annotated[str | None, option("SESSION", "Id of the new session. Default: a random one.", "--as")] = None,
) -> None:
    """Start a new session from a checkpoint and print its id."""
    checkpoint_token = shared_options.read_text(token).strip()

    async def restore_session(clew: Clew) -> RestoreReceipt:
        await clew.check_worker()
        return RestoreReceipt(session_id=(await clew.restore(checkpoint_token, new_id)).id)

    invocation.print_receipt(invocation.run(restore_session))


def _parse_metadata(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise typer.BadParameter(f"{text!r} must be NAME=VALUE", param_hint="--metadata")
    return name, value


def _parse_object(text: str, hint: str) -> dict[str, Any]:
    """Parse an argument as a JSON object; `hint` names the argument in the error."""
    value = _parse_json(text, hint)
    if not isinstance(value, dict):
        raise typer.BadParameter("must be a JSON object", param_hint=hint)
    return value


def _parse_json(text: str, hint: str) -> Any:
    """Parse an argument as JSON; `hint` names the argument in the error."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not valid JSON: {error}", param_hint=hint) from None


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")
