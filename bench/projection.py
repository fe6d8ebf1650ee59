"""Measures what a projection costs: it depends on the window, not on the length of the thread.

    python -m bench.projection

The first table projects the same windows from threads of 1 000 and of 100 000 entries, alternately, so that the load
of the machine affects both alike. The ratio of the two medians must stay under 2. The last row reads all messages of
the thread instead, to show the ratio of an algorithm that depends on its length.

The second table follows a session: a turn is counted and appended, and the next context is projected, when the thread
has 1 000, 10 000 and 100 000 messages. A call must cost at the end less than twice what it cost at the beginning, so
that the work of n calls grows like n.

The third table compares Clew with `trim_messages` of `langchain-core`, with the same 10 000 messages, tokenizer and
budget.

- *Next call* is one more turn and the next context. Clew must be 50 times as fast.
- *Cold* begins with entries, as on a worker that takes a session over. Clew counted their tokens when they were
  committed; `trim_messages` counts its messages now. Clew must be 5 times as fast.
- *Cold, counting all* makes Clew count them again, too, which it never does outside of this comparison.

The last columns are for a caller of `trim_messages` that caches the count of each message. `bench/langchain.py` says
how to install `langchain-core`; without it the third table is left out.

Exit code 1: a limit is exceeded.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.langchain import INSTALL, Counter, LangChain
from bench.recording import add_write_option, record
from clew.contract.payloads import (
    AppliedReplace,
    OperationPayload,
    Payload,
    StoredSnapshot,
    SummaryPayload,
    read_payload,
)
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import Encoding, load_encoding
from clew_workflows.thread.context.lane_view import ProjectionInput
from clew_workflows.thread.context.projection import Projection, project
from clew_workflows.thread.entries import DEFAULT_LANE, Draft
from clew_workflows.thread.thread import Thread

SMALL, MESSAGES, LARGE, LIMIT = 1_000, 10_000, 100_000, 2.0
ENCODING = "o200k_base"
EPOCH = ContextPolicy(window="epoch")
WINDOWS = {"sliding": ContextPolicy(), "epoch": EPOCH}
BUDGETS = {"sliding": ContextPolicy(), "epoch": ContextPolicy.long_context().overlay(EPOCH)}
AT = "2026-01-01T00:00:00.000Z"
SYSTEM = "You answer briefly."
WORDS = "The ball of thread that leads back out of the labyrinth is not to be cut. " * 4


def make_conversation(entries: int, by: Encoding | None = None) -> Thread:
    """Make a thread of runs of four entries: a question, a tool call, its result, and the answer."""
    return extend(Thread(), entries, by or load_encoding("heuristic"))


def extend(thread: Thread, entries: int, by: Encoding) -> Thread:
    """Append entries to a thread, and return it."""
    for seq in range(thread.rev, thread.rev + entries):
        call = {"id": f"call-{seq // 4:06}", "name": "look_up", "arguments": {"page": 1}}
        payload: dict[str, Any] = (
            {"role": "user", "content": WORDS},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": WORDS, "tool_call_id": call["id"], "name": "look_up"},
            {"role": "assistant", "content": WORDS},
        )[seq % 4]
        message = read_payload("ai_message", {"context_ref": "default", **payload})
        thread.append(Draft(message, {"run_id": f"run-{seq // 4}"}).commit(seq, f"e{seq}", AT, by))
    return thread


def insert_entry(thread: Thread, payload: Payload, talk: int) -> Thread:
    """Copy a thread with one more entry, `talk` entries before its end."""
    seq = thread.rev - talk
    extra = Draft(payload).commit(seq, "extra", AT, load_encoding("heuristic"))
    later = (replace(entry, seq=entry.seq + 1) for entry in thread.slice(seq, thread.last_seq))
    return Thread([*thread.slice(0, seq - 1), extra, *later])


def insert_summary(thread: Thread) -> Thread:
    """Copy a thread with a summary of all but its newest forty entries."""
    to_seq = thread.rev - 41
    summary = SummaryPayload(
        context_ref=DEFAULT_LANE, content=WORDS, format="text", from_seq=0, to_seq=to_seq, model="local:tiny"
    )
    return insert_entry(thread, summary, 40)


def insert_snapshot(thread: Thread) -> Thread:
    """Copy a thread with a snapshot in place of all but its newest forty entries."""
    snapshot = StoredSnapshot(messages=[{"role": "user", "content": WORDS}])
    operation = AppliedReplace(type="replace", reason="compaction", result_context=snapshot)
    return insert_entry(thread, OperationPayload(op_id="op", context_ref=DEFAULT_LANE, operation=operation), 40)


def make_input(thread: Thread, policy: ContextPolicy | None = None, at_seq: int | None = None) -> ProjectionInput:
    """Make the input of one projection."""
    return ProjectionInput(
        thread, policy or ContextPolicy(), system=SYSTEM, system_tokens=20, at_seq=at_seq, encoding="heuristic"
    )


def read_all_messages(thread: Thread) -> list[Any]:
    """Read every message of the thread, as a projection without indexes would."""
    return [entry.message for entry in thread]


def measure_seconds(work: Callable[[], object]) -> float:
    """Measure how long some work takes, in seconds."""
    start = perf_counter()
    work()
    return perf_counter() - start


def measure_in_turns(small: Callable[[], object], large: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Measure the median seconds of two works that are done alternately."""
    small()
    large()
    times = [(measure_seconds(small), measure_seconds(large)) for _ in range(rounds)]
    return median(first for first, _ in times), median(second for _, second in times)


