"""One round: a plan is carried out against real processes, everything comes to rest, and the oracle checks it all."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.service import RPCError

from bench.chain import list_runs
from clew import Clew
from clew.errors import ClewError, NotFound
from clew.local import scripted_model
from clew_activities.archive import Archive, Store
from clew_audit.audit import audit_session
from clew_audit.verification import verify_archive
from clew_workflows.thread.entries import Entry
from tests.chaos.actions import perform
from tests.chaos.callers import Callers
from tests.chaos.effects import check_effects, read_effects
from tests.chaos.model import reply_as_instructed
from tests.chaos.oracle import Oracle, Violation
from tests.chaos.plan import SESSIONS, Action, Plan
from tests.chaos.processes import MAX_RESIDENT_BYTES, Server, Workers, run_bucket
from tests.chaos.provider import FaultyProvider
from tests.chaos.rest import come_to_rest
from tests.chaos.store import FaultyStore
from tests.support.s3 import make_s3_env

CLIENTS = 3
"""Connections that the callers share."""
STORE = "s3://clew/chaos"
LEAVE_SECONDS = 45.0
"""Seconds after the last fault in which actions may end by themselves."""
THRESHOLDS = {"EVENTS": "150", "BYTES": "400000", "UPDATES": "25", "SIGNALS": "30"}


@dataclass
class Figures:
    """What happened in one or more rounds.

    Attributes:
        counts: Numbers by their names.
        errors: Errors after which callers sent a command again.
    """

    counts: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)

    def add(self, other: Figures) -> None:
        """Add the figures of another round."""
        self.counts.update(other.counts)
        self.errors.update(other.errors)


@dataclass
class Result:
    """The result of a round.

    Attributes:
        plan: The plan.
        violations: The broken promises.
        figures: What happened.
    """

    plan: Plan
    violations: list[Violation]
    figures: Figures


async def run_round(plan: Plan) -> Result:
    """Carry a plan out on processes of its own."""
    with tempfile.TemporaryDirectory(prefix="clew-round-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        async with (
            scripted_model(reply_as_instructed) as model,
            run_bucket() as bucket,
            FaultyProvider(model.base_url.removeprefix("http://").removesuffix("/v1"), plan.seed).serve() as provider,
            FaultyStore(bucket, plan.seed).serve() as store,
            Server(folder) as server,
        ):
            env = _make_env(folder, provider.address, store.address)
            workers = Workers(server.address, env, folder)
            async with workers:
                clients = [await Clew.connect(server.address) for _ in range(CLIENTS)]
                archive = Archive(_open_bucket(bucket), "default")
                running = _Round(plan, clients, archive, folder / "effects.jsonl")
                try:
                    await running.carry_out(server, workers, provider, store, model.requests)
                except Exception as error:  # what ends a round early is to be explained, too
                    running.oracle.report("round", "", "".join(traceback.format_exception(error)))
                running.note_processes(server, workers, provider, store)
                if running.oracle.violations:
                    with suppress(RPCError):  # the server may be what has failed
                        await running.keep_evidence(folder)
            running.check_logs(workers)
            if running.oracle.violations:
                keep(folder, plan)
            return Result(plan, running.oracle.violations, running.figures)


class _Round:
    def __init__(self, plan: Plan, clients: Sequence[Clew], archive: Archive, effects: Path) -> None:
        self.oracle = Oracle()
        self.figures = Figures()
        self._plan = plan
        self._clients = clients
        self._archive = archive
        self._effects = effects
        self._callers: dict[str, Callers] = {}
        self._threads: dict[str, list[Entry]] = {}

    async def carry_out(
        self,
        server: Server,
        workers: Workers,
        provider: FaultyProvider,
        store: FaultyStore,
        requests: list[dict[str, Any]],
    ) -> None:
        """Do what the plan says, let everything come to rest, and check it."""
        for number, name in enumerate(SESSIONS):
            self._callers[name] = Callers(self._clients[number % CLIENTS], self.oracle, name)
            await self._callers[name].open()
        tasks: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        try:
            for action in self._plan.actions:
                await asyncio.sleep(began + action.at - time.monotonic())
                work = self._fail(action, server, workers, provider, store) if action.is_fault else self._call(action)
                tasks.add(asyncio.create_task(work))
                requests.clear()
                workers.measure()
            await asyncio.sleep(began + self._plan.seconds - time.monotonic())
            provider.end_faults()
            store.end_faults()
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS) if tasks else None
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        await asyncio.gather(*(come_to_rest(callers, self._plan.seed) for callers in self._callers.values()))
        await self._check()

    async def _call(self, action: Action) -> None:
        callers = self._callers.get(action.session)
        if callers is None:
            return
        self.figures.counts[f"call {action.kind}"] += 1
        offspring = await perform(callers, action)
        if offspring:
            self._callers[offspring.name] = offspring

    async def _fail(
        self, action: Action, server: Server, workers: Workers, provider: FaultyProvider, store: FaultyStore
    ) -> None:
        values = action.values
        match action.kind:
            case "kill":
                await workers.kill(values["worker"], values["seconds"])
            case "stop":
                await workers.stop(values["worker"], values["seconds"])
            case "server":
                await server.crash(values["seconds"])
            case "provider":
                provider.begin_fault(values["fault"], values["share"], values["seconds"])
            case "store":
                store.begin_fault(values["fault"], values["share"], values["seconds"])
            case "clock":
                await workers.change_clock(values["worker"], values["offset"], values["seconds"])

    async def _check(self) -> None:
        """Read every thread completely, compare it with the promises, and audit the session."""
        effects = read_effects(self._effects)
        names = dict.fromkeys([*self._callers, *(effect.session for effect in effects)])
        for name in names:
            try:
                await self._read(name)
            except ClewError as error:
                self.oracle.report("audit", name, f"the thread cannot be read: {error!r}")
        for name, callers in self._callers.items():
            origin = callers.promises.origin
            if origin:
                # A fork has what its parent was promised before it, in part.
                above = self._callers[origin.session].promises.ledger
                callers.promises.ledger.uncertain = {
                    **above.uncertain, **above.requests, **callers.promises.ledger.uncertain
                }  # fmt: skip
            if name in self._threads:
                parent = self._threads.get(origin.session) if origin else None
                self.oracle.check_thread(name, self._threads[name], parent)
        inherited = {
            name: callers.promises.origin.seq + 1
            for name, callers in self._callers.items()
            if callers.promises.origin
        }
        for name, problem in check_effects(effects, self._threads, inherited):
            self.oracle.report("effect", name, problem)
        self.figures.counts["effects"] = len(effects)

    async def _read(self, name: str) -> None:
        clew, counts = self._clients[0], self.figures.counts
        entries = [entry async for entry in clew.read_thread(name)]
        self._threads[name] = entries
        counts["sessions"] += 1
        counts["entries"] += len(entries)
        counts["turns"] += sum(entry.kind == "run" for entry in entries)
        counts["model calls"] += sum(entry.recipe is not None for entry in entries)
        counts["forks"] += sum(entry.payload.get("event") == "forked_from" for entry in entries)
        status = await clew.session(name).status()
        if status.rev != len(entries):
            self.oracle.report("thread", name, f"{len(entries)} entries were read, but the session has {status.rev}")
        runs = await list_runs(clew.temporal, name)
        counts["rollovers"] += len(runs) - 1
        counts["failed workflow tasks"] += sum(len(run.failures) for run in runs)
        for failure in (failure for run in runs for failure in run.failures):
            # A worker whose task the server has given to another one notices late, and then replays the history. The
            # audit replays it, too.
            self.figures.errors[f"workflow task: {failure[:160]}"] += 1
        audited = await audit_session(clew.temporal, self._archive, name)
        counts["audited calls"] += audited.calls.verified
        self.oracle.check_audit(audited)
        with suppress(NotFound):
            # A session that has not rolled over has no archive.
            archived = await verify_archive(self._archive, name)
            counts["archived segments"] += archived.segments
            counts["stored tool results"] += archived.results
            for problem in archived.problems:
                self.oracle.report("audit", name, f"archive: {problem}")

    def note_processes(self, server: Server, workers: Workers, provider: FaultyProvider, store: FaultyStore) -> None:
        """Note what the processes have suffered, and what they logged."""
        counts = self.figures.counts
        counts["server crashes"] = server.crashes
        counts["workers killed"], counts["workers stopped"] = workers.kills, workers.stops
        counts["clocks changed"] = workers.jumps
        counts["provider requests"], counts["store requests"] = provider.requests, store.requests
        counts["entries that readers saw"] = self.oracle.seen
        for kind, number in provider.faults.items():
            counts[f"provider {kind}"] = number
        for kind, number in store.faults.items():
            counts[f"store {kind}"] = number
        for callers in self._callers.values():
            ledger = callers.promises.ledger
            counts["requests"] += len(ledger.requests)
            counts["inputs"] += len(ledger.inputs)
            counts["operations"] += len(ledger.operations)
            counts["commands without an answer"] += len(ledger.uncertain)
            self.figures.errors.update(callers.errors)
        if workers.largest > MAX_RESIDENT_BYTES:
            self.oracle.report("worker", "", f"a worker takes {workers.largest / 1e6:.0f} MB")

    def check_logs(self, workers: Workers) -> None:
        """Check what the workers have logged."""
        for record in workers.records:
            self.oracle.report("worker", "", record[:3000])

    async def keep_evidence(self, folder: Path) -> None:
        """Write the histories of all sessions beside the logs."""
        temporal = self._clients[0].temporal
        for name in {*self._callers, *self._threads}:
            async for run in temporal.list_workflows(f"WorkflowId = '{name}'"):
                history = await temporal.get_workflow_handle(name, run_id=run.run_id).fetch_history()
                started = f"{run.start_time:%H%M%S}"
                (folder / f"history-{name}-{started}-{run.run_id}.json").write_text(history.to_json())
            entries = [entry.as_dict() for entry in self._threads.get(name, ())]
            (folder / f"thread-{name}.json").write_text(json.dumps(entries, indent=1))


def keep(folder: Path, plan: Plan) -> Path:
    """Copy the evidence of a violation out of the temporary folder, for people; returns the copy."""
    kept = Path(tempfile.gettempdir(), f"clew-chaos-{plan.seed}")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("temporal.db*", "clock-*"))
    (kept / "plan.json").write_text(plan.dump())
    return kept


def _make_env(folder: Path, provider: str, store: str) -> dict[str, str]:
    thresholds = {f"CLEW_ROLLOVER_{name}": value for name, value in THRESHOLDS.items()}
    return {
        **make_s3_env(f"http://{store}"),
        **thresholds,
        "CLEW_STORE": STORE,
        "CLEW_PROVIDER_CHAOS_BASE_URL": f"http://{provider}/v1",
        "CLEW_CHECKPOINT_KEYS": f"chaos:{base64.b64encode(b'k' * 32).decode()}",
        "CLEW_AGENTS": "tests.chaos.tools",
        "CLEW_MODEL_CALLS": "50",
        "CHAOS_EFFECTS": str(folder / "effects.jsonl"),
    }


def _open_bucket(address: str) -> Store:
    """Open the bucket itself, without the faults before it."""
    with patch.dict(os.environ, make_s3_env(f"http://{address}")):
        return Store.from_url(STORE)
