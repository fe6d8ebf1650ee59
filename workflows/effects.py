"""What the session asks of the world, and what the world answers: effects as data.

The decisions in `workflows` name an effect, an activity of the same name carries it out. Inputs are
references, never conversations, so that the history grows by what is new and not by what is old.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from clew.contract import ModelOptions, Usage
from clew.messages import ProviderData, ToolSpec
from clew.policy import ContextPolicy


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class Prepare(_Value):
    """Resolve a configuration against what the worker has: its providers and its registered tools."""

    model: str
    tools: tuple[str, ...]


class Prepared(_Value):
    """Every tool's schema as the worker resolved it, in the order asked for, or what it does not know."""

    tools: tuple[ResolvedTool, ...] = ()
    problem: Failure | None = None


class ResolvedTool(_Value):
    """A tool's schema and how its calls are carried out.

    `timeout_seconds` bounds one attempt; `max_attempts` bounds the retries of an attempt that failed. A call of a
    tool that is not `idempotent` is never attempted twice.
    """

    spec: ToolSpec
    timeout_seconds: float
    max_attempts: int
    idempotent: bool = True
    requires_approval: bool = False


class CallModel(_Value):
    """One model call, by reference: the activity fetches its context from the session, pinned to `at_seq`.

    `context_policy` is the request's own, where it had one. `options.max_output_tokens` is always set.
    `parent_call_id` is the call whose tool results this one reads.
    """

    request_id: str
    run_id: str
    call_id: str
    iteration: int
    context_ref: str
    at_seq: int
    model: str
    options: ModelOptions
    context_policy: ContextPolicy | None = None
    parent_call_id: str | None = None


class AskedTool(_Value):
    """A tool call as the provider sent it. `malformed` holds the raw text where it was not a JSON object."""

    name: str
    arguments: dict[str, Any] = {}
    malformed: str | None = None


class ModelReply(_Value):
    """A model's whole answer, provider-neutral."""

    content: str = ""
    thinking: str | None = None
    tool_calls: tuple[AskedTool, ...] = ()
    provider_data: ProviderData | None = None
    stop_reason: Literal["stop", "length", "tool_calls"] = "stop"
    usage: Usage = Usage()


class ModelAnswered(_Value):
    """The outcome of `CallModel`: the reply and the recipe of what the model was shown for it.

    `schema_problem` says how an answer differs from the `output_schema` that its request asked for.
    """

    reply: ModelReply
    digest: str
    policy_hash: str
    input_tokens: int
    attempt: int
    schema_problem: str | None = None


class RunTool(_Value):
    """One tool call. `arguments` are as the model gave them; the activity validates them."""

    request_id: str
    run_id: str
    call_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    max_result_bytes: int


def idempotency_key(session_id: str, tool_call_id: str) -> str:
    """The same for every attempt of a tool call, and for no other call anywhere."""
    return f"{session_id}/{tool_call_id}"


class RunTools(_Value):
    """Tool calls that run side by side, each with what is known of its tool."""

    calls: tuple[tuple[RunTool, ResolvedTool], ...]


Effect = Prepare | CallModel | RunTools


class ToolAnswered(_Value):
    """What a tool said, as the model will read it.

    `is_error` marks a result that tells of a failure, `in_doubt` one that cannot say whether the tool has run.
    """

    content: str
    is_error: bool = False
    in_doubt: bool = False


class Failure(_Value):
    """Why something could not be done, in a form that a caller can act on."""

    type: str
    message: str
    retryable: bool = False
    details: dict[str, Any] = {}


class ToolsAnswered(_Value):
    """What all tools of a round said, in the order of their calls."""

    answers: tuple[ToolAnswered, ...]


Event = Prepared | ModelAnswered | ToolsAnswered | Failure

Prepared.model_rebuild()
