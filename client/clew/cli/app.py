"""The command line's commands and their options. The other modules of the package do the work."""

from __future__ import annotations

import asyncio
import io
import logging
import shlex
import sys
from importlib.metadata import version
from typing import Annotated, Any, Unpack

import typer

from clew.cli import (
    control,
    decoding,
    evaluate,
    groups,
    hints,
    lifecycle,
    listing,
    offline,
    options,
    reach,
    report,
    serving,
    show,
    talk,
    watching,
)
from clew.cli.failures import exit_on_error
from clew.cli.options import (
    Address,
    Agent,
    AsJson,
    Fallbacks,
    FromSeq,
    Lane,
    Limit,
    Model,
    Namespace,
    OnBusy,
    Pin,
    RequireApproval,
    SessionId,
    System,
    TaskQueue,
    Tools,
)
from clew.cli.reach import Target
from clew.session.connection import Clew
from clew.session.options import EntryFilters
from clew_workflows.contract import TASK_QUEUE, ConfigureInput

_OPTION_NAMES = {
    "agent": "--agent",
    "pin": "--pin",
    "model": "--model",
    "fallbacks": "--fallback",
    "system_prompt": "--system",
    "tools": "--tool",
    "require_approval": "--require-approval",
}
"""The option of each field of a new session's configuration."""

