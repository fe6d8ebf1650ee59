"""Measures how much a prompt cache saves with a sliding window and with epochs, on a real model.

    python -m bench.cache [--turns 100] [--budget 800] [--low-water 0.5]
    python -m bench.cache --frontier

Two sessions that differ only in their window of twenty turns talk to a real model: a Temporal server, a worker, and
llama.cpp with one slot, which caches the previous prompt. The questions are long and the replies short, so most of
the time goes into reading prompts. The counters of the model's server are printed side by side: prompt tokens, those
of them that were cached, and the seconds that reading the others took.

`--frontier` measures low-water marks for windows of 20, 75 and 300 turns: the cached share of the prompts and the
time for reading them, against the tokens of conversation in the window. Its contexts are projected from a generated
thread and go through the provider's encoder and its HTTP boundary, without a session. It counts complete epochs, from
one truncation to the next, and leaves out the beginning of a session, when nothing overflows yet. The predicted share
is computed without a model: the part of each context that is the beginning of the one before it.

The model uses one core and takes almost all of the time. On a machine with two cores and other work to do the two
sessions took 18 minutes. `--budget 400` takes half.
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

from bench.recording import add_write_option, record
from clew import Clew, ContextPolicy
from clew.contract import ModelOptions, SessionConfig
from clew.contract.payloads import AssistantMessage, ConfigPayload, Payload, UserMessage
from clew.local import model_server, temporal_server, worker_process
from clew_activities.providers import ModelRequest, Provider, RedactedDecoder, Redaction, load_providers, stream
from clew_activities.providers.provider_errors import EmptyReply, OutputExhausted
from clew_workflows.contract.tokens import load_encoding
from clew_workflows.thread.context.contexts import build_context, rebuild_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import DEFAULT_LANE, Draft
from clew_workflows.thread.thread import Thread

MODEL = "local:smollm2"
SYSTEM = "You answer in a few words."
REPLY_TOKENS, TURNS_A_WINDOW = 8, 20
ENCODING: Final = "o200k_base"
WINDOWS = {20: 40, 75: 30, 300: 18}
"""Turns of a window: tokens of each turn. The model's own window has 8192 tokens."""
LOW_WATER = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SLIDING_CALLS, EPOCH_CALLS = 5, 40
RESERVE = 64
CACHED_PRICE = 0.1
"""Price of a cached token, relative to an uncached one, at large providers for their newer models."""
PROSE = (
    "the ball of thread that leads back out of a labyrinth is not to be cut so we keep it at hand and go on from room"
    " to room past each door wall lamp stone and stair until the light of day shows where this long way has begun"
)


@dataclass(frozen=True)
class Reading:
    """Counters of a model's server.

    Attributes:
        tokens: Prompt tokens that it read.
        cached: Prompt tokens that its cache taken.
        seconds: Seconds that reading took.
    """

    tokens: int
    cached: int
    seconds: float

    @classmethod
    async def fetch(cls, http: httpx.AsyncClient) -> Reading:
        """Read the server's counters since its start."""
        text = (await http.get("/metrics")).raise_for_status().text
        names = ("prompt_tokens_total", "prompt_tokens_cached_total", "prompt_seconds_total")
        matches = {name: re.search(rf"^llamacpp:{name} (\S+)$", text, re.MULTILINE) for name in names}
        tokens, cached, seconds = (float(match[1]) if match else 0.0 for match in matches.values())
        return cls(int(tokens), int(cached), seconds)

    def subtract(self, other: Reading) -> Reading:
        """Subtract an earlier reading of the same server."""
        return Reading(self.tokens - other.tokens, self.cached - other.cached, self.seconds - other.seconds)

    @property
    def share(self) -> float:
        """The share of the prompt tokens that was cached."""
        return self.cached / (self.tokens + self.cached)


@dataclass(frozen=True)
class Talk:
    """The measurements of one session.

    Attributes:
        reading: Counters of the model's server.
        predicted_share: Cached share, computed from the thread alone.
        seconds: Seconds that all turns took.
    """

    reading: Reading
    predicted_share: float
    seconds: float


@dataclass(frozen=True)
class Point:
    """A window on the frontier.

    Attributes:
        turns: Turns that the window holds.
        budget: Tokens of the window.
        low_water: Its low-water mark; None: it slides.
        useful: Mean tokens of conversation in it.
        predicted_share: Cached share, computed from the thread alone.
        calls: Number of calls measured.
        reading: Counters of the model's server.
    """

    turns: int
    budget: int
    low_water: float | None
    useful: float
    predicted_share: float
    calls: int
    reading: Reading

    @property
    def seconds_a_call(self) -> float:
        """Seconds for reading one prompt."""
        return self.reading.seconds / self.calls

    @property
    def bill(self) -> float:
        """Mean price of a call's prompt, in units of an uncached token."""
        return (self.reading.tokens + CACHED_PRICE * self.reading.cached) / self.calls


