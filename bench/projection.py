"""What a projection costs: by its window, and not by its thread.

    python -m bench.projection

The first table projects the same windows out of a thread of 1 000 and of one of 100 000 entries, in turns, so that
both see the same machine. The ratio of the two medians says what matters, and is to stay under 2; the last row
folds the whole thread instead, to show what the ratio would be if it were not so.

The second follows a session: a turn is counted and appended, and the next context is projected, when the thread has
1 000, 10 000 and 100 000 messages. A call is to cost at the end less than twice what it did at the beginning, so
that the work of n calls grows like n.

The third sets the same conversation of 10 000 messages before `trim_messages` of `langchain-core`, with the same
tokenizer and the same budget. *Next call* is a turn more and the next context, and is to be 50 times as fast. *Cold*
begins with entries, as a worker that takes a session over does. Their tokens were counted when they were committed
and are not counted again; `trim_messages` has its messages, and must count them. It is to be 5 times as fast. *Cold,
counting all* counts them once more, which Clew never does, for the sake of the comparison. The last columns are for
a caller of `trim_messages` who remembers what each message costs. How to install it is said in `bench/langchain.py`;
without it the third table is left out.

Exit code 1: something is slower than it is to be.
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

from bench.langchain import INSTALL, Counter, LangChain
from clew.context.projection import Projection, project
from clew.context.projection_input import ProjectionInput
from clew.contract.payloads import (
    AppliedReplace,
    OperationPayload,
    Payload,
    StoredSnapshot,
    SummaryPayload,
    read_payload,
)
from clew.contract.policy import ContextPolicy
from clew.model.tokens import Encoding, load_encoding
from clew.thread.entries import DEFAULT_LANE, Draft
from clew.thread.thread import Thread

SMALL, MESSAGES, LARGE, LIMIT = 1_000, 10_000, 100_000, 2.0
ENCODING = "o200k_base"
EPOCH = ContextPolicy(window="epoch")
WINDOWS = {"sliding": ContextPolicy(), "epoch": EPOCH}
BUDGETS = {"sliding": ContextPolicy(), "epoch": ContextPolicy.long_context().overlay(EPOCH)}
AT = "2026-01-01T00:00:00.000Z"
SYSTEM = "You answer briefly."
WORDS = "The ball of thread that leads back out of the labyrinth is not to be cut. " * 4


def conversation(entries: int, by: Encoding | None = None) -> Thread:
    """A thread of runs of four entries: a question, a tool's call and result, and the answer."""
    return extended(Thread(), entries, by or load_encoding("heuristic"))


def extended(thread: Thread, entries: int, by: Encoding) -> Thread:
    """The thread itself, with so many entries more."""
    for seq in range(thread.rev, thread.rev + entries):
        call = {"id": f"call-{seq // 4:06}", "name": "look_up", "arguments": {"page": 1}}
        payload: dict[str, Any] = (
            {"role": "user", "content": WORDS},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": WORDS, "tool_call_id": call["id"], "name": "look_up"},
            {"role": "assistant", "content": WORDS},
        )[seq % 4]
        said = read_payload("ai_message", {"context_ref": "default", **payload})
        thread.append(Draft(said, {"run_id": f"run-{seq // 4}"}).commit(seq, f"e{seq}", AT, by))
    return thread


def with_entry(thread: Thread, payload: Payload, talk: int) -> Thread:
    """A copy of a thread with one more entry put in, so many entries before its end."""
    place = thread.rev - talk
    extra = Draft(payload).commit(place, "extra", AT, load_encoding("heuristic"))
    later = (replace(entry, seq=entry.seq + 1) for entry in thread.slice(place, thread.last_seq))
    return Thread([*thread.slice(0, place - 1), extra, *later])


def summed(thread: Thread) -> Thread:
    """The thread with all but its newest forty entries summed up."""
    to_seq = thread.rev - 41
    summary = SummaryPayload(
        context_ref=DEFAULT_LANE, content=WORDS, format="text", from_seq=0, to_seq=to_seq, model="local:tiny"
    )
    return with_entry(thread, summary, 40)


