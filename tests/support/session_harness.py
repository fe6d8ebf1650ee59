"""A harness that hosts a session without a workflow: it decides commands and events, and commits the decisions."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json

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
    Task,
)
from clew_activities.model.prepare import make_profile
from clew_workflows.contract.content import Content
from clew_workflows.contract.outcomes import Usage
from clew_workflows.contract.outputs import ApprovalReceipt, CancelReceipt, InputReceipt, OperationReceipt
from clew_workflows.contract.payloads import SentRequest
from clew_workflows.contract.validation import translate_validation_error
from clew_workflows.protocol import (
    AgentRoute,
    ArchiveRef,
    CallModel,
    DescribeModel,
    Event,
    ExternalRoute,
    Failure,
    FunctionRoute,
    ModelAnswered,
    ModelProfile,
    ModelReply,
    ModelStopped,
    Prepared,
    RemoteRoute,
    RequestedTool,
    ResolvedAgent,
    ResolvedTool,
    Route,
    RunTools,
    SessionEffect,
    ToolAnswered,
    ToolReturned,
)
from clew_workflows.session import advance, commands, decisions, requests, tool_rounds, views
from clew_workflows.session.advance import Stamps
from clew_workflows.session.carried import RECENT_ENTRIES, carry, restore
from clew_workflows.session.commands import Command
from clew_workflows.session.plan import Plan, plan
from clew_workflows.session.state import Decision, Moment
from clew_workflows.thread.context.contexts import build_context
from clew_workflows.thread.context.projection import Projection
from clew_workflows.thread.entries import Draft
from clew_workflows.thread.thread import Thread

WIDE = ContextPolicy(max_input_tokens=128_000, reserve_output_tokens=8192, keep_last_turns=10).complete()
UNKNOWN = Failure(type="unknown_model", message="no such provider")
PARAMETERS: Any = {
    "type": "object",
    "properties": {"a": {"type": "integer"}},
    "additionalProperties": True,
}


def make_tool(name: str) -> ResolvedTool:
    """Make a resolved tool. One whose name begins with `ask_` requires approval, with `hold_` that of its round.

    One whose name ends with `_outside` is external, with `_remote` an activity of another worker, with `_agent` a
    subagent's.
    """
    spec: Any = {"name": name, "description": "", "parameters": PARAMETERS}
    route: Route = FunctionRoute(type="function")
    if name.endswith("_outside"):
        route = ExternalRoute(type="external")
    elif name.endswith("_remote"):
        route = RemoteRoute(type="remote", task_queue="other", activity=name)
    elif name.endswith("_agent"):
        route = AgentRoute(type="agent", agent=name.removesuffix("_agent"))
    approved: Any = "round" if name.startswith("hold_") else name.startswith("ask_")
    return ResolvedTool(spec=spec, route=route, timeout_seconds=60, max_attempts=1, requires_approval=approved)


def make_agent(name: str = "support", version: str = "v-1", **config: Any) -> ResolvedAgent:
    """Make an agent as a worker answers it."""
    fields: dict[str, Any] = {"model": "openai:gpt-4o"} | config
    return ResolvedAgent(name=name, version=version, config=SessionConfig(**fields))


def make_reply(schema_problem: str | None = None, needs_summary: bool = False, **reply: Any) -> ModelAnswered:
    return ModelAnswered(
        reply=ModelReply(**reply),
        digest="d",
        policy_hash="p",
        input_tokens=7,
        attempt=1,
        schema_problem=schema_problem,
        needs_summary=needs_summary,
    )


def interrupt_reply(content: str, **usage: Any) -> ModelAnswered:
    """Make what was read of a reply."""
    counts: dict[str, Any] = {"input_tokens": 7, "output_tokens": 2, "estimated_calls": 1} | usage
    return make_reply(content=content, stop_reason="interrupted", usage=Usage(**counts))


def make_stamps() -> Stamps:
    """Make stamps that are the same in every test: ids count up, and the clock stands still."""
    numbers = count()
    return Stamps(now=lambda: datetime(2026, 1, 1, tzinfo=UTC), random_bits=lambda _bits: next(numbers))


class SessionHarness:
    """Hosts a session as the workflow does. Tests answer its effects by `take_event` and the methods that call it."""

    def __init__(
        self,
        *,
        prepare: bool = True,
        tools: tuple[str, ...] | None = None,
        table: bool = False,
        task: Task | None = None,
        **config: Any,
    ) -> None:
        self.thread = Thread()
        self.time = 0.0
        self.tools = ("add", "look") if tools is None else tools
        # With a table, models have their real profiles, and the worker chooses the encoding.
        self.table = table
        counted: dict[str, Any] = {} if table else {"encoding": "heuristic"}
        chosen: dict[str, Any] = {"model": "openai:gpt-4o", "tools": self.tools}
        if "agent" in config:
            # An agent has a model and tools of its own.
            chosen = {} if tools is None else {"tools": tools}
        self.config = SessionConfig(**chosen | counted | config)
        self.effect: SessionEffect | None = None
        self.stamps = make_stamps()
        self.dispatching = True
        self.describing = True
        # How a model call ends that is stopped; None: the test says when.
        self.stopped: Event | None = ModelStopped()
        self.effects: list[SessionEffect] = []
        self.plan = Plan()
        self.compares_plan = True
        self.state = decisions.begin("s-1", self.config, task)
        if prepare:
            self.answer_preparation()

    @property
    def now(self) -> Moment:
        return Moment(self.thread.rev, self.time)

    @property
    def session(self) -> advance.Session:
        return advance.Session(self.state, self.thread, self.effect)

    def apply(self, decision: Decision) -> None:
        step = advance.advance(self.session, decision, self.stamps)
        self.state, self.effect = step.session.state, step.session.effect
        self.plan.update(self.session)
        if self.compares_plan:
            assert self.plan.wanted == plan(self.session), "the plan has not followed the session"
        if decision.effect:
            self.effects.append(decision.effect)
            if isinstance(decision.effect, RunTools) and self.dispatching:
                self.apply(tool_rounds.mark_scheduled(self.state, decision.effect))
            if isinstance(decision.effect, DescribeModel) and self.describing:
                self.take_event(self.make_profile(decision.effect.model))

    def commit(self, draft: Draft) -> None:
        """Commit one entry."""
        self.apply(Decision(self.state, (draft,)))

    def take_event(self, event: Event) -> None:
        """Decide what follows from the result of the effect in flight."""
        self.effect = None
        self.apply(decisions.take_event(self.state, event, self.now))

    def do(self, command: Command, own_id: str | None = None) -> commands.Answer:
        """Decide a command and commit the decision."""
        decision, answer = commands.decide(self.state, self.thread, command, own_id, self.now)
        self.apply(decision)
        if self.state.stopping and self.stopped:
            self.take_event(self.stopped)
        return answer

    def answer_preparation(
        self,
        problem: Failure | None = None,
        tools: tuple[str, ...] | None = None,
        agent: ResolvedAgent | None = None,
        deployment: str = "d-1",
    ) -> None:
        known = self.tools if tools is None else tools
        tools_known = tuple(make_tool(name) for name in known)
        model = (agent.config.overlay(self.state.settings.own).model if agent else self.state.settings.model) or ""
        profile = self.make_profile(model) if model else None
        self.take_event(
            Prepared(
                tools=tools_known,
                problem=problem,
                profile=profile,
                agent=agent,
                deployment=deployment,
                shows_texts=True,
            )
        )

    def make_profile(self, model: str) -> ModelProfile:
        """Make a model's profile. Without a table all models have sliding windows of 128 000 tokens."""
        return make_profile(model) if self.table else ModelProfile(model=model, policy=WIDE, encoding="heuristic")

    def ask(self, content: Content = "hello", request_id: str | None = None, **own: Any) -> str:
        request_id = request_id or f"request-{self.thread.rev}"
        answer = self.do(MessageInput(content=content, request_id=request_id, **own))
        assert isinstance(answer, commands.Outcome)
        assert answer.request_id == request_id
        return request_id

    def steer(self, content: str = "rather this", input_id: str | None = None, **fields: Any) -> InputReceipt:
        receipt = self.do(SubmitInput(**{"kind": "steer", "content": content, "input_id": input_id} | fields))
        assert isinstance(receipt, InputReceipt)
        return receipt

    def operate(self, op_id: str, kind: str = "replace", lane: str | None = None, **fields: Any) -> OperationReceipt:
        operation: dict[str, Any] = {"type": kind, **fields}
        if kind == "replace":
            operation.setdefault("result_context", {"messages": [{"role": "user", "content": f"told by {op_id}"}]})
        data = to_json({"op_id": op_id, "context_ref": lane, "operation": operation})
        try:
            command = ContextOperation.model_validate_json(data)
        except ValidationError as error:
            raise translate_validation_error(ContextOperation, error) from None
        receipt = self.do(command)
        if isinstance(receipt, commands.CompactionAwaited):
            return OperationReceipt(op_id=receipt.op_id, status="deferred")
        assert isinstance(receipt, OperationReceipt)
        return receipt

    def configure(self, **changed: Any) -> commands.Answer:
        return self.do(ConfigureInput(**changed))

    def cancel(self, request_id: str | None = None, **fields: Any) -> CancelReceipt:
        receipt = self.do(CancelInput(request_id=request_id, **fields))
        assert isinstance(receipt, CancelReceipt)
        return receipt

    def approve(self, tool_call_id: str, **fields: Any) -> None:
        decision: dict[str, Any] = {"tool_call_id": tool_call_id, "decision": "approve"} | fields
        answer = self.do(ApprovalInput(**decision))
        assert isinstance(answer, ApprovalReceipt)

    def reply(self, content: Content = "", *tools: RequestedTool | str, **reply: Any) -> None:
        calls = tuple(RequestedTool(name=tool) if isinstance(tool, str) else tool for tool in tools)
        own = self.state.run.request.external_tools if self.state.run else None
        specs = [tool.spec for tool in self.state.settings.list_tools(own)]
        self.take_event(make_reply(content=content, tool_calls=tool_rounds.check_arguments(calls, specs), **reply))

    def answer_calls(self, *contents: str) -> None:
        """Let the calls of the round return, in order."""
        for (call, _), content in zip(self.round.calls, contents, strict=True):
            self.answer_call(call.tool_call_id, content)

    def answer_call(self, tool_call_id: str, content: Content | None = None, failure: Failure | None = None) -> None:
        """Let one tool call return, also after its run."""
        answer = None if content is None else ToolAnswered(content=content)
        event = ToolReturned(tool_call_id=tool_call_id, answer=answer, failure=failure)
        self.apply(decisions.take_event(self.state, event, self.now))

    def fail(self, error: str = "bad_request") -> None:
        self.take_event(Failure(type=error, message=f"it was {error}"))

    def close(self) -> None:
        self.do(CloseInput())

    @property
    def entry_names(self) -> list[str]:
        """One word for each entry: the role of a message, else the kind."""
        return [entry.payload.get("role", entry.kind) for entry in self.thread]

    @property
    def user_texts(self) -> list[str]:
        """The texts of the user messages, in order."""
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

    def find_outcome(self, request_id: str) -> dict[str, Any]:
        outcome = requests.find_outcome(self.state, self.thread, request_id)
        assert outcome is not None, f"{request_id} has no outcome"
        return outcome.model_dump()

    def find_ending(self, request_id: str) -> tuple[str, str]:
        """Find the status and the termination reason of a request."""
        outcome = self.find_outcome(request_id)
        return outcome["status"], outcome["termination_reason"]

    def context(self) -> Projection:
        """The active lane's context as it is now."""
        return build_context(self.thread)

    def build_context(self, call: CallModel) -> Projection:
        """Build the context of a model call."""
        return build_context(
            self.thread,
            context_ref=call.context_ref,
            at_seq=call.at_seq,
            policy=call.context_policy,
            model=call.model,
            output_schema=self.state.run.request.output_schema if self.state.run else None,
            tools=self.state.run.request.tools if self.state.run else None,
            external_tools=views.dump_external_tools(self.state.run.request) if self.state.run else None,
        )


