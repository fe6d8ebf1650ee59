"""The inspection of a round that has come to rest: every thread, its audit, the archive, and what deletions leave."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from bench.chain import list_runs
from clew import Clew
from clew.errors import ClewError, NotFound
from clew.operators import Archive, audit_session, rekey_archive, verify_archive
from clew_activities.archive import Store
from clew_activities.archive.archive_errors import ArchiveError
from clew_activities.archive.blob_store import list_blobs
from clew_workflows.thread.entries import Entry
from tests.chaos.bounds import Served, check_costs, check_deadlines, check_growth, check_secret
from tests.chaos.callers import PAUSE_SECONDS, Callers
from tests.chaos.effects import Effect, check_effects
from tests.chaos.oracle import Oracle
from tests.chaos.receiver import UNTOLD, Receiver, check_deliveries
from tests.chaos.rest import REST_SECONDS
from tests.chaos.rules import check_subagents, list_subagents
from tests.chaos.timed import Timed, check_firings

OLD_OBJECTS = 3
"""Objects of each kind that get the old key again."""
MAX_LEFT = 5
"""Objects that a report about a deletion names."""


@dataclass
class Figures:
    """What happened in one or more rounds.

    Attributes:
        counts: Numbers by their names.
        errors: Errors after which callers sent a command again.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Self) -> None:
        """Add the figures of another round."""
        self.counts.update(other.counts)
        self.errors.update(other.errors)


