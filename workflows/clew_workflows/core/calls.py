"""Tool calls and checks as a session's state holds them, and the sessions on both sides of a call of a subagent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from clew.contract import Task
from clew.contract.payloads import ToolMessage
from clew.thread.entries import Refs
from clew_workflows.protocol import FUNCTION, AgentRoute, ExternalRoute, Route


@dataclass(frozen=True, slots=True)
class RequestedCall:
    """A tool call of the current round.

    Attributes:
        tool_call_id: The id of the call.
        name: The tool.
        arguments: The model's arguments, or those that a person has replaced them by.
        needs_approval: A person must approve the call first.
        holds_round: The other calls of the round wait for the decision, too.
        checked: The hooks have checked the call.
        idempotent: The call may be repeated.
        route: How the call is carried out.
        edited: A person has changed the arguments.
        scheduled: An activity has been started for the call: it may have run.
        expires_at: When a call that waits for its result from outside times out, in seconds of the workflow's clock.
        returned: Its result is in the thread.
    """

    tool_call_id: str
    name: str
    arguments: dict[str, Any]
    needs_approval: bool = False
    holds_round: bool = False
    checked: bool = False
    idempotent: bool = False
    route: Route = FUNCTION
    edited: bool = False
    scheduled: bool = False
    expires_at: float | None = None
    returned: bool = False

    @property
    def has_begun(self) -> bool:
        """Whether its activity has been started, or the wait for its result from outside has begun."""
        return self.scheduled or self.expires_at is not None

    @property
    def is_running(self) -> bool:
        """Whether its activity has been started, and its result is not in the thread."""
        return self.scheduled and not self.returned

    @property
    def is_external(self) -> bool:
        """Whether the result is submitted by a caller."""
        return isinstance(self.route, ExternalRoute)

    @property
    def is_outside(self) -> bool:
        """Whether the result comes from outside: no activity is started for the call."""
        return isinstance(self.route, ExternalRoute | AgentRoute)


@dataclass(frozen=True, slots=True)
class Checking:
    """What hooks are checking for a run.

    Attributes:
        step: Inputs before a model call (`inputs`) or after a reply (`reply`), messages that the run has committed
            already (`committed`), the round's calls, or the answer.
        item_ids: The inputs, or the tool calls.
    """

    step: Literal["inputs", "reply", "committed", "tools", "answer"]
    item_ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LateCall:
    """A tool call whose activity may still return although its run has ended.

    Attributes:
        doubt: The result in doubt that the thread holds for it.
        refs: The refs of that result.
    """

    doubt: ToolMessage
    refs: Refs

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self.doubt.tool_call_id


@dataclass(frozen=True, slots=True)
class Child:
    """A subagent's session, from its call until it has reported.

    Attributes:
        tool_call_id: The tool call.
        agent: The agent.
        session_id: The id of the session.
        step: The session is to be started (`start`), works (`working`), or is to be cancelled (`cancel`) because its
            call has ended, or has been cancelled (`cancelled`).
        max_total_tokens: The tokens that are reserved for it; None: the session has no limit.
        max_cost_usd: The cost that is reserved for it, in USD; None: the session has no limit.
    """

    tool_call_id: str
    agent: str
    session_id: str
    step: Literal["start", "working", "cancel", "cancelled"] = "start"
    max_total_tokens: int | None = None
    max_cost_usd: float | None = None


@dataclass(frozen=True, slots=True)
class Assignment:
    """The task that a session works on as a subagent.

    Attributes:
        task: The task, without its text, which is in the queue or in the thread.
        step: The request has not been reported (`open`), has been (`reported`), or the session has closed
            after that (`over`): one that is opened again stays open.
        worked_seconds: The seconds that the request has taken, without those in which its clock stood still.
    """

    task: Task
    step: Literal["open", "reported", "over"] = "open"
    worked_seconds: float = 0.0
