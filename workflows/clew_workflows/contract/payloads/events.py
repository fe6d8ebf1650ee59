"""What the entries of the session's own events hold."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from typing import ClassVar, Literal, Self

from pydantic import SkipValidation
from pydantic_core import to_json

from clew_workflows.contract.config import ApprovalScope, OnBusy, SessionConfig
from clew_workflows.contract.messages import ToolSpec
from clew_workflows.contract.names import READ_RESULT
from clew_workflows.contract.payloads.base import EntryKind, Json, Payload, RunError, Stored, Usage, stored
from clew_workflows.contract.policy import ContextPolicy
from clew_workflows.contract.tokens import Encoding

# What `config` entries hold: the configuration in force.


_NOT_COMPARED = ("own", "changes", "tokens")
"""Fields of a configuration that say nothing new about what is in force."""


def list_configured_names(tools: Iterable[ToolSpec]) -> list[str]:
    """List the names that a configuration has of these tools, unless a name is an MCP server's or of no tool."""
    return [tool["name"] for tool in tools if tool["name"] != READ_RESULT]


@stored
class ConfigTokens(Stored):
    """Tokens that every context has beside its messages.

    Attributes:
        system_prompt: Tokens of the system prompt.
        tools: Tokens of the tool schemas.
    """

    system_prompt: int
    tools: int


@stored
class AgentVersion(Stored):
    """An agent as a worker has resolved it.

    Attributes:
        name: The name of the agent.
        version: The digest of the agent's configuration, its tools and its label.
        label: The label that the agent's author gave the version.
    """

    name: str
    version: str
    label: str | None = None