class Inspection:
    """Reads what is there at the end of a round, and compares it with what was promised.

    Attributes:
        threads: The complete threads that could be read, by session.
    """

    def __init__(
        self, clew: Clew, archive: Archive, oracle: Oracle, figures: Figures, callers: Mapping[str, Callers]
    ) -> None:
        self.threads: dict[str, list[Entry]] = {}
        self._clew = clew
        self._archive = archive
        self._oracle = oracle
        self._figures = figures
        self._callers = callers

    async def check(self, effects: Iterable[Effect]) -> None:
        """Read every thread completely, compare it with the promises, and audit the session."""
        deleted, effects = {name for name, callers in self._callers.items() if callers.promises.deleted}, [*effects]
        names = [*self._callers.keys(), *(effect.session for effect in effects)]
        for name in names:
            if name in self.threads or _find_root(name) in deleted:
                continue
            try:
                await self._read(name)
            except ClewError as error:
                self._oracle.report("audit", name, f"it cannot be read: {error!r}")
            # A fork names the subagents of its parent, which are deleted with it.
            names += list_subagents(self.threads.get(name, ()))
        # A fork has what its parent was promised before it, in part. Parents come before their forks.
        for callers in self._callers.values():
            if origin := callers.promises.origin:
                above, ledger = self._oracle.promises[origin.session].ledger, callers.promises.ledger
                ledger.uncertain = {**above.uncertain, **above.requests, **ledger.uncertain}
        for name, callers in self._callers.items():
            if name in self.threads:
                origin = callers.promises.origin
                parent = self.threads.get(origin.session) if origin else None
                self._oracle.check_thread(name, self.threads[name], parent)
        for name in self.threads.keys() - self._callers.keys():
            self._oracle.check_subagent(name, self.threads[name])
        inherited = self._list_inherited()
        gone = {effect.session for effect in effects if _find_root(effect.session) in deleted}
        for name, problem in check_effects(effects, self.threads, inherited, gone):
            self._oracle.report("effect", name, problem)
        for name, problem in check_subagents(self.threads, inherited):
            self._oracle.report("thread", name, problem)
        await asyncio.gather(*map(self._check_deleted, deleted))
        self._figures.counts["effects"] = len(effects)

    def _list_inherited(self) -> dict[str, int]:
        """List the seqs up to which the threads of forks are their parents'."""
        origins = {name: callers.promises.origin for name, callers in self._callers.items()}
        return {name: origin.seq + 1 for name, origin in origins.items() if origin}

    async def check_webhooks(self, receiver: Receiver) -> None:
        """Check what a receiver was told, once it knows of all outcomes. The server repeats what it refused."""
        gone = {name for name, callers in self._callers.items() if callers.promises.deleted}
        give_up_at = time.monotonic() + REST_SECONDS
        while True:
            problems = check_deliveries(
                receiver.deliveries, self.threads, receiver.webhook.url, self._list_inherited(), gone
            )
            found = list(problems)
            if not any(UNTOLD in problem for _, problem in found) or time.monotonic() > give_up_at:
                break
            await asyncio.sleep(PAUSE_SECONDS)
        for name, problem in found:
            self._oracle.report("webhook", name, problem)
        for problem in receiver.problems:
            self._oracle.report("webhook", "", problem)

    def check_bounds(self, served: Served) -> None:
        """Check what all sessions have cost, how long requests took, and that no thread has the provider's key."""
        for name, problem in check_costs(self.threads, self._list_inherited(), served):
            self._oracle.report("thread", name, problem)
        for name, entries in self.threads.items():
            stored = json.dumps([entry.as_dict() for entry in entries]).encode()
            for problem in (*check_deadlines(entries), *check_secret("the thread", stored)):
                self._oracle.report("thread", name, problem)

    async def check_growth(self, name: str) -> None:
        """Check that no history of a session grows by what is in it already."""
        temporal = self._clew.temporal
        async for run in temporal.list_workflows(f"WorkflowId = '{name}'"):
            inputs = []
            async for event in temporal.get_workflow_handle(name, run_id=run.run_id).fetch_history_events():
                if event.HasField("activity_task_scheduled_event_attributes"):
                    payloads = event.activity_task_scheduled_event_attributes.input.payloads
                    inputs.append(b"".join(payload.data for payload in payloads).decode(errors="replace"))
            self._figures.counts["activities of the first session"] += len(inputs)
            for problem in check_growth(inputs, self.threads.get(name, ())):
                self._oracle.report("audit", name, problem)

    def check_schedules(self, timed: Timed) -> None:
        """Check what the schedules have sent."""
        self._figures.counts["times of schedules"] += len(timed.firings)
        for name in {firing.session for firing in timed.firings}:
            firings = [firing for firing in timed.firings if firing.session == name]
            for problem in check_firings(firings, self.threads.get(name, ())):
                self._oracle.report("thread", name, problem)

    async def check_rotation(self, oldest: Store, newest: Store) -> None:
        """Check that after a rotation of the keys the newest one opens every object.

        Args:
            oldest: Writes with the old key. Some objects of each kind are written with it before.
            newest: Has no key but the newest.
        """
        kinds = Counter[str]()
        async for path in self._archive.list_paths():
            kind = path.split("/")[-2]
            if await oldest.get_size(path) and kinds[kind] < OLD_OBJECTS:
                kinds[kind] += 1
                await oldest.put(path, await oldest.get(path))
        for kind, number in kinds.items():
            self._figures.counts[f"objects with an old key: {kind}"] = number
        rekeyed = await rekey_archive(self._archive)
        self._figures.counts["objects that rekey left"] += rekeyed.rewritten
        for problem in rekeyed.problems:
            self._oracle.report("audit", "", f"rekey: {problem}")
        async for path in self._archive.list_paths():
            try:
                if await newest.get_size(path):  # markers are empty
                    await newest.get(path)
            except ArchiveError as error:
                self._oracle.report("audit", "", f"the newest key does not open {path}: {error}")

    async def check_deletion(self, offspring: Iterable[str], later: Archive) -> None:
        """Delete all sessions. Nothing of them is left in the store.

        A fork that was given up while the store was away has left its marker. For an hour it seems to be in the
        making, and its family is kept; a deletion that is repeated later deletes the family.

        Args:
            offspring: The sessions that callers may have made. One without an answer may be there; an import that
                failed has left objects.
            later: The archive for which no fork is in the making any more.
        """
        known = next(iter(self._callers.values()))
        others = set(offspring) - self._callers.keys()
        callers = [*self._callers.values(), *map(known.call_offspring, others)]
        try:
            async with asyncio.timeout(REST_SECONDS):
                await asyncio.gather(*(one.delete() for one in callers))
        except TimeoutError:
            self._oracle.report("wedged", "", "not all sessions can be deleted")
            return
        left = [path async for path in self._archive.list_paths()]
        for family in _find_abandoned(left, others):
            await later.delete_rest(family)
        left = [path async for path in self._archive.list_paths()]
        for path in left[:MAX_LEFT]:
            self._oracle.report("thread", "", f"all sessions were deleted, but {path} is left, one of {len(left)}")

    async def _check_deleted(self, name: str) -> None:
        """Check that a deleted session cannot be read. The server deletes its histories in the background."""
        self._figures.counts["deleted sessions"] += 1
        give_up_at, rev = time.monotonic() + REST_SECONDS, 0
        while time.monotonic() < give_up_at:
            try:
                rev = (await self._clew.session(name).status()).rev
            except NotFound:
                return
            except ClewError as error:
                self._figures.errors[f"status of a deleted session: {type(error).__name__}"] += 1
            await asyncio.sleep(PAUSE_SECONDS)
        self._oracle.report("thread", name, f"it was deleted, but has {rev} entries")

    async def _read(self, name: str) -> None:
        counts, session = self._figures.counts, self._clew.session(name)
        entries = [entry async for entry in self._clew.read_thread(name)]
        self.threads[name] = entries
        _count_entries(entries, counts)
        status = await session.status()
        if status.rev != len(entries):
            self._oracle.report("thread", name, f"{len(entries)} entries were read, but the session has {status.rev}")
        for digest in {blob["digest"] for entry in entries for blob in list_blobs(entry)}:
            await session.read_blob(digest)
            counts["blobs"] += 1
        runs = await list_runs(self._clew.temporal, name)
        counts["rollovers"] += len(runs) - 1
        counts["failed workflow tasks"] += sum(len(run.failures) for run in runs)
        for failure in (failure for run in runs for failure in run.failures):
            # A worker whose task the server has given to another one notices late, and then replays the history. The
            # audit replays it, too.
            self._figures.errors[f"workflow task: {failure[:160]}"] += 1
        audited = await audit_session(self._clew.temporal, self._archive, name)
        counts["audited calls"] += audited.calls.verified
        self._oracle.check_audit(audited)
        with suppress(NotFound):
            # A session that has not rolled over has no archive.
            archived = await verify_archive(self._archive, name)
            counts["archived segments"] += archived.segments
            counts["stored tool results"] += archived.results
            for problem in archived.problems:
                self._oracle.report("audit", name, f"archive: {problem}")


def _count_entries(entries: Sequence[Entry], counts: Counter[str]) -> None:
    counts["sessions"] += 1
    counts["entries"] += len(entries)
    for payload in (entry.payload for entry in entries):
        counts["forks"] += payload.get("event") == "forked_from"
        counts["runs with a fallback"] += bool(payload.get("fallback"))
        counts["refusals of hooks"] += payload.get("termination_reason") == "refused_by_hook"
        counts["answers of another form"] += payload.get("source") == "repair"
        counts["subagents"] += "subagent" in payload
    counts["turns"] += sum(entry.kind == "run" for entry in entries)
    counts["model calls"] += sum(entry.recipe is not None for entry in entries)


def _find_abandoned(paths: Iterable[str], unconfirmed: Collection[str]) -> set[str]:
    """Find the families that are kept for the marker of a fork without an answer."""
    markers = (path.partition("/families/s-")[2].partition("/members/s-") for path in paths)
    return {family for family, _, member in markers if member in unconfirmed}


def _find_root(name: str) -> str:
    """Find the session that a subagent, or one of its own, belongs to; another session is its own."""
    return name.partition(".")[0]
