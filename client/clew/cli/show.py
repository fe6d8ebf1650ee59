"""Print sessions, messages, entries and receipts. Control characters in their content never reach a terminal."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Literal

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from clew.cli.hints import write_command
from clew_workflows.contract.content import get_text
from clew_workflows.contract.messages import Citation, ProviderCall, list_cited_pages
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import (
    ApprovalReceipt,
    CancelReceipt,
    CheckpointReceipt,
    CloseReceipt,
    ConfigureReceipt,
    Context,
    DeleteReceipt,
    ForkReceipt,
    HibernateReceipt,
    InputReceipt,
    OperationReceipt,
    PendingOperation,
    Receipt,
    RestoreReceipt,
    SessionStatus,
    SummaryReceipt,
    ToolResultReceipt,
)
from clew_workflows.contract.payloads import (
    AgentVersion,
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
from clew_workflows.thread.entries import Entry

STYLES = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}

# Escape sequences first, with their printable part; then the remaining control characters, C1 and bidirectional
# marks included. Tab and newline stay.
_CONTROL = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]*[0-Z\\`-~]"
    r"|[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


_TITLE_CHARACTERS = 100
_URL_CHARACTERS = 2000


def make_console(*, stderr: bool = False) -> Console:
    """Make a console that prints text as it is: no markup, no emoji names, no highlighting."""
    return Console(stderr=stderr, markup=False, emoji=False, highlight=False)


def strip_controls(text: str) -> str:
    """Remove control characters and escape sequences from a text."""
    return _CONTROL.sub("", text)


def shorten(text: str, characters: int) -> str:
    """Shorten a text to one line of at most so many characters."""
    line = " ".join(strip_controls(text[: 4 * characters]).split())
    return line if len(line) <= characters else line[: characters - 1] + "…"


def make_text(*parts: str | tuple[str, str]) -> Text:
    """Make a text of parts, which are strings or pairs of a string and a style."""
    made = Text()
    for part in parts:
        text, style = (part, None) if isinstance(part, str) else part
        made.append(strip_controls(text), style)
    return made


def make_line(*parts: str | tuple[str, str]) -> Text:
    """Make a text whose lines only the terminal breaks, so that a command in it is copied without line breaks."""
    line = make_text(*parts)
    line.no_wrap, line.overflow = True, "ignore"
    return line


def write_address(host: str, port: int) -> str:
    """Write the address of a server."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def print_document(value: Mapping[str, Any], *, in_lines: bool = False) -> None:
    """Print a JSON document: indented on a terminal, else or with `in_lines` in one line."""
    # json.dumps escapes all but ASCII, so that no encoding and no terminal changes it.
    print(json.dumps(value, indent=None if in_lines or not sys.stdout.isatty() else 2), flush=True)  # noqa: T201


def print_status(to: Console, answer: SessionStatus) -> None:
    """Print a session's status."""
    waiting = {"input": answer.pending_inputs, "message": answer.queued_messages}
    status, remedy = answer.status.replace("_", " "), _find_remedy(answer)
    rows = {
        # A box would break the command.
        "status": f"{status}: {remedy}" if remedy and not to.is_terminal else status,
        "agent": _format_agent(answer.agent) if answer.agent else "",
        "model": answer.model,
        "fallbacks": ", ".join(answer.config.get("fallbacks", ())),
        "provider tools": ", ".join(answer.config.get("provider_tools", ())),
        "lane": answer.active_context_ref,
        "entries": _format_entry_count(answer),
        "request": _format_request(answer),
        "waiting": ", ".join(
            f"{count} {noun}{'' if count == 1 else 's'}" for noun, count in waiting.items() if count
        ),
        "operation": _format_operation(answer.pending_context_op) if answer.pending_context_op else "",
        "usage": format_usage(answer.usage),
        "subagents'": format_usage(answer.subagent_usage) if answer.subagent_usage else "",
        "works for": answer.parent.session_id if answer.parent else "",
    }
    rows |= {f"subagent {child.agent}": f"{child.status} · {child.session_id}" for child in answer.subagents}
    waiting_calls = {f"approve {call.tool_call_id}?": call for call in answer.pending_approvals}
    waiting_calls |= {f"answer {call.tool_call_id}": call for call in answer.pending_external_calls}
    rows |= {title: format_tool_call(call.name, call.arguments).plain for title, call in waiting_calls.items()}
    _print_pairs(to, f"session {answer.session_id}", {name: value for name, value in rows.items() if value})
    if remedy and to.is_terminal:
        print_lines(to, remedy)


