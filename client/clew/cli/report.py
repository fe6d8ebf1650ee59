"""`clew report`: one HTML page about a session."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from clew.cli import offline, options, show
from clew.cli.failures import exit_on_error
from clew.cli.options import Address, Namespace, OptionalSessionId, TaskQueue
from clew.report import MAX_ENTRIES, make_report
from clew_workflows.contract import TASK_QUEUE


def report(
    session: OptionalSessionId = None,
    *,
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="FILE", help="The file to write; `-` is stdout.")
    ] = "report.html",
    from_seq: Annotated[
        int | None,
        typer.Option(
            "--from", metavar="SEQ", min=0, help="The first entry of the conversation. Default: the newest entries."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(min=1, metavar="N", help="The most entries of the conversation.")
    ] = MAX_ENTRIES,
    without_texts: Annotated[
        bool, typer.Option("--without-texts", help="Leave out what was said: only numbers, names and times.")
    ] = False,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read a file that `clew export` wrote; needs no server."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the report as JSON, for scripts, and write no page.")
    ] = False,
    address: Address = None,
    namespace: Namespace = None,
    task_queue: TaskQueue = TASK_QUEUE,
) -> None:
    """Write a page about a session: what was said, what each model call saw, and what it cost.

    The page is one HTML file that needs no network. The session may be running, hibernated, closed or archived.
    """
    if (session is None) is (from_file is None):
        raise typer.BadParameter("name either a session or --from-file", param_hint="SESSION")
    target = options.make_target(address, namespace, task_queue)
    with exit_on_error(as_json):
        if from_file is not None:
            entries = offline.read_export(from_file)
        else:
            entries = options.ask_any(target, session or "", lambda _clew, reached: reached.entries())
        made = make_report(
            entries,
            made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
            session_id=session,
            from_seq=from_seq,
            limit=limit,
            with_texts=not without_texts,
        )
        if as_json:
            show.print_document(made.as_dict())
            return
        from clew.report.rendering import render_page  # noqa: PLC0415 - its template engine starts slowly

        page = render_page(made).encode()
        with offline.open_file(output, "wb") as file:
            file.write(page)
    if output != "-":
        shown = max(made.last_shown - made.first_shown + 1, 0)
        of_all = f" {shown} of" if shown < made.entries else ""
        text = f"wrote {output}: {len(page) / 1e6:.1f} MB,{of_all} {made.entries} entries"
        show.make_console().print(show.make_text(text), soft_wrap=True)
