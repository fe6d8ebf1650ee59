"""The oracle finds every kind of broken promise, and none where all are kept."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from bench.ledger import Ledger
from clew.session.events import EntryCommitted, Restarted, SessionEvent, TextAdded
from clew_audit.audit import Report
from clew_audit.differences import Difference
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.thread.entries import Entry
from tests.chaos.effects import Effect, check_effects
from tests.chaos.oracle import ExternalResult, Oracle, Origin, Promises, Reader
from tests.support.session_harness import SessionHarness

SESSION = "s-1"


def make_thread() -> list[Entry]:
    """A request with a charge that a person approved, an input, an operation, and an external result."""
    session = SessionHarness(tools=("charge", "ask_wire", "order_outside"))
    session.ask("r-1: hello", "r-1")
    session.reply("", "charge")
    session.steer("also this", "i-1")
    session.answer_calls("charged 7")
    session.reply("an answer")
    session.reply("another answer")
    session.operate("o-1")
    session.ask("r-2: again", "r-2")
    session.reply("fine")
    return list(session.thread)


def keep_promises(entries: list[Entry]) -> tuple[Oracle, Promises]:
    """An oracle whose callers were promised what is in the thread."""
    oracle = Oracle()
    promises = oracle.add_session(SESSION)
    last = {entry.refs["request_id"]: entry.seq for entry in entries if entry.kind == "run"}
    promises.ledger = Ledger(
        requests={"r-1": "r-1: hello", "r-2": "r-2: again"},
        outcomes={
            name: RequestOutcome(request_id=name, status="completed", last_seq=seq) for name, seq in last.items()
        },
        inputs={"i-1": "also this"},
        operations={"o-1": None},
    )
    promises.rev = len(entries)
    return oracle, promises


def find(oracle: Oracle) -> list[str]:
    """The violations, as texts."""
    return [str(violation) for violation in oracle.violations]


def renumber(entries: list[Entry]) -> list[Entry]:
    return [replace(entry, seq=seq, id=f"e-{seq}") for seq, entry in enumerate(entries)]


def test_kept_promises_are_no_violation() -> None:
    """A thread that holds all that was promised has no violation."""
    entries = make_thread()
    oracle, _ = keep_promises(entries)
    oracle.see_page(SESSION, entries, 0)
    oracle.check_thread(SESSION, entries, None)
    oracle.check_audit(Report(SESSION))
    assert find(oracle) == []


def drop(matches: Callable[[Entry], bool]) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: renumber([entry for entry in entries if not matches(entry)])


def double(matches: Callable[[Entry], bool]) -> Callable[[list[Entry]], list[Entry]]:
    return lambda entries: renumber([entry for entry in entries for _ in range(1 + matches(entry))])


DAMAGES: dict[str, tuple[Callable[[list[Entry]], list[Entry]], str]] = {
    "a lost message": (drop(lambda entry: entry.payload.get("content") == "r-2: again"), "is there 0 times"),
    "a lost input": (drop(lambda entry: entry.payload.get("input_id") == "i-1"), "read or dropped 0 times"),
    "an input twice": (double(lambda entry: entry.payload.get("input_id") == "i-1"), "read or dropped 2 times"),
    "a doubled outcome": (double(lambda entry: entry.kind == "run"), "has 2 outcomes"),
    "a lost outcome": (drop(lambda entry: entry.kind == "run"), "has 0 outcomes"),
    "an operation twice": (double(lambda entry: entry.payload.get("op_id") == "o-1"), "superseded or failed 2 times"),
    "a gap in the seqs": (lambda entries: entries[:4] + entries[5:], "seq 5 is at index 4"),
    "a lost end": (lambda entries: entries[:-3], "were answered or seen"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_of_a_thread_is_a_violation(damage: str) -> None:
    """A lost, doubled or missing entry is a violation."""
    change, expected = DAMAGES[damage]
    entries = make_thread()
    oracle, _ = keep_promises(entries)
    oracle.check_thread(SESSION, change(entries), None)
    assert any(expected in text for text in find(oracle)), find(oracle)


@pytest.mark.parametrize(("times", "is_violation"), [(0, False), (1, False), (2, True)])
def test_a_command_without_an_answer_is_there_once_at_most(times: int, is_violation: bool) -> None:
    """A message whose acceptance is unknown may be in the thread once or not at all, and never twice."""
    entries = make_thread()
    message = next(entry for entry in entries if entry.payload.get("content") == "r-2: again")
    oracle, promises = keep_promises(entries)
    promises.ledger.requests.pop("r-2")
    promises.ledger.outcomes.pop("r-2")
    promises.ledger.uncertain["r-2"] = "r-2: again"
    promises.rev = 0
    changed = renumber([entry for entry in entries for _ in range(times if entry is message else 1)])
    oracle.check_thread(SESSION, changed, None)
    assert any("had no answer" in text for text in find(oracle)) is is_violation, find(oracle)


def test_a_request_that_no_caller_sent_is_a_violation() -> None:
    """An outcome of a request that no caller knows is a violation."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    del promises.ledger.requests["r-2"]
    del promises.ledger.outcomes["r-2"]
    oracle.check_thread(SESSION, entries, None)
    assert any("never accepted" in text for text in find(oracle))