@stored
class ConfigPayload(Payload):
    """The configuration in force from this entry on, complete, so that no later default can change it.

    Attributes:
        agent: The agent whose configuration it is; absent: the session has none, or no worker has resolved it yet.
        pin: Whether the session keeps this version of the agent and these schemas.
        model: The model, as `provider:model`; empty: it is the agent's, and no worker has resolved the agent yet.
        fallbacks: The models that a run tries while its model has an outage.
        strategy: How a run is led: `react`.
        system_prompt: The system prompt.
        tools: The schemas of the tools, as the worker resolved them.
        tool_names: The names of the tools as the configuration has them; absent: those of the schemas, but for
            `read_result`.
        require_approval: The tools whose calls wait for a person's decision.
        approval_scope: Which calls of a reply wait for an approval: those that need it (`call`), or all of the reply
            until the last decision (`round`).
        context_policy: The context policy (`ContextPolicy`), with every field.
        model_options: The options of model calls (`ModelOptions`) that are set.
        max_iterations: The most model calls of a run.
        request_timeout_seconds: The longest time of a request, in seconds.
        on_busy: What becomes of a message that finds the session busy.
        steering: When inputs enter a run: with its answer, or before its next model call.
        encoding: The encoding that tokens are counted under.
        limits: The limits (`Limits`) that are set.
        idle_timeout_seconds: After so many seconds without work the session hibernates.
        metadata: The session's metadata.
        priority: Which calls the workers take first: 1 the first, 5 the last.
        own: What callers have set over the agent's configuration (`SessionConfig`), where the session has an agent.
        changes: The fields that differ from the `config` entry before, but for `own`; absent in the first one.
        tokens: The tokens of the system prompt and of the tool schemas.
    """

    entry_kind: ClassVar[EntryKind] = "config"

    agent: AgentVersion | None = None
    pin: bool = False
    model: str
    strategy: str
    system_prompt: str | None
    tools: SkipValidation[list[ToolSpec]]
    require_approval: list[str]
    context_policy: Json
    model_options: Json
    max_iterations: int
    request_timeout_seconds: int
    on_busy: OnBusy
    steering: Literal["terminal", "step"]
    encoding: str
    limits: Json
    idle_timeout_seconds: int | None
    metadata: dict[str, str]
    fallbacks: tuple[str, ...] = ()
    priority: int = 3
    approval_scope: ApprovalScope = "call"
    tool_names: list[str] | None = None
    own: Json | None = None
    changes: list[str] | None = None
    tokens: ConfigTokens | None = None

    @property
    def policy(self) -> ContextPolicy:
        """The context policy in force, complete.

        Raises:
            ValueError: The policy has fields of a later release.
        """
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def prompt(self) -> str | None:
        """The system prompt in force: the policy's if it has one, else the session's."""
        return self.context_policy.get("system_prompt") or self.system_prompt

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def configured_tools(self) -> list[str]:
        """The names of the tools as the configuration has them. One of them may stand for several tools, or none."""
        return list_configured_names(self.tools) if self.tool_names is None else self.tool_names

    @property
    def config(self) -> SessionConfig:
        """The configuration as a session is started with it, without the policy."""
        value = {name: value for name, value in self.as_dict().items() if name in SessionConfig.model_fields}
        value |= {"tools": self.configured_tools, "model": self.model or None}
        # An agent's metadata and the session's own may be more together than a caller may send.
        del value["context_policy"], value["metadata"]
        if self.own:
            value["agent"] = self.own["agent"]
        config = SessionConfig.model_validate_json(to_json(value))
        return config.model_copy(update={"metadata": self.metadata})

    def compare(self, before: Self) -> Self:
        """Compare the configuration with the one before; the payload records the fields that differ."""
        names = (field.name for field in fields(self) if field.name not in _NOT_COMPARED)
        return replace(self, changes=[name for name in names if getattr(self, name) != getattr(before, name)])

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the system prompt and of the tool schemas; the payload records both.

        If `tokens` has those of the schemas already, they are not counted again.
        """
        tokens = ConfigTokens(
            system_prompt=encoding.count_system_prompt(self.prompt),
            tools=self.tokens.tools if self.tokens else encoding.count_tools(self.tools),
        )
        return replace(self, tokens=tokens), tokens.system_prompt + tokens.tools


# What the entries hold that no context shows: errors, outcomes, refused inputs, approvals, forks, session events.


@stored
class Retried(Stored):
    """A model call that follows one that failed: with a shorter context, or of a fallback.

    Attributes:
        call_id: The new call.
        model: The model, as `provider:model`.
        budget: The largest context of the model from now on, in tokens; absent: the new call is of a fallback.
    """

    call_id: str
    model: str
    budget: int | None = None


@stored
class ErrorPayload(Payload):
    """An error.

    Attributes:
        type: The type of the error, a word of the contract's list.
        message: A description for people.
        details: More about the error: the attempts, the failed operation, the call that follows.
    """

    entry_kind: ClassVar[EntryKind] = "error"

    type: str
    message: str
    details: Json

    @property
    def op_id(self) -> str | None:
        """The id of the failed context operation; None where no operation failed."""
        return self.details.get("op_id")

    @property
    def retried(self) -> Retried | None:
        """The call that follows the failed one; None where there is none."""
        value = self.details.get("retried")
        return Retried.from_json(value) if value else None


@stored
class RunPayload(Payload):
    """The outcome of a request.

    Attributes:
        event: `finished`.
        status: The status of the request.
        termination_reason: Why the request ended: `final_answer`, another word of the contract's list, or the error's
            type.
        usage: The usage of the run. Of requests that shared a run, one has the numbers and the others name it.
        subagent_usage: The usage of the subagents that the run has started, and of theirs.
        iterations: Model calls of the run.
        fallback: The fallback that the run ended with, as `provider:model`; absent: its model had no outage.
        answer_seq: The seq of the answer; absent where there is none.
        error: Why the request failed.
        reason: The reason that the caller gave for a cancellation.
    """

    entry_kind: ClassVar[EntryKind] = "run"

    event: Literal["finished"]
    status: Literal["completed", "failed", "cancelled"]
    termination_reason: str
    usage: Usage
    subagent_usage: Usage | None = None
    iterations: int
    fallback: str | None = None
    answer_seq: int | None = None
    error: RunError | None = None
    reason: str | None = None


@stored
class InputPayload(Payload):
    """An input that did not enter the thread as a message.

    Attributes:
        event: The input was refused, never read, superseded by a later one, or merged with a later one.
        kind: The kind of input: `message`, `steer`, `inject`, `modify_context`, `configure`, or a signal's name.
        reason: The reason for the event.
        content: The first 200 characters; of a signal that is malformed, its ids alone.
        input_id: The id of the input.
        op_id: The id of the context operation.
        request_id: The request that it belonged to.
    """

    entry_kind: ClassVar[EntryKind] = "input"

    event: Literal["rejected", "dropped", "superseded", "merged"]
    kind: str
    reason: str
    content: str
    input_id: str | None = None
    op_id: str | None = None
    request_id: str | None = None


@stored
class ApprovalPayload(Payload):
    """A person's decision about a tool call.

    Attributes:
        tool_call_id: The call.
        decision: Whether the tool may run.
        reason: The reason that the person gave.
        by: Who decided, as the caller said.
        arguments: The arguments that replace the model's.
    """

    entry_kind: ClassVar[EntryKind] = "approval"

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str | None = None
    by: str | None = None
    arguments: Json | None = None


@stored
class ForkPayload(Payload):
    """A fork: the session was forked, or is a fork.

    Attributes:
        event: `forked_from`: the session is a fork of the other one; `forked_to`: the other one is a fork of it.
        session_id: The other session.
        fork_seq: The last entry that both have.
        metadata: The metadata of the fork.
    """

    entry_kind: ClassVar[EntryKind] = "fork"

    event: Literal["forked_from", "forked_to"]
    session_id: str
    fork_seq: int
    metadata: dict[str, str] | None = None


@stored
class SessionPayload(Payload):
    """The session hibernated, woke, was recovered or was closed.

    Attributes:
        event: The event.
        workflow: The status in which the workflow had ended before a recovery.
        reason: The reason that the caller gave.
    """

    entry_kind: ClassVar[EntryKind] = "session"

    event: Literal["hibernated", "woken", "recovered", "closed"]
    workflow: str | None = None
    reason: str | None = None
