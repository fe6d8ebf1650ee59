"""What a projection costs: by its window, and not by its thread.

    python -m bench.projection

Each row projects the same window out of a thread of 1 000 and of one of 100 000 entries, in turns, so that
both see the same machine. The ratio of the two medians says what matters, and is to stay under 2; the last row
folds the whole thread instead, to show what the ratio would be if it were not so. Exit code 1: it is not under 2.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from clew.entries import Draft, Entry
from clew.policy import ContextPolicy
from clew.projection import ProjectionInput, project
from clew.thread import Thread
from clew.tokens import encoding

SMALL, LARGE, LIMIT = 1_000, 100_000, 2.0
SYSTEM = "You answer briefly."
WORDS = "The ball of thread that leads back out of the labyrinth is not to be cut. " * 4


def conversation(entries: int) -> Thread:
    """A thread of runs of four entries: a question, a tool's call and result, and the answer."""
    by, thread = encoding("heuristic"), Thread()
    while thread.rev < entries:
        seq = thread.rev
        call = {"id": f"call-{seq // 4:06}", "name": "look_up", "arguments": {"page": 1}}
        payload: dict[str, Any] = (
            {"role": "user", "content": WORDS},
            {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": WORDS, "tool_call_id": call["id"], "name": "look_up"},
            {"role": "assistant", "content": WORDS},
        )[seq % 4]
        stored, tokens = Draft("ai_message", {"context_ref": "default", **payload}).counted(by)
        refs = {"run_id": f"run-{seq // 4}"}
        thread.append(Entry(seq, f"e{seq}", "ai_message", "2026-01-01T00:00:00.000Z", stored, refs, tokens))
    return thread


def with_entry(thread: Thread, kind: Any, payload: dict[str, Any], talk: int) -> Thread:
    """A copy of a thread with one more entry put in, so many entries before its end."""
    stored, tokens = Draft(kind, {"context_ref": "default", **payload}).counted(encoding("heuristic"))
    place = thread.rev - talk
    extra = Entry(place, "extra", kind, "2026-01-01T00:00:00.000Z", stored, {}, tokens)
    later = (replace(entry, seq=entry.seq + 1) for entry in thread.slice(place, thread.last_seq))
    return Thread([*thread.slice(0, place - 1), extra, *later])


def summed(thread: Thread) -> Thread:
    """The thread with all but its newest forty entries summed up."""
    to_seq = thread.rev - 41
    return with_entry(thread, "summary", {"from_seq": 0, "to_seq": to_seq, "content": WORDS}, 40)


def replaced(thread: Thread) -> Thread:
    """The thread with a snapshot in place of all but its newest forty entries."""
    snapshot = {"messages": [{"role": "user", "content": WORDS}]}
    operation = {"type": "replace", "reason": "compaction", "result_context": snapshot}
    return with_entry(thread, "ai_context_operation", {"op_id": "op", "operation": operation}, 40)


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


def main(arguments: list[str] | None = None) -> int:
    """Measure, print the table, and say whether every ratio is under the limit."""
    parser = argparse.ArgumentParser(prog="python -m bench.projection", description="What a projection costs.")
    parser.add_argument("--small", type=int, default=SMALL, help="entries of the short thread (%(default)s)")
    parser.add_argument("--large", type=int, default=LARGE, help="entries of the long thread (%(default)s)")
    parser.add_argument("--rounds", type=int, default=200, help="projections of each thread (%(default)s)")
    options = parser.parse_args(arguments)

    threads = [conversation(options.small), conversation(options.large)]
    rows: list[tuple[str, list[ProjectionInput]]] = [
        ("default policy", [given(thread) for thread in threads]),
        ("short_context", [given(thread, ContextPolicy.short_context()) for thread in threads]),
        ("40 messages", [given(thread, ContextPolicy(max_messages=40)) for thread in threads]),
        ("at a seq half-way", [given(thread, at_seq=thread.rev // 2) for thread in threads]),
        ("after a summary", [given(summed(thread)) for thread in threads]),
        ("after a replace", [given(replaced(thread)) for thread in threads]),
    ]
    print(f"{'':24}{options.small:>12,}{options.large:>12,}{'ratio':>10}   messages")
    worst = 0.0
    for name, (few, many) in rows:
        first, second = compare(partial(project, few), partial(project, many), options.rounds)
        shown = [len(project(some).messages) for some in (few, many)]
        assert shown[0] == shown[1], "both threads show the same window"
        worst = max(worst, second / first)
        print(f"{name:24}{first * 1e3:>9.3f} ms{second * 1e3:>9.3f} ms{second / first:>9.2f}x{shown[0]:>11}")
    first, second = compare(partial(whole, threads[0]), partial(whole, threads[1]), max(options.rounds // 40, 3))
    print(f"{'folding everything':24}{first * 1e3:>9.3f} ms{second * 1e3:>9.3f} ms{second / first:>9.2f}x")
    print(f"\nThe largest ratio of a projection is {worst:.2f}, and is to be under {LIMIT:g}.")
    return 0 if worst < LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