@pytest.mark.parametrize(("shared_with", "is_violation"), [("r-2", False), (None, True)])
def test_a_message_follows_the_end_of_a_joined_one_alone(shared_with: str | None, is_violation: bool) -> None:
    """A message that has joined a run ends before it, if a hook refuses it."""
    entries = make_thread()
    end = entries[-1]
    assert (end.kind, end.refs["request_id"]) == ("run", "r-2")
    usage = {**end.payload["usage"], **({"shared_with": shared_with} if shared_with else {})}
    early = replace(end, payload={**end.payload, "usage": usage}, refs={**end.refs, "request_id": "r-3"})
    changed = renumber([*entries[:-2], early, *entries[-2:]])
    oracle, promises = keep_promises(changed)
    promises.ledger.outcomes.pop("r-3")
    promises.ledger.uncertain["r-3"] = "r-3: refused"
    oracle.check_thread(SESSION, changed, None)
    assert any("after its end" in text for text in find(oracle)) is is_violation, find(oracle)


def test_an_answer_that_the_thread_does_not_have_is_a_violation() -> None:
    """A caller read the text of another request's answer."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    answers = {entry.seq: entry.payload["content"] for entry in entries if entry.payload.get("role") == "assistant"}
    promises.answers.update(answers)
    oracle.check_thread(SESSION, entries, None)
    assert find(oracle) == []
    promises.answers[max(answers)] = "another answer"
    oracle.check_thread(SESSION, entries, None)
    assert "a caller read another answer" in find(oracle)[0]


def test_a_reader_sees_a_prefix() -> None:
    """A skipped, a repeated and a differing entry are violations; a reconnect is not."""
    entries = make_thread()
    oracle, _ = keep_promises(entries)
    reader = Reader(oracle, SESSION, 0)
    for entry in entries[:3]:
        reader.take(entry)
    again = Reader(oracle, SESSION, reader.next)
    again.take(entries[3])
    assert find(oracle) == []
    again.take(entries[5])
    assert "expected seq 4, and saw 5" in find(oracle)[0]
    Reader(oracle, SESSION, None).take(replace(entries[2], payload={"other": 1}))
    assert "different entries at seq 2" in find(oracle)[1]


def test_a_reader_of_a_request_sees_its_entries_in_order() -> None:
    """Those of other requests lie between them; an entry that comes again is a violation."""
    entries = make_thread()
    oracle, _ = keep_promises(entries)
    reader = Reader(oracle, SESSION, None, of_request=True)
    for entry in (entries[1], entries[2], entries[5]):
        reader.take(entry)
    assert find(oracle) == []
    reader.take(entries[5])
    assert "expected seq 6, and saw 5" in find(oracle)[0]


def make_reply(text: str) -> EntryCommitted:
    entry = make_thread()[-2]
    reply = replace(entry, payload={**entry.payload, "content": text}, refs={**entry.refs, "call_id": "call-1"})
    return EntryCommitted(seq=reply.seq, entry=reply)


def add(offset: int, text: str) -> TextAdded:
    return TextAdded(call_id="call-1", attempt=1, offset=offset, text=text)


RESTARTED = Restarted(call_id="call-1", attempt=2)
LONG = "thread " * 10_000


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([add(0, "a ball "), add(7, "of thread"), make_reply("a ball of thread")], ""),
        ([add(0, "a torch"), add(2, "ball"), make_reply("a ball")], ""),
        ([add(0, "a torch"), RESTARTED, add(0, "a ball"), make_reply("a ball")], ""),
        ([add(7, LONG[7:]), add(0, LONG), make_reply(LONG)], ""),
        ([make_reply("")], ""),
        ([add(7, "of thread")], "goes on at 7, and 0 characters are known"),
        ([add(7, LONG[7:]), make_reply(LONG)], "a reader saw"),
        ([add(0, "a ball "), make_reply("a ball of thread")], "a reader saw 'a ball '"),
        ([add(0, "a torch"), make_reply("a ball of thread")], "a reader saw 'a torch'"),
        ([add(0, "a ball "), add(7, "a ball "), make_reply("a ball ")], "a reader saw 'a ball a ball '"),
        ([add(0, "a ball"), RESTARTED, make_reply("a ball")], "a reader saw ''"),
        ([make_reply("a ball")], "a reader saw ''"),
    ],
)
async def test_a_connection_shows_each_reply_once(events: list[SessionEvent], expected: str) -> None:
    """A part that is missing, that comes twice, or of another reply is a violation.

    A restart is none, and a part of a long text that comes with the entry alone is none.
    """
    oracle, _ = keep_promises([])

    async def follow() -> AsyncGenerator[SessionEvent, None]:
        for event in events:
            yield event

    await Reader(oracle, SESSION, None).view(follow(), 60)
    assert [expected in problem for problem in find(oracle)] == [True] * bool(expected)


def test_a_reader_that_saw_more_than_the_thread_has_is_a_violation() -> None:
    """What a reader was shown must be in the thread at the end."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    oracle.see_page(SESSION, [replace(entries[-1], payload={"other": 1})], len(entries) - 1)
    oracle.check_thread(SESSION, entries, None)
    assert any("that the thread does not have" in text for text in find(oracle))
    promises.rev = len(entries)
    oracle.check_rev(SESSION, len(entries) - 1, promises.rev)
    assert any("had been answered" in text for text in find(oracle))


