"""What the commands print. Content comes from models, tools and callers: it is data, on a terminal too."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from clew.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    CheckpointReceipt,
    ConfigureReceipt,
    Context,
    DeleteReceipt,
    ForkReceipt,
    HibernateReceipt,
    InputReceipt,
    OperationReceipt,
    RestoreReceipt,
    SessionStatus,
    SummaryReceipt,
)
from clew.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    InputPayload,
    MessagePayload,
    OperationPayload,
    RunPayload,
    SessionPayload,
    SummaryPayload,
    ToolMessage,
)
from clew.outcomes import Usage
from clew.thread.entries import Entry

STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}

# Whole sequences first, so that their printable part goes too; then every control character that is left, C1 and
# the marks that turn the direction of what follows included. Tab and newline are text.
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\`-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def make_console(*, stderr: bool = False) -> Console:
    """Where to print. It finds no markup, no emoji names and nothing to highlight in what it is given."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def strip_controls(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return _CONTROL.sub("", text)


def shorten(text: str, characters: int) -> str:
    """The beginning of a text, in one line."""
    line = " ".join(strip_controls(text[: 4 * characters]).split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def make_text(*parts: str | tuple[str, str]) -> Text:
    """A text of parts, each with its style where it has one."""
    made = Text()
    for part in parts:
        text, style = (part, None) if isinstance(part, str) else part
        made.append(strip_controls(text), style)
    return made


def print_document(value: Mapping[str, Any], *, in_lines: bool = False) -> None:
    """Print one JSON document: in one line where it is piped, or where lines are what separates documents."""
    # Everything beyond ASCII is escaped: it arrives in any encoding, and no terminal obeys it.
    print(json.dumps(value, indent=None if in_lines or not sys.stdout.isatty() else 2), flush=True)  # noqa: T201


def print_status(to: Console, answer: SessionStatus) -> None:
    """A session's status."""
    waiting = {"input": answer.pending_inputs, "message": answer.queued_messages}
    rows = {
        "status": answer.status.replace("_", " "),
        "model": answer.model,
        "lane": answer.active_context_ref,
        "entries": _format_entry_count(answer),
        "request": _format_request(answer),
        "waiting": ", ".join(
            f"{count} {what}{'' if count == 1 else 's'}" for what, count in waiting.items() if count
        ),
        "operation": _format_operation(answer.pending_context_op or {}),
        "usage": format_usage(answer.usage),
    }
    rows |= {f"approve {call['tool_call_id']}?": format_tool_call(call).plain for call in answer.pending_approvals}
    _print_pairs(to, f"session {answer.session_id}", {name: value for name, value in rows.items() if value})


Receipt = (
    InputReceipt
    | CancelReceipt
    | OperationReceipt
    | ConfigureReceipt
    | SummaryReceipt
    | ApprovalReceipt
    | HibernateReceipt
    | ForkReceipt
    | DeleteReceipt
    | CheckpointReceipt
    | RestoreReceipt
)


def format_receipt(given: Receipt) -> str:
    """What a session answered to a change, in words."""
    match given:
        case InputReceipt():
            return f"{given.input_id} waits at place {given.position} for request {given.request_id}"
        case CancelReceipt():
            return f"request {given.request_id} {'is cancelled' if given.cancelled else 'had ended'}"
        case OperationReceipt():
            return f"{given.op_id} {_format_progress(given)}"
        case ConfigureReceipt():
            return f"the change {_format_progress(given)}"
        case SummaryReceipt():
            return f"entry {given.seq} sums up {given.from_seq} to {given.to_seq} in {given.tokens} tokens"
        case ApprovalReceipt():
            return f"{given.tool_call_id} is {'approved' if given.decision == 'approve' else 'denied'}"
        case HibernateReceipt():
            return f"the session sleeps, with its entries up to {given.last_seq} in the archive"
        case ForkReceipt():
            return f"session {given.session_id} begins with the entries up to {given.fork_seq}"
        case DeleteReceipt():
            return f"the session is deleted, {given.deleted_segments} segments of its archive with it"
        case CheckpointReceipt():
            return given.token
        case RestoreReceipt():
            return given.session_id


def print_receipt(given: Receipt, as_json: bool) -> None:
    """Print what a session has answered."""
    if as_json:
        print_document(given.as_json())
    else:
        make_console().print(make_text(format_receipt(given)), soft_wrap=True)


def _format_progress(given: OperationReceipt | ConfigureReceipt) -> str:
    match given.status:
        case "applied":
            return "is applied" if given.seq is None else f"is applied, as entry {given.seq}"
        case "deferred":
            return "waits until the request that is served has ended"
        case "duplicate":
            return "is known already: nothing has changed"


def format_usage(spent: Usage) -> str:
    """What was spent, in words."""
    calls = f"{spent.model_calls} model call{'' if spent.model_calls == 1 else 's'}"
    cached = f" ({format_number(spent.cached_input_tokens)} cached)" if spent.cached_input_tokens else ""
    return f"{calls}, {format_number(spent.input_tokens)}{cached} → {format_number(spent.output_tokens)} tokens"


def print_messages(to: Console, said: Iterable[Mapping[str, Any]]) -> None:
    """Messages of a transcript or a context, each under its role."""
    for number, message in enumerate(said):
        if number:
            to.print()
        role = message["role"]
        name = f" {message['name']}" if "name" in message else ""
        seq = (f"  #{message['seq']}", "dim") if "seq" in message else ""
        to.print(make_text((f"{role}{name}", f"bold {STYLES.get(role, '')}"), seq))
        if message["content"]:
            print_text(to, make_text(message["content"]))
        for call in message.get("tool_calls", []):
            print_text(to, format_tool_call(call))


def format_tool_call(call: Mapping[str, Any]) -> Text:
    """A tool call as a model asked for it."""
    arguments = ", ".join(f"{name}={_dump_json(value)}" for name, value in call["arguments"].items())
    return make_text(("→ ", "yellow"), (call["name"], "bold yellow"), (f"({arguments})", "yellow"))


def format_tool_result(content: str, width: int) -> Text:
    """A tool's result in one line."""
    return make_text(("← ", "yellow"), (shorten(content, max(width - 2, 20)), "dim"))


def print_context(to: Console, answer: Context) -> None:
    """A projected context: what a model is shown, and what is known of it."""
    print_messages(to, answer.messages)
    to.print()
    tools = ", ".join(tool["name"] for tool in answer.tool_spec)
    meta = {name: _dump_json(value).strip('"') for name, value in answer.meta.as_json().items()}
    _print_pairs(to, "meta", ({"tools": tools} if tools else {}) | meta)


def print_entries(to: Console, found: Sequence[Entry]) -> None:
    """The thread's entries, one a line."""
    if not to.is_terminal:
        for row in (_format_row(entry, 10_000) for entry in found):
            print_text(to, Text("\t".join(row)))
        return
    titles = ("seq", "at (UTC)", "kind", "by", "tokens", "what")
    rows = []
    for entry in found:
        seq, at, kind, by, tokens, what = _format_row(entry, to.width)
        rows.append((seq, at[5:19].replace("T", " "), kind, by, tokens, what))
    widths = [max(map(len, column)) for column in zip(titles[:-1], *(row[:-1] for row in rows), strict=True)]
    # One line an entry: the last column has what the others leave, each being two cells from the next.
    room = max(to.width - sum(widths) - 2 * len(widths), 20)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in titles[:-1]:
        table.add_column(title, justify="right" if title in ("seq", "tokens") else "left", no_wrap=True, style="dim")
    table.add_column(titles[-1], no_wrap=True)
    for row in rows:
        line = Text(row[-1])
        line.truncate(room, overflow="ellipsis")
        table.add_row(*row[:-1], line)
    to.print(table)


def _format_row(entry: Entry, width: int) -> tuple[str, str, str, str, str, str]:
    by = " ".join(strip_controls(str(entry.refs[name])) for name in ("run_id", "call_id") if name in entry.refs)
    tokens = format_number(entry.tokens) if entry.tokens else ""
    return str(entry.seq), entry.at, entry.kind, by, tokens, shorten(_format_entry(entry), width)


def _format_entry(entry: Entry) -> str:
    """What an entry says, in a line; anything that a newer Clew may write is shown as it is."""
    try:
        body = entry.body
    except ValueError:
        return _dump_json(dict(entry.payload))
    match body:
        case MessagePayload() as said:
            name = f" {said.name}" if isinstance(said, ToolMessage) and said.name else ""
            calls = said.tool_calls or () if isinstance(said, AssistantMessage) else ()
            return f"{said.role}{name}: {said.content} {' '.join(str(format_tool_call(call)) for call in calls)}"
        case ConfigPayload(model=model, tools=tools):
            return f"{model}; tools: {', '.join(tool['name'] for tool in tools) or 'none'}"
        case RunPayload() as run:
            return f"{run.status}: {run.termination_reason}"
        case SessionPayload() as session:
            workflow = f", its workflow was {session.workflow}" if session.workflow else ""
            return f"{session.event}{workflow}: {session.reason or 'no reason was given'}"
        case ErrorPayload() as error:
            return f"{error.type}: {error.message}"
        case SummaryPayload() as summary:
            return f"{summary.from_seq} to {summary.to_seq}: {summary.content}"
        case InputPayload() as given:
            return f"{given.event} {given.kind}: {given.reason}: {given.content}"
        case ApprovalPayload() as approval:
            edited = "" if approval.arguments is None else f" with {_dump_json(approval.arguments)}"
            return f"{approval.decision} {approval.tool_call_id}{edited}: {approval.reason or 'no reason was given'}"
        case OperationPayload(operation=operation) as held:
            return f"{held.op_id}: {operation.type} {held.context_ref}, {operation.reason}"
        case _:
            return _dump_json(dict(entry.payload))


def print_text(to: Console, text: Text) -> None:
    """A text: wrapped on a terminal, and in a pipe as it is, its tabs too."""
    if to.is_terminal:
        to.print(text)
    else:
        to.file.write(f"{text.plain}\n")


def _print_pairs(to: Console, title: str, rows: Mapping[str, str]) -> None:
    if not to.is_terminal:
        for name, value in rows.items():
            print_text(to, make_text(f"{name}: {value}"))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in rows.items():
        grid.add_row(strip_controls(name), strip_controls(value))
    to.print(Panel(grid, title=strip_controls(title), title_align="left", border_style="dim", expand=False))


def _format_entry_count(answer: SessionStatus) -> str:
    live = f" (from {answer.first_live_seq} on; older ones are archived)" if answer.first_live_seq else ""
    return f"{answer.rev}{live}"


def _format_request(answer: SessionStatus) -> str:
    if answer.request_id is None:
        return ""
    return f"{answer.request_id} ({answer.run_id or 'not begun'}, iteration {answer.iteration})"


def _format_operation(waiting: Mapping[str, Any]) -> str:
    if not waiting:
        return ""
    lane = f" {waiting['context_ref']}" if "context_ref" in waiting else ""
    return f"{waiting['type']}{lane} ({waiting['op_id']}), when the request has ended"


def format_number(number: int) -> str:
    """A number as people read it."""
    return f"{number:,}".replace(",", " ")


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
