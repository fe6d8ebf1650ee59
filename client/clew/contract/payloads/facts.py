"""What the other entries hold: configurations, summaries, failures, outcomes, and so on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

from pydantic import SkipValidation
from pydantic_core import to_json

from clew.contract.config import OnBusy, SessionConfig
from clew.contract.payloads.base import EntryKind, Json, Payload, RunError, Stored, Usage, stored
from clew.contract.policy import ContextPolicy
from clew.model.messages import Message, ToolSpec
from clew.model.tokens import Encoding


@stored
class ConfigTokens(Stored):
    """The tokens of what surrounds every context.

    Attributes:
        system_prompt: Those of the system prompt.
        tools: Those of the tool schemas.
    """

    system_prompt: int
    tools: int


@stored
class ConfigPayload(Payload):
    """The configuration in force from here on, complete, so that no later default can change it.

    Attributes:
        model: The model, as `provider:model`.
        strategy: How a run is led: `react`.
        system_prompt: The system prompt.
        tools: The schemas of the tools, as the worker resolved them.
        require_approval: The tools whose calls wait for somebody's word.
        context_policy: The context policy (`ContextPolicy`), every field of it.
        model_options: The options of model calls (`ModelOptions`), those that are set.
        max_iterations: How many model calls a run may make.
        request_timeout_seconds: How long a request may take.
        on_busy: What becomes of a message that finds the session busy.
        steering: When inputs enter a run: with the answer, or before its next model call.
        encoding: The encoding that tokens are counted under.
        limits: What the session may take in and spend (`Limits`), those limits that are set.
        idle_timeout_seconds: After how long without work the session is archived.
        metadata: The session's metadata.
        tokens: The tokens of the system prompt and of the tool schemas.
    """

    entry_kind: ClassVar[EntryKind] = "config"

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
    tokens: ConfigTokens | None = None

    @property
    def policy(self) -> ContextPolicy:
        """The context policy in force, complete.

        Raises:
            ValueError: a later release has written fields that this one does not know.
        """
        return ContextPolicy.model_validate(self.context_policy, strict=False)

    @property
    def prompt(self) -> str | None:
        """The system prompt in force: the policy's, where it has one, before the session's."""
        return self.context_policy.get("system_prompt") or self.system_prompt

    @property
    def provider(self) -> str:
        """The provider of the model."""
        return self.model.partition(":")[0]

    @property
    def config(self) -> SessionConfig:
        """The configuration as a session is started with it, its policy aside."""
        value = {name: value for name, value in self.as_json().items() if name in SessionConfig.model_fields}
        value["tools"] = [tool["name"] for tool in self.tools]
        del value["context_policy"]
        return SessionConfig.model_validate_json(to_json(value))

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """The payload with the counts of its parts, and their sum."""
        tokens = ConfigTokens(
            system_prompt=encoding.count_system_prompt(self.prompt), tools=encoding.count_tools(self.tools)
        )
        return replace(self, tokens=tokens), tokens.system_prompt + tokens.tools


@stored
class SummaryPayload(Payload):
    """A summary stands for its lane up to a seq.

    Attributes:
        context_ref: The lane.
        content: The summary's text.
        format: How the text is written: `text`.
        from_seq: The first entry that was summed up anew.
        to_seq: The last entry that it speaks for; it speaks for everything before, too.
        model: The model that wrote it, as `provider:model`.
        source_digest: SHA-256 over the seqs and ids of the entries that it sums up.
        source_tokens: The tokens of those entries.
        pinned: The seqs of the entries that were pinned then, and stay as they are.
        usage: What writing it used.
    """

    entry_kind: ClassVar[EntryKind] = "summary"

    context_ref: str
    content: str
    format: str
    from_seq: int
    to_seq: int
    model: str
    source_digest: str | None = None
    source_tokens: int | None = None
    pinned: tuple[int, ...] | None = None
    usage: Usage | None = None

    def message(self, role: Literal["system", "user"]) -> Message:
        """The summary as a context shows it."""
        return {"role": role, "content": f"Summary of earlier conversation:\n{self.content}"}

    @property
    def provenance(self) -> dict[str, Any]:
        """What it was made of and by what, as a compaction's `meta` has it."""
        value = self.as_json()
        return {name: value[name] for name in value if name not in ("context_ref", "content", "format")}

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """The payload, and the tokens of its message."""
        return self, encoding.count_message(self.message("system"))


