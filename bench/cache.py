"""What a provider's prompt cache saves: a window that slides beside one that goes in epochs, on a real model.

    python -m bench.cache [--turns 100] [--budget 800] [--low-water 0.5]
    python -m bench.cache --frontier

Two sessions, alike but for their window of twenty turns, talk to a real model: a Temporal server, a worker, and
llama.cpp with one place for one prompt, which keeps what it has read of the prompt before. The questions are long
and the replies short, so that most of the time goes into reading prompts. What the model's server counts is printed
side by side: prompt tokens, how many of them it had in its cache, and the seconds that reading the others took.

`--frontier` shows what a low-water mark costs and what it gives: the share of the prompt that is cached and the
time that reading takes, against the tokens of conversation in the window, for windows of 20, 75 and 300 turns. These
contexts are projected from a thread made for it and go through the provider's encoder and its HTTP boundary, without
a session around them. Counted are whole epochs, from one cut to another, so that a session's beginning, when nothing
overflows yet, flatters nobody. What is predicted counts, without any model, how much of each context is the
beginning of the one before it.

The model works on one core, and all of the time is its own: at lowest priority on a machine with two cores and much
else to do, the two sessions took 18 minutes. `--budget 400` takes half.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import re
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import groupby, islice, pairwise, takewhile
from statistics import mean
from typing import Any, Final

import httpx
from rich import box
from rich.console import Console
from rich.table import Table

from clew import Clew, ContextPolicy
from clew.context.contexts import build_context, rebuild_context
from clew.context.projection import Projection
from clew.contract import ModelOptions, SessionConfig
from clew.contract.payloads import AssistantMessage, ConfigPayload, Payload, UserMessage
from clew.model.tokens import load_encoding
from clew.thread.entries import DEFAULT_LANE, Draft
from clew.thread.thread import Thread
from clew_activities.providers import ModelRequest, Provider, RedactedDecoder, Redaction, load_providers, stream
from clew_activities.providers.errors import EmptyReply, OutputExhausted
from deploy.local import model_server, temporal_server, worker_process

MODEL = "local:smollm2"
SYSTEM = "You answer in a few words."
REPLY_TOKENS, TURNS_A_WINDOW = 8, 20
ENCODING: Final = "o200k_base"
WINDOWS = {20: 40, 75: 30, 300: 18}
"""The turns that a window holds, and the tokens of each: the model itself takes no more than 8192."""
LOW_WATER = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SLIDING_CALLS, EPOCH_CALLS = 5, 40
RESERVE = 64
CACHED_PRICE = 0.1
"""Of a cached token, in units of another's: what the large providers ask for their newer models."""
PROSE = (
    "the ball of thread that leads back out of a labyrinth is not to be cut so we keep it at hand and go on from room"
    " to room past each door wall lamp stone and stair until the light of day shows where this long way has begun"
)


@dataclass(frozen=True)
class Reading:
    """What a model's server has read of prompts: tokens, how many more it had in its cache, and seconds."""

    tokens: int
    cached: int
    seconds: float

    @classmethod
    async def of(cls, http: httpx.AsyncClient) -> Reading:
        """The server's counters, since its start."""
        text = (await http.get("/metrics")).raise_for_status().text
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total")
        found = {name: re.search(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE) for name in names}
        tokens, cached, seconds = (float(match[1]) if match else 0.0 for match in found.values())
        return cls(int(tokens), int(cached), seconds)

    def since(self, other: Reading) -> Reading:
        """What came after another reading of the same server."""
        return Reading(self.tokens - other.tokens, self.cached - other.cached, self.seconds - other.seconds)

    @property
    def share(self) -> float:
        """Which part of the prompts was cached."""
        return self.cached / (self.tokens + self.cached)


@dataclass(frozen=True)
class Talk:
    """What a session's turns took. `predicted` is the cached share as its thread alone tells it."""

    reading: Reading
    predicted: float
    seconds: float


@dataclass(frozen=True)
class Point:
    """A window on the frontier. `useful` are the mean tokens of conversation in it; sliding has no low-water mark."""

    turns: int
    budget: int
    low_water: float | None
    useful: float
    predicted: float
    calls: int
    reading: Reading

    @property
    def seconds_a_call(self) -> float:
        """What reading one prompt took."""
        return self.reading.seconds / self.calls

    @property
    def bill(self) -> float:
        """What a call's prompt would cost at a provider, in tokens of the full price."""
        return (self.reading.tokens + CACHED_PRICE * self.reading.cached) / self.calls


def choose_policy(budget: int, low_water: float | None) -> ContextPolicy:
    """A policy with that budget: in epochs where there is a low-water mark, sliding where there is none."""
    size = ContextPolicy(max_input_tokens=budget + RESERVE, reserve_output_tokens=RESERVE)
    window: dict[str, Any] = {} if low_water is None else {"window": "epoch", "low_water": low_water}
    return size.overlay(ContextPolicy(**window))