def test_a_fork_that_differs_from_its_parent_is_a_violation() -> None:
    """A fork begins with its parent's entries."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    promises.origin = Origin("parent", 4)
    oracle.check_thread(SESSION, entries, entries[:5])
    assert find(oracle) == []
    oracle.check_thread(SESSION, entries, [*entries[:4], replace(entries[4], at="2020-01-01T00:00:00.000Z")])
    assert any("differs from parent" in text for text in find(oracle))


def test_a_fork_whose_parent_was_deleted_keeps_what_readers_saw() -> None:
    """Readers have seen the parent's entries before its deletion: the fork has them."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    oracle.add_session("parent")
    oracle.see_page("parent", entries[:8], 0)
    promises.origin = Origin("parent", 4)
    oracle.check_thread(SESSION, entries, None)
    assert find(oracle) == []
    changed = [*entries[:4], replace(entries[4], at="2020-01-01T00:00:00.000Z"), *entries[5:]]
    oracle.check_thread(SESSION, changed, None)
    assert any("another entry at seq 4 than its parent had" in text for text in find(oracle))


@pytest.mark.parametrize(
    ("sent", "is_error", "is_violation"),
    [("charged 7", False, False), ("charged 8", False, True), ("charged 7", True, True)],
)
def test_the_result_of_an_external_call_is_what_was_sent(sent: str, is_error: bool, is_violation: bool) -> None:
    """The text of an accepted result, and whether it is an error, are as the caller sent them."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    promises.results[find_call(entries)] = ExternalResult(3, sent, is_error)
    oracle.check_thread(SESSION, entries, None)
    assert any("is not what was sent" in text for text in find(oracle)) is is_violation, find(oracle)


def test_decisions_results_and_forks_must_be_in_the_thread() -> None:
    """An accepted decision, an accepted result and a fork that the thread does not have are violations."""
    entries = make_thread()
    oracle, promises = keep_promises(entries)
    promises.decisions["c-1"] = "approve"
    promises.results["c-2"] = ExternalResult(1, "shipped", is_error=False)
    promises.forks["s-2"] = 3
    oracle.check_thread(SESSION, entries, None)
    text = "\n".join(find(oracle))
    assert "call c-1 was to be approve" in text
    assert "result of c-2 is not at 1" in text
    assert "fork s-2 at 3 is recorded 0 times" in text


def test_a_damaged_archive_is_a_violation() -> None:
    """What the audit finds in an archive or a history is a violation, and so are calls that cannot be verified."""
    oracle = Oracle()
    report = Report(SESSION, differences=[Difference("archive", "it is missing from the store", "segments/1")])
    report.calls.unverified.append("call-1")
    oracle.check_audit(report)
    assert [violation.kind for violation in oracle.violations] == ["audit", "audit"]


def make_effect(call: str, attempt: int = 1, tool: str = "charge") -> Effect:
    return Effect(tool, f"{SESSION}/{call}", SESSION, call, attempt)


def list_effect_problems(entries: list[Entry], *effects: Effect) -> list[str]:
    return [problem for _, problem in check_effects(effects, {SESSION: entries}, {})]


def find_call(entries: list[Entry]) -> str:
    """The id of the thread's call of `charge`."""
    return next(str(call["id"]) for entry in entries for call in entry.payload.get("tool_calls", ()))


