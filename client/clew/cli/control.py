"""The commands for the run in progress and for what follows it. Each prints the receipt that the session answers."""

from __future__ import annotations

from typing import Annotated

import typer

from clew.cli import options
from clew.cli.acting import act, parse_object
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.contract import TASK_QUEUE, ConfigureInput
from clew.session.options import InputOptions

Text = Annotated[
    str, typer.Argument(metavar="TEXT", help="What to say; `-` reads it from stdin.", show_default=False)
]
At = Annotated[
    options.At | None,
    typer.Option(
        help="When it is read: once the model has answered, or before its next call. As the session is configured "
        "unless given."
    ),
]
InputId = Annotated[
    str | None, typer.Option("--input-id", metavar="ID", help="Given again, it is the same input and read once.")
]
Expect = Annotated[str | None, typer.Option(metavar="ID", help="Only if this request is the one that is served.")]
OnFailure = Annotated[
    options.Unread | None,
    typer.Option("--on-failure", help="If the run ends without having read it: ask it next, or drop it."),
]
Source = Annotated[str | None, typer.Option(metavar="NAME", help="Who says so, for the record.")]
ToolCallId = Annotated[
    str,
    typer.Argument(metavar="TOOL_CALL_ID", help="The call; `clew status` shows which ones wait.", show_default=False),
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
    """Correct the run in progress. The model reads it as one more message of the user's."""
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
    """Tell the run in progress something, as a program. Otherwise like steer."""
    input_options = _make_input_options(at, input_id, expect, on_failure, source)
    content = options.read_text(text)
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.inject(content, **input_options), as_json)


def cancel(
    session: SessionId,
    *,
    request: Annotated[
        str | None, typer.Option(metavar="ID", help="This request, which may be one that waits; else the one served.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the record.")] = None,
    inputs: Annotated[
        options.Unread | None, typer.Option(help="What it has not read yet: asked next, or dropped (the default).")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Cancel the request that is served, or one that waits."""
    target = options.make_target(address, namespace, task_queue)
    unread = options.get_word(inputs)
    act(target, session, lambda reached: reached.cancel(request, reason=reason, inputs=unread), as_json)


def configure(
    session: SessionId,
    *,
    model: Annotated[str | None, typer.Option(metavar="PROVIDER:NAME", help="The model.")] = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="The system prompt.")] = None,
    tool: Annotated[list[str] | None, typer.Option(metavar="NAME", help="The tools, one each time.")] = None,
    require_approval: Annotated[
        list[str] | None,
        typer.Option("--require-approval", metavar="NAME", help="The tools that wait for approval, one each time."),
    ] = None,
    on_busy: Annotated[
        options.Busy | None, typer.Option("--on-busy", help="What becomes of messages while a request is served.")
    ] = None,
    steering: Annotated[options.At | None, typer.Option(help="When inputs are read.")] = None,
    changes: Annotated[
        str | None,
        typer.Option(
            metavar="JSON", help="An object of anything that can be changed: context_policy, limits, tools, …"
        ),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Change the configuration, field by field. While a request is served, when it has ended."""
    named = {
        "model": model,
        "system_prompt": system,
        "tools": tool or None,
        "require_approval": require_approval or None,
        "on_busy": on_busy,
        "steering": steering,
    }
    fields = parse_object(changes, "--changes") if changes is not None else {}
    for field in fields.keys() - ConfigureInput.model_fields.keys():
        known = ", ".join(ConfigureInput.model_fields)
        raise typer.BadParameter(f"{field!r} cannot be changed; these can: {known}", param_hint="--changes")
    fields |= {field: value for field, value in named.items() if value is not None}
    if not fields:
        raise typer.BadParameter("there is nothing to change: name a field", param_hint="--changes")
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.configure(**fields), as_json)


def approve(
    session: SessionId,
    tool_call_id: ToolCallId,
    *,
    arguments: Annotated[
        str | None, typer.Option(metavar="JSON", help="Arguments to call it with, in place of the model's.")
    ] = None,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the record.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Let a tool call run that waits for approval."""
    edited = None if arguments is None else parse_object(arguments, "--arguments")
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.approve(tool_call_id, arguments=edited, reason=reason), as_json)


def deny(
    session: SessionId,
    tool_call_id: ToolCallId,
    *,
    reason: Annotated[str | None, typer.Option(metavar="TEXT", help="Why, for the model to read.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Keep a tool call from running that waits for approval."""
    target = options.make_target(address, namespace, task_queue)
    act(target, session, lambda reached: reached.deny(tool_call_id, reason=reason), as_json)


COMMANDS = (steer, inject, cancel, configure, approve, deny)


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