def carry_over(session: SessionHarness, recent_entries: int = RECENT_ENTRIES) -> advance.Session:
    """Carry a session to the next workflow run, with all its entries in the archive."""
    archive = ArchiveRef(execution="x", family="s-1", upto=session.thread.last_seq)
    state = replace(session.state, archive=archive)
    return restore(
        json.loads(json.dumps(carry(replace(session.session, state=state), recent_entries=recent_entries)))
    )


SMALL = ContextPolicy(max_input_tokens=1_200, reserve_output_tokens=200, window="epoch")


MODEL = "local:tiny"


def begin_small(policy: ContextPolicy | None = SMALL, **config: Any) -> SessionHarness:
    """A session with a budget of 1 000 tokens, counted as a quarter of the bytes."""
    return SessionHarness(table=True, model=MODEL, encoding="heuristic", tools=(), context_policy=policy, **config)


def take_turn(session: SessionHarness, tokens: int, ratio: float = 1.0) -> None:
    """A turn of so many tokens; the provider counts each context by a ratio of its own."""
    session.ask("x" * 4 * tokens)
    reply(session, ratio)


def reply(
    session: SessionHarness, ratio: float = 1.0, answer: str = "fine", request: SentRequest | None = None
) -> None:
    """Answer the model call. `request`: what its provider has received."""
    meta = session.build_context(session.call).meta
    usage = Usage(input_tokens=int(meta.estimated_tokens * ratio), output_tokens=1)
    session.take_event(
        ModelAnswered(
            reply=ModelReply(content=answer, usage=usage),
            digest=meta.digest,
            policy_hash=meta.policy_hash,
            input_tokens=meta.estimated_tokens,
            epoch=meta.epoch,
            shared_prefix_tokens=meta.shared_prefix_tokens,
            attempt=1,
            request=request,
        )
    )


def make_refusal(session: SessionHarness, **told: Any) -> Failure:
    """A provider's word that the context is too long, as a worker of today passes it on."""
    counted = session.build_context(session.call).meta.estimated_tokens
    details = {"counted": counted, "status": 400} | told
    return Failure(type="context_length_exceeded", message="too long", details=details)
