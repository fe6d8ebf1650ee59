"""The measurements of one peer: growth, latency, throughput, recovery, and a large conversation."""

from __future__ import annotations

import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.peers.conversation import QUESTION
from bench.peers.process import PeerFailed, PeerProcess, Setting, peer_process
from bench.peers.script import Context, Script
from bench.peers.service import Size
from bench.workload import make_text
from clew_workflows.contract.tokens import load_encoding

SIZES_AT = (10, 50, 100, 1_000)
LATENCIES_AT = (1, 100, 1_000)
WINDOW = 10
"""Turns on either side of a turn that belong to its latency."""
TURN_SECONDS = 30
"""A turn that takes longer counts as failed."""
CONVERSATIONS = 10
TURNS_EACH = 10
PUBLIC_TOKENS = 209_000
PUBLIC_MESSAGE_TOKENS = 10_000
PUBLIC_CALLS = 100


@dataclass(frozen=True)
class Latency:
    """The median latency of turns, and the floor's between the same turns.

    Attributes:
        seconds: The peer's.
        floor: The floor's.
    """

    seconds: float
    floor: float


@dataclass
class Growth:
    """One conversation of equal turns.

    Attributes:
        turns: The turns that were answered.
        ended: Why the conversation ended before all turns were answered.
        sizes: What it took after some turns.
        latencies: Latency around some turns.
    """

    turns: int = 0
    ended: str | None = None
    sizes: dict[int, Size] = field(default_factory=dict)
    latencies: dict[int, Latency] = field(default_factory=dict)


@dataclass(frozen=True)
class Throughput:
    """Several conversations at once.

    Attributes:
        turns_per_second: Turns per second.
        floor: The floor's, before and after.
        cpu_seconds: The process's CPU time of a turn.
        memory: Bytes of memory of the process.
    """

    turns_per_second: float
    floor: float
    cpu_seconds: float
    memory: int


@dataclass(frozen=True)
class Recovery:
    """A process killed while the second model call of a turn with a tool call was in flight.

    Attributes:
        seconds: From SIGKILL to the answer, with the start of the next process.
        start_seconds: The part until the next process was ready.
        model_calls: Model calls of the turn; three are needed.
        tool_effects: Effects of the tool; one is needed.
        lost: Messages, results and answers that the next turn's request lacks.
        duplicates: Those that it has twice.
        failed: Why there was no answer.
    """

    seconds: float | None
    start_seconds: float | None
    model_calls: int
    tool_effects: int
    lost: int | None
    duplicates: int | None
    failed: str | None = None


@dataclass(frozen=True)
class PublicCase:
    """A conversation of 209 000 tokens, and then one turn of 100 model calls with 5 KB from a tool after each.

    Attributes:
        tokens: Tokens of the user's messages that the last request showed.
        model_calls: Model calls of the last turn that were made.
        answered: Whether the turn was answered.
        size: What it took in the end, if the conversation can still be measured.
        ended: Why it ended early.
    """

    tokens: int
    model_calls: int
    answered: bool
    size: Size | None
    ended: str | None = None


