"""The run as a session's state holds it, with its request and the inputs that wait for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clew.contract import MessageInput, ModelOptions
from clew.contract.policy import ContextPolicy
from clew.outcomes import Usage
from clew_workflows.core.calls import Checking, RequestedCall
from clew_workflows.protocol import CallModel


@dataclass(frozen=True, slots=True)
class Input:
    """An input for the active run, not committed yet.

    Attributes:
        input_id: The id of the input.
        kind: `steer`, `inject`, `repair`, or `message` for a message that joins the run.
        content: The text.
        at: When it is committed: before the next model call (`step`), or after a reply that
            would end the run (`terminal`).
        on_failure: What becomes of it if the run ends before it is committed.
        source: The source that its entry names.
        request_id: The request of a message that joins the run.
        joined: The message that joins the run.
        tokens: The tokens of its message, counted when it begins to wait.
        checked: The hooks have accepted it.
        refs: The caller's own refs.
    """

    input_id: str
    kind: str
    content: str
    at: Literal["terminal", "step"]
    on_failure: Literal["follow_up", "drop"]
    source: str
    request_id: str | None = None
    joined: MessageInput | None = None
    tokens: int | None = None
    checked: bool = False
    refs: dict[str, str] | None = None

    @property
    def metadata(self) -> dict[str, str] | None:
        """The metadata of the message that joins the run."""
        return self.joined.metadata if self.joined else None


@dataclass(frozen=True, slots=True)
class Request:
    """An accepted message with its settings resolved, or the inputs that a follow-up run answers.

    The settings are resolved again when the run starts, so that a queued request runs under the configuration that is
    in force by then.

    Attributes:
        request_id: The id of the request.
        content: The text of the message.
        context_ref: The lane.
        model: `provider:model`.
        options: The model's options.
        context_policy: The request's changes to the session's policy. If the request names a model and the
            configuration has no policy, they are the complete policy of that model.
        max_iterations: Most model calls of the run.
        timeout_seconds: The time for the run, without the time it waits for nothing but approvals, or results from
            outside.
        metadata: The message's metadata.
        output_schema: The JSON Schema of the answer.
        message: The message; None for a follow-up run.
        inputs: The inputs that a follow-up run answers.
        tokens: The tokens of its message, counted when it begins to wait.
        fallbacks: The models that are tried next, in order, if the model has an outage.
        tools: The names of the request's tools; None: all of the session's.
    """

    request_id: str
    content: str
    context_ref: str
    model: str
    options: ModelOptions
    context_policy: ContextPolicy | None
    max_iterations: int
    timeout_seconds: int
    metadata: dict[str, str] | None = None
    output_schema: dict[str, Any] | None = None
    message: MessageInput | None = None
    inputs: tuple[Input, ...] = ()
    tokens: int | None = None
    fallbacks: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """How a run is to end before its time.

    Attributes:
        reason: `cancelled`; `interrupted` by a message, the first in the queue; `closed`, with the session.
        inputs: What becomes of the inputs that the run has not read.
        explanation: The reason that the caller has sent.
    """

    reason: Literal["cancelled", "interrupted", "closed"]
    inputs: Literal["drop", "follow_up"] = "drop"
    explanation: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """The ReAct loop that serves a request, and the requests that have joined it.

    Attributes:
        run_id: The id of the run.
        request: The request that opened the run.
        deadline: When the run times out, in seconds of the workflow's clock.
        opened_seq: The seq of the message that opened the run.
        joined: The ids of the requests that have joined the run.
        paused_at: When the run began to wait for nothing but approvals, or results from outside, in seconds of the
            workflow's clock; None if it does not.
        tightened: A refused context was shortened, which happens once a run.
        prepared: The configuration was prepared anew during the run, which happens once a run.
        describing: A worker is asked to describe the model that the request names.
        iteration: The number of the newest model call; 0 before the first.
        call: The newest model call.
        tool_calls: The tool calls of the newest reply.
        timed_out_calls: The tool calls that the deadline interrupted, for the message of the timeout.
        answer_seq: The seq of the newest reply that has text; with an `output_schema`, of the newest that also has no
            tool calls.
        usage: The tokens and the cost of the run.
        subagent_usage: Those of the subagents that the run has started.
        worked_seconds: The most seconds that a subagent of the newest round has worked.
        ending: How the run ends once its model call has stopped; None: it is not to end.
        failed_models: The models of the run that had an outage. The request's model is the next one.
        reply_reason: The termination reason of the run if its newest reply is the answer.
        schema_problem: How the newest reply without tool calls violates the request's `output_schema`.
        cut_replies: The newest replies that ended within a tool call, without another between them.
        checking: What hooks are checking; None: nothing.
        checked_seq: The seq of the newest answer that the hooks have accepted.
        unchecked: Hooks have to check the run's messages, which were committed before the session knew of the hooks.
            No model has been called.
    """

    run_id: str
    request: Request
    deadline: float
    opened_seq: int
    joined: tuple[str, ...] = ()
    paused_at: float | None = None
    tightened: bool = False
    prepared: bool = False
    describing: bool = False
    iteration: int = 0
    call: CallModel | None = None
    tool_calls: tuple[RequestedCall, ...] = ()
    timed_out_calls: tuple[str, ...] = ()
    answer_seq: int | None = None
    usage: Usage = Usage()
    subagent_usage: Usage = Usage()
    worked_seconds: float = 0.0
    ending: Ending | None = None
    failed_models: tuple[str, ...] = ()
    reply_reason: str = ""
    schema_problem: str | None = None
    cut_replies: int = 0
    checking: Checking | None = None
    checked_seq: int | None = None
    unchecked: bool = False

    @property
    def fallback(self) -> str | None:
        """The fallback that the run uses; None: its model has had no outage."""
        return self.request.model if self.failed_models else None