def replaced(thread: Thread) -> Thread:
    """The thread with a snapshot in place of all but its newest forty entries."""
    snapshot = StoredSnapshot(messages=[{"role": "user", "content": WORDS}])
    operation = AppliedReplace(type="replace", reason="compaction", result_context=snapshot)
    return with_entry(thread, OperationPayload(op_id="op", context_ref=DEFAULT_LANE, operation=operation), 40)


def given(thread: Thread, policy: ContextPolicy | None = None, at_seq: int | None = None) -> ProjectionInput:
    """The input of one projection."""
    return ProjectionInput(
        thread, policy or ContextPolicy(), system=SYSTEM, system_tokens=20, at_seq=at_seq, encoding="heuristic"
    )


def whole(thread: Thread) -> list[Any]:
    """What every projection would cost if it folded the thread."""
    return [entry.message for entry in thread]


def timed(work: Callable[[], object]) -> float:
    """How long some work takes, in seconds."""
    start = perf_counter()
    work()
    return perf_counter() - start


def compare(small: Callable[[], object], large: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The median times of two works that are done in turns."""
    small()
    large()
    times = [(timed(small), timed(large)) for _ in range(rounds)]
    return median(first for first, _ in times), median(second for _, second in times)


def by_window(small: int, large: int, rounds: int) -> bool:
    """The first table; whether every ratio is under the limit."""
    threads = [conversation(small), conversation(large)]
    rows: list[tuple[str, list[ProjectionInput]]] = [
        ("default policy", [given(thread) for thread in threads]),
        ("short_context", [given(thread, ContextPolicy.short_context()) for thread in threads]),
        ("40 messages", [given(thread, ContextPolicy(max_messages=40)) for thread in threads]),
        ("at a seq half-way", [given(thread, at_seq=thread.rev // 2) for thread in threads]),
        ("after a summary", [given(summed(thread)) for thread in threads]),
        ("after a replace", [given(replaced(thread)) for thread in threads]),
    ]
    print(f"{'':24}{small:>12,}{large:>12,}{'ratio':>10}   messages")
    worst = 0.0
    for name, (few, many) in rows:
        first, second = compare(partial(project, few), partial(project, many), rounds)
        shown = [len(project(some).messages) for some in (few, many)]
        assert shown[0] == shown[1], "both threads show the same window"
        worst = max(worst, second / first)
        print(f"{name:24}{first * 1e3:>9.3f} ms{second * 1e3:>9.3f} ms{second / first:>9.2f}x{shown[0]:>11}")
    first, second = compare(partial(whole, threads[0]), partial(whole, threads[1]), max(rounds // 40, 3))
    print(f"{'folding everything':24}{first * 1e3:>9.3f} ms{second * 1e3:>9.3f} ms{second / first:>9.2f}x")
    print(f"\nThe largest ratio of a projection is {worst:.2f}, and is to be under {LIMIT:g}.")
    return worst < LIMIT


def over_a_session(sizes: Sequence[int], rounds: int) -> bool:
    """The second table; whether a call costs at the end what it did at the beginning."""
    by, thread = load_encoding(ENCODING), Thread()
    times: dict[str, list[float]] = {window: [] for window in WINDOWS}
    for size in sizes:
        extended(thread, size - thread.rev, by)
        taken: dict[str, list[float]] = {window: [] for window in WINDOWS}
        for _ in range(rounds):
            for window, policy in WINDOWS.items():
                taken[window].append(timed(partial(next_call, thread, policy, by)))
        for window in WINDOWS:
            times[window].append(median(taken[window]))
    print(f"\n{'a turn more, and a call':24}" + "".join(f"{size:>12,}" for size in sizes) + f"{'ratio':>10}")
    for window, row in times.items():
        cells = "".join(f"{seconds * 1e3:>9.3f} ms" for seconds in row)
        print(f"{window:24}{cells}{row[-1] / row[0]:>9.2f}x")
    return all(row[-1] / row[0] < LIMIT for row in times.values())


def next_call(thread: Thread, policy: ContextPolicy, by: Encoding) -> Projection:
    """A turn is said, counted and committed, and the context of the call after it is made."""
    return project(given(extended(thread, 4, by), policy))


def beside_langchain(other: LangChain, messages: int, rounds: int) -> bool:
    """The third table; whether Clew is as much faster as it is to be."""
    print(f"\nlangchain-core {other.version}, {messages:,} messages")
    print(f"{'':44}{'clew':>12}{'trim_messages':>15}{'ratio':>9}{'counts remembered':>20}{'ratio':>9}")
    enough = True
    for name, policy in BUDGETS.items():
        for row, ours, theirs, remembered, floor in _beside(other, messages, policy, rounds):
            enough = enough and theirs / ours >= floor
            print(f"{f'{policy.budget:,} tokens, {name}: {row}':44}{ours * 1e3:>9.2f} ms{theirs * 1e3:>12.1f} ms"
                  f"{theirs / ours:>8.0f}x{remembered * 1e3:>17.1f} ms{remembered / ours:>8.1f}x")  # fmt: skip
    return enough


def _beside(
    other: LangChain, messages: int, policy: ContextPolicy, rounds: int
) -> Iterator[tuple[str, float, float, float, float]]:
    """Rows: what is timed, Clew's seconds, `trim_messages`', with remembered counts, and the ratio that is to be."""
    by = load_encoding(ENCODING)
    thread = conversation(messages, by)
    theirs = other.messages([{"role": "system", "content": SYSTEM}, *(entry.message for entry in thread)])
    turn = [entry.message for entry in conversation(4, by)]
    plain, remembering = other.counter(), other.remembering_counter()

    def cold() -> Projection:
        return project(given(Thread(thread), policy))

    def counted() -> Projection:
        for entry in thread:
            by.count_message(entry.message)
        return cold()

    def trimmed(counter: Counter) -> list[Any]:
        return other.trim(theirs, policy.budget, counter)

    def further(counter: Counter) -> list[Any]:
        theirs.extend(other.messages(turn))
        return trimmed(counter)

    few = max(rounds // 40, 2)
    trim, first = typical(partial(trimmed, plain), few), timed(partial(trimmed, remembering))
    yield "cold", typical(cold, few), trim, first, 5
    yield "cold, counting all", typical(counted, few), trim, first, 0
    next_call(thread, policy, by)
    seconds = typical(partial(next_call, thread, policy, by), rounds)
    yield "next call", seconds, typical(partial(further, plain), few), typical(partial(further, remembering), few), 50


def typical(work: Callable[[], object], rounds: int) -> float:
    """The median time of some work, in seconds."""
    return median(timed(work) for _ in range(rounds))


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the tables, and say whether all is as fast as it is to be."""
    parser = argparse.ArgumentParser(prog="python -m bench.projection", description="What a projection costs.")
    parser.add_argument("--small", type=int, default=SMALL, help="entries of the short thread (%(default)s)")
    parser.add_argument("--large", type=int, default=LARGE, help="entries of the long thread (%(default)s)")
    parser.add_argument("--messages", type=int, default=MESSAGES, help="beside langchain-core (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="projections of each thread (%(default)s)")
    options = parser.parse_args(arguments)

    fast = [
        by_window(options.small, options.large, options.rounds),
        over_a_session((options.small, options.messages, options.large), options.rounds),
    ]
    try:
        other = LangChain(load_encoding(ENCODING))
    except ImportError:
        print(f"\nlangchain-core is not installed, and not compared with. {INSTALL}")
    else:
        fast.append(beside_langchain(other, options.messages, options.rounds))
    return 0 if all(fast) else 1


if __name__ == "__main__":
    sys.exit(main())
