"""Carry out the commands of a chat that ask or change one session."""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from clew.cli.acting import find_waiting_approval
from clew.cli.chat.commands import Typed
from clew.cli.options import find_login_name
from clew.cli.reach import wait_for_answer
from clew.contract.outputs import Context, SessionStatus, TranscriptMessage
from clew.contract.receipts import Receipt
from clew.errors import InvalidInput
from clew.session.handle import make_id
from clew.session.session import Session


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of the active lane.

    Attributes:
        messages: The messages.
    """

    messages: list[TranscriptMessage]

    def as_dict(self) -> dict[str, Any]:
        """The messages as a JSON object."""
        return {"messages": self.messages}


Answer = SessionStatus | Context | Transcript | Receipt
"""What a session answers to a command; each has `as_dict`."""


async def carry_out(session: Session, typed: Typed) -> Answer:
    """Carry out a command that concerns the session, and return its answer.

    Raises:
        UnknownApproval: No tool call waits for approval.
        WorkerUnavailable: No worker answers in time.
        Refusal: The session refused it for another reason.
    """
    return await wait_for_answer(_start(session, typed), session.id)


def _start(session: Session, typed: Typed) -> Coroutine[Any, Any, Answer]:
    argument = typed.argument
    match typed.name:
        case "status":
            return session.status()
        case "context":
            return session.context()
        case "transcript":
            return _read_transcript(session)
        case "steer":
            return session.steer(argument)
        case "cancel":
            return session.cancel(reason=argument or None)
        case "approve" | "deny":
            return _decide(session, typed)
        case "submit":
            call_id, _, result = argument.partition(" ")
            return session.submit_tool_result(call_id, result.strip(), by=find_login_name())
        case "compact":
            return session.compact(op_id=make_id())
        case "switch":
            return session.switch_context(argument, op_id=make_id())
        case "model":
            return session.configure(model=argument)
        case name:
            raise InvalidInput(f"/{name} concerns the chat, not the session")


async def _read_transcript(session: Session) -> Transcript:
    return Transcript(await session.transcript())


async def _decide(session: Session, typed: Typed) -> Receipt:
    """Approve or deny the call that the first word names; without one, the only call that waits."""
    call_id, _, reason = typed.argument.partition(" ")
    call_id = call_id or await find_waiting_approval(session)
    if typed.name == "approve":
        return await session.approve(call_id, reason=reason.strip() or None, by=find_login_name())
    return await session.deny(call_id, reason=reason.strip() or None, by=find_login_name())
