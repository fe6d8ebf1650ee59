"""One round: a plan is carried out against real processes, everything comes to rest, and the oracle checks it all."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

from temporalio.service import RPCError

from clew import Clew
from clew.errors import ArchiveUnavailable, ClewError
from clew.local import scripted_model
from clew.operators import Archive, rekey_archive
from clew_activities.archive import ArchiveSettings
from clew_workflows.encryption.cipher import KEYS_VARIABLE
from clew_workflows.encryption.sealing import KeySealer
from tests.chaos.actions import perform
from tests.chaos.bounds import check_secret
from tests.chaos.breaks import BREAKS_VARIABLE, break_mechanisms
from tests.chaos.callers import PAUSE_SECONDS, Callers, GaveUp
from tests.chaos.effects import read_effects
from tests.chaos.environment import EFFECTS_FILE, make_env, open_store
from tests.chaos.inspection import Figures, Inspection
from tests.chaos.keys import FIRST_KEYS, MARKER, NEWEST_KEYS, OLDEST_KEYS, ROTATION, Keys
from tests.chaos.last_cases import CERTAIN_FIGURES, perform_last_cases
from tests.chaos.live import LiveServer
from tests.chaos.model import FIRST, reply_as_instructed
from tests.chaos.oracle import Oracle, Violation
from tests.chaos.plan import MAKING, ROTATE, SERVED, SESSIONS, TENANT, Action, Plan, name_offspring
from tests.chaos.processes import MAX_RESIDENT_BYTES, SERVERS, Server, Workers
from tests.chaos.provider import FaultyProvider
from tests.chaos.receiver import Receiver
from tests.chaos.rest import REST_SECONDS, come_to_rest
from tests.chaos.service import Service
from tests.chaos.store import NAMESPACE, FaultyStore
from tests.chaos.timed import TIMED, Timed
from tests.support.encrypted import write_keys

CLIENTS = 3
"""Connections that the callers share."""
LEAVE_SECONDS = 45.0
"""Seconds after the last fault in which actions may end by themselves."""
MAX_CLOSED_SHARE, MAX_CLOSED = 0.1, 3
"""The share of actions that may end in `Closed`, and a number of them that always may."""
FULL_SECONDS = 240
"""A plan of so many seconds has faults of all kinds, and sessions long enough to be archived."""
FULL_FIGURES = (
    "workers killed", "server crashes", "faults of the provider", "faults of the store", "rollovers", "audited calls",
    "archived segments",
)  # fmt: skip
"""Figures that no round of such a plan is without."""
AN_HOUR_LATER = ArchiveSettings(fork_time=timedelta(0))
"""The settings of an archive for which no fork is in the making any more."""


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


async def run_round(plan: Plan, server_name: str = "development", breaks: Sequence[str] = ()) -> Result:
    """Carry a plan out on processes of its own.

    Args:
        plan: The plan.
        server_name: One of `SERVERS`.
        breaks: Those of `BREAKS` that are in force meanwhile.
    """
    with break_mechanisms(breaks):
        return await _run_round(plan, server_name, breaks)


async def _run_round(plan: Plan, server_name: str, breaks: Sequence[str]) -> Result:
    with tempfile.TemporaryDirectory(prefix="clew-round-", ignore_cleanup_errors=True) as name:
        folder, keys = Path(name), Keys(*FIRST_KEYS) if plan.encrypts else Keys()
        async with (
            scripted_model(reply_as_instructed) as model,
            SERVERS[server_name](folder) as server,
            FaultyProvider(model.base_url.removeprefix("http://").removesuffix("/v1"), plan.seed).serve() as provider,
            FaultyStore(server.bucket, plan.seed, KeySealer(keys)).serve() as store,
            Receiver(plan.seed).serve() as receiver,
            LiveServer() as live,
        ):
            env = {
                **make_env(folder, provider.address, model.base_url, encrypts=plan.encrypts),
                **server.make_store_env(store.address),
                **live.env,
                BREAKS_VARIABLE: ",".join(breaks),
            }
            workers = Workers(server.address, env, folder)
            service = Service(server.address, {KEYS_VARIABLE: env[KEYS_VARIABLE], **live.env}, folder)
            async with workers, service:
                processes = Processes(server, workers, service, provider, store, receiver, live)
                converter = keys.make_converter()
                with patch.dict(os.environ, live.env):
                    clients = [await Clew.connect(server.address, data_converter=converter) for _ in range(CLIENTS)]
                running = _Round(plan, clients, keys, server=server, store=store.address, folder=folder)
                try:
                    await running.carry_out(processes, model.requests)
                except Exception as error:  # what ends a round early is to be explained, too
                    running.oracle.report("round", "", "".join(traceback.format_exception(error)))
                running.note_processes(processes)
                running.check_figures()
                if running.oracle.violations:
                    with suppress(RPCError):  # the server may be what has failed
                        await running.keep_evidence(folder)
            running.check_logs([*workers.records, *service.records])
            running.check_files(server)
            if running.oracle.violations:
                for part, log in server.list_logs().items():
                    shutil.copy(log, folder / f"{part}.log")
                keep(folder, plan)
            return Result(plan, running.oracle.violations, running.figures)


@dataclass(frozen=True)
class Processes:
    """The processes of a round.

    Attributes:
        server: Temporal's server, and the bucket.
        workers: The workers.
        service: The service.
        provider: The faults before the model.
        store: The faults before the bucket.
        receiver: The receiver of webhooks.
        live: The server of the live channel.
    """

    server: Server
    workers: Workers
    service: Service
    provider: FaultyProvider
    store: FaultyStore
    receiver: Receiver
    live: LiveServer


def list_lacking(plan: Plan, figures: Figures) -> list[str]:
    """List what a round has not seen although its plan, or its last cases, have it."""
    certain = (*CERTAIN_FIGURES, *(FULL_FIGURES if plan.seconds >= FULL_SECONDS else ()))
    return [figure for figure in certain if not figures.counts[figure]]


class _Round:
    def __init__(
        self, plan: Plan, clients: Sequence[Clew], keys: Keys, *, server: Server, store: str, folder: Path
    ) -> None:
        self.oracle = Oracle()
        self.figures = Figures()
        self._plan = plan
        self._clients = clients
        self._keys = keys
        self._archive = Archive(open_store(server.make_store_env(store), keys), NAMESPACE)
        bucket = server.make_store_env(server.bucket)
        self._newest_store = open_store(bucket, Keys(*NEWEST_KEYS))
        self._effects = folder / EFFECTS_FILE
        self._callers: dict[str, Callers] = {}
        self._oldest_store = open_store(bucket, Keys(*OLDEST_KEYS))
        self._direct_store = open_store(bucket, keys)
        self._direct_archive = Archive(self._direct_store, NAMESPACE)
        self._later_archive = Archive(open_store(bucket, keys), NAMESPACE, AN_HOUR_LATER)
        self._inspection = Inspection(clients[0], self._direct_archive, self.oracle, self.figures, self._callers)

    async def carry_out(self, processes: Processes, requests: list[dict[str, Any]]) -> None:
        """Do what the plan says, let everything come to rest, and check it."""
        for number, name in enumerate((*SESSIONS, TIMED)):
            callers = Callers(self._clients[number % CLIENTS], self._archive, self.oracle, name)
            callers.service, self._callers[name] = processes.service, callers
            if name == TIMED:
                callers.settings = {"model": FIRST, "request_timeout_seconds": 120}
            if name in SERVED:
                callers.settings = {"webhooks": [processes.receiver.webhook], "metadata": {"tenant": TENANT}}
            await callers.open()
        timed = Timed(self._clients[0])
        await timed.begin()
        tasks: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        try:
            for action in self._plan.actions:
                await asyncio.sleep(began + action.at - time.monotonic())
                work = self._fail(action, processes) if action.is_fault else self._call(action)
                tasks.add(asyncio.create_task(work, name=action.kind))
                requests.clear()
                processes.workers.measure()
            await asyncio.sleep(began + self._plan.seconds - time.monotonic())
            processes.provider.end_faults()
            processes.store.end_faults()
            processes.receiver.end_faults()
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS) if tasks else None
            # Operators carry a rotation out to its end.
            await asyncio.gather(*(task for task in tasks if task.get_name() == ROTATE))
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        await self._end_schedules(timed)
        await asyncio.gather(*(come_to_rest(callers, self._plan.seed) for callers in self._callers.values()))
        await self._perform_last_cases(processes.workers)
        await self._inspection.check(read_effects(self._effects))
        self._inspection.check_bounds(processes.provider.served)
        await self._inspection.check_growth(SESSIONS[0])
        await self._inspection.check_webhooks(processes.receiver)
        self._inspection.check_schedules(timed)
        if self._keys.kid in NEWEST_KEYS:
            await self._inspection.check_rotation(self._oldest_store, self._newest_store)
        if not self.oracle.violations:
            offspring = [name_offspring(action) for action in self._plan.actions if action.kind in MAKING]
            await self._inspection.check_deletion(offspring, self._later_archive)

    async def _end_schedules(self, timed: Timed) -> None:
        """End the schedules, and note what they have sent."""
        try:
            async with asyncio.timeout(REST_SECONDS):
                made, problems = await timed.end(self._callers[TIMED])
        except TimeoutError:
            self.oracle.report("wedged", TIMED, "what a schedule has started does not end")
        else:
            self._callers |= {one.name: one for one in made}
            for problem in problems:
                self.oracle.report("thread", TIMED, problem)

    async def _perform_last_cases(self, workers: Workers) -> None:
        """Perform the cases that every round contains, with its first session and one that has a subagent."""
        number = max((action.number for action in self._plan.actions), default=0) + 1
        callers, boss = self._callers[SESSIONS[0]], self._callers[SESSIONS[-1]]
        try:
            async with asyncio.timeout(REST_SECONDS):
                made = await perform_last_cases(callers, boss, workers, self._direct_store, number)
        except (TimeoutError, ClewError, GaveUp) as error:
            self.oracle.report("wedged", callers.name, f"the last cases do not end: {error!r}")
        else:
            self._callers |= {one.name: one for one in made}

    async def _call(self, action: Action) -> None:
        callers = self._callers.get(action.session)
        if callers is None:
            return
        self.figures.counts[f"call {action.kind}"] += 1
        offspring = await perform(callers, action)
        if offspring:
            self._callers[offspring.name] = offspring

    async def _fail(self, action: Action, processes: Processes) -> None:
        values = action.values
        match action.kind:
            case "kill":
                await processes.workers.kill(values["worker"], values["seconds"])
            case "stop":
                await processes.workers.stop(values["worker"], values["seconds"])
            case "server":
                await processes.server.crash(values["seconds"])
            case "provider":
                processes.provider.begin_fault(values["fault"], values["share"], values["seconds"])
            case "store":
                processes.store.begin_fault(values["fault"], values["share"], values["seconds"])
            case "service":
                await processes.service.fail(values["how"], values["seconds"])
            case "live":
                await processes.live.fail(values["how"], values["seconds"])
            case "rotate":
                await self._rotate(processes)
            case "clock":
                await processes.workers.change_clock(values["worker"], values["offset"], values["seconds"])

    async def _rotate(self, processes: Processes) -> None:
        """Give all processes other keys, step by step, and encrypt the archive anew."""
        for kids in ROTATION:
            variables = {KEYS_VARIABLE: write_keys(*kids)}
            await asyncio.gather(
                processes.workers.change_environment(variables), processes.service.change_environment(variables)
            )
            self._keys.change(kids)
        while True:
            try:
                await rekey_archive(self._archive)
            except ArchiveUnavailable as error:
                self.figures.errors[f"rekey: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

    def note_processes(self, processes: Processes) -> None:
        """Note what the processes have suffered, and what they logged."""
        counts, workers = self.figures.counts, processes.workers
        provider, store, receiver = processes.provider, processes.store, processes.receiver
        counts["server crashes"] = processes.server.crashes
        counts["workers killed"], counts["workers stopped"] = workers.kills, workers.stops
        counts["clocks changed"] = workers.jumps
        counts["faults of the live channel"] = processes.live.faults
        counts["service killed, stopped or drained"] = processes.service.faults
        counts["webhooks"], counts["webhooks refused"] = len(receiver.deliveries), receiver.failures
        counts["provider requests"], counts["store requests"] = provider.requests, store.requests
        counts["faults of the provider"] = sum(provider.faults.values())
        counts["faults of the store"] = sum(store.faults.values())
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
            counts["results from outside"] += len(callers.promises.results)
            counts["commands without an answer"] += len(ledger.uncertain)
            self.figures.errors.update(callers.errors)
            for end, number in callers.ends.items():
                counts[f"actions that ended: {end}"] += number
        if workers.largest > MAX_RESIDENT_BYTES:
            self.oracle.report("worker", "", f"a worker takes {workers.largest / 1e6:.0f} MB")

    def check_figures(self) -> None:
        """Check that the round has seen what it is to see, and that most actions met a session that lives."""
        ends = Counter[str]()
        for callers in self._callers.values():
            ends += callers.ends
        if ends["Closed"] > MAX_CLOSED_SHARE * ends.total() + MAX_CLOSED:
            self.oracle.report("round", "", f"{ends['Closed']} of {ends.total()} actions ended in Closed")
        lacking = list_lacking(self._plan, self.figures)
        if lacking and not self.oracle.violations:
            self.oracle.report("round", "", f"it has seen no {', '.join(lacking)}")

    def check_logs(self, records: Iterable[str]) -> None:
        """Check what the workers and the service have logged."""
        for record in records:
            self.oracle.report("worker", "", record[:3000])

    def check_files(self, server: Server) -> None:
        """Check that no text is in the server's database or in a log, if all processes encrypt, and never a key.

        If they do not encrypt, the same search finds a text.
        """
        found = []
        for file in server.list_files():
            with suppress(FileNotFoundError):  # the database deletes its logs
                data = file.read_bytes()
                if MARKER in data:
                    found.append(file)
                for problem in check_secret(file.name, data):
                    self.oracle.report("audit", "", problem)
        if self._plan.encrypts:
            for file in found:
                self.oracle.report("audit", "", f"{file.name} has a text that is not encrypted")
        elif not found and not self.oracle.violations:
            self.oracle.report("audit", "", "texts are not encrypted, but no file has any: the search is in vain")

    async def keep_evidence(self, folder: Path) -> None:
        """Write the histories of all sessions beside the logs."""
        temporal = self._clients[0].temporal
        threads = self._inspection.threads
        for name in {*self._callers, *threads}:
            async for run in temporal.list_workflows(f"WorkflowId = '{name}'"):
                history = await temporal.get_workflow_handle(name, run_id=run.run_id).fetch_history()
                started = f"{run.start_time:%H%M%S}"
                (folder / f"history-{name}-{started}-{run.run_id}.json").write_text(history.to_json())
            entries = [entry.as_dict() for entry in threads.get(name, ())]
            (folder / f"thread-{name}.json").write_text(json.dumps(entries, indent=1))


def keep(folder: Path, plan: Plan) -> Path:
    """Copy the evidence of a violation out of the temporary folder, for people; returns the copy."""
    kept = Path(tempfile.gettempdir(), f"clew-chaos-{plan.seed}")
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(folder, kept, ignore=shutil.ignore_patterns("temporal.db*", "clock-*"))
    (kept / "plan.json").write_text(plan.dump())
    return kept