class Bench:
    """The measurements of one peer beside the floor."""

    def __init__(self, setting: Setting, floor: PeerProcess, script: Script) -> None:
        self._setting = setting
        self._floor = floor
        self._script = script
        self._is_floor = setting.module == "peer_floor"
        self._numbers = 0

    async def measure(self, turns: int, seconds: float) -> dict[str, Any]:
        """Make all measurements; the floor, which is no agent, has growth and throughput only.

        Args:
            turns: Turns of the long conversation.
            seconds: When the long conversation stops, if it has not ended.
        """
        result: dict[str, Any] = {}
        async with peer_process(self._setting) as peer:
            result["versions"] = await peer.wait_until_ready()
            await self._warm_up(peer)
            first = await self._measure_first_turns(peer)
            result["growth"] = await self.grow(peer, turns, seconds, first)
            result["throughput"] = await self.measure_throughput(peer)
        if self._is_floor:
            return result
        result["recovery"] = await self.recover()
        # In a folder of its own, so that what it stores is measured alone.
        setting = replace(self._setting, folder=self._setting.folder.with_name("public"))
        async with peer_process(setting) as peer:
            result["public_case"] = await self.repeat_public_case(peer)
        return result

    async def _warm_up(self, peer: PeerProcess) -> None:
        for process in (peer, self._floor):
            for _ in range(3):
                await self._say(process, self._name("warm"), 0)

    async def _measure_first_turns(self, peer: PeerProcess) -> Latency:
        pairs = [
            (await self._say(peer, self._name("first"), 0), await self._say(self._floor, self._name("first"), 0))
            for _ in range(WINDOW)
        ]
        return _summarize(pairs)

    async def grow(self, peer: PeerProcess, turns: int, seconds: float, first: Latency) -> Growth:
        """Measure one conversation turn by turn."""
        growth = Growth(latencies={1: first})
        name, beside = self._name("long"), self._name("floor")
        windows: dict[int, list[tuple[float, float]]] = {turn: [] for turn in LATENCIES_AT[1:]}
        deadline = time.monotonic() + seconds
        for turn in range(1, turns + 1):
            try:
                taken = await peer.say(name, f"{name}-{turn}", f"{turn} {QUESTION}", within=TURN_SECONDS)
                self._check(turn)
            except PeerFailed as error:
                growth.ended = str(error)
                break
            growth.turns = turn
            for center, pairs in windows.items():
                if center - WINDOW < turn <= center:
                    pairs.append((taken, await self._say(self._floor, beside, turn)))
            if turn in SIZES_AT:
                growth.sizes[turn] = await peer.measure(name)
            if time.monotonic() > deadline:
                growth.ended = f"stopped by the bench after {seconds:g} s"
                break
        growth.latencies |= {turn: _summarize(pairs) for turn, pairs in windows.items() if len(pairs) == WINDOW}
        return growth

    def _check(self, turn: int) -> None:
        """Check that the last request showed the complete conversation.

        Raises:
            PeerFailed: It did not.
        """
        context = Context.read(self._script.messages)
        if not self._is_floor and (len(context.users), context.assistants) != (turn, turn - 1):
            raise PeerFailed(f"request {turn} showed {len(context.users)} questions and {context.assistants} answers")

    async def measure_throughput(self, peer: PeerProcess) -> Throughput:
        """Measure several conversations at once, between two rounds of the floor."""
        before = await self._measure_rate(self._floor)
        cpu = await peer.read_cpu()
        rate = await self._measure_rate(peer)
        cpu = (await peer.read_cpu() - cpu) / (CONVERSATIONS * TURNS_EACH)
        after = await self._measure_rate(self._floor)
        return Throughput(rate, (before + after) / 2, cpu, await peer.read_memory())

    async def _measure_rate(self, process: PeerProcess) -> float:
        async def converse(name: str) -> None:
            for turn in range(TURNS_EACH):
                await self._say(process, name, turn)

        started = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONVERSATIONS):
                group.create_task(converse(self._name("many")))
        return CONVERSATIONS * TURNS_EACH / (time.monotonic() - started)

    async def recover(self) -> Recovery:
        """Kill the process in the second model call of a turn, start another and wait for the answer."""
        name = self._name("killed")
        held = name.replace("-", "_")
        text = f"look it up [tools 1] [hold {held}]"
        self._setting.effects.unlink(missing_ok=True)
        async with peer_process(self._setting) as peer:
            await peer.say(name, f"{name}-1", "first")
            answer = asyncio.create_task(peer.say(name, f"{name}-2", text))
            async with asyncio.timeout(TURN_SECONDS):
                await self._script.wait_until_held(held)
            await peer.kill()
            killed = time.monotonic()
            await asyncio.wait([answer])
            answer.exception()
        seconds = started = lost = duplicates = failed = None
        async with peer_process(self._setting) as peer:
            started = time.monotonic() - killed
            try:
                await peer.resume(name, f"{name}-2", text)
                seconds = time.monotonic() - killed
                await peer.say(name, f"{name}-3", "last")
                lost, duplicates = self._compare({"first": 1, text: 1, "last": 1})
            except PeerFailed as error:
                failed = str(error)
        effects = len(self._setting.effects.read_text().splitlines()) if self._setting.effects.exists() else 0
        return Recovery(seconds, started, self._script.calls[text], effects, lost, duplicates, failed)

    def _compare(self, users: dict[str, int]) -> tuple[int, int]:
        """Compare the last request with what it should show: these messages, two answers and one result."""
        context = Context.read(self._script.messages)
        pairs = [(context.users[text], count) for text, count in users.items()]
        pairs += [(context.assistants, len(users) - 1), (context.results, 1)]
        return sum(max(0, want - have) for have, want in pairs), sum(max(0, have - want) for have, want in pairs)

    async def repeat_public_case(self, peer: PeerProcess) -> PublicCase:
        """Fill a conversation with 209 000 tokens, and take a turn of 100 model calls."""
        name, chance = self._name("public"), random.Random(1890)
        exact = load_encoding("o200k_base")
        spoken: dict[str, int] = {}
        ended = None
        text = f"{name} [tools {PUBLIC_CALLS - 1}]"
        try:
            while (left := PUBLIC_TOKENS - sum(spoken.values())) > 0:
                part = make_text(chance, min(PUBLIC_MESSAGE_TOKENS, left))
                await peer.say(name, f"{name}-{len(spoken)}", part)
                spoken[part] = exact.count(part)
            await peer.say(name, f"{name}-last", text, within=300)
        except PeerFailed as error:
            ended = str(error)
        context = Context.read(self._script.messages)
        shown = sum(tokens for part, tokens in spoken.items() if part in context.users)
        try:
            size = await peer.measure(name)
        except PeerFailed:
            size = None
        return PublicCase(shown, self._script.calls[text], ended is None, size, ended)

    async def _say(self, process: PeerProcess, name: str, turn: int) -> float:
        return await process.say(name, f"{name}-{turn}", f"{turn} {QUESTION}", within=TURN_SECONDS)

    def _name(self, kind: str) -> str:
        self._numbers += 1
        return f"{kind}-{self._numbers}"


def _summarize(pairs: Sequence[tuple[float, float]]) -> Latency:
    return Latency(*(statistics.median(values) for values in zip(*pairs, strict=True)))
