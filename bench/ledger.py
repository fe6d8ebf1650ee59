"""The commands and results that a session's callers recorded, and the checks of its thread against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from clew.contract.payloads import (
    AssistantMessage,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    MessagePayload,
    OperationPayload,
    RunPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.outcomes import RequestOutcome
from clew_workflows.session.runs import FOLLOW_UP
from clew_workflows.thread.entries import Entry

MAX_ID = 40
"""Most characters of a tool call's id."""


@dataclass
class Ledger:
    """The commands that callers sent, and the answers that they got.

    Contents are unique, so that a rejected signal is found by its content.

    Attributes:
        requests: Texts of accepted messages, by request id, with the markers of images.
        outcomes: Outcomes that callers got, by request id.
        cancelled: Requests whose cancellation was accepted.
        inputs: Contents of accepted inputs, by input id.
        operations: Accepted operations, by id, with the seq of the answer; None: the answer had none.
        configured: Seqs that answers to configuration changes named.
        signalled: Ids in signals; the session may have rejected them.
        refused: Ids in refused updates.
        uncertain: Contents, by id, of messages, inputs and operations without an answer. They may be there once.
        repeated: Commands that were sent again on purpose.
        retried: Client errors after which a retry succeeded, with their counts.
        problems: Wrong results that callers saw.
    """

    requests: dict[str, str] = field(default_factory=dict)
    outcomes: dict[str, RequestOutcome] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    inputs: dict[str, str] = field(default_factory=dict)
    operations: dict[str, int | None] = field(default_factory=dict)
    configured: set[int] = field(default_factory=set)
    signalled: set[str] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)
    uncertain: dict[str, str] = field(default_factory=dict)
    repeated: int = 0
    retried: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)