@stored
class Retried(Stored):
    """A call that was made again with a shorter context.

    Attributes:
        call_id: The new call.
        model: The model, as `provider:model`.
        budget: What its contexts may have from now on, in tokens.
    """

    call_id: str
    model: str
    budget: int


@stored
class ErrorPayload(Payload):
    """Something went wrong.

    Attributes:
        type: The type of the error, one word of the contract's list.
        message: What is to be known about it.
        details: What is known beside: the attempts, the operation that failed, what is tried instead.
    """

    entry_kind: ClassVar[EntryKind] = "error"

    type: str
    message: str
    details: Json

    @property
    def op_id(self) -> str | None:
        """The id of the context operation that failed, where one did."""
        return self.details.get("op_id")

    @property
    def retried(self) -> Retried | None:
        """The call that is made instead of the one that failed, where one is."""
        value = self.details.get("retried")
        return Retried.from_json(value) if value else None


@stored
class RunPayload(Payload):
    """The outcome of a request.

    Attributes:
        event: `finished`.
        status: How the request ended.
        termination_reason: Why it ended: `final_answer`, another word of the contract's list, or the error's type.
        usage: What the run used; of requests that shared a run, one has the numbers and the others name it.
        iterations: How many model calls the run made.
        answer_seq: The seq of the answer; absent where there is none.
        error: Why the request failed.
        reason: What the caller who cancelled gave as the reason.
    """

    entry_kind: ClassVar[EntryKind] = "run"

    event: Literal["finished"]
    status: Literal["completed", "failed", "cancelled"]
    termination_reason: str
    usage: Usage
    iterations: int
    answer_seq: int | None = None
    error: RunError | None = None
    reason: str | None = None


@stored
class InputPayload(Payload):
    """Something that arrived did not enter the thread, or was overtaken.

    Attributes:
        event: What became of it: refused, never read, overtaken by a later one, or merged with it.
        kind: What it was: `message`, `steer`, `inject`, `modify_context`, `configure`, or a signal's name.
        reason: Why.
        content: Its first 200 characters.
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
    """Somebody decided about a tool call that waited for it.

    Attributes:
        tool_call_id: The call.
        decision: Whether it may run.
        reason: What was given as the reason.
        arguments: The arguments that were put in the place of the model's.
    """

    entry_kind: ClassVar[EntryKind] = "approval"

    tool_call_id: str
    decision: Literal["approve", "deny"]
    reason: str | None = None
    arguments: Json | None = None


@stored
class ForkPayload(Payload):
    """The session was forked, or is a fork.

    Attributes:
        event: Whether it began as a fork of the other session, or the other began as a fork of it.
        session_id: The other session.
        fork_seq: The last entry that both have.
        metadata: The metadata that the fork was made with.
    """

    entry_kind: ClassVar[EntryKind] = "fork"

    event: Literal["forked_from", "forked_to"]
    session_id: str
    fork_seq: int
    metadata: dict[str, str] | None = None


@stored
class SessionPayload(Payload):
    """The session was archived, woken, recovered or closed.

    Attributes:
        event: What became of it.
        workflow: How its workflow had ended, where it was recovered.
        reason: Why.
    """

    entry_kind: ClassVar[EntryKind] = "session"

    event: Literal["hibernated", "woken", "recovered", "closed"]
    workflow: str | None = None
    reason: str | None = None