def _find_remedy(answer: SessionStatus) -> str:
    """Say what continues a session that has ended; empty, if it runs."""
    if answer.status == "interrupted":
        return f"`{write_command('recover', answer.session_id)}` repairs it"
    return f"`{write_command('ask', answer.session_id, 'TEXT')}` continues it" if answer.closed else ""


def _format_agent(agent: AgentVersion) -> str:
    return " · ".join(filter(None, (agent.name, agent.label, agent.version)))


def format_receipt(receipt: Receipt) -> str:  # noqa: PLR0912 - one case for each receipt
    """Format a receipt in one line."""
    match receipt:
        case InputReceipt():
            return (
                f"input {receipt.input_id} is number {receipt.position} in the queue of request {receipt.request_id}"
            )
        case CancelReceipt():
            return f"request {receipt.request_id} {'is cancelled' if receipt.cancelled else 'had already ended'}"
        case OperationReceipt():
            return f"operation {receipt.op_id} {_format_progress(receipt)}"
        case ConfigureReceipt():
            return f"the change {_format_progress(receipt)}"
        case SummaryReceipt():
            return f"entry {receipt.seq} summarizes {receipt.from_seq} to {receipt.to_seq} in {receipt.tokens} tokens"
        case ApprovalReceipt():
            return f"tool call {receipt.tool_call_id} is {'approved' if receipt.decision == 'approve' else 'denied'}"
        case ToolResultReceipt():
            return f"tool call {receipt.tool_call_id} has its result, as entry {receipt.seq}"
        case HibernateReceipt():
            return f"the session hibernates; all entries up to {receipt.last_seq} are archived"
        case CloseReceipt():
            return f"the session is closed; all entries up to {receipt.last_seq} are archived"
        case ForkReceipt():
            return f"session {receipt.session_id} has the entries up to {receipt.fork_seq}"
        case DeleteReceipt():
            parts = f"{receipt.deleted_segments} archived segments and {receipt.deleted_subagents} subagents"
            return f"the session is deleted, with {parts}"
        case CheckpointReceipt():
            return receipt.token
        case RestoreReceipt():
            return receipt.session_id


def _format_progress(receipt: OperationReceipt | ConfigureReceipt) -> str:
    match receipt.status:
        case "applied":
            return "is applied" if receipt.seq is None else f"is applied, as entry {receipt.seq}"
        case "deferred":
            return "is deferred until the run ends"
        case "duplicate":
            return "was applied before: nothing has changed"


def format_usage(spent: Usage) -> str:
    """Format model calls, tokens and, where it is known, the cost in one line."""
    calls = f"{spent.model_calls} model call{'' if spent.model_calls == 1 else 's'}"
    if spent.estimated_calls:
        calls += f" ({spent.estimated_calls} estimated)"
    cached = f" ({format_number(spent.cached_input_tokens)} cached)" if spent.cached_input_tokens else ""
    tokens = f"{format_number(spent.input_tokens)}{cached} → {format_number(spent.output_tokens)} tokens"
    return ", ".join(filter(None, (calls, tokens, format_dollars(spent.cost_usd))))


def format_dollars(amount: float | None) -> str:
    """Format an amount in dollars; empty if it is not known."""
    return "" if amount is None else f"${amount:,.4f}"


def print_messages(to: Console, messages: Iterable[Mapping[str, Any]]) -> None:
    """Print messages of a transcript or a context, each under its role."""
    for number, message in enumerate(messages):
        if number:
            to.print()
        role = message["role"]
        name = f" {message['name']}" if "name" in message else ""
        seq = (f"  #{message['seq']}", "dim") if "seq" in message else ""
        to.print(make_text((f"{role}{name}", f"bold {STYLES.get(role, '')}"), seq))
        if content := get_text(message["content"]):
            print_text(to, make_text(content))
        for call in message.get("tool_calls", []):
            print_text(to, format_tool_call(call["name"], call["arguments"]))
        print_lines(to, *list_source_lines(message.get("provider_calls"), message.get("citations")))