app = typer.Typer(
    help="Durable LLM-agent sessions on Temporal.",
    cls=groups.GroupedCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Help and errors quote the user's text, which is not markup.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def clew(version_wanted: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Durable LLM-agent sessions on Temporal."""
    # The commands print what the client logs, in their own words.
    logging.getLogger("clew").addHandler(logging.NullHandler())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Escape characters that the stream's encoding lacks: they must not end the command.
            stream.reconfigure(errors="backslashreplace")
    if version_wanted:
        typer.echo(version("clew"))
        raise typer.Exit


@app.command(rich_help_panel=groups.TALK)
def ask(
    session: SessionId,
    text: Annotated[
        str, typer.Argument(metavar="TEXT", help="The message; `-` reads it from stdin.", show_default=False)
    ],
    *,
    agent: Agent = None,
    pin: Pin = False,
    model: Model = None,
    fallback: Fallbacks = None,
    system: System = None,
    tool: Tools = None,
    require_approval: RequireApproval = None,
    on_busy: OnBusy = None,
    timeout: Annotated[
        int | None, typer.Option(min=1, metavar="SECONDS", help="Seconds after which the request fails.")
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Send a message and print the answer. Starts the session, or resumes it if it exists."""
    content = options.read_text(text)
    target = options.make_target(address, namespace, task_queue)

    async def work() -> None:
        _, opened = await _open(
            target,
            session,
            agent=agent,
            pin=pin or None,
            model=model,
            fallbacks=fallback or None,
            system_prompt=system,
            tools=tool or None,
            require_approval=require_approval or None,
        )
        await talk.ask(opened, content, timeout_seconds=timeout, on_busy=options.get_word(on_busy), as_json=as_json)

    with exit_on_error(as_json):
        options.run(work())


@app.command(rich_help_panel=groups.TALK)
def chat(
    session: SessionId,
    *,
    agent: Agent = None,
    pin: Pin = False,
    model: Model = None,
    fallback: Fallbacks = None,
    system: System = None,
    tool: Tools = None,
    require_approval: RequireApproval = None,
    on_busy: OnBusy = None,
    resume_with: Annotated[str | None, typer.Option(hidden=True)] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Chat in the terminal: replies stream while you type. Ctrl-D leaves and the session stays; /help lists the rest.

    Without a terminal, or with --json, each line of stdin is a message, and stdout has only the answers.
    """
    target = options.make_target(address, namespace, task_queue)

    def write_resume(last_session: str, last_model: str) -> str:
        """Write the command that resumes the session in which the chat ends, with the model that it has there."""
        if resume_with is not None:  # the chat is a part of another program
            return resume_with.format(session=shlex.quote(last_session), model=shlex.quote(last_model))
        words = ["chat", last_session]
        if last_session == session:
            words += ["--agent", agent] if agent else []
            words += ["--model", last_model] if model else []
        return hints.write_command(*words, *(["--on-busy", on_busy] if on_busy else []))

    with exit_on_error(as_json), asyncio.Runner() as runner:
        opening = _open(
            target,
            session,
            agent=agent,
            pin=pin or None,
            model=model,
            fallbacks=fallback or None,
            system_prompt=system,
            tools=tool or None,
            require_approval=require_approval or None,
        )
        clew, opened = runner.run(opening)
        if sys.stdin.isatty() and show.make_console().is_terminal and not as_json:
            from clew.cli.chat.shell import Shell  # noqa: PLC0415 - no other command needs the terminal library

            code = runner.run(Shell(clew, opened, options.get_word(on_busy), write_resume).run())
        else:
            code = talk.LineChat(opened, as_json, options.get_word(on_busy)).run(runner)
    raise typer.Exit(code)


@app.command(rich_help_panel=groups.READ)
def status(
    session: SessionId,
    *,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Show what a session is doing, its model and its usage."""
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        answer = options.ask_existing(target, session, lambda reached: reached.status())
        if as_json:
            show.print_document(answer.as_dict())
        else:
            show.print_status(show.make_console(), answer)


@app.command(rich_help_panel=groups.READ)
def transcript(
    session: SessionId,
    *,
    from_seq: FromSeq = 0,
    limit: Limit = None,
    lane: Lane = None,
    system: Annotated[bool, typer.Option("--system", help="Show the system prompt first.")] = False,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Show a lane's messages; with a limit the newest ones."""
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        messages = options.ask_any(
            target,
            session,
            lambda _clew, reached: reached.transcript(
                context_ref=lane, from_seq=from_seq, limit=limit, include_system=system
            ),
        )
        if as_json:
            show.print_document({"messages": messages})
        else:
            show.print_messages(show.make_console(), messages)


@app.command(rich_help_panel=groups.READ)
def context(
    session: SessionId,
    *,
    at: Annotated[int | None, typer.Option(metavar="SEQ", min=0, help="The context as it was at this seq.")] = None,
    call: Annotated[
        str | None, typer.Option(metavar="ID", help="The context that this model call had, as in call-2.")
    ] = None,
    lane: Lane = None,
    pending: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TEXT",
            help="Preview the context and the cost of this message without sending it. `-` reads it from stdin; "
            "may be repeated.",
        ),
    ] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Show the context that a model gets. Prints its messages, its tools and its token counts."""
    messages = [options.read_text(text) for text in pending] if pending else None
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        answer = options.ask_any(
            target,
            session,
            lambda _clew, reached: reached.context(context_ref=lane, at_seq=at, call_id=call, pending=messages),
        )
        if as_json:
            show.print_document(answer.as_dict())
        else:
            show.print_context(show.make_console(), answer)


@app.command(rich_help_panel=groups.READ)
def entries(
    session: SessionId,
    *,
    from_seq: FromSeq = 0,
    limit: Limit = None,
    kind: Annotated[
        str | None, typer.Option(metavar="KIND", help="Entries of this kind: config, ai_message, run, …")
    ] = None,
    request: Annotated[str | None, typer.Option(metavar="ID", help="Entries of this request.")] = None,
    run: Annotated[str | None, typer.Option(metavar="ID", help="Entries of this run.")] = None,
    call: Annotated[str | None, typer.Option(metavar="ID", help="Entries of this model call.")] = None,
    tool_call: Annotated[str | None, typer.Option(metavar="ID", help="Entries of this tool call.")] = None,
    parent_call: Annotated[
        str | None, typer.Option(metavar="ID", help="Entries of the model call that follows this one.")
    ] = None,
    iteration: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Entries of a run's Nth model call.")
    ] = None,
    source: Annotated[str | None, typer.Option(metavar="NAME", help="Inputs from this sender.")] = None,
    lane: Annotated[str | None, typer.Option(metavar="NAME", help="Entries of this lane.")] = None,
    as_json: AsJson = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Show the thread, entry by entry."""
    filters: EntryFilters = {
        "kind": kind,
        "request_id": request,
        "run_id": run,
        "call_id": call,
        "tool_call_id": tool_call,
        "parent_call_id": parent_call,
        "iteration": iteration,
        "source": source,
        "context_ref": lane,
    }
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        matching = options.ask_any(
            target,
            session,
            lambda _clew, reached: reached.entries(from_seq=from_seq, limit=_one_more(limit), **filters),
        )
        if as_json:
            page, following = matching[:limit], matching[len(matching[:limit]) :]
            rows = {"entries": [entry.as_dict() for entry in page]}
            show.print_document(rows | ({"next_seq": following[0].seq} if following else {}))
        else:
            show.print_entries(show.make_console(), matching[:limit])


_COMMANDS = {
    groups.READ: (*watching.COMMANDS, *watching.TOP_COMMANDS, listing.sessions, report.report, evaluate.compare),
    groups.CONTROL: control.COMMANDS,
    groups.CONTEXTS: (*control.CONTEXT_COMMANDS, *control.SUMMARY_COMMANDS),
    groups.SESSIONS: lifecycle.COMMANDS,
    groups.OPERATE: (listing.setup_namespace, evaluate.evaluate),
}
for group, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=group)(command)
serving.register(app)
app.command("codec-server", rich_help_panel=groups.SERVE)(decoding.codec_server)
offline.register(app)


async def _open(target: Target, session_id: str, **options: Unpack[reach.StartOptions]) -> tuple[Clew, reach.Opened]:
    """Open a session. A remark on stderr names the options that an existing session ignores."""
    clew = await reach.connect(target)
    opened = await reach.open_session(clew, session_id, **options)
    if opened.session.ignored:
        requested: dict[str, Any] = {name: options.get(name) for name in opened.session.ignored}
        ignored = ", ".join(map(_OPTION_NAMES.__getitem__, requested))
        change = [word for name, value in requested.items() for word in _write_option(name, value)]
        command = hints.write_command("configure", session_id, *change)
        remedy = f"`{command}`" if change else "that is for new sessions"
        remark = (
            f"session {session_id} exists and keeps its configuration ({opened.status.model}), so {ignored} "
            f"had no effect: {remedy}"
        )
        show.make_console(stderr=True).print(show.make_text((remark, "dim")), soft_wrap=True)
    return clew, opened


def _write_option(name: str, value: Any) -> list[str]:
    """Write a field as options of `clew configure`; none if only new sessions have it."""
    if name not in ConfigureInput.model_fields:
        return []
    values = [value] if isinstance(value, str) else value
    return [word for each in values for word in (_OPTION_NAMES[name], each)]


def _one_more(limit: int | None) -> int | None:
    """Ask for one row more than the limit: its seq is the start of the next page."""
    return None if limit is None else limit + 1
