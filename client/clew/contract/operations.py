"""Context operations: what they are as JSON, and what makes one malformed.

An operation has a class of its own, which holds its fields and every rule that needs no session to check. To add one,
write its class and add it to `Operation`. What it does to a session, and when a session refuses it, stands in
`clew_workflows.core.operations`; what it does to the contexts of a lane, in `clew.thread.layers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, StringConstraints, model_validator
from pydantic_core import PydanticCustomError

from clew.contract._input import Input
from clew.contract.names import Id, Seq

INVALID_OPERATION = "invalid_operation"
"""The type of a problem with an operation that is not within its own fields."""


class SnapshotToolCall(Input):
    """A tool call within a snapshot.

    Attributes:
        id: Unique within the snapshot; the call's result names it.
        name: The tool that is called.
        arguments: What it is called with.
    """

    id: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
    name: Annotated[str, StringConstraints(min_length=1, max_length=256)]
    arguments: dict[str, Any]


class SnapshotProviderData(Input):
    """What a provider wants back with a message of a snapshot.

    Attributes:
        provider: The provider that sent it; others never see it.
        blocks: The blocks as it sent them.
    """

    provider: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    blocks: list[dict[str, Any]]


class SnapshotMessage(Input):
    """A message of a snapshot, of the form that contexts have.

    Attributes:
        role: `system` is not among them: a snapshot has its own `system_prompt`.
        content: The text.
        tool_calls: The calls of an assistant's message.
        tool_call_id: The call that a tool's message answers.
        name: The tool that a tool's message is from.
        provider_data: What the provider wants back with the message.
    """

    role: Literal["user", "assistant", "tool"]
    content: str
    tool_calls: tuple[SnapshotToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: Annotated[str, StringConstraints(max_length=256)] | None = None
    provider_data: SnapshotProviderData | None = None


class Snapshot(Input):
    """A whole context, as `replace` puts it under a lane. Its tool results follow right after their calls.

    Attributes:
        messages: The messages, oldest first.
        system_prompt: The lane's system prompt from then on; absent: the session's.
    """

    messages: tuple[SnapshotMessage, ...]
    system_prompt: str | None = None

    @model_validator(mode="after")
    def _providers_take_it(self) -> Self:
        _check_messages(self.messages)
        return self


class _Operation(Input):
    """What every operation may say of itself.

    Attributes:
        reason: Who or what wanted it. A `replace` for a `compaction` lies upon what was there, and can be undone.
        meta: JSON that its entry keeps.
    """

    overtakes: ClassVar[bool] = False
    """Whether, of all such operations that wait for a run to end, only the latest is applied."""

    reason: Literal["manual", "restore", "compaction", "system"] = "manual"
    meta: dict[str, Any] | None = None


class Replace(_Operation):
    """Put a snapshot under a lane.

    Attributes:
        type: Names the operation.
        result_context: The snapshot. Absent: the session writes it itself, which only a `compaction` asks for.
        base_seq: The lane's messages after this seq stay; absent: none do.
    """

    overtakes: ClassVar[bool] = True

    type: Literal["replace"]
    result_context: Snapshot | None = None
    base_seq: Seq | None = None

    @property
    def written_by_session(self) -> bool:
        """Whether the session is to write the snapshot."""
        return self.result_context is None

    @model_validator(mode="after")
    def _has_context(self) -> Self:
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

    overtakes: ClassVar[bool] = True

    type: Literal["switch"]


class Pin(_Operation):
    """Keep messages of a lane in all its contexts, word for word.

    Attributes:
        type: Names the operation.
        seqs: Those of the messages.
    """

    type: Literal["pin"]
    seqs: list[Seq] = Field(min_length=1)


class Unpin(_Operation):
    """Let messages go that were pinned.

    Attributes:
        type: Names the operation.
        seqs: Those of the messages.
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
"""What a context operation does, by its `type`."""


class ContextOperation(Input):
    """The argument of `submit_context_operation` and `modify_context`.

    Attributes:
        op_id: An operation is applied once for its id.
        context_ref: The lane; absent: the active one. A `switch` names it.
        operation: What is done.
    """

    op_id: Id
    context_ref: Id | None = None
    operation: Operation

    @model_validator(mode="after")
    def _switch_names_a_lane(self) -> Self:
        if isinstance(self.operation, Switch) and self.context_ref is None:
            raise _make_error("switch needs context_ref, the lane to make active")
        return self


def _make_error(reason: str) -> PydanticCustomError:
    return PydanticCustomError(INVALID_OPERATION, "{reason}", {"reason": reason})


def _check_messages(messages: Sequence[SnapshotMessage]) -> None:
    """A snapshot must be what every provider takes: results right after their calls, each once."""
    waiting: set[str] = set()
    seen: set[str] = set()
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if message.role == "tool":
            if message.tool_call_id not in waiting:
                raise _make_error(f"{where}: a tool result needs its tool call right before it")
            waiting.remove(message.tool_call_id)
            continue
        if waiting:
            raise _make_error(f"{where}: the tool calls before it need their results first")
        if message.tool_calls and message.role != "assistant":
            raise _make_error(f"{where}: only an assistant calls tools")
        calls = [call.id for call in message.tool_calls or ()]
        waiting = set(calls)
        if len(waiting) < len(calls) or waiting & seen:
            raise _make_error(f"{where}: a tool call's id stands there twice")
        seen |= waiting
    if waiting:
        raise _make_error("messages end within tool calls: each needs its result")
