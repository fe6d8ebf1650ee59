"""A session on paper: what the workflow does with decisions, without a workflow."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

from clew.context.contexts import build_context
from clew.context.projection import Projection
from clew.contract import (
    ApprovalInput,
    CancelInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ContextPolicy,
    MessageInput,
    SessionConfig,
    SubmitInput,
)
from clew.contract.outputs import ApprovalReceipt, CancelReceipt, InputReceipt, OperationReceipt
from clew.contract.refusals import translate_validation_error
from clew.model.messages import Message
from clew.thread.entries import Draft
from clew.thread.thread import Thread
from clew_activities.prepare import make_profile
from clew_workflows.core import advance, commands, decisions, outcomes, tool_rounds
from clew_workflows.core.carried import RECENT_ENTRIES, carry, restore
from clew_workflows.core.commands import Command
from clew_workflows.core.decision import Decision
from clew_workflows.core.stamps import Stamps
from clew_workflows.core.state import Moment
from clew_workflows.protocol import (
    ArchiveRef,
    CallModel,
    DescribeModel,
    Event,
    Failure,
    ModelAnswered,
    ModelProfile,
    ModelReply,
    Prepared,
    RequestedTool,
    ResolvedTool,
    RunTools,
    SessionEffect,
    ToolAnswered,
    ToolReturned,
)

WIDE = ContextPolicy(max_input_tokens=128_000, reserve_output_tokens=8192, keep_last_turns=10).complete()
UNKNOWN = Failure(type="unknown_model", message="no such provider")
PARAMETERS: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "additionalProperties": True,
}


def resolved(name: str) -> ResolvedTool:
    """A tool as a worker resolves it; those whose names begin with `ask_` want approval."""
    spec: Any = {"name": name, "description": "", "parameters": PARAMETERS}
    return ResolvedTool(spec=spec, timeout_seconds=60, max_attempts=1, requires_approval=name.startswith("ask_"))


def answered(schema_problem: str | None = None, needs_summary: bool = False, **reply: Any) -> ModelAnswered:
    return ModelAnswered(
        reply=ModelReply(**reply),
        digest="d",
        policy_hash="p",
        input_tokens=7,
        attempt=1,
        schema_problem=schema_problem,
        needs_summary=needs_summary,
    )


def stamps() -> Stamps:
    """The same ids and times in every test: ids count up, and the clock stands still."""
    numbers = count()
    return Stamps(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), random_bits=lambda _bits: next(numbers))


class Session:
    """A session on paper: it commits what is decided and holds what is being carried out, as the workflow does."""

    def __init__(
        self, *, prepare: bool = True, tools: tuple[str, ...] = ("add", "look"), table: bool = False, **config: Any
    ) -> None:
        self.thread = Thread()
        self.time = 0.0
        self.tools = tools
        # With a table the worker knows of models what real ones do, and chooses the encoding too.
        self.table = table
        counted: dict[str, Any] = {} if table else {"encoding": "heuristic"}
        self.config = SessionConfig(**{"model": "openai:gpt-4o", "tools": tools} | counted | config)
        self.effect: SessionEffect | None = None
        self.stamps = stamps()
        self.dispatching = True
        self.describing = True
        self.asked_for: list[SessionEffect] = []
        self.state = decisions.begin("s-1", self.config)
        if prepare:
            self.prepared()

    @property
    def now(self) -> Moment:
        return Moment(self.thread.rev, self.time)

    @property
    def session(self) -> advance.Session:
        return advance.Session(self.state, self.thread, self.effect)

    def apply(self, decision: Decision) -> None:
        step = advance.advance(self.session, decision, self.stamps)
        self.state, self.effect = step.session.state, step.session.effect
        if decision.effect:
            self.asked_for.append(decision.effect)
            if isinstance(decision.effect, RunTools) and self.dispatching:
                self.apply(tool_rounds.mark_scheduled(self.state))
            if isinstance(decision.effect, DescribeModel) and self.describing:
                self.happened(self.profile(decision.effect.model))

    def commit(self, draft: Draft) -> None:
        """An entry as if something had been decided."""
        self.apply(Decision(self.state, (draft,)))

    def happened(self, event: Event) -> None:
        """What was being carried out has come to its end."""
        self.effect = None
        self.apply(decisions.take_event(self.state, event, self.now))

    def do(self, command: Command, own_id: str | None = None) -> commands.Answer:
        """A command, decided and carried out."""
        decision, answer = commands.decide(self.state, self.thread, command, own_id, self.now)
        self.apply(decision)
        return answer

    def prepared(self, problem: Failure | None = None, tools: tuple[str, ...] | None = None) -> None:
        known = self.tools if tools is None else tools
        tools_known = tuple(resolved(name) for name in known)
        profile = self.profile(self.state.config.model)
        self.happened(Prepared(tools=tools_known, problem=problem, profile=profile))

    def profile(self, model: str) -> ModelProfile:
        """What the worker knows of a model: without a table all are alike, with sliding windows of 128 000 tokens."""
        return make_profile(model) if self.table else ModelProfile(model=model, policy=WIDE, encoding="heuristic")

    def ask(self, content: str = "hello", request_id: str | None = None, **own: Any) -> str:
        request_id = request_id or f"request-{self.thread.rev}"
        answer = self.do(MessageInput(content=content, request_id=request_id, **own))
        assert isinstance(answer, commands.Outcome)
        assert answer.request_id == request_id
        return request_id

    def steer(self, content: str = "rather this", input_id: str | None = None, **given: Any) -> InputReceipt:
        receipt = self.do(SubmitInput(**{"kind": "steer", "content": content, "input_id": input_id} | given))
        assert isinstance(receipt, InputReceipt)
        return receipt

    def operate(self, op_id: str, kind: str = "replace", lane: str | None = None, **given: Any) -> OperationReceipt:
        operation: dict[str, Any] = {"type": kind, **given}
        if kind == "replace":
            operation.setdefault("result_context", {"messages": [{"role": "user", "content": f"told by {op_id}"}]})
        sent = to_json({"op_id": op_id, "context_ref": lane, "operation": operation})
        try:
            command = ContextOperation.model_validate_json(sent)
        except ValidationError as error:
            raise translate_validation_error(ContextOperation, error) from None
        receipt = self.do(command)
        assert isinstance(receipt, OperationReceipt)
        return receipt

    def configure(self, **changed: Any) -> commands.Answer:
        return self.do(ConfigureInput(**changed))

    def cancel(self, request_id: str | None = None, **given: Any) -> CancelReceipt:
        receipt = self.do(CancelInput(request_id=request_id, **given))
        assert isinstance(receipt, CancelReceipt)
        return receipt

    def approve(self, tool_call_id: str, **given: Any) -> None:
        word: dict[str, Any] = {"tool_call_id": tool_call_id, "decision": "approve"} | given
        answer = self.do(ApprovalInput(**word))
        assert isinstance(answer, ApprovalReceipt)

    def reply(self, content: str = "", *tools: RequestedTool | str, **reply: Any) -> None:
        calls = tuple(RequestedTool(name=tool) if isinstance(tool, str) else tool for tool in tools)
        self.happened(answered(content=content, tool_calls=calls, **reply))

    def results(self, *contents: str) -> None:
        """The calls of the round return, in order."""
        for (call, _), content in zip(self.round.calls, contents, strict=True):
            self.returned(call.tool_call_id, content)

    def returned(self, tool_call_id: str, content: str | None = None, failure: Failure | None = None) -> None:
        """One tool call returns, be it after its run."""
        answer = None if content is None else ToolAnswered(content=content)
        event = ToolReturned(tool_call_id=tool_call_id, answer=answer, failure=failure)
        self.apply(decisions.take_event(self.state, event, self.now))

    def fail(self, error: str = "bad_request") -> None:
        self.happened(Failure(type=error, message=f"it was {error}"))

    def close(self) -> None:
        self.do(CloseInput())

    @property
    def facts(self) -> list[str]:
        """Each entry in a word: the role of a message, else its kind."""
        return [entry.payload.get("role", entry.kind) for entry in self.thread]

    @property
    def said(self) -> list[str]:
        """What users have said, in order."""
        return [entry.payload["content"] for entry in self.thread if entry.payload.get("role") == "user"]

    @property
    def call(self) -> CallModel:
        assert isinstance(self.effect, CallModel)
        return self.effect

    @property
    def round(self) -> RunTools:
        assert isinstance(self.effect, RunTools)
        return self.effect

    def events(self, event: str) -> list[dict[str, Any]]:
        """The payloads of the `input` entries of an event."""
        return [dict(e.payload) for e in self.thread.filter_by_kind("input") if e.payload["event"] == event]

    def outcome(self, request_id: str) -> dict[str, Any]:
        outcome = outcomes.find_outcome(self.state, self.thread, request_id)
        assert outcome is not None, f"{request_id} has no outcome"
        return outcome.model_dump()

    def ended(self, request_id: str) -> tuple[str, str]:
        """How a request ended, in two words."""
        outcome = self.outcome(request_id)
        return outcome["status"], outcome["termination_reason"]

    def context(self) -> Projection:
        """The active lane's context as it is now."""
        return build_context(self.thread)

    def shown(self, call: CallModel) -> Projection:
        """What the model is shown for a call."""
        return build_context(
            self.thread,
            context_ref=call.context_ref,
            at_seq=call.at_seq,
            policy=call.context_policy,
            model=call.model,
            output_schema=self.state.run.request.output_schema if self.state.run else None,
        )


def assert_valid(messages: list[Message]) -> None:
    """No call goes unanswered and no result is without its call: every provider takes such a context."""
    awaited: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            assert message.get("tool_call_id") in awaited
            awaited -= {message.get("tool_call_id", "")}
        else:
            assert not awaited
            awaited = {call["id"] for call in message.get("tool_calls", [])}
            assert len(awaited) == len(message.get("tool_calls", []))
    assert not awaited


def journey(session: Session, upto: int | None = None, recent_entries: int = RECENT_ENTRIES) -> advance.Session:
    """What arrives of a session whose entries up to a seq are in the archive."""
    place = ArchiveRef(execution="x", family="s-1", upto=session.thread.last_seq if upto is None else upto)
    state = replace(session.state, archive=place)
    return restore(
        json.loads(json.dumps(carry(replace(session.session, state=state), recent_entries=recent_entries)))
    )
