"""`clew report` and `clew compare`: what a session did, and what it would cost under another context policy.

Both read the entries of a session, or of a file that `clew export` wrote.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from clew.cli import _operators as operators
from clew.cli import offline, show
from clew.cli.command import Invocation, command
from clew.cli.reach import Misconfigured
from clew.cli.shared_options import FromFile, OptionalSessionId, flag, option, require_one_source
from clew.comparison import Trial, compare_policies, compute_share
from clew.report import MAX_ENTRIES, make_report
from clew.report.page_document import render_page
from clew.report.page_media import MediaCollector
from clew.session.session import Session
from clew_workflows.contract.errors import ArchiveDamaged, InvalidInput, UnknownBlob
from clew_workflows.contract.invalid import describe_problems
from clew_workflows.contract.names import MODEL_NAME
from clew_workflows.contract.outcomes import Prices
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

BLOBS_AT_ONCE = 4
"""Blobs that are read for a page at the same time."""


@command(json_help="Print the report as JSON, for scripts, and write no page.")
def report(
    invocation: Invocation,
    session: OptionalSessionId = None,
    *,
    output: Annotated[str, option("FILE", "The file to write; `-` is stdout.", "-o", "--output")] = "report.html",
    from_seq: Annotated[
        int | None,
        option("SEQ", "The first entry of the conversation. Default: the newest entries.", "--from", min=0),
    ] = None,
    limit: Annotated[int, option("N", "The most entries of the conversation.", min=1)] = MAX_ENTRIES,
    without_texts: Annotated[
        bool, flag("Leave out what was said: only numbers, names and times.", "--without-texts")
    ] = False,
    media: Annotated[
        Path | None,
        option("FOLDER", "Write the images, recordings and files of the conversation to this folder, and link them."),
    ] = None,
    from_file: FromFile = None,
) -> None:
    """Write a page about a session: what was said, what each model call saw, and what it cost.

    The page is one HTML file that needs no network. It has small images in itself. The session may be running,
    hibernated, closed or archived.
    """
    if media is not None and (without_texts or invocation.as_json):
        raise typer.BadParameter("needs a page with texts", param_hint="--media")
    made = make_report(
        _read_entries(invocation, session, from_file),
        made_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        session_id=session,
        from_seq=from_seq,
        limit=limit,
        with_texts=not without_texts,
    )
    if invocation.as_json:
        return show.print_document(made.as_dict())
    collector = MediaCollector(made, media, Path() if output == "-" else Path(output).parent)
    unread = _collect_media(invocation, collector, session, from_file)
    page = render_page(made, collector.media).encode()
    with offline.open_file(output, "wb") as file:
        file.write(page)
    if output != "-":
        shown = max(made.last_shown - made.first_shown + 1, 0)
        of_all = f" {shown} of" if shown < made.entries else ""
        text = f"wrote {output}: {len(page) / 1e6:.1f} MB,{of_all} {made.entries} entries"
        show.print_lines(show.make_console(), text, *unread)
    return None


def _collect_media(
    invocation: Invocation, collector: MediaCollector, session: str | None, from_file: Path | None
) -> list[str]:
    """Read the blobs that a page needs. Returns a line for each that could not be read."""
    wanted = collector.digests
    if not wanted:
        return []

    def take(digest: str, data: bytes) -> None:
        try:
            collector.take(digest, data)
        except OSError as error:
            raise Misconfigured(f"{error.filename}: {error.strerror}") from None

    async def read(reached: Session) -> list[str]:
        free = asyncio.Semaphore(BLOBS_AT_ONCE)

        async def read_one(digest: str) -> str:
            async with free:
                try:
                    take(digest, await reached.read_blob(digest))
                except (UnknownBlob, ArchiveDamaged) as error:
                    return f"not shown: {error}"
                return ""

        return list(filter(None, await asyncio.gather(*map(read_one, wanted))))

    if from_file is None:
        return invocation.ask_any(session or "", read)
    for digest, data in offline.read_exported_blobs(from_file):
        take(digest, data)
    return []


def _read_entries(invocation: Invocation, session: str | None, from_file: Path | None) -> list[Entry]:
    require_one_source(session, from_file)
    if from_file is not None:
        return offline.read_export(from_file)
    return invocation.ask_any(session or "", lambda reached: reached.entries())


@command()
def compare(
    invocation: Invocation,
    session: OptionalSessionId = None,
    *,
    policy: Annotated[
        list[Path] | None,
        option(
            "FILE",
            "A JSON file with a context policy. Its fields override the policy that each call had; may be repeated.",
        ),
    ] = None,
    model: Annotated[
        str | None, option("PROVIDER:NAME", "Use the list prices of this model instead of those of the calls.")
    ] = None,
    from_file: FromFile = None,
) -> None:
    """Compare a session's model calls under other context policies. No model is called.

    Prints tokens, cached tokens and cost, one column per policy; the first column is the session itself. The session
    may be running or have ended.
    """
    require_one_source(session, from_file)
    if model is not None and not MODEL_NAME.matches(model):
        raise typer.BadParameter(MODEL_NAME.words, param_hint="--model")
    policies = _read_policies(policy or ())
    entries = _read_entries(invocation, session, from_file)
    trials = compare_policies(Thread(entries), policies, _read_list_prices(model))
    document = {"entries": len(entries), "trials": [trial.as_dict() for trial in trials]}
    named = {"session_id": session} if session else {}
    invocation.print(named | document, lambda to: _print_table(to, trials))


def _read_policies(files: Iterable[Path]) -> dict[str, ContextPolicy]:
    """Read the policies, each by the name of its file.

    Raises:
        InvalidInput: A file does not hold a context policy, or is named twice.
        Misconfigured: A file cannot be read.
    """
    policies: dict[str, ContextPolicy] = {}
    for file in files:
        with offline.open_file(file, "rb") as source:
            text = source.read()
        try:
            policy = ContextPolicy.model_validate_json(text)
        except ValidationError as error:
            problem = describe_problems(error, ContextPolicy)
            raise InvalidInput(f"{file} is not a context policy: {problem}") from None
        name = file.stem if file.stem not in policies else str(file)
        if name in policies:
            raise InvalidInput(f"{file} is named twice")
        policies[name] = policy
    return policies


def _read_list_prices(model: str | None) -> Prices | None:
    """Find the list prices of a model; None without a model.

    Raises:
        InvalidInput: The file that `CLEW_PRICES` names cannot be used.
        Misconfigured: The extra `worker` is not installed.
    """
    if model is None:
        return None
    return operators.find_prices(model, operators.read_own_models(os.environ))


def _print_table(to: Console, trials: Sequence[Trial]) -> None:
    titles = ("", *(trial.name for trial in trials))
    rows = [(title, *cells) for title, *cells in zip(_TITLES, *map(_format_cells, trials), strict=True) if any(cells)]
    show.print_table(
        to, titles, rows if to.is_terminal else [titles, *rows], right=titles[1:], wrapped=titles, dim=("",)
    )


_TITLES = (
    "model calls",
    "input tokens",
    "predicted cached tokens",
    "predicted cached share",
    "cost",
    "reported input tokens",
    "reported cached share",
    "reported cost",
    "calls truncated",
    "messages left out, mean",
    "messages left out, most",
    "calls with cleared results",
    "calls shown a summary",
    "pins lost",
    "context overflows",
)


def _format_cells(trial: Trial) -> tuple[str, ...]:
    """Format a trial's column."""
    reported = trial.reported
    return (
        show.format_number(trial.calls),
        show.format_number(trial.input_tokens),
        show.format_number(trial.cached_tokens),
        _format_percent(trial.cached_tokens, trial.input_tokens),
        show.format_dollars(trial.cost_usd),
        show.format_number(reported.input_tokens) if reported else "",
        _format_percent(reported.cached_tokens, reported.input_tokens) if reported else "",
        show.format_dollars(reported.cost_usd) if reported else "",
        show.format_number(trial.truncated),
        f"{trial.left_out_mean:.1f}",
        show.format_number(trial.left_out_most),
        show.format_number(trial.cleared),
        show.format_number(trial.summaries),
        show.format_number(len(trial.lost_pins)),
        show.format_number(trial.overflows),
    )


def _format_percent(part: int, total: int) -> str:
    portion = compute_share(part, total)
    return "" if portion is None else f"{portion:.1%}"