def said(number: int, tokens: int) -> str:
    """A text of about so many tokens, like no other."""
    return " ".join([f"{number}:", *random.Random(number).choices(PROSE.split(), k=max(tokens - 6, 1))])


def predicted(contexts: Sequence[Projection]) -> float:
    """Which part of the contexts but the first a cache has that remembers the one before, in whole messages."""
    by, shared, total = load_encoding(ENCODING), 0, 0
    for before, now in pairwise(contexts):
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(before.messages, now.messages, strict=False))
        shared += sum(by.count_message(message) for message, _ in alike)
        total += sum(map(by.count_message, now.messages))
    return shared / total


@asynccontextmanager
async def model() -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """The model's base URL, and a client for its counters."""
    async with (
        model_server(replies_at_once=1, metrics=True) as url,
        httpx.AsyncClient(base_url=url.removesuffix("/v1"), trust_env=False, timeout=60) as http,
    ):
        yield url, http


async def side_by_side(turns: int, budget: int, low_water: float) -> tuple[Talk, Talk]:
    """The same turns in a session that slides and in one that goes in epochs."""
    with tempfile.TemporaryDirectory(prefix="clew-cache-", ignore_cleanup_errors=True) as folder:
        async with temporal_server(ui=False) as server, model() as (url, counters):
            env = {"CLEW_STORE": folder, "CLEW_PROVIDER_LOCAL_BASE_URL": url}
            async with worker_process(server.address, env=env):
                clew = await Clew.connect(server.address)
                sliding = await talk(clew, counters, "sliding", turns, choose_policy(budget, None))
                return sliding, await talk(clew, counters, "epoch", turns, choose_policy(budget, low_water))


async def talk(clew: Clew, counters: httpx.AsyncClient, name: str, turns: int, policy: ContextPolicy) -> Talk:
    """So many turns of a new session, of which twenty fill the budget."""
    question_tokens = policy.budget // TURNS_A_WINDOW - REPLY_TOKENS - 4
    options = ModelOptions(max_output_tokens=REPLY_TOKENS, temperature=0)
    session = await clew.open(name, model=MODEL, system_prompt=SYSTEM, context_policy=policy, model_options=options)
    before, begun = await Reading.of(counters), time.monotonic()
    for number in range(turns):
        await session.ask(said(number, question_tokens))
        if (number + 1) % 20 == 0:
            told(f"{name}: {number + 1} turns")
    seconds = time.monotonic() - begun
    reading = (await Reading.of(counters)).since(before)
    thread = Thread(await session.entries())
    contexts = [rebuild_context(thread, entry.recipe, None) for entry in thread if entry.recipe]
    return Talk(reading, predicted(contexts), seconds)


