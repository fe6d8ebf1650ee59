"""A session with a long thread: a copy of one that was served, whose last turn is repeated."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from hashlib import blake2b
from typing import Any

from temporalio.client import Client

from clew.contract import TASK_QUEUE
from clew_activities.archive import Archive, Store
from clew_audit.exports import FORMAT, export_session, import_session, read_export
from clew_audit.json_lines import LineWriter
from clew_workflows.thread.entries import Entry


async def copy_and_lengthen(client: Client, store: str, session_id: str, copy_id: str, turns: int) -> None:
    """Make a session with so many turns; `store` is the URL of its archive's store.

    The newest turn of the other one must have called the model once, without a tool or a schema of the answer.
    """
    archive = Archive(Store.from_url(store), client.namespace)
    with tempfile.TemporaryFile() as file:
        await export_session(client, archive, session_id, file)
        file.seek(0)
        entries = read_export(file)
    missing = turns - sum(entry.kind == "run" for entry in entries)
    if missing < 0:
        raise ValueError(f"{session_id!r} has more than {turns} turns")
    with tempfile.TemporaryFile() as file:
        writer = LineWriter(file, FORMAT, {"session_id": copy_id})
        for entry in entries:
            writer.write_row(entry.as_dict())
        for copied in _repeat(entries[-3:], missing):
            writer.write_row(copied)
        writer.end()
        file.seek(0)
        await import_session(client, archive, file, session_id=copy_id, task_queue=TASK_QUEUE)


def _repeat(turn: list[Entry], times: int) -> Iterator[dict[str, Any]]:
    kinds = [entry.kind for entry in turn]
    if kinds != ["ai_message", "ai_message", "run"]:
        raise ValueError(f"the last entries are no turn of one model call: {kinds}")
    for number in range(1, times + 1):
        for entry in turn:
            yield _shift(entry.as_dict(), number, len(turn) * number)


def _shift(entry: Mapping[str, Any], turns: int, entries: int) -> dict[str, Any]:
    """Move an entry to a later turn."""
    payload, refs = _renumber(entry["payload"], turns), _renumber(entry["refs"], turns)
    seq = entry["seq"] + entries
    if "answer_seq" in payload:
        payload["answer_seq"] += entries
    if recipe := payload.get("recipe"):
        payload["recipe"] = recipe = {**recipe, "basis_seq": recipe["basis_seq"] + entries}
        if "epoch" in recipe:
            recipe["epoch"] = [first + entries for first in recipe["epoch"]]
    return {**entry, "seq": seq, "id": f"e-{seq:016x}", "payload": payload, "refs": refs}


def _renumber(fields: Mapping[str, Any], turns: int) -> dict[str, Any]:
    changed = dict(fields)
    if "request_id" in changed:
        # As random as a client's: a session that rolls over carries them, compressed.
        changed["request_id"] = blake2b(turns.to_bytes(8), digest_size=8).hexdigest()
    for name in ("run_id", "call_id"):
        if name in changed:
            word, _, number = changed[name].partition("-")
            changed[name] = f"{word}-{int(number) + turns}"
    return changed
