"""Builds a session's state and the live part of its thread from its entries alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from clew_activities.model.prepare import make_profile
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.messages import list_call_ids
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import InputReceipt
from clew_workflows.contract.payloads import (
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    InputPayload,
    MessagePayload,
    OperationPayload,
    Payload,
    Recipe,
    Refused,
    RunPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.contract.policy import resolve
from clew_workflows.protocol import TOOL_CALL_ID, ArchiveRef
from clew_workflows.session import budgets, carried, configuration, drafts, messages_taken
from clew_workflows.session.advance import Session
from clew_workflows.session.state import (
    MAX_KNOWN_OPS,
    Answer,
    Clock,
    Counters,
    Learned,
    Listed,
    Memory,
    Remembered,
    Request,
    RequestedCall,
    Run,
    Settings,
    Spent,
    State,
    note_entries,
)
from clew_workflows.thread.entries import DEFAULT_LANE, Entry
from clew_workflows.thread.thread import Thread


class StateBuilder:
    """Builds a session's state from its entries, in order. It retains no more of the thread than a session does.

    The same entries give the same state, in calls of any size.
    """

    def __init__(self, session_id: str) -> None:
        self.thread = Thread()
        self._session_id = session_id
        self._config: ConfigPayload | None = None
        self._context_ref = DEFAULT_LANE
        self._usage = Usage()
        self._subagent_usage = Usage()
        self._numbers = {"run": 0, "call": 0, "tool": 0, "input": 0, "summary": 0}
        self._known_ops: list[str] = []
        self._receipts: dict[str, InputReceipt] = {}
        self._outcomes = Remembered()
        self._learned: Mapping[str, Learned] = {}
        self._refused: Mapping[str, tuple[Refused, ...]] = {}
        self._run = _OpenRun("")
        self._listed = Listed()

    def add(self, entries: Iterable[Entry], archive_ref: ArchiveRef) -> None:
        """Add the next entries. All of them must be archived, as `archive_ref` says.

        Raises:
            InvalidInput: They are not the entries of a session.
        """
        for entry in entries:
            self.thread.append(entry)
            self._note(entry)
            self._listed = note_entries(self._listed, [entry])
        trimmed = carried.restore(carried.carry(self.build(archive_ref)))
        self._outcomes, self.thread = trimmed.state.memory.outcomes, trimmed.thread

    def build(self, archive_ref: ArchiveRef) -> Session:
        """Build the session's state. A run without an end in the entries is open."""
        return Session(self._make_state(archive_ref), self.thread, None)

    def _note(self, entry: Entry) -> None:
        match entry.body:
            case ConfigPayload() as config:
                if self._config and self._config.model == config.model and self._config.policy != config.policy:
                    # The policy was changed and the model was not: the learned limits no longer apply.
                    self._learned = {}
                self._config = config
            case ErrorPayload() as error:
                self._note_refusal(error)
            case OperationPayload() as applied:
                self._note_operation(entry, applied)
            case SummaryPayload(usage=Usage() as usage):
                self._usage = self._usage.plus(usage)
            case UserMessage() | InputPayload() as input_payload if input_payload.input_id is not None:
                self._note_input(
                    input_payload.input_id, entry.refs.get("request_id") or input_payload.request_id or ""
                )
            case RunPayload() as outcome:
                self._run.ended.add(entry.refs["request_id"])
                if entry.refs["run_id"] == self._run.run_id and outcome.usage.shared_with is None:
                    # Of a call that was interrupted before it had text, only the outcome has the usage.
                    self._run.usage = outcome.usage
            case _:
                pass
        if isinstance(message := entry.body, MessagePayload):
            self._note_message(entry, message)
        if op_id := _find_op_id(entry.body):
            known = [known for known in self._known_ops if known != op_id]
            self._known_ops = [*known, op_id][-MAX_KNOWN_OPS:]
        # A message names the call that will read it, which is not made if its run ends before.
        made = (
            ("summary", "run") if isinstance(entry.body, UserMessage | InputPayload) else ("summary", "run", "call")
        )
        for name in made:
            self._count(name, entry.refs.get(f"{name}_id"))

    def _note_refusal(self, error: ErrorPayload) -> None:
        if (retried := error.retried) and retried.budget is not None:
            self._learned = budgets.learn_refusal(self._learned, retried.model, retried.budget)
        if (refused := error.refused) and (model := error.refused_by):
            self._refused = budgets.learn_refused(self._refused, model, [refused])

    def _note_input(self, input_id: str, request_id: str) -> None:
        self._count("input", input_id)
        self._receipts[input_id] = InputReceipt(input_id=input_id, request_id=request_id, position=1)
        if len(self._receipts) > messages_taken.MAX_RECEIPTS:
            del self._receipts[next(iter(self._receipts))]

    def _note_operation(self, entry: Entry, applied: OperationPayload) -> None:
        self._context_ref = applied.activated_lane or self._context_ref
        for message in applied.snapshot.messages if applied.snapshot else ():
            self._count_calls(list_call_ids(message))
        if "summary_id" in entry.refs:
            # The session itself has written this compaction, with a summary.
            self._usage = self._usage.plus(Usage.model_validate((applied.operation.meta or {}).get("usage", {})))

    def _note_message(self, entry: Entry, message: MessagePayload) -> None:
        if message.is_late:
            return
        run_id = entry.refs.get("run_id")
        if run_id and run_id != self._run.run_id:
            self._usage = self._usage.plus(self._run.usage)
            self._run = _OpenRun(run_id)
        if run_id:
            self._run.note(entry, message)
        self._count_calls(message.call_ids)
        if isinstance(message, ToolMessage) and message.subagent and message.subagent.usage:
            self._subagent_usage = self._subagent_usage.plus(message.subagent.usage)
            self._run.subagent_usage = self._run.subagent_usage.plus(message.subagent.usage)
        if recipe := entry.recipe:
            if recipe.stop_reason != "interrupted":
                self._learn(recipe)
            self._run.usage = self._run.usage.plus(recipe.call_usage)

    def _learn(self, recipe: Recipe) -> None:
        assert self._config is not None
        policy = self._config.policy.overlay(recipe.policy)
        self._learned = budgets.learn_ratio(self._learned, recipe.model, policy, recipe.input_tokens, recipe.usage)

    def _count_calls(self, tool_call_ids: Iterable[str]) -> None:
        for tool_call_id in tool_call_ids:
            self._note_number("tool", TOOL_CALL_ID.fullmatch(tool_call_id))

    def _count(self, name: str, identifier: object) -> None:
        if isinstance(identifier, str):
            self._note_number(name, re.fullmatch(rf"{name}-([0-9]{{1,15}})", identifier))

    def _note_number(self, name: str, match: re.Match[str] | None) -> None:
        if match:
            self._numbers[name] = max(self._numbers[name], int(match[1]))

    def _make_state(self, archive_ref: ArchiveRef) -> State:
        if self._config is None:
            raise InvalidInput("the first entry is not a configuration: these are not the entries of a session")
        own, own_policy, agent = configuration.split_config(self._config)
        policy, model = self._config.policy, self._config.model
        profile = make_profile(model)
        if own.agent is None and resolve(agent=profile.policy) != policy:
            # Assume that the session's own `context_policy` sets it.
            own = own.model_copy(update={"context_policy": policy})
        settings = Settings(
            own,
            policy,
            own_policy=own_policy,
            agent=agent,
            agent_due=own.agent is not None and agent is None,
            due=False,
            tools=drafts.make_unresolved_tools(self._config),
            profiles={model: profile} if model else {},
            learned=self._learned,
            refused=self._refused,
        )
        counters = Counters(
            runs=self._numbers["run"],
            calls=self._numbers["call"],
            tool_calls=self._numbers["tool"],
            inputs=self._numbers["input"],
            summaries=self._numbers["summary"],
        )
        memory = Memory(
            receipts=tuple(self._receipts.values()), operations=tuple(self._known_ops), outcomes=self._outcomes
        )
        state = State(
            self._session_id,
            settings,
            phase="idle",
            context_ref=self._context_ref,
            counters=counters,
            spent=Spent(self._usage.plus(self._run.usage), self._subagent_usage),
            memory=memory,
            listed=self._listed,
            archive=archive_ref,
        )
        return replace(state, run=self._run.make_run(state))