def choose_policy(budget: int, low_water: float | None) -> ContextPolicy:
    """Make a policy with a budget: in epochs with a low-water mark, sliding without one."""
    size = ContextPolicy(max_input_tokens=budget + RESERVE, reserve_output_tokens=RESERVE)
    window: dict[str, Any] = {} if low_water is None else {"window": "epoch", "low_water": low_water}
    return size.overlay(ContextPolicy(**window))


def make_text(number: int, tokens: int) -> str:
    """Make a text of about `tokens` tokens that differs for each number."""
    return " ".join([f"{number}:", *random.Random(number).choices(PROSE.split(), k=max(tokens - 6, 1))])


def predict_cached_share(contexts: Sequence[Projection]) -> float:
    """Compute the share of the contexts that a cache of the previous context holds, in complete messages.

    The first context is not counted.
    """
    by, shared, total = load_encoding(ENCODING), 0, 0
    for before, now in pairwise(contexts):
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(before.messages, now.messages, strict=False))
        shared += sum(by.count_message(message) for message, _ in alike)
        total += sum(map(by.count_message, now.messages))
    return shared / total


@asynccontextmanager
async def run_model() -> AsyncIterator[tuple[str, httpx.AsyncClient]]:
    """Start the model. Yields its base URL, and a client for its counters."""
    async with (
        model_server(replies_at_once=1, metrics=True) as url,
        httpx.AsyncClient(base_url=url.removesuffix("/v1"), trust_env=False, timeout=60) as http,
    ):
        yield url, http


async def compare_sessions(turns: int, budget: int, low_water: float) -> tuple[Talk, Talk]:
    """Run the same turns in a session with a sliding window and in one with epochs."""
    with tempfile.TemporaryDirectory(prefix="clew-cache-", ignore_cleanup_errors=True) as folder:
        async with temporal_server(ui=False) as server, run_model() as (url, counters):
            env = {"CLEW_STORE": folder, "CLEW_PROVIDER_LOCAL_BASE_URL": url}
            async with worker_process(server.address, env=env):
                clew = await Clew.connect(server.address)
                sliding = await run_session(clew, counters, "sliding", turns, choose_policy(budget, None))
                return sliding, await run_session(clew, counters, "epoch", turns, choose_policy(budget, low_water))


async def run_session(clew: Clew, counters: httpx.AsyncClient, name: str, turns: int, policy: ContextPolicy) -> Talk:
    """Run a new session; twenty of its turns fill the budget."""
    question_tokens = policy.budget // TURNS_A_WINDOW - REPLY_TOKENS - 4
    options = ModelOptions(max_output_tokens=REPLY_TOKENS, temperature=0)
    session = await clew.open(name, model=MODEL, system_prompt=SYSTEM, context_policy=policy, model_options=options)
    before, begun = await Reading.fetch(counters), time.monotonic()
    for number in range(turns):
        await session.ask(make_text(number, question_tokens))
        if (number + 1) % 20 == 0:
            report_progress(f"{name}: {number + 1} turns")
    seconds = time.monotonic() - begun
    reading = (await Reading.fetch(counters)).subtract(before)
    thread = Thread(await session.entries())
    contexts = [rebuild_context(thread, entry.recipe, None) for entry in thread if entry.recipe]
    return Talk(reading, predict_cached_share(contexts), seconds)