def test_a_subagent_keeps_the_rules_that_need_no_caller() -> None:
    """Nobody has promises of it; its replies, hooks and calls are checked like those of other sessions."""
    entries, oracle = make_thread(), Oracle()
    oracle.check_subagent("s-1.tool00001", entries)
    assert find(oracle) == []
    oracle.check_subagent("s-1.tool00001", drop(lambda entry: entry.payload.get("role") == "tool")(entries))
    assert "have no result before" in "".join(find(oracle))


def test_an_effect_of_each_call_is_no_violation() -> None:
    """A charge that was made once, with its result in the thread, is what its declaration says."""
    entries = make_thread()
    assert list_effect_problems(entries, make_effect(find_call(entries))) == []


def test_a_repeated_effect_of_a_tool_that_is_not_idempotent_is_a_violation() -> None:
    """A charge that was made twice is a violation, also in two attempts."""
    entries = make_thread()
    call = find_call(entries)
    (problem,) = list_effect_problems(entries, make_effect(call), make_effect(call, attempt=2))
    assert "took effect 2 times, of at most 1" in problem


def test_a_deleted_session_has_no_repeated_effect_either() -> None:
    """Whether a model called for the effect cannot be read any more."""
    effects = [make_effect("tool00001"), make_effect("tool00001", attempt=2)]
    assert list(check_effects(effects[:1], {}, {}, gone={SESSION})) == []
    ((_, problem),) = check_effects(effects, {}, {}, gone={SESSION})
    assert "took effect 2 times, of at most 1" in problem


def test_an_idempotent_tool_is_repeated_within_its_bounds() -> None:
    """A note may be written by three attempts, each once, and not by more."""
    entries = make_thread()
    call = find_call(entries)
    many = [make_effect(call, attempt, "note") for attempt in (1, 2, 3)]
    assert not any("took effect" in problem for problem in list_effect_problems(entries, *many))
    assert any("4 times, of at most 3" in problem for problem in list_effect_problems(entries, *many, many[0]))
    assert any("in attempt 1" in problem for problem in list_effect_problems(entries, many[0], many[0]))


def test_an_effect_without_a_call_or_without_approval_is_a_violation() -> None:
    """Effects of calls that no model made, of sessions that do not exist, and without approval are violations."""
    entries = make_thread()
    call = find_call(entries)
    assert any("no model's reply" in problem for problem in list_effect_problems(entries, make_effect("other")))
    elsewhere = replace(make_effect(call), session="s-9")
    assert any("does not exist" in problem for problem in list_effect_problems(entries, elsewhere))
    assert any(
        "the decisions []" in problem for problem in list_effect_problems(entries, make_effect(call, tool="wire"))
    )


def test_an_effect_that_the_hooks_refuse_is_a_violation() -> None:
    """A charge with a sum that the hooks refuse has no effect."""
    calls = [{"id": "tool00001", "name": "charge", "arguments": {"cents": 8}}]
    entries = [
        replace(entry, payload={**entry.payload, "tool_calls": calls}) if "tool_calls" in entry.payload else entry
        for entry in make_thread()
    ]
    (problem,) = list_effect_problems(entries, make_effect(find_call(entries)))
    assert "which the hooks refuse" in problem


def test_a_result_must_be_true() -> None:
    """A result without an effect, and an effect whose result denies it, are violations."""
    entries = make_thread()
    assert any("has a result without an effect" in problem for problem in list_effect_problems(entries))
    denied = [
        replace(entry, payload={**entry.payload, "content": "[not run: the run ended]"})
        if entry.payload.get("role") == "tool"
        else entry
        for entry in entries
    ]
    effect = make_effect(find_call(entries))
    assert any("says that it did not" in problem for problem in list_effect_problems(denied, effect))
