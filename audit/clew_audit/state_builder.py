"""A session's state and the live part of its thread, made from its entries alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clew.contract import ModelOptions, SessionConfig
from clew.contract.outputs import InputReceipt
from clew.contract.payloads import (
    AppliedSwitch,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    InputPayload,
    MessagePayload,
    OperationPayload,
    Payload,
    Recipe,
    Retried,
    RunPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew.contract.policy import ContextPolicy, resolve
from clew.errors import InvalidInput
from clew.model.messages import list_call_ids
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import DEFAULT_LANE, Entry
from clew.thread.thread import Thread
from clew_activities.prepare import make_profile
from clew_workflows.core import budgets, carried, drafts, inputs
from clew_workflows.core.advance import Session
from clew_workflows.core.state import MAX_KNOWN_OPS, Learned, Request, RequestedCall, Run, State
from clew_workflows.protocol import ArchiveRef, ModelProfile


class StateBuilder:
    """Entries, in order, become what a session goes on from. No more of the thread is kept than a session keeps.

    The same entries make the same state, however they are divided.
    """

    def __init__(self, session_id: str) -> None:
        self.thread = Thread()
        self._session_id = session_id
        self._config: ConfigPayload | None = None
        self._context_ref = DEFAULT_LANE
        self._usage = Usage()
        self._numbers = {"run": 0, "call": 0, "tool": 0, "input": 0, "summary": 0}
        self._known_ops: list[str] = []
        self._receipts: dict[str, InputReceipt] = {}
        self._outcomes: dict[str, RequestOutcome] = {}
        self._learned: Mapping[str, Learned] = {}
        self._run = _OpenRun("")

    def add(self, entries: Iterable[Entry], place: ArchiveRef) -> None:
        """Take the next entries; up to the last of them all are in the archive.

        Raises:
            InvalidInput: they are no session's.
        """
        for entry in entries:
            self.thread.append(entry)
            self._note(entry)
        begun = carried.restore(carried.carry(self.session(place)))
        self._outcomes, self.thread = dict(begun.state.outcomes), begun.thread

    def session(self, place: ArchiveRef) -> Session:
        """What the session goes on from; a run that the entries leave open is still open."""
        return Session(self._state(place), self.thread, None)

    def _note(self, entry: Entry) -> None:
        match entry.body:
            case ConfigPayload() as config:
                if self._config and self._config.model == config.model and self._config.policy != config.policy:
                    # The policy alone has been changed, and not the model.
                    self._learned = {}
                self._config = config
            case ErrorPayload(retried=Retried() as retried):
                self._learned = budgets.learn_refusal(self._learned, retried.model, retried.budget)
            case OperationPayload() as applied:
                self._note_operation(entry, applied)
            case SummaryPayload(usage=Usage() as usage):
                self._usage = self._usage.plus(usage)
            case UserMessage() | InputPayload() as given if given.input_id is not None:
                self._note_input(given.input_id, entry.refs.get("request_id") or given.request_id or "")
            case RunPayload():
                self._run.ended.add(entry.refs["request_id"])
            case _:
                pass
        if isinstance(said := entry.body, MessagePayload):
            self._note_message(entry, said)
        if op_id := _operated(entry.body):
            known = [known for known in self._known_ops if known != op_id]
            self._known_ops = [*known, op_id][-MAX_KNOWN_OPS:]
        for name in ("summary", "run", "call"):
            self._count(name, entry.refs.get(f"{name}_id"))

    def _note_input(self, input_id: str, request_id: str) -> None:
        self._count("input", input_id)
        self._receipts[input_id] = InputReceipt(input_id=input_id, request_id=request_id, position=1)
        if len(self._receipts) > inputs.MAX_RECEIPTS:
            del self._receipts[next(iter(self._receipts))]

    def _note_operation(self, entry: Entry, applied: OperationPayload) -> None:
        if isinstance(applied.operation, AppliedSwitch):
            self._context_ref = applied.context_ref
        for message in applied.snapshot.messages if applied.snapshot else ():
            self._count_calls(list_call_ids(message))
        if "summary_id" in entry.refs:
            # A compaction that the session has written.
            self._usage = self._usage.plus(Usage.model_validate((applied.operation.meta or {}).get("usage", {})))

    def _note_message(self, entry: Entry, said: MessagePayload) -> None:
        if said.is_late:
            return
        run_id = entry.refs.get("run_id")
        if run_id and run_id != self._run.run_id:
            self._run = _OpenRun(run_id)
        if run_id:
            self._run.note(entry, said)
        self._count_calls(said.call_ids)
        if recipe := entry.recipe:
            self._learn(recipe)
            self._usage = self._usage.plus(recipe.call_usage)
            self._run.usage = self._run.usage.plus(recipe.call_usage)

    def _learn(self, recipe: Recipe) -> None:
        assert self._config is not None
        policy = self._config.policy.overlay(recipe.policy)
        self._learned = budgets.learn_ratio(
            self._learned, recipe.model, policy, recipe.input_tokens, recipe.usage.input_tokens
        )

    def _count_calls(self, tool_call_ids: Iterable[str]) -> None:
        for tool_call_id in tool_call_ids:
            self._count("tool", tool_call_id)

    def _count(self, name: str, minted: object) -> None:
        if isinstance(minted, str) and (found := re.fullmatch(rf"{name}-([0-9]+)", minted)):
            self._numbers[name] = max(self._numbers[name], int(found[1]))

    def _state(self, place: ArchiveRef) -> State:
        if self._config is None:
            raise InvalidInput("the entries begin without a configuration: they are no session's")
        config, policy, profile = _configured(self._config)
        state = State(
            self._session_id,
            config,
            policy,
            phase="idle",
            tools=drafts.make_unresolved_tools(self._config),
            receipts=tuple(self._receipts.values()),
            known_ops=tuple(self._known_ops),
            config_due=False,
            profiles={profile.model: profile},
            learned=self._learned,
            context_ref=self._context_ref,
            usage=self._usage,
            runs=self._numbers["run"],
            calls=self._numbers["call"],
            tool_calls=self._numbers["tool"],
            inputs=self._numbers["input"],
            summaries=self._numbers["summary"],
            archive=place,
            outcomes=self._outcomes,
        )
        return replace(state, run=self._run.left_open(state))


def _operated(body: Payload) -> str | None:
    """The id of an operation that an entry tells of: applied, overtaken, or a compaction that failed."""
    match body:
        case OperationPayload() | ErrorPayload() | InputPayload(event="superseded"):
            return body.op_id
        case _:
            return None


class _OpenRun:
    """What the entries of a run say of it."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.ended: set[str] = set()
        self.usage = Usage()
        self._opened_seq = 0
        self._context_ref = DEFAULT_LANE
        self._requests: list[str] = []
        self._asked: dict[str, RequestedCall] = {}
        self._answer_seq: int | None = None
        self._iteration = 0

    def note(self, entry: Entry, said: MessagePayload) -> None:
        """Take a message of the run."""
        request_id = entry.refs["request_id"]
        if not self._requests:
            self._opened_seq, self._context_ref = entry.seq, said.context_ref
        if request_id not in self._requests:
            self._requests.append(request_id)
        self._iteration = max(self._iteration, entry.refs.get("iteration", 0))
        if isinstance(said, ToolMessage):
            self._asked.pop(said.tool_call_id, None)
        elif isinstance(said, AssistantMessage):
            self._asked = {
                # The entries do not tell whether a call was started: it may have run.
                call["id"]: RequestedCall(call["id"], call["name"], call["arguments"], scheduled=True)
                for call in said.tool_calls or ()
            }
            if said.content:
                self._answer_seq = entry.seq

    def left_open(self, state: State) -> Run | None:
        """The run, where a request that it serves has no outcome yet."""
        waiting = [request_id for request_id in self._requests if request_id not in self.ended]
        if not waiting:
            return None
        config = state.config
        request = Request(
            waiting[0], "", self._context_ref, config.model, ModelOptions(), None,
            config.max_iterations, config.request_timeout_seconds,
        )  # fmt: skip
        return Run(
            self.run_id,
            request,
            deadline=0.0,
            opened_seq=self._opened_seq,
            joined=tuple(waiting[1:]),
            iteration=self._iteration,
            tool_calls=tuple(self._asked.values()),
            answer_seq=self._answer_seq,
            usage=self.usage,
        )


def _configured(held: ConfigPayload) -> tuple[SessionConfig, ContextPolicy, ModelProfile]:
    """The configuration in force, its policy as a whole, and the profile of its model.

    A policy that is not the one of the profile was given, as far as the entries tell.
    """
    config, policy = held.config, held.policy
    profile = make_profile(config.model)
    if resolve(agent=config.context_policy or profile.policy) != policy:
        config = config.model_copy(update={"context_policy": policy})
    return config, policy, profile