def make_conversation(turns: int, tokens: int) -> Thread:
    """Make a thread of turns of about `tokens` tokens each, as a session would commit it."""
    thread, by = Thread(), load_encoding(ENCODING)

    def commit(payload: Payload, run: int) -> None:
        draft = Draft(payload, {"run_id": f"run-{run}"})
        thread.append(draft.commit(thread.rev, f"e{thread.rev}", "2026-01-01T00:00:00.000Z", by))

    config = SessionConfig(model=MODEL, system_prompt=SYSTEM, encoding=ENCODING)
    commit(ConfigPayload.from_json(config.model_dump(mode="json") | {"context_policy": {}}), 0)
    for turn in range(turns):
        question, answer = (make_text(2 * turn + number, tokens // 2) for number in (0, 1))
        commit(UserMessage(context_ref=DEFAULT_LANE, role="user", content=question), turn)
        commit(AssistantMessage(context_ref=DEFAULT_LANE, role="assistant", content=answer), turn)
    return thread


def take_whole_epochs(contexts: Iterable[Projection], calls: int) -> list[Projection]:
    """Take the contexts of complete epochs, at least `calls`, and first the last context of the epoch before."""
    taken: list[Projection] = []
    begun = False
    for context in contexts:
        if taken and context.meta.epoch != taken[-1].meta.epoch:
            if begun and len(taken) > calls:
                break
            if not begun:
                begun, taken = True, taken[-1:]
        taken.append(context)
    return taken


def list_contexts(thread: Thread, turns: int, policy: ContextPolicy) -> list[Projection]:
    """List the contexts that a point measures, from the call on at which the window is full."""
    lane = thread.get_lane(DEFAULT_LANE)
    starts = lane.turn_starts[turns:] if lane else []
    contexts = (build_context(thread, at_seq=seq, policy=policy) for seq in starts)
    if policy.window == "sliding":
        return list(islice(contexts, SLIDING_CALLS + 1))
    return take_whole_epochs(contexts, EPOCH_CALLS)


async def measure_frontier(windows: Sequence[int]) -> list[Point]:
    """Predict and measure every point."""
    points = []
    # The server may close an idle connection while it is used again. New connections avoid that failure.
    limits = httpx.Limits(max_keepalive_connections=0)
    async with run_model() as (url, counters), httpx.AsyncClient(limits=limits, trust_env=False) as http:
        provider = load_providers({"CLEW_PROVIDER_LOCAL_BASE_URL": url}).get("local")
        for turns, tokens in ((turns, WINDOWS[turns]) for turns in windows):
            thread = make_conversation(4 * turns + 2 * EPOCH_CALLS, tokens)
            system = load_encoding(ENCODING).count_system_prompt(SYSTEM)
            for low_water in (None, *LOW_WATER):
                contexts = list_contexts(thread, turns, choose_policy(turns * tokens, low_water))
                reading = await measure_reading(http, provider, counters, contexts)
                points.append(
                    Point(
                        turns,
                        turns * tokens,
                        low_water,
                        mean(context.meta.estimated_tokens - system for context in contexts[1:]),
                        predict_cached_share(contexts),
                        len(contexts) - 1,
                        reading,
                    )
                )
                report_progress(f"windows of {turns} turns: {'sliding' if low_water is None else low_water}")
    return points


async def measure_reading(
    http: httpx.AsyncClient, provider: Provider, counters: httpx.AsyncClient, contexts: Sequence[Projection]
) -> Reading:
    """Send contexts one after another, and measure how the model's server reads all but the first."""
    before = Reading(0, 0, 0.0)
    for index, context in enumerate(contexts):
        if index == 1:
            before = await Reading.fetch(counters)
        options = ModelOptions(max_output_tokens=1, temperature=0)
        request = ModelRequest(model="smollm2", messages=context.messages, tools=context.tool_spec, options=options)
        # The reply does not matter, only the prompt.
        with suppress(EmptyReply, OutputExhausted):
            await stream(http, provider, request, RedactedDecoder(provider.make_decoder(request), Redaction()))
    return (await Reading.fetch(counters)).subtract(before)


def report_progress(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


def show_talks(turns: int, budget: int, low_water: float, talks: tuple[Talk, Talk], console: Console) -> None:
    """Print both sessions side by side, and their ratio."""
    sliding, epoch = talks
    table = Table("", "sliding", "epoch", "epoch / sliding", title=f"{turns} turns, a budget of {budget:,} tokens")
    read, other = sliding.reading, epoch.reading
    for name, form, first, second in (
        ("prompt tokens", "{:,.0f}", read.tokens + read.cached, other.tokens + other.cached),
        ("cached of them", "{:.1%}", read.share, other.share),
        ("cached, predicted from the thread", "{:.1%}", sliding.predicted_share, epoch.predicted_share),
        ("tokens read", "{:,.0f}", read.tokens, other.tokens),
        ("prompt processing", "{:.1f} s", read.seconds, other.seconds),
        ("the whole session", "{:.1f} s", sliding.seconds, epoch.seconds),
    ):
        ratio = "" if "%" in form else f"{second / first:.2f}"
        table.add_row(name, form.format(first), form.format(second), ratio)
    console.print(table)
    console.print(f"low-water mark {low_water:g}; a cached token is one that the model's server did not read again")


def show_frontier(points: Sequence[Point], console: Console) -> None:
    """Print a table for each number of turns."""
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
                f"{point.predicted_share:.1%}",
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
    parser.add_argument("--frontier", action="store_true", help="measure low-water marks instead of two sessions")
    parser.add_argument("--windows", type=int, nargs="+", choices=tuple(WINDOWS), default=tuple(WINDOWS),
                        help="of the frontier, in turns (%(default)s)")  # fmt: skip
    add_write_option(parser)
    options = parser.parse_args(arguments)
    begun = time.monotonic()
    try:
        with record("cache-frontier" if options.frontier else "cache", options.write) as console:
            if options.frontier:
                show_frontier(asyncio.run(measure_frontier(options.windows)), console)
            else:
                talks = asyncio.run(compare_sessions(options.turns, options.budget, options.low_water))
                show_talks(options.turns, options.budget, options.low_water, talks, console)
    except KeyboardInterrupt:
        return 130
    print(f"This took {time.monotonic() - begun:.0f} s.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