def conversation(turns: int, tokens: int) -> Thread:
    """A thread of so many turns of about so many tokens each, as a session would have committed it."""
    thread, by = Thread(), load_encoding(ENCODING)

    def commit(payload: Payload, run: int) -> None:
        draft = Draft(payload, {"run_id": f"run-{run}"})
        thread.append(draft.commit(thread.rev, f"e{thread.rev}", "2026-01-01T00:00:00.000Z", by))

    config = SessionConfig(model=MODEL, system_prompt=SYSTEM, encoding=ENCODING)
    commit(ConfigPayload.from_json(config.model_dump(mode="json") | {"context_policy": {}}), 0)
    for turn in range(turns):
        question, answer = (said(2 * turn + number, tokens // 2) for number in (0, 1))
        commit(UserMessage(context_ref=DEFAULT_LANE, role="user", content=question), turn)
        commit(AssistantMessage(context_ref=DEFAULT_LANE, role="assistant", content=answer), turn)
    return thread


def whole_epochs(contexts: Iterable[Projection], calls: int) -> list[Projection]:
    """The contexts of whole epochs, at least so many, and before them the one that the first of them is held to."""
    held: list[Projection] = []
    begun = False
    for shown in contexts:
        if held and shown.meta.epoch != held[-1].meta.epoch:
            if begun and len(held) > calls:
                break
            if not begun:
                begun, held = True, held[-1:]
        held.append(shown)
    return held


def contexts_of(thread: Thread, turns: int, policy: ContextPolicy) -> list[Projection]:
    """The contexts that a point is made of, once so many turns have filled the window."""
    lane = thread.get_lane(DEFAULT_LANE)
    starts = lane.turn_starts[turns:] if lane else []
    contexts = (build_context(thread, at_seq=seq, policy=policy) for seq in starts)
    if policy.window == "sliding":
        return list(islice(contexts, SLIDING_CALLS + 1))
    return whole_epochs(contexts, EPOCH_CALLS)


async def frontier(windows: Sequence[int]) -> list[Point]:
    """Every point, predicted and measured."""
    points = []
    # A server may let go of an idle connection just as it is used again; with new ones there is nobody to blame.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with model() as (url, counters), httpx.AsyncClient(limits=limits, trust_env=False) as http:
        provider = load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": url}).get("local")
        for turns, tokens in ((turns, WINDOWS[turns]) for turns in windows):
            thread = conversation(4 * turns + 2 * EPOCH_CALLS, tokens)
            system = load_encoding(ENCODING).count_system_prompt(SYSTEM)
            for low_water in (None, *LOW_WATER):
                contexts = contexts_of(thread, turns, choose_policy(turns * tokens, low_water))
                reading = await read(http, provider, counters, contexts)
                points.append(
                    Point(
                        turns,
                        turns * tokens,
                        low_water,
                        mean(shown.meta.estimated_tokens - system for shown in contexts[1:]),
                        predicted(contexts),
                        len(contexts) - 1,
                        reading,
                    )
                )
                told(f"windows of {turns} turns: {'sliding' if low_water is None else low_water}")
    return points


async def read(
    http: httpx.AsyncClient, provider: Provider, counters: httpx.AsyncClient, contexts: Sequence[Projection]
) -> Reading:
    """What the model's server reads of some contexts, sent one after another. The first is not counted."""
    before = Reading(0, 0, 0.0)
    for place, shown in enumerate(contexts):
        if place == 1:
            before = await Reading.of(counters)
        options = ModelOptions(max_output_tokens=1, temperature=0)
        request = ModelRequest(model="smollm2", messages=shown.messages, tools=shown.tool_spec, options=options)
        # Nobody asks what it says.
        with suppress(EmptyReply, OutputExhausted):
            await stream(http, provider, request, RedactedDecoder(provider.make_decoder(), Redaction()))
    return (await Reading.of(counters)).since(before)


def told(what: str) -> None:
    """Who waits at the screen is told how far it is."""
    print(what, file=sys.stderr, flush=True)


def show_talks(turns: int, budget: int, low_water: float, talks: tuple[Talk, Talk], console: Console) -> None:
    """Both sessions, side by side, and the one in units of the other."""
    sliding, epoch = talks
    table = Table("", "sliding", "epoch", "epoch / sliding", title=f"{turns} turns, a budget of {budget:,} tokens")
    read, other = sliding.reading, epoch.reading
    for name, form, first, second in (
        ("prompt tokens", "{:,.0f}", read.tokens + read.cached, other.tokens + other.cached),
        ("cached of them", "{:.1%}", read.share, other.share),
        ("cached, predicted from the thread", "{:.1%}", sliding.predicted, epoch.predicted),
        ("tokens read", "{:,.0f}", read.tokens, other.tokens),
        ("prompt processing", "{:.1f} s", read.seconds, other.seconds),
        ("the whole session", "{:.1f} s", sliding.seconds, epoch.seconds),
    ):
        ratio = "" if "%" in form else f"{second / first:.2f}"
        table.add_row(name, form.format(first), form.format(second), ratio)
    console.print(table)
    console.print(f"low-water mark {low_water:g}; a cached token is one that the model's server did not read again")


def show_frontier(points: Sequence[Point], console: Console) -> None:
    """A table for each window."""
    for turns, group in groupby(points, key=lambda point: point.turns):
        sliding, *epochs = group
        table = Table(
            *("mark", "useful", "of sliding", "cached", "predicted", "ms a call", "of sliding", "bill", "calls"),
            title=f"windows of {turns} turns, a budget of {sliding.budget:,} tokens",
            box=box.SIMPLE,
            pad_edge=False,
        )
        for point in (sliding, *epochs):
            table.add_row(
                "sliding" if point.low_water is None else f"{point.low_water:g}",
                f"{point.useful:,.0f}",
                f"{point.useful / sliding.useful:.0%}",
                f"{point.reading.share:.1%}",
                f"{point.predicted:.1%}",
                f"{point.seconds_a_call * 1e3:,.0f}",
                f"{point.seconds_a_call / sliding.seconds_a_call:.1%}",
                f"{point.bill / sliding.bill:.0%}",
                f"{point.calls}",
            )
        console.print(table)
    console.print("mark: low-water; useful: tokens of conversation, on average; ms: of prompt processing")
    console.print(f"bill: of sliding's, where a cached token costs {CACHED_PRICE:.0%} of the price")


def main(arguments: list[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.cache", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, default=100, help="of each session (%(default)s)")
    parser.add_argument("--budget", type=int, default=800, help="tokens of a context (%(default)s)")
    parser.add_argument("--low-water", type=float, default=0.5, help="of the epochs (%(default)s)")
    parser.add_argument("--frontier", action="store_true", help="what low-water marks cost and give, instead")
    parser.add_argument("--windows", type=int, nargs="+", choices=tuple(WINDOWS), default=tuple(WINDOWS),
                        help="of the frontier, in turns (%(default)s)")  # fmt: skip
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        if options.frontier:
            show_frontier(asyncio.run(frontier(options.windows)), Console())
        else:
            talks = asyncio.run(side_by_side(options.turns, options.budget, options.low_water))
            show_talks(options.turns, options.budget, options.low_water, talks, Console())
    except KeyboardInterrupt:
        return 130
    print(f"This took {time.monotonic() - begun:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
