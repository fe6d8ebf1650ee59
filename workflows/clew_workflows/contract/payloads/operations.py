"""What `ai_context_operation` entries hold: one type for each operation that was applied."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal, NotRequired, Self

from pydantic import Field, SkipValidation

from clew_workflows.contract.messages import Message
from clew_workflows.contract.payloads.base import EntryKind, Json, Payload, Stored, stored
from clew_workflows.contract.tokens import Encoding

Reason = Literal["manual", "restore", "compaction", "system"]


class StoredMessage(Message, total=False):
    """A message of a stored context.

    Attributes:
        refs: The refs of the caller who sent the message; no model reads them.
    """

    refs: NotRequired[dict[str, str]]


@stored
class StoredSnapshot(Stored):
    """A context that was put under a lane.

    Attributes:
        messages: The messages, with ids of tool calls that are unique in the thread.
        system_prompt: The lane's system prompt; absent: the session's is in force.
        tokens: Tokens of each message.
        system_prompt_tokens: Tokens of the system prompt.
    """

    messages: SkipValidation[list[StoredMessage]]
    system_prompt: str | None = None
    tokens: list[int] | None = None
    system_prompt_tokens: int | None = None

    @property
    def shown_messages(self) -> list[Message]:
        """The messages as a context shows them."""
        return list(map(_select_shown_fields, self.messages))

    def count(self, encoding: Encoding) -> Self:
        """Count the tokens of each message and of the system prompt."""
        return replace(
            self,
            tokens=[encoding.count_message(message) for message in self.messages],
            system_prompt_tokens=encoding.count_system_prompt(self.system_prompt),
        )


@stored
class AppliedOperation(Stored):
    """A context operation that was applied.

    Attributes:
        type: The operation.
        reason: `manual`: a caller sent it; `restore`: a checkpoint was restored; `compaction`: a lane was compacted;
            `system`: Clew itself applied it.
        meta: The JSON that the caller sent with it.
    """

    activates_lane: ClassVar[bool] = False
    """Whether the operation makes its lane the active one."""

    type: Literal["replace", "switch", "pin", "unpin", "expand", "withdraw"]
    reason: Reason
    meta: Json | None = None


@stored
class AppliedReplace(AppliedOperation):
    """A snapshot was put under the lane.

    Attributes:
        type: Names the operation.
        result_context: The snapshot.
        base_seq: The lane's messages after this seq follow the snapshot; absent: those after the operation.
    """

    type: Literal["replace"]
    result_context: StoredSnapshot
    base_seq: int | None = None

    @property
    def is_compaction(self) -> bool:
        """Whether the snapshot replaces what it was made of, so that an `expand` can restore that."""
        return self.reason == "compaction"


@stored
class AppliedSwitch(AppliedOperation):
    """The lane was made the active one.

    Attributes:
        type: Names the operation.
    """

    activates_lane: ClassVar[bool] = True

    type: Literal["switch"]


@stored
class AppliedPin(AppliedOperation):
    """Messages of the lane were pinned.

    Attributes:
        type: Names the operation.
        seqs: The seqs of the messages.
    """

    type: Literal["pin"]
    seqs: list[int]


@stored
class AppliedUnpin(AppliedOperation):
    """Messages of the lane were unpinned.

    Attributes:
        type: Names the operation.
        seqs: The seqs of the messages.
    """

    type: Literal["unpin"]
    seqs: list[int]


@stored
class AppliedExpand(AppliedOperation):
    """The lane's latest compaction was undone.

    Attributes:
        type: Names the operation.
    """

    type: Literal["expand"]


@stored
class AppliedWithdraw(AppliedOperation):
    """A request's messages were withdrawn that no hook had accepted: no context shows them, and no summary has them.

    Only sessions apply it.

    Attributes:
        type: Names the operation.
        from_seq: The user's messages of the lane from this seq up to the operation are withdrawn.
    """

    type: Literal["withdraw"]
    from_seq: int


@stored
class OperationPayload(Payload):
    """A context operation was applied.

    Attributes:
        op_id: The id of the operation.
        context_ref: The lane.
        operation: The operation.
    """

    entry_kind: ClassVar[EntryKind] = "ai_context_operation"

    op_id: str
    context_ref: str
    operation: Annotated[
        AppliedReplace | AppliedSwitch | AppliedPin | AppliedUnpin | AppliedExpand | AppliedWithdraw,
        Field(discriminator="type"),
    ]

    @property
    def activated_lane(self) -> str | None:
        """The lane that the operation made the active one; None: the active lane stayed."""
        return self.context_ref if self.operation.activates_lane else None

    @property
    def snapshot(self) -> StoredSnapshot | None:
        """The snapshot that the operation put; None for other operations than `replace`."""
        return self.operation.result_context if isinstance(self.operation, AppliedReplace) else None

    def count(self, encoding: Encoding) -> tuple[Self, int]:
        """Count the tokens of the snapshot's messages; the payload records those of each part."""
        if not isinstance(self.operation, AppliedReplace):
            return self, 0
        snapshot = self.operation.result_context.count(encoding)
        operation = replace(self.operation, result_context=snapshot)
        return replace(self, operation=operation), sum(snapshot.tokens or ())


def _select_shown_fields(stored: Message) -> Message:
    message: Message = {"role": stored["role"], "content": stored["content"]}
    if calls := stored.get("tool_calls"):
        message["tool_calls"] = calls
        # The provider reads it together with the results of the tool calls.
        if data := stored.get("provider_data"):
            message["provider_data"] = data
    if stored["role"] == "tool" and "tool_call_id" in stored:
        message["tool_call_id"] = stored["tool_call_id"]
        if name := stored.get("name"):
            message["name"] = name
    return message