class Traces:
    """The entries of a thread, by the ids that callers sent."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self.outcomes: dict[str, list[Entry]] = {}
        self.read: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()
        self.prompts: Counter[str] = Counter()
        self.never_ran: Counter[str] = Counter()
        self.applied: dict[str, list[int]] = {}
        self.superseded: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.rejected: list[str] = []
        for entry in entries:
            self._note(entry)

    def _note(self, entry: Entry) -> None:
        request_id = entry.refs.get("request_id")
        match entry.body:
            case RunPayload():
                self.outcomes.setdefault(entry.refs["request_id"], []).append(entry)
            case UserMessage() as said:
                if said.input_id is not None:
                    self.read[said.input_id] += 1
                self.prompts[f"{request_id}: {said.text}"] += 1
            case ErrorPayload(op_id=str(op_id)):
                self.failed[op_id] += 1
            case OperationPayload(op_id=op_id):
                self.applied.setdefault(op_id, []).append(entry.seq)
            case InputPayload(event="rejected", input_id=None, request_id=None, content=content):
                self.rejected.append(content)
            case InputPayload(op_id=str(op_id)):
                self.superseded[op_id] += 1
            case InputPayload(event="dropped" | "rejected") as unread:
                # Hooks reject what was accepted; the entry of an input then names the request of its run.
                if unread.input_id is not None:
                    self.dropped[unread.input_id] += 1
                if unread.request_id and unread.kind == "message":
                    self.never_ran[unread.request_id] += 1

    def count_input(self, input_id: str) -> int:
        """Count how often an input was read or dropped."""
        return self.read[input_id] + self.dropped[input_id]

    def count_operation(self, op_id: str) -> int:
        """Count how often an operation was applied, was superseded, or failed when it was due."""
        return len(self.applied.get(op_id, ())) + self.superseded[op_id] + self.failed[op_id]


def check(entries: Sequence[Entry], ledger: Ledger) -> list[str]:
    """List where a complete thread differs from the records of its callers."""
    problems = [*ledger.problems, *check_structure(entries)]
    if problems:
        return problems
    traces = Traces(entries)
    problems += _check_requests(entries, ledger, traces)
    problems += _check_inputs(ledger, traces)
    problems += _check_uncertain(ledger, traces)
    problems += [
        f"a configuration got the answer seq {seq}, but there is no config entry"
        for seq in ledger.configured
        if seq >= len(entries) or entries[seq].kind != "config"
    ]
    return problems


def check_structure(entries: Sequence[Entry]) -> list[str]:
    """List what is wrong with a complete thread whose callers kept no records."""
    return [*_check_seqs(entries)] or [*check_tool_groups(entries), *_check_runs(entries)]


def _check_seqs(entries: Sequence[Entry]) -> Iterator[str]:
    for index, entry in enumerate(entries):
        if entry.seq != index:
            yield f"seq {entry.seq} is at index {index}"
            return
    ids = Counter(entry.id for entry in entries)
    yield from (f"the entry id {name} occurs {count} times" for name, count in ids.items() if count > 1)


def _check_requests(entries: Sequence[Entry], ledger: Ledger, traces: Traces) -> Iterator[str]:
    for request_id, content in ledger.requests.items():
        found = traces.outcomes.get(request_id, [])
        if len(found) != 1:
            yield f"request {request_id} has {len(found)} outcomes"
        said = traces.prompts[f"{request_id}: {content}"]
        if said + traces.never_ran[request_id] != 1:
            yield f"request {request_id} is there {said} times, and dropped {traces.never_ran[request_id]} times"
    for request_id, outcome in ledger.outcomes.items():
        if outcome.last_seq >= len(entries):
            yield f"request {request_id} got {outcome.status} at {outcome.last_seq}, but the thread ends before"
            continue
        entry = entries[outcome.last_seq]
        ended = entry.body
        told = (entry.kind, entry.refs.get("request_id"), ended.status if isinstance(ended, RunPayload) else None)
        if told != ("run", request_id, outcome.status):
            yield f"request {request_id} got {outcome.status} at {outcome.last_seq}, but that entry is {told}"
        if outcome.answer_seq is not None and not isinstance(entries[outcome.answer_seq].body, AssistantMessage):
            yield f"the answer to {request_id} is not at {outcome.answer_seq}"
        if request_id in ledger.cancelled and outcome.status != "cancelled":
            yield f"request {request_id} was cancelled, but its outcome is {outcome.status}"
    for request_id, found in traces.outcomes.items():
        if len(found) > 1:
            yield f"request {request_id} has {len(found)} outcomes"
        known = request_id in ledger.requests or request_id in ledger.uncertain
        if not known and not request_id.startswith(FOLLOW_UP):
            yield f"request {request_id} has an outcome, but was never accepted"


def _check_inputs(ledger: Ledger, traces: Traces) -> Iterator[str]:
    for input_id in ledger.inputs:
        if (times := traces.count_input(input_id)) != 1:
            yield f"input {input_id} was read or dropped {times} times"
    for op_id, seq in ledger.operations.items():
        if (times := traces.count_operation(op_id)) != 1:
            yield f"operation {op_id} was applied, superseded or failed {times} times"
        if seq is not None and traces.applied.get(op_id) != [seq]:
            yield f"operation {op_id} got the answer seq {seq}, but was applied at {traces.applied.get(op_id)}"
    for name in ledger.signalled:
        refused = sum(f'"{name}"' in content for content in traces.rejected)
        if (times := traces.count_input(name) + traces.count_operation(name) + refused) != 1:
            yield f"the signal {name} has {times} entries"
    yield from (
        f"{name} was refused, but has an entry"
        for name in ledger.refused
        if traces.count_input(name) + traces.count_operation(name)
    )


def _check_uncertain(ledger: Ledger, traces: Traces) -> Iterator[str]:
    for name, content in ledger.uncertain.items():
        times = traces.prompts[f"{name}: {content}"] + traces.never_ran[name]
        times += traces.count_input(name) + traces.count_operation(name)
        if times > 1:
            yield f"{name}, whose command had no answer, is there {times} times"


def check_tool_groups(entries: Iterable[Entry]) -> Iterator[str]:
    """Check that in each lane the results of a message's tool calls follow it, one for each call.

    A result in doubt may be followed by one late result. Calls that were open where the session was forked off, or
    one that it comes from, have no results.
    """
    waiting: dict[str, list[str]] = {}
    seen: set[str] = set()
    doubts: set[str] = set()
    for entry in entries:
        said = entry.body
        if isinstance(said, ForkPayload) and said.event == "forked_from":
            waiting.clear()
        if not isinstance(said, MessagePayload):
            continue
        due = waiting.setdefault(said.context_ref, [])
        if isinstance(said, ToolMessage):
            call_id, expected = said.tool_call_id, doubts if said.late else due
            if call_id not in expected:
                yield f"the tool result at {entry.seq} answers no call"
                continue
            expected.remove(call_id)
            if said.in_doubt:
                doubts.add(call_id)
            continue
        if due:
            yield f"the tool calls {due} have no result before {entry.seq}"
        calls = said.call_ids
        if seen & set(calls) or len(set(calls)) < len(calls) or any(len(call) > MAX_ID for call in calls):
            yield f"tool calls at {entry.seq} have ids that are too long, or not unique: {calls}"
        seen |= set(calls)
        waiting[said.context_ref] = calls
    yield from (f"the tool calls {due} of lane {lane} have no result" for lane, due in waiting.items() if due)


def _check_runs(entries: Iterable[Entry]) -> Iterator[str]:
    """Check that no message follows the end of its run, and that each model call has one reply.

    A message that has joined a run may end before it, if a hook refuses it.
    """
    ended: set[str] = set()
    calls: Counter[str] = Counter()
    for entry in entries:
        said = entry.body
        if isinstance(said, RunPayload):
            if said.usage.shared_with is None:
                ended.add(entry.refs["run_id"])
        elif isinstance(said, MessagePayload):
            if entry.refs["run_id"] in ended and not said.is_late:
                yield f"run {entry.refs['run_id']} has the message {entry.seq} after its end"
            if isinstance(said, AssistantMessage):
                calls[entry.refs["call_id"]] += 1
    yield from (f"{call} has {times} replies" for call, times in calls.items() if times > 1)
