"""Deciding is the only check of a command: the validator throws the decision away, the handler applies it."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest

from clew.contract import (
    ApprovalInput,
    AwaitRequestInput,
    CancelInput,
    CheckpointInput,
    CloseInput,
    ConfigureInput,
    ContextOperation,
    ForkedInput,
    HibernateInput,
    MessageInput,
    MoveInput,
    SubmitInput,
    SummarizeInput,
)
from clew.errors import Closed, InvalidInput, Refusal, Repeated
from clew_workflows.contract.outputs import OperationReceipt
from clew_workflows.protocol import ArchiveRef
from clew_workflows.session import commands, decisions
from clew_workflows.session.commands import Command
from tests.support.session_harness import SessionHarness

OPERATION: dict[str, Any] = {"op_id": "o", "operation": {"type": "replace", "result_context": {"messages": ()}}}
COMMANDS: list[Command] = [
    MessageInput(content="hello", request_id="r-2"),
    AwaitRequestInput(request_id="r-1"),
    SubmitInput(content="rather this", kind="steer"),
    ContextOperation.model_validate(OPERATION),
    ConfigureInput(on_busy="queue"),
    CancelInput(),
    ApprovalInput(tool_call_id="tool00001", decision="approve"),
    CheckpointInput(),
    HibernateInput(),
    SummarizeInput(),
    CloseInput(),
    MoveInput(),
    ForkedInput(session_id="s-2", fork_seq=0),
]


def make_sessions() -> list[SessionHarness]:
    """Idle, with a run, with a queue, and waiting for an approval."""
    idle, busy, queueing, asking = (
        SessionHarness(),
        SessionHarness(),
        SessionHarness(on_busy="queue"),
        SessionHarness(tools=("ask_first",)),
    )
    for session in (busy, queueing, asking):
        session.ask(request_id="r-1")
    queueing.ask("and then")
    asking.reply("", "ask_first")
    return [idle, busy, queueing, asking]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_deciding_changes_nothing(command: Command) -> None:
    """Twice asked it says the same, and session and thread are as they were."""
    for session in make_sessions():
        state, rev = session.state, session.thread.rev
        said: list[Any] = []
        for _ in range(2):
            try:
                said.append(commands.decide(session.state, session.thread, command, "own", session.now))
            except Refusal as refusal:
                said.append((type(refusal), str(refusal)))
        assert said[0] == said[1]
        assert (session.state, session.thread.rev) == (state, rev)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_closed_session_takes_nothing_but_another_close(command: Command) -> None:
    """A second close is answered like the first; the session refuses every other command."""
    session = SessionHarness()
    session.close()
    if isinstance(command, CloseInput):
        assert session.do(command) == commands.Closing()
        return
    with pytest.raises(Closed):
        session.do(command)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: type(command).__name__)
def test_a_session_that_hibernates_takes_no_new_work(command: Command) -> None:
    """It may still move, be closed, and record a fork: the caller need not open it again for these."""
    session = SessionHarness()
    session.state = replace(session.state, archive=ArchiveRef(execution="x", family="s-1", upto=-1))
    session.apply(decisions.hibernate(session.state, None))
    with nullcontext() if isinstance(command, CloseInput | MoveInput | ForkedInput) else pytest.raises(Closed):
        session.do(command)


def test_only_the_first_compaction_waits_for_its_summary() -> None:
    """One that comes while the summary of another is written is deferred, and its caller answered at once."""
    session = SessionHarness()
    session.ask()
    session.reply("fine")
    operation = {"type": "replace", "reason": "compaction", "base_seq": session.thread.last_seq}
    first, second = (ContextOperation.model_validate({"op_id": name, "operation": operation}) for name in "ab")
    assert session.do(first) == commands.CompactionAwaited("summary-1", "a")
    assert session.do(second) == OperationReceipt(op_id="b", status="deferred")


def test_a_message_is_new_once() -> None:
    """The same id again is the same request, and asks for no room in a full history."""
    session = SessionHarness()
    message = MessageInput(content="hello", request_id="r-1")
    assert session.do(message) == commands.Outcome("r-1", is_new=True)
    assert session.do(message) == commands.Outcome("r-1")
    assert session.do(AwaitRequestInput(request_id="r-1")) == commands.Outcome("r-1")


@pytest.mark.parametrize("update_id", ["", "a\nb", "x" * 201, "\x7f"])
@pytest.mark.parametrize("named", [True, False], ids=["with an id", "without"])
@pytest.mark.parametrize("kind", ["message", "steer"])
def test_an_update_id_names_a_request_only_if_it_is_an_id(update_id: str, named: bool, kind: str) -> None:
    """The server takes any text, and a request is asked for by its id later."""
    session = SessionHarness()
    session.ask(request_id="r-1")
    given: Command = SubmitInput(content="no", kind="steer", input_id="i-1" if named else None)
    if kind == "message":
        given = MessageInput(content="hello", on_busy="queue", request_id="r-2" if named else None)
    if named:
        session.do(given, own_id=update_id)
        return
    with pytest.raises(InvalidInput, match="send another Update id"):
        session.do(given, own_id=update_id)
    session.do(given, own_id="x" * 200)


def test_an_encrypted_input_is_carried_out_once() -> None:
    """Whoever repeats it byte for byte is refused, unless it changes nothing; a checkpoint counts as a change."""
    session = SessionHarness()

    def take(command: Command, seal: str) -> None:
        decision, _ = commands.decide(session.state, session.thread, command, None, session.now, seal=seal)
        session.apply(decision)

    hello = MessageInput(content="hello", request_id="r-1")
    take(hello, "seal-1")
    session.reply("fine")
    take(hello, "seal-1")
    with pytest.raises(Repeated):
        take(MessageInput(content="hello", request_id="r-2"), "seal-1")
    take(MessageInput(content="hello", request_id="r-2"), "seal-2")
    session.reply("fine")
    take(CheckpointInput(), "seal-3")
    with pytest.raises(Repeated):
        take(CheckpointInput(), "seal-3")