def list_source_lines(calls: Sequence[ProviderCall] | None, citations: Sequence[Citation] | None) -> list[Text]:
    """List the provider's own calls, a line for each, and the pages that a reply names, each once and numbered."""
    lines = [format_provider_call(call) for call in calls or ()]
    for number, page in enumerate(list_cited_pages(citations or ()), 1):
        title = shorten(page.get("title", ""), _TITLE_CHARACTERS)
        url = shorten(page["url"], _URL_CHARACTERS)
        lines.append(make_line((f"[{number}] {f'{title} — ' if title else ''}{url}", "dim")))
    return lines


def format_provider_call(call: ProviderCall) -> Text:
    """Format a call of a tool that the provider ran itself in one line."""
    number = len(call.get("sources", ()))
    sources = f"{number} source{'' if number == 1 else 's'}" if number else ""
    result = f"failed: {shorten(call['error'], 200)}" if "error" in call else sources or call.get("output", "")
    parts = (shorten(call.get("input", ""), 200), shorten(result, 200))
    return make_line((f"↗ {shorten(call['tool'], 80)}: {' · '.join(filter(None, parts))}".rstrip(": "), "dim"))


def format_tool_call(name: str, arguments: Mapping[str, Any]) -> Text:
    """Format a tool call with its arguments."""
    shown = ", ".join(f"{argument}={_dump_json(value)}" for argument, value in arguments.items())
    return make_text(("→ ", "yellow"), (name, "bold yellow"), (f"({shown})", "yellow"))


def format_tool_result(content: str, width: int) -> Text:
    """Format a tool's result in one line."""
    return make_text(("← ", "yellow"), (shorten(content, max(width - 2, 20)), "dim"))


def print_context(to: Console, answer: Context) -> None:
    """Print a context: its messages, its tools and its metadata."""
    print_messages(to, answer.messages)
    to.print()
    tools = ", ".join(tool["name"] for tool in answer.tool_spec)
    meta = {name: _dump_json(value).strip('"') for name, value in answer.meta.as_dict().items()}
    _print_pairs(to, "meta", ({"tools": tools} if tools else {}) | meta)


def print_table(
    to: Console,
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    right: Container[str] = (),
    wrapped: Container[str] = (),
    dim: Container[str] = (),
) -> None:
    """Print rows: a table on a terminal, else one line each with tabs.

    `right`: the columns that are aligned to the right. `wrapped`: those whose cells may have several lines.
    """
    if not to.is_terminal:
        for row in rows:
            print_text(to, make_text("\t".join(row)))
        return
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for title in titles:
        justify: Literal["left", "right"] = "right" if title in right else "left"
        style = "dim" if title in dim else ""
        table.add_column(strip_controls(title), justify=justify, no_wrap=title not in wrapped, style=style)
    for row in rows:
        table.add_row(*map(make_text, row))
    to.print(table)


def print_entries(to: Console, entries: Sequence[Entry]) -> None:
    """Print entries: a table on a terminal, each in one line, else one line each with tabs."""
    titles = ("seq", "at (UTC)", "kind", "by", "tokens", "content")
    if not to.is_terminal:
        return print_table(to, titles, map(format_row, entries))
    rows = [format_row(entry, to.width) for entry in entries]
    cells = [(seq, at[5:19].replace("T", " "), kind, by, tokens) for seq, at, kind, by, tokens, _ in rows]
    widths = [max(map(len, column)) for column in zip(titles, *cells, strict=False)]
    # The last column takes the width that the others leave. Two cells separate columns.
    room = max(to.width - sum(widths) - 2 * len(widths), 20)
    contents = [Text(row[-1]) for row in rows]
    for content in contents:
        content.truncate(room, overflow="ellipsis")
    lines = [(*row, content.plain) for row, content in zip(cells, contents, strict=True)]
    return print_table(to, titles, lines, right=("seq", "tokens"), dim=titles[:-1])


