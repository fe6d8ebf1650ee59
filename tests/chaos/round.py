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
from collections.abc import Mapping, Sequence
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
from clew_activities.archive import ArchiveSettings, Store
from clew_workflows.encryption.cipher import KEYS_VARIABLE
from clew_workflows.encryption.sealing import KeySealer
from tests.chaos.actions import perform
from tests.chaos.breaks import BREAKS_VARIABLE, break_mechanisms
from tests.chaos.callers import PAUSE_SECONDS, Callers, GaveUp
from tests.chaos.effects import read_effects
from tests.chaos.inspection import Figures, Inspection
from tests.chaos.keys import FIRST_KEYS, MARKER, NEWEST_KEYS, OLDEST_KEYS, ROTATION, Keys
from tests.chaos.last_cases import CERTAIN_FIGURES, perform_last_cases
from tests.chaos.model import FIRST, SECOND, SPARE, reply_as_instructed
from tests.chaos.oracle import Oracle, Violation
from tests.chaos.plan import OFFSPRING, ROTATE, SESSIONS, Action, Plan, name_offspring
from tests.chaos.processes import MAX_RESIDENT_BYTES, SERVERS, Server, Workers
from tests.chaos.provider import FaultyProvider
from tests.chaos.rest import REST_SECONDS, come_to_rest
from tests.chaos.store import NAMESPACE, STORE, FaultyStore
from tests.chaos.tools import EFFECTS
from tests.support.encrypted import write_keys

CLIENTS = 3
"""Connections that the callers share."""
EFFECTS_FILE = "effects.jsonl"
LEAVE_SECONDS = 45.0
"""Seconds after the last fault in which actions may end by themselves."""
AN_HOUR_LATER = ArchiveSettings(fork_time=timedelta(0))
"""The settings of an archive for which no fork is in the making any more."""
THRESHOLDS = {"EVENTS": "150", "BYTES": "400000", "UPDATES": "25", "SIGNALS": "30"}


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
        ):
            env = {
                **_make_env(folder, provider.address, model.base_url, encrypts=plan.encrypts),
                **server.make_store_env(store.address),
                BREAKS_VARIABLE: ",".join(breaks),
            }
            workers = Workers(server.address, env, folder)
            async with workers:
                converter = keys.make_converter()
                clients = [await Clew.connect(server.address, data_converter=converter) for _ in range(CLIENTS)]
                running = _Round(plan, clients, keys, server=server, store=store.address, folder=folder)
                try:
                    await running.carry_out(server, workers, provider, store, model.requests)
                except Exception as error:  # what ends a round early is to be explained, too
                    running.oracle.report("round", "", "".join(traceback.format_exception(error)))
                running.note_processes(server, workers, provider, store)
                running.check_figures()
                if running.oracle.violations:
                    with suppress(RPCError):  # the server may be what has failed
                        await running.keep_evidence(folder)
            running.check_logs(workers)
            running.check_files(server)
            if running.oracle.violations:
                for part, log in server.list_logs().items():
                    shutil.copy(log, folder / f"{part}.log")
                keep(folder, plan)
            return Result(plan, running.oracle.violations, running.figures)


