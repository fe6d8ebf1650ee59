"""Tools as a worker resolves them, tool calls, and their results."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from clew.contract.payloads import StoredResult, Subagent
from clew.model.messages import ToolSpec
from clew.model.tokens import EncodingName
from clew_workflows.protocol._value import Value
from clew_workflows.protocol.failures import Failure

STORING_SECONDS = 20.0
"""Seconds that a tool's activity has to store a large result, after the tool has returned."""


class FunctionRoute(Value):
    """A call runs a function on a worker of Clew's.

    Attributes:
        type: `function`.
        task_queue: The deployment whose workers run the function; None: the session's own.
        takes_context: The function takes a `ToolContext`.
    """

    type: Literal["function"]
    task_queue: str | None = None
    takes_context: bool = False


class RemoteRoute(Value):
    """A call is an activity of another worker.

    Attributes:
        type: `remote`.
        task_queue: The task queue of the activity.
        activity: The name of the activity.
    """

    type: Literal["remote"]
    task_queue: str
    activity: str


class ExternalRoute(Value):
    """A call waits until its result is submitted.

    Attributes:
        type: `external`.
    """

    type: Literal["external"]


class McpRoute(Value):
    """A worker of Clew's passes a call on to an MCP server. The session validates the arguments before.

    Attributes:
        type: `mcp`.
    """

    type: Literal["mcp"]


class AgentRoute(Value):
    """A call is a task of a subagent: the session starts a session of the agent.

    Attributes:
        type: `agent`.
        agent: The name of the agent.
    """

    type: Literal["agent"]
    agent: str


Route = Annotated[FunctionRoute | RemoteRoute | ExternalRoute | McpRoute | AgentRoute, Field(discriminator="type")]
"""How the calls of a tool are carried out."""


FUNCTION = FunctionRoute(type="function")
"""The route of a function on the session's own workers."""


class ResolvedTool(Value):
    """A tool's schema, and how its calls are carried out.

    Attributes:
        spec: The name, the description and the JSON Schema of the parameters.
        timeout_seconds: The time for one attempt.
        max_attempts: Attempts, where an attempt failed.
        idempotent: A call may be repeated. A call of another tool is attempted once.
        requires_approval: A person must approve each call; `round`: before any call of its reply begins.
        route: How a call is carried out.
        tokens: The tokens of the schema in a context. None: the session counts them.
    """

    spec: ToolSpec
    timeout_seconds: float
    max_attempts: int
    idempotent: bool = True
    requires_approval: bool | Literal["round"] = False
    route: Route = FUNCTION
    tokens: int | None = None


class RunTool(Value):
    """One tool call.

    Attributes:
        request_id: The request that the run serves.
        run_id: The run.
        call_id: The model call that requested it.
        tool_call_id: The tool call.
        name: The tool.
        arguments: The model's arguments, or a person's; the activity validates them.
        edited: The arguments are a person's.
        encoding: The encoding that the result's tokens are counted under.
        max_result_bytes: A larger result is truncated; the complete result goes to the archive.
        family: The session family in whose archive large results are stored; None without an archive.
        iteration: The number of the model call in its run.
        agent: The session's agent; only for a tool that takes a context, as the metadata.
        metadata: The session's metadata.
        request_metadata: The metadata of the request.
    """

    request_id: str
    run_id: str
    call_id: str
    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    edited: bool = False
    encoding: EncodingName
    max_result_bytes: int
    family: str | None = None
    iteration: int = 0
    agent: str | None = None
    metadata: dict[str, str] | None = None
    request_metadata: dict[str, str] | None = None


def make_idempotency_key(session_id: str, tool_call_id: str) -> str:
    """Make the key that all attempts of one tool call share, and no other call has."""
    return f"{session_id}/{tool_call_id}"


class PlannedCall(NamedTuple):
    """A tool call and its tool.

    Attributes:
        call: The input of the activity.
        tool: The tool as a worker has resolved it.
    """

    call: RunTool
    tool: ResolvedTool


class RunTools(Value):
    """Tool calls that run in parallel.

    Attributes:
        calls: The calls of the round that have not returned.
    """

    calls: tuple[PlannedCall, ...]


class ToolAnswered(Value):
    """A tool's result, as the model will read it.

    Attributes:
        content: The text; truncated if the result is too large.
        result: Where the complete result is stored, if the text is truncated.
        is_error: The text describes a failure.
        in_doubt: The tool may or may not have run.
        tokens: The tokens of the result's message. None: the session counts them, and those of the parts.
        note_tokens: The tokens of the note that says how a person has changed the call.
        pieces: The tokens of each piece of the text, if it is long enough to be cut.
        subagent: The subagent that has answered.
        by: Who has submitted the result.
    """

    content: str
    result: StoredResult | None = None
    is_error: bool = False
    in_doubt: bool = False
    tokens: int | None = None
    note_tokens: int | None = None
    pieces: tuple[int, ...] | None = None
    subagent: Subagent | None = None
    by: str | None = None


class ToolReturned(Value):
    """One tool call of a round has ended. Without an answer and a failure it was cancelled.

    Attributes:
        tool_call_id: The tool call.
        answer: The tool's result.
        failure: Why there is none.
    """

    tool_call_id: str
    answer: ToolAnswered | None = None
    failure: Failure | None = None