def format_row(entry: Entry, width: int = 10_000) -> tuple[str, str, str, str, str, str]:
    """Format an entry as the columns of a table: seq, time, kind, run and call, tokens, content."""
    by = " ".join(strip_controls(str(entry.refs[name])) for name in ("run_id", "call_id") if name in entry.refs)
    tokens = format_number(entry.tokens) if entry.tokens else ""
    return str(entry.seq), entry.at, entry.kind, by, tokens, shorten(_format_entry(entry), width)


def format_fields(fields: Mapping[str, Any]) -> str:
    """Format fields in one line, as `name=value`."""
    return shorten(" ".join(f"{name}={_dump_json(value)}" for name, value in fields.items()), 10_000)


def _format_entry(entry: Entry) -> str:
    """Format an entry's content in one line; a payload of an unknown form is printed as JSON."""
    try:
        body = entry.body
    except ValueError:
        return _dump_json(dict(entry.payload))
    match body:
        case MessagePayload() as message:
            name = f" {message.name}" if isinstance(message, ToolMessage) and message.name else ""
            reply = message if isinstance(message, AssistantMessage) else None
            name += ", interrupted" if reply and reply.interrupted else ""
            calls = reply.tool_calls or () if reply else ()
            shown = [str(format_tool_call(call["name"], call["arguments"])) for call in calls]
            if reply:
                shown += map(str, list_source_lines(reply.provider_calls, reply.citations))
            return f"{message.role}{name}: {message.text} {' '.join(shown)}"
        case ConfigPayload(model=model, tools=tools, provider_tools=own):
            provided = f"; tools of the provider: {', '.join(own)}" if own else ""
            return f"{model}; tools: {', '.join(tool['name'] for tool in tools) or 'none'}{provided}"
        case RunPayload() as run:
            return f"{run.status}: {run.termination_reason}"
        case SessionPayload() as session:
            workflow = f", its workflow was {session.workflow}" if session.workflow else ""
            return f"{session.event}{workflow}: {session.reason or 'no reason'}"
        case ErrorPayload() as error:
            return f"{error.type}: {error.message}"
        case SummaryPayload() as summary:
            return f"{summary.from_seq} to {summary.to_seq}: {summary.content}"
        case InputPayload() as input_:
            return f"{input_.event} {input_.kind}: {input_.reason}: {input_.content}"
        case ApprovalPayload() as approval:
            edited = "" if approval.arguments is None else f" with {_dump_json(approval.arguments)}"
            by = f" by {approval.by}" if approval.by else ""
            return f"{approval.decision} {approval.tool_call_id}{edited}{by}: {approval.reason or 'no reason'}"
        case OperationPayload(operation=operation) as applied:
            return f"{applied.op_id}: {operation.type} {applied.context_ref}, {operation.reason}"
        case _:
            return _dump_json(dict(entry.payload))


def print_lines(to: Console, *lines: str | Text) -> None:
    """Print lines that only the terminal breaks, so that a command in them is copied without line breaks."""
    for line in lines:
        to.print(make_text(line) if isinstance(line, str) else line, soft_wrap=True)


def print_remark(text: str) -> None:
    """Print a remark on stderr, apart from the results."""
    print_lines(make_console(stderr=True), make_text((text, "dim")))


def print_text(to: Console, text: Text) -> None:
    """Print a text: wrapped on a terminal, unchanged elsewhere."""
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
    live = f" (entries before {answer.first_live_seq} are archived)" if answer.first_live_seq else ""
    return f"{answer.rev}{live}"


def _format_request(answer: SessionStatus) -> str:
    if answer.request_id is None:
        return ""
    return f"{answer.request_id} ({answer.run_id or 'not started'}, iteration {answer.iteration})"


def _format_operation(waiting: PendingOperation) -> str:
    lane = f" {waiting.context_ref}" if waiting.context_ref else ""
    return f"{waiting.type}{lane} ({waiting.op_id}), deferred until the run ends"


def format_number(number: int) -> str:
    """Format a number with spaces between thousands."""
    return f"{number:,}".replace(",", " ")


def _dump_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