class _Round:
    def __init__(
        self, plan: Plan, clients: Sequence[Clew], keys: Keys, *, server: Server, store: str, folder: Path
    ) -> None:
        self.oracle = Oracle()
        self.figures = Figures()
        self._plan = plan
        self._clients = clients
        self._keys = keys
        self._archive = Archive(_open_store(server.make_store_env(store), keys), NAMESPACE)
        bucket = server.make_store_env(server.bucket)
        self._newest_store = _open_store(bucket, Keys(*NEWEST_KEYS))
        self._effects = folder / EFFECTS_FILE
        self._callers: dict[str, Callers] = {}
        self._oldest_store = _open_store(bucket, Keys(*OLDEST_KEYS))
        self._direct_archive = Archive(_open_store(bucket, keys), NAMESPACE)
        self._later_archive = Archive(_open_store(bucket, keys), NAMESPACE, AN_HOUR_LATER)
        self._inspection = Inspection(clients[0], self._direct_archive, self.oracle, self.figures, self._callers)

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
            self._callers[name] = Callers(self._clients[number % CLIENTS], self._archive, self.oracle, name)
            await self._callers[name].open()
        tasks: set[asyncio.Task[None]] = set()
        began = time.monotonic()
        try:
            for action in self._plan.actions:
                await asyncio.sleep(began + action.at - time.monotonic())
                work = self._fail(action, server, workers, provider, store) if action.is_fault else self._call(action)
                tasks.add(asyncio.create_task(work, name=action.kind))
                requests.clear()
                workers.measure()
            await asyncio.sleep(began + self._plan.seconds - time.monotonic())
            provider.end_faults()
            store.end_faults()
            await asyncio.wait(tasks, timeout=LEAVE_SECONDS) if tasks else None
            # Operators carry a rotation out to its end.
            await asyncio.gather(*(task for task in tasks if task.get_name() == ROTATE))
        finally:
            for task in tasks:
                task.cancel()
            for ended in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(ended, Exception):
                    raise ended
        await asyncio.gather(*(come_to_rest(callers, self._plan.seed) for callers in self._callers.values()))
        await self._perform_last_cases()
        await self._inspection.check(read_effects(self._effects))
        if self._keys.kid in NEWEST_KEYS:
            await self._inspection.check_rotation(self._oldest_store, self._newest_store)
        if not self.oracle.violations:
            offspring = [name_offspring(action) for action in self._plan.actions if action.kind in OFFSPRING]
            await self._inspection.check_deletion(offspring, self._later_archive)

    async def _perform_last_cases(self) -> None:
        """Perform the cases that every round contains, with its first session and one that has a subagent."""
        number = max((action.number for action in self._plan.actions), default=0) + 1
        callers, boss = self._callers[SESSIONS[0]], self._callers[SESSIONS[-1]]
        try:
            async with asyncio.timeout(REST_SECONDS):
                made = await perform_last_cases(callers, boss, self._direct_archive, number)
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
            case "rotate":
                await self._rotate(workers)
            case "clock":
                await workers.change_clock(values["worker"], values["offset"], values["seconds"])

    async def _rotate(self, workers: Workers) -> None:
        """Give all processes other keys, step by step, and encrypt the archive anew."""
        for kids in ROTATION:
            await workers.change_environment({KEYS_VARIABLE: write_keys(*kids)})
            self._keys.change(kids)
        while True:
            try:
                await rekey_archive(self._archive)
            except ArchiveUnavailable as error:
                self.figures.errors[f"rekey: {type(error).__name__}"] += 1
                await asyncio.sleep(PAUSE_SECONDS)
            else:
                return

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
            counts["results from outside"] += len(callers.promises.results)
            counts["commands without an answer"] += len(ledger.uncertain)
            self.figures.errors.update(callers.errors)
        if workers.largest > MAX_RESIDENT_BYTES:
            self.oracle.report("worker", "", f"a worker takes {workers.largest / 1e6:.0f} MB")

    def check_figures(self) -> None:
        """Check that the round has seen what its last cases do."""
        lacking = [figure for figure in CERTAIN_FIGURES if not self.figures.counts[figure]]
        if lacking and not self.oracle.violations:
            self.oracle.report("round", "", f"it has seen no {', '.join(lacking)}")

    def check_logs(self, workers: Workers) -> None:
        """Check what the workers have logged."""
        for record in workers.records:
            self.oracle.report("worker", "", record[:3000])

    def check_files(self, server: Server) -> None:
        """Check that no text is in the server's database or in a log, if all processes encrypt.

        If they do not, the same search finds a text.
        """
        found = []
        for file in server.list_files():
            with suppress(FileNotFoundError):  # the database deletes its logs
                if MARKER in file.read_bytes():
                    found.append(file)
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


def _make_env(folder: Path, provider: str, spare: str, *, encrypts: bool) -> dict[str, str]:
    thresholds = {f"CLEW_ROLLOVER_{name}": value for name, value in THRESHOLDS.items()}
    return {
        **thresholds,
        "CLEW_STORE": STORE,
        "CLEW_PROVIDER_CHAOS_BASE_URL": f"http://{provider}/v1",
        "CLEW_CHECKPOINT_KEYS": f"chaos:{base64.b64encode(b'k' * 32).decode()}",
        "CLEW_PROVIDER_SPARE_BASE_URL": spare,
        "CLEW_MODELS": str(_write_models(folder)),
        "CLEW_HOOKS": "tests.chaos.hooks",
        "CLEW_AGENTS": "tests.chaos.tools",
        "CLEW_MODEL_CALLS": "50",
        KEYS_VARIABLE: write_keys(*FIRST_KEYS) if encrypts else "",
        EFFECTS: str(folder / EFFECTS_FILE),
    }


def _write_models(folder: Path) -> Path:
    """Write what the workers know of the models."""
    file = folder / "models.json"
    file.write_text(json.dumps({model: {"window": 16_000, "takes": ["image"]} for model in (FIRST, SECOND, SPARE)}))
    return file


def _open_store(env: Mapping[str, str], keys: Keys) -> Store:
    """Open the bucket that the variables name: its server, or the faults before it."""
    with patch.dict(os.environ, env):
        return Store.from_url(STORE, sealer=KeySealer(keys))
