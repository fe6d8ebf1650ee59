"""Ten thousand hostile inputs, over as many sessions as the server's limits require. Every session continues."""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.common import RawValue
from temporalio.service import RPCError

from clew.errors import REFUSALS
from clew_workflows.host import handlers
from tests.support.hostile_input import MALFORMED, assert_unharmed, make_raw
from tests.support.stack import Stack

SESSIONS = 20
EACH = 500

# Without the updates and signals that do something without an argument: end the session, or sign a checkpoint, which
# takes an activity each time.
UPDATES = (
    *sorted(set(handlers.UPDATES) - {"checkpoint", "close_session", "hibernate"}),
    "expand",
    "__init__",
    "x" * 900,
)
SIGNALS = (*sorted(set(handlers.SIGNALS) - {"close"}), "nothing", "é" * 100, "__temporal")
INPUTS = [handler.input for handler in (*handlers.UPDATES.values(), *handlers.SIGNALS.values())]
FIELDS = (*sorted({field for input_ in INPUTS for field in input_.model_fields}), "policy")


def make_value(chance: random.Random, depth: int = 0) -> Any:
    """Make a random JSON value."""
    kinds = 9 if depth < 4 else 7
    match chance.randrange(kinds):
        case 0:
            return None
        case 1:
            return chance.choice([True, False])
        case 2:
            return chance.choice([0, -1, 1, 2**31, -(2**63), 2**64, 10**30])
        case 3:
            return chance.choice([0.5, -0.0, 1e308, 1e-320])
        case 4:
            return chance.choice(
                ["", " ", "\x00", "\u2028", "followup:run-1", "run-1", "tool00001", "call-1", "default"]
            )
        case 5:
            return chance.choice("aé漢🧵 \n") * chance.choice([1, 200, 201, 5000, 70_000])
        case 6:
            return {
                "type": chance.choice(["replace", "switch", "pin", "expand", "x"]),
                "result_context": {"messages": []},
            }
        case 7:
            return [make_value(chance, depth + 1) for _ in range(chance.randrange(4))]
        case _:
            return {chance.choice(FIELDS): make_value(chance, depth + 1) for _ in range(chance.randrange(4))}


def make_arguments(chance: random.Random) -> list[RawValue]:
    """Make random arguments, as a hostile or careless client might send them."""
    match chance.randrange(5):
        case 0:
            return list(chance.choice(list(MALFORMED.values())))
        case 1:
            return [RawValue(Payload(metadata={"encoding": chance.randbytes(6)}, data=chance.randbytes(40)))]
        case 2:
            data = json.dumps({"op_id": "o", "content": "hello", "surprise": make_value(chance)})
            return [make_raw(data.encode())] * chance.choice([1, 2])
        case 3:
            return [
                make_raw(b'{"content":"' + b"a" * chance.choice([262_120, 262_131, 262_132, 262_200]) + b'","x":1}')
            ]
        case _:
            fields = {chance.choice(FIELDS): make_value(chance) for _ in range(chance.randrange(6))}
            return [make_raw(json.dumps(fields).encode())]


async def bombard(handle: WorkflowHandle[Any, Any], chance: random.Random) -> None:
    """Send half signals, half updates. Each is refused or accepted without harm."""
    for number in range(EACH):
        args, word = make_arguments(chance), "invalid_input"
        try:
            if number % 2:
                await handle.signal(chance.choice(SIGNALS), args=args)
            else:
                await handle.execute_update(chance.choice(UPDATES), args=args)
        except WorkflowUpdateFailedError as refused:
            word = getattr(refused.cause, "type", None) or "untyped"
            # The server itself refuses an update if a paused worker has answered its task without it.
            if word == "UnprocessedUpdate":
                continue
        except RPCError as refused:
            # It met a rollover: the contract says to send it again, which the next one does as well.
            if refused.message == "workflow execution already completed":
                continue
            word = refused.message
        # The server has limits of its own, on a name's length say.
        assert word in REFUSALS or "exceed" in word or "invalid" in word.lower(), word


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(2_400)
async def test_every_session_goes_on(stack: Stack) -> None:
    """Each session answers, no workflow task has failed, and the thread has no gap."""
    sessions = [await stack.open() for _ in range(SESSIONS)]
    handles = [stack.clew.temporal.get_workflow_handle(session.id) for session in sessions]
    await asyncio.gather(*(bombard(handle, random.Random(seed)) for seed, handle in enumerate(handles)))
    for session in sessions:
        await session.configure(model=stack.add_model("fine"), tools=[], on_busy="queue")
        await session.switch_context("afterwards", op_id="the last one")
        await assert_unharmed(stack, session.id)
        entries = await session.entries()
        assert [entry.seq for entry in entries] == list(range(len(entries)))
