"""Context operations: their fields, and the rules that need no session to check.

Each operation has its own class. To add one, write its class and add it to `Operation`. The effect on a session, and
the session's refusals, are in `clew_workflows.session.operations`; the effect on a lane's contexts is in
`clew_workflows.thread.lane`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from clew_workflows.contract.errors import InvalidOperation, Refusal
from clew_workflows.contract.names import Id, OwnRefs, Seq
from clew_workflows.contract.validation import INVALID_OPERATION, Input, MessageText


class SnapshotToolCall(Input):
    """A tool call within a snapshot.

    Attributes:
        id: The call's id, unique within the snapshot; the call's result names it.
        name: The tool.
        arguments: The arguments of the call.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: dict[str, Any]


class SnapshotProviderData(Input):
    """The part of a snapshot's message that goes back to its provider as it came.

    Attributes:
        provider: The provider; no other one gets it.
        blocks: The content blocks, or the fields of the message, as the provider sent them.
        calls: What the provider sent with each tool call of the message, in order.
        model: The model that sent it; absent: any model of the provider takes it back.
    """

    provider: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    blocks: list[dict[str, Any]]
    calls: list[dict[str, Any]] | None = None
    model: Annotated[str, StringConstraints(max_length=200)] | None = None


class SnapshotMessage(Input):
    """A message of a snapshot, in the form of contexts.

    Attributes:
        role: The speaker; a snapshot has its `system_prompt` beside the messages.
        content: The text, without data URLs of 1 000 characters or more.
        tool_calls: The tool calls of an assistant message.
        tool_call_id: The call that a tool message answers.
        name: The tool of a tool message.
        provider_data: Blocks that go back to the provider with the message.
        refs: Refs of a caller's own. No model reads them.
    """

    role: Literal["user", "assistant", "tool"]
    content: MessageText
    tool_calls: tuple[SnapshotToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    provider_data: SnapshotProviderData | None = None
    refs: OwnRefs | None = None


class Snapshot(Input):
    """A context that `replace` puts under a lane. Its tool results follow right after their calls.

    Attributes:
        messages: The messages, oldest first.
        system_prompt: The lane's system prompt from then on; absent: the session's.
    """

    messages: tuple[SnapshotMessage, ...]
    system_prompt: str | None = None

    @model_validator(mode="after")
    def _check_tool_results(self) -> Self:
        _check_messages(self.messages)
        return self


class _Operation(Input):
    """The fields of every operation.

    Attributes:
        reason: The origin of the operation. A `replace` for a `compaction` can be undone by `expand`.
        meta: JSON for the operation's entry.
    """

    supersedes: ClassVar[bool] = False
    """Whether, of all such operations that wait for a run to end, only the latest is applied."""

    reason: Literal["manual", "restore", "compaction", "system"] = "manual"
    meta: dict[str, Any] | None = None


class Replace(_Operation):
    """Put a snapshot under a lane.

    Attributes:
        type: Names the operation.
        result_context: The snapshot. Absent: the session writes it; only for a `compaction`.
        base_seq: The lane's messages after this seq stay; absent: none stay.
    """

    supersedes: ClassVar[bool] = True

    type: Literal["replace"]
    result_context: Snapshot | None = None
    base_seq: Seq | None = None

    @property
    def written_by_session(self) -> bool:
        """Whether the session writes the snapshot."""
        return self.result_context is None

    @model_validator(mode="after")
    def _check_context(self) -> Self:
        if self.result_context is None and self.reason != "compaction":
            raise _make_error(
                "replace needs result_context, the context that it puts under the lane; with the reason 'compaction' "
                "it may be left out, and the session writes it"
            )
        return self


class Switch(_Operation):
    """Make the lane that the operation names the active one.

    Attributes:
        type: Names the operation.
    """

    supersedes: ClassVar[bool] = True

    type: Literal["switch"]


class Pin(_Operation):
    """Keep messages of a lane verbatim in all its contexts.

    Attributes:
        type: Names the operation.
        seqs: The seqs of the messages.
    """

    type: Literal["pin"]
    seqs: list[Seq] = Field(min_length=1)


class Unpin(_Operation):
    """Unpin messages of a lane.

    Attributes:
        type: Names the operation.
        seqs: The seqs of the messages.
    """

    type: Literal["unpin"]
    seqs: list[Seq] = Field(min_length=1)


class Expand(_Operation):
    """Undo a lane's latest compaction.

    Attributes:
        type: Names the operation.
    """

    type: Literal["expand"]


Operation = Annotated[Replace | Switch | Pin | Unpin | Expand, Field(discriminator="type")]
"""A context operation, by its `type`."""


class ContextOperation(Input):
    """The argument of `submit_context_operation` and `modify_context`.

    Attributes:
        op_id: The operation's id: each is applied once.
        context_ref: The lane; absent: the one that is active when the session accepts the operation. A `switch` names
            it.
        operation: The operation.
    """

    operation_refusal: ClassVar[type[Refusal]] = InvalidOperation

    op_id: Id
    context_ref: Id | None = None
    operation: Operation

    @model_validator(mode="after")
    def _check_switch(self) -> Self:
        if isinstance(self.operation, Switch) and self.context_ref is None:
            raise _make_error("switch needs context_ref, the lane to make active")
        return self


def _make_error(reason: str) -> PydanticCustomError:
    return PydanticCustomError(INVALID_OPERATION, "{reason}", {"reason": reason})


def _check_messages(messages: Sequence[SnapshotMessage]) -> None:
    """Check that every provider accepts the messages: each call has one result, right after it."""
    open_calls: set[str] = set()
    known_calls: set[str] = set()
    for number, message in enumerate(messages):
        path = f"messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise _make_error(f"{path}: a tool result needs its tool call right before it")
            open_calls.remove(message.tool_call_id)
            continue
        if open_calls:
            raise _make_error(f"{path}: the tool calls before it need their results first")
        if message.tool_calls and message.role != "assistant":
            raise _make_error(f"{path}: only an assistant calls tools")
        calls = [call.id for call in message.tool_calls or ()]
        open_calls = set(calls)
        if len(open_calls) < len(calls) or open_calls & known_calls:
            raise _make_error(f"{path}: a tool call's id is used twice")
        known_calls |= open_calls
    if open_calls:
        raise _make_error("messages end within tool calls: each needs its result")
