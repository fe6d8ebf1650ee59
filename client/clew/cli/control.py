"""The commands that change what a session does. Each prints the receipt that the session answers with."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from clew.cli import options, reach, show
from clew.cli.ending import ending
from clew.cli.options import Address, AsJson, Namespace, SessionId, TaskQueue
from clew.cli.reach import Place
from clew.contract import TASK_QUEUE, ConfigureInput
from clew.contract.outputs import CheckpointReceipt, RestoreReceipt
from clew.errors import WorkerUnavailable
from clew.session.options import InputOptions
from clew.session.session import Session

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
OpId = Annotated[
    str,
    typer.Option(
        "--op-id", metavar="ID", help="Given again, it is the same operation and applied once.", show_default=False
    ),
]
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
    given = _input(at, input_id, expect, on_failure, source)
    content = options.text_of(text)
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.steer(content, **given), as_json)


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
    given = _input(at, input_id, expect, on_failure, source)
    content = options.text_of(text)
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.inject(content, **given), as_json)


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
    place = options.place(address, namespace, task_queue)
    unread = options.word(inputs)
    act(place, session, lambda reached: reached.cancel(request, reason=reason, inputs=unread), as_json)


def replace(
    session: SessionId,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE",
            help="JSON: a list of messages, or an object with messages and system_prompt; `-` reads it from stdin.",
            show_default=False,
        ),
    ],
    *,
    op_id: OpId,
    lane: options.Lane = None,
    base_seq: Annotated[
        int | None,
        typer.Option("--base-seq", metavar="SEQ", min=0, help="What the lane has said since this seq stays."),
    ] = None,
    reason: Annotated[options.Reason | None, typer.Option(help="Why, for the record; manual unless given.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Put a context of one's own under a lane. While a request is served, when it has ended."""
    messages, system_prompt = _snapshot(file)
    place = options.place(address, namespace, task_queue)
    act(
        place,
        session,
        lambda reached: reached.replace_context(
            messages,
            op_id=op_id,
            context_ref=lane,
            system_prompt=system_prompt,
            base_seq=base_seq,
            reason=reason,
        ),
        as_json,
    )


def switch(
    session: SessionId,
    lane: Annotated[
        str,
        typer.Argument(metavar="LANE", help="The lane to make active; a new one begins empty.", show_default=False),
    ],
    *,
    op_id: OpId,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Make another lane the active one. While a request is served, when it has ended."""
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.switch_context(lane, op_id=op_id), as_json)


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
    """Empty a lane; what it said stays in the thread. While a request is served, when it has ended."""
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.reset_context(op_id=op_id, context_ref=lane), as_json)


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
    asked = _object(changes, "--changes") if changes is not None else {}
    for field in asked.keys() - ConfigureInput.model_fields.keys():
        known = ", ".join(ConfigureInput.model_fields)
        raise typer.BadParameter(f"{field!r} cannot be changed; these can: {known}", param_hint="--changes")
    asked |= {field: value for field, value in named.items() if value is not None}
    if not asked:
        raise typer.BadParameter("there is nothing to change: name a field", param_hint="--changes")
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.configure(**asked), as_json)


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
    edited = None if arguments is None else _object(arguments, "--arguments")
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.approve(tool_call_id, arguments=edited, reason=reason), as_json)


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
    place = options.place(address, namespace, task_queue)
    act(place, session, lambda reached: reached.deny(tool_call_id, reason=reason), as_json)


def checkpoint(
    session: SessionId,
    *,
    lane: options.Lane = None,
    expires: Annotated[
        int | None,
        typer.Option(metavar="SECONDS", min=1, help="How long the token is good for; 30 days unless given."),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Print a lane's context and the configuration as a signed token. It is not encrypted."""
    place = options.place(address, namespace, task_queue)

    async def signed(reached: Session) -> CheckpointReceipt:
        return CheckpointReceipt(token=await reached.checkpoint(lane, expires_seconds=expires))

    act(place, session, signed, as_json)


def restore(
    token: Annotated[
        str,
        typer.Argument(metavar="TOKEN", help="A checkpoint's token; `-` reads it from stdin.", show_default=False),
    ],
    *,
    new_id: Annotated[
        str | None, typer.Option("--as", metavar="SESSION", help="The new session's id; one of its own unless given.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Start a session that goes on from a checkpoint, and print its id."""
    given = options.text_of(token).strip()
    place = options.place(address, namespace, task_queue)

    async def work() -> RestoreReceipt:
        clew = await reach.connect(place)
        await clew.check_worker()
        return RestoreReceipt(session_id=(await clew.restore(given, new_id)).id)

    with ending(as_json):
        show.print_receipt(options.run(work()), as_json)


COMMANDS = (steer, inject, cancel, replace, switch, reset, configure, approve, deny, checkpoint, restore)


def act(
    place: Place,
    session_id: str,
    action: Callable[[Session], Coroutine[Any, Any, show.Receipt]],
    as_json: bool,
) -> None:
    """Do something to an existing session, and print its receipt."""

    async def acting(reached: Session) -> show.Receipt:
        try:
            return await reach.answered(action(reached), session_id)
        except WorkerUnavailable as error:
            raise WorkerUnavailable(f"{error}; it may still be accepted when one comes") from None

    with ending(as_json):
        show.print_receipt(options.of_existing(place, session_id, acting), as_json)


def _input(
    at: options.At | None,
    input_id: str | None,
    expect: str | None,
    on_failure: options.Unread | None,
    source: str | None,
) -> InputOptions:
    return {
        "at": options.word(at),
        "input_id": input_id,
        "expected_request_id": expect,
        "on_failure": options.word(on_failure),
        "source": source,
    }


def _snapshot(file: str) -> tuple[list[Any], str | None]:
    """The messages and the system prompt in a file, or on stdin."""
    try:
        text = options.stdin("FILE") if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise typer.BadParameter(f"{file}: {error.strerror}", param_hint="FILE") from None
    except ValueError as error:
        raise typer.BadParameter(f"{file}: {error}", param_hint="FILE") from None
    value = _json(text, "FILE")
    snapshot: Any = {"messages": value} if isinstance(value, list) else value
    if not isinstance(snapshot, dict) or not {"messages"} <= snapshot.keys() <= {"messages", "system_prompt"}:
        raise typer.BadParameter(
            "neither a list of messages nor an object with messages and system_prompt", param_hint="FILE"
        )
    messages = snapshot["messages"]
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise typer.BadParameter("messages are a list of objects, each with role and content", param_hint="FILE")
    return messages, snapshot.get("system_prompt")


def _object(text: str, hint: str) -> dict[str, Any]:
    """A JSON object on the command line."""
    value = _json(text, hint)
    if not isinstance(value, dict):
        raise typer.BadParameter("a JSON object is expected", param_hint=hint)
    return value


def _json(text: str, hint: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=hint) from None


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
