"""A session's state and the live part of its thread, made from its entries alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from clew.context.contexts import policy_of
from clew.contract import ModelOptions, SessionConfig
from clew.contract.outputs import InputReceipt
from clew.contract.policy import ContextPolicy, resolve
from clew.errors import InvalidInput
from clew.model.messages import Message
from clew.outcomes import RequestOutcome, Usage
from clew.thread.entries import DEFAULT_LANE, Entry, call_ids
from clew.thread.thread import Thread
from clew_activities.prepare import profile_of
from clew_workflows.core import budgets, carried, drafts, inputs
from clew_workflows.core.advance import Session
from clew_workflows.core.state import REMEMBERED_OPS, AskedCall, Learned, Request, Run, State
from clew_workflows.protocol import ArchiveRef, ModelProfile


class Folding:
    """Entries, in order, become what a session goes on from. No more of the thread is kept than a session keeps.

    The same entries make the same state, however they are divided.
    """

    def __init__(self, session_id: str) -> None:
        self.thread = Thread()
        self._session_id = session_id
        self._config: Entry | None = None
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
        payload = entry.payload
        if entry.kind == "config":
            if self._config and _policy_alone(self._config, entry):
                self._learned = {}
            self._config = entry
        elif entry.kind == "error":
            if retried := payload["details"].get("retried"):
                self._learned = budgets.refused(self._learned, retried["model"], retried["budget"])
        elif entry.kind == "ai_context_operation":
            self._note_operation(entry)
        elif entry.kind == "ai_message":
            self._note_message(entry)
        elif entry.kind == "run":
            self._run.ended.add(entry.refs["request_id"])
        if op_id := _operated(entry):
            known = [known for known in self._known_ops if known != op_id]
            self._known_ops = [*known, op_id][-REMEMBERED_OPS:]
        if summary_id := entry.refs.get("summary_id"):
            self._count("summary", summary_id)
            provenance = payload.get("operation", {}).get("meta") or payload
            self._usage = self._usage.plus(Usage.model_validate(provenance.get("usage", {})))
        self._count("run", entry.refs.get("run_id"))
        self._count("call", entry.refs.get("call_id"))
        if (input_id := payload.get("input_id")) is not None:
            self._count("input", input_id)
            request_id = entry.refs.get("request_id") or payload.get("request_id") or ""
            self._receipts[input_id] = InputReceipt(input_id=input_id, request_id=request_id, position=1)
            if len(self._receipts) > inputs.REMEMBERED:
                del self._receipts[next(iter(self._receipts))]

    def _note_operation(self, entry: Entry) -> None:
        operation = entry.payload["operation"]
        if operation["type"] == "switch":
            self._context_ref = entry.payload["context_ref"]
        for message in (operation.get("result_context") or {}).get("messages", ()):
            self._count_calls(message)

    def _note_message(self, entry: Entry) -> None:
        payload, run_id = entry.payload, entry.refs.get("run_id")
        if payload.get("late"):
            return
        if run_id and run_id != self._run.run_id:
            self._run = _OpenRun(run_id)
        if run_id:
            self._run.note(entry)
        self._count_calls(entry.message)
        if recipe := payload.get("recipe"):
            spent = Usage.model_validate(recipe["usage"]).model_copy(update={"model_calls": 1})
            self._learn(recipe, spent)
            self._usage = self._usage.plus(spent)
            self._run.usage = self._run.usage.plus(spent)

    def _learn(self, recipe: Mapping[str, Any], spent: Usage) -> None:
        assert self._config is not None
        own = recipe.get("context_policy")
        policy = policy_of(self._config)
        if own:
            policy = policy.overlaid(ContextPolicy.model_validate(own, strict=False))
        self._learned = budgets.counted(
            self._learned, recipe["model"], policy, recipe["input_tokens"], spent.input_tokens
        )

    def _count_calls(self, message: Message) -> None:
        for tool_call_id in call_ids(message):
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
            tools=drafts.unresolved_tools(self._config),
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


def _operated(entry: Entry) -> str | None:
    """The id of an operation that an entry tells of: applied, overtaken, or a compaction that failed."""
    payload = entry.payload
    told = payload.get("details", {}) if entry.kind == "error" else payload
    if entry.kind in ("ai_context_operation", "error") or payload.get("event") == "superseded":
        op_id: str | None = told.get("op_id")
        return op_id
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
        self._asked: dict[str, AskedCall] = {}
        self._answer_seq: int | None = None
        self._iteration = 0

    def note(self, entry: Entry) -> None:
        """Take a message of the run."""
        payload, request_id = entry.payload, entry.refs["request_id"]
        if not self._requests:
            self._opened_seq, self._context_ref = entry.seq, payload["context_ref"]
        if request_id not in self._requests:
            self._requests.append(request_id)
        self._iteration = max(self._iteration, entry.refs.get("iteration", 0))
        if payload["role"] == "tool":
            self._asked.pop(payload["tool_call_id"], None)
        elif payload["role"] == "assistant":
            self._asked = {
                # The entries do not tell whether a call was started: it may have run.
                call["id"]: AskedCall(call["id"], call["name"], call["arguments"], scheduled=True)
                for call in payload.get("tool_calls", ())
            }
            if payload["content"]:
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
            asked=tuple(self._asked.values()),
            answer_seq=self._answer_seq,
            usage=self.usage,
        )


def _policy_alone(before: Entry, after: Entry) -> bool:
    """Whether a configuration differs from the one before it in its policy, and not for another model."""
    if before.payload["model"] != after.payload["model"]:
        return False
    return policy_of(before) != policy_of(after)


def _configured(entry: Entry) -> tuple[SessionConfig, ContextPolicy, ModelProfile]:
    """The configuration in force, its policy as a whole, and the profile of its model.

    A policy that is not the one of the profile was given, as far as the entries tell.
    """
    config, policy = drafts.configured(entry), policy_of(entry)
    profile = profile_of(config.model)
    if resolve(agent=config.context_policy or profile.policy) != policy:
        config = config.model_copy(update={"context_policy": policy})
    return config, policy, profile