def _find_op_id(body: Payload) -> str | None:
    """Find the id of a caller's operation that an entry records: applied, superseded, or a compaction that failed."""
    match body:
        case OperationPayload(operation=operation) if operation.by_session:
            return None
        case OperationPayload() | ErrorPayload() | InputPayload(event="superseded"):
            return body.op_id
        case _:
            return None


class _OpenRun:
    """The state of the newest run, collected from its entries."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.ended: set[str] = set()
        self.usage = Usage()
        self.subagent_usage = Usage()
        self._opened_seq = 0
        self._context_ref = DEFAULT_LANE
        self._requests: list[str] = []
        self._requested_calls: dict[str, RequestedCall] = {}
        self._answer_seq: int | None = None
        self._iteration = 0

    def note(self, entry: Entry, message: MessagePayload) -> None:
        """Note a message of the run."""
        request_id = entry.refs["request_id"]
        if not self._requests:
            self._opened_seq, self._context_ref = entry.seq, message.context_ref
        if request_id not in self._requests:
            self._requests.append(request_id)
        self._iteration = max(self._iteration, entry.refs.get("iteration", 0))
        if isinstance(message, ToolMessage):
            self._requested_calls.pop(message.tool_call_id, None)
        elif isinstance(message, AssistantMessage):
            self._requested_calls = {
                # The entries do not record whether a call was started, so assume that it may have run.
                call["id"]: RequestedCall(call["id"], call["name"], call["arguments"], scheduled=True)
                for call in message.tool_calls or ()
            }
            if message.content and not message.interrupted:
                self._answer_seq = entry.seq

    def make_run(self, state: State) -> Run | None:
        """Make the open run; None: all of its requests have outcomes."""
        unanswered = [request_id for request_id in self._requests if request_id not in self.ended]
        if not unanswered:
            return None
        config = state.settings.config
        request = Request(
            unanswered[0], "", self._context_ref, state.settings.model, ModelOptions(), state.settings.policy, None,
            config.max_iterations, config.request_timeout_seconds,
        )  # fmt: skip
        return Run(
            self.run_id,
            request,
            Clock(0.0),
            opened_seq=self._opened_seq,
            joined=tuple(unanswered[1:]),
            iteration=self._iteration,
            tool_calls=tuple(self._requested_calls.values()),
            answer=Answer(seq=self._answer_seq),
            spent=Spent(self.usage, self.subagent_usage),
        )