def compare_thread_sizes(small: int, large: int, rounds: int, console: Console) -> bool:
    """Print the first table. Returns whether every ratio is under the limit."""
    threads = [make_conversation(small), make_conversation(large)]
    rows: list[tuple[str, list[ProjectionInput]]] = [
        ("default policy", [make_input(thread) for thread in threads]),
        ("short_context", [make_input(thread, ContextPolicy.short_context()) for thread in threads]),
        ("40 messages", [make_input(thread, ContextPolicy(max_messages=40)) for thread in threads]),
        ("at a seq half-way", [make_input(thread, at_seq=thread.rev // 2) for thread in threads]),
        ("after a summary", [make_input(insert_summary(thread)) for thread in threads]),
        ("after a replace", [make_input(insert_snapshot(thread)) for thread in threads]),
    ]
    table = Table("a projection", f"{small:,} entries", f"{large:,} entries", "ratio", "messages")
    worst = 0.0
    for name, (few, many) in rows:
        first, second = measure_in_turns(partial(project, few), partial(project, many), rounds)
        counts = [len(project(inputs).messages) for inputs in (few, many)]
        assert counts[0] == counts[1], "both threads show the same window"
        worst = max(worst, second / first)
        table.add_row(name, *_write_pair(first, second), f"{counts[0]}")
    first, second = measure_in_turns(
        partial(read_all_messages, threads[0]), partial(read_all_messages, threads[1]), max(rounds // 40, 3)
    )
    table.add_row("reading all messages", *_write_pair(first, second), "")
    console.print(table)
    console.print(f"The largest ratio of a projection is {worst:.2f}, and must be under {LIMIT:g}.")
    return worst < LIMIT


def _write_pair(first: float, second: float) -> tuple[str, str, str]:
    return f"{first * 1e3:.3f} ms", f"{second * 1e3:.3f} ms", f"{second / first:.2f}"


def follow_session(sizes: Sequence[int], rounds: int, console: Console) -> bool:
    """Print the second table. Returns whether every ratio is under the limit."""
    by, thread = load_encoding(ENCODING), Thread()
    times: dict[str, list[float]] = {window: [] for window in WINDOWS}
    for size in sizes:
        extend(thread, size - thread.rev, by)
        taken: dict[str, list[float]] = {window: [] for window in WINDOWS}
        for _ in range(rounds):
            for window, policy in WINDOWS.items():
                taken[window].append(measure_seconds(partial(project_next_call, thread, policy, by)))
        for window in WINDOWS:
            times[window].append(median(taken[window]))
    table = Table("a turn more, and a call", *(f"{size:,} messages" for size in sizes), "ratio")
    for window, row in times.items():
        table.add_row(window, *(f"{seconds * 1e3:.3f} ms" for seconds in row), f"{row[-1] / row[0]:.2f}")
    console.print(table)
    return all(row[-1] / row[0] < LIMIT for row in times.values())


def project_next_call(thread: Thread, policy: ContextPolicy, by: Encoding) -> Projection:
    """Count and commit one more turn, and project the context of the next call."""
    return project(make_input(extend(thread, 4, by), policy))


def compare_with_langchain(other: LangChain, messages: int, rounds: int, console: Console) -> bool:
    """Print the third table. Returns whether Clew is as much faster as it must be."""
    table = Table(
        *("", "clew", "trim_messages", "ratio", "counts remembered", "ratio to it"),
        title=f"langchain-core {other.version}, {messages:,} messages",
    )
    enough = True
    for name, policy in BUDGETS.items():
        for row, ours, theirs, remembered, floor in _measure_with_langchain(other, messages, policy, rounds):
            enough = enough and theirs / ours >= floor
            table.add_row(
                f"{policy.budget:,} tokens, {name}: {row}",
                *(f"{ours * 1e3:.2f} ms", f"{theirs * 1e3:.1f} ms", f"{theirs / ours:.0f}"),
                *(f"{remembered * 1e3:.1f} ms", f"{remembered / ours:.1f}"),
            )
    console.print(table)
    return enough


def _measure_with_langchain(
    other: LangChain, messages: int, policy: ContextPolicy, rounds: int
) -> Iterator[tuple[str, float, float, float, float]]:
    """Yield rows: title, seconds of Clew, of `trim_messages`, of it with cached counts, and the least ratio."""
    by = load_encoding(ENCODING)
    thread = make_conversation(messages, by)
    theirs = other.convert([{"role": "system", "content": SYSTEM}, *(entry.message for entry in thread)])
    turn = [entry.message for entry in make_conversation(4, by)]
    plain, remembering = other.make_counter(), other.make_caching_counter()

    def project_cold() -> Projection:
        return project(make_input(Thread(thread), policy))

    def project_counting() -> Projection:
        for entry in thread:
            by.count_message(entry.message)
        return project_cold()

    def trim(counter: Counter) -> list[Any]:
        return other.trim(theirs, policy.budget, counter)

    def trim_next(counter: Counter) -> list[Any]:
        theirs.extend(other.convert(turn))
        return trim(counter)

    few = max(rounds // 40, 2)
    plain_seconds, first = measure_median(partial(trim, plain), few), measure_seconds(partial(trim, remembering))
    yield "cold", measure_median(project_cold, few), plain_seconds, first, 5
    yield "cold, counting all", measure_median(project_counting, few), plain_seconds, first, 0
    project_next_call(thread, policy, by)
    seconds = measure_median(partial(project_next_call, thread, policy, by), rounds)
    yield (
        "next call",
        seconds,
        measure_median(partial(trim_next, plain), few),
        measure_median(partial(trim_next, remembering), few),
        50,
    )


def measure_median(work: Callable[[], object], rounds: int) -> float:
    """Measure the median seconds of some work."""
    return median(measure_seconds(work) for _ in range(rounds))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables, and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.projection", description="What a projection costs.")
    parser.add_argument("--small", type=int, default=SMALL, help="entries of the short thread (%(default)s)")
    parser.add_argument("--large", type=int, default=LARGE, help="entries of the long thread (%(default)s)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="beside langchain-core (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="projections of each thread (%(default)s)")
    add_write_option(parser)
    options = parser.parse_args(arguments)
    with record("projection", options.write) as console:
        fast = [
            compare_thread_sizes(options.small, options.large, options.rounds, console),
            follow_session((options.small, options.messages, options.large), options.rounds, console),
        ]
        try:
            other = LangChain(load_encoding(ENCODING))
        except ImportError:
            print(f"\nlangchain-core is not installed, so the comparison with it is left out. {INSTALL}")
        else:
            fast.append(compare_with_langchain(other, options.messages, options.rounds, console))
    return 0 if all(fast) else 1


if __name__ == "__main__":
    sys.exit(main())
