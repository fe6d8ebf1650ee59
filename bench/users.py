"""People and programs that use a session all at once and in every way, by chance and yet the same for a seed.

What they say tells the scripted model what to do: the second word of a message is the kind of its turn.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any, Literal, TypeVar

from bench.ledger import Ledger
from clew import ContextPolicy, Request, Session
from clew.contract import ContextOperation, InputReceipt, OperationReceipt
from clew.errors import Archived, ClewError, Closed, Refusal, ServerUnreachable, WorkerUnavailable
from clew.local import Reply, ToolCall
from clew.outcomes import RequestOutcome
from clew.session.transport import make_input, translate_errors

T = TypeVar("T")

BASE: dict[str, Any] = {
    "model": "bench:first",
    "system_prompt": "You answer briefly.",
    "tools": ["add", "look_up"],
    "context_policy": ContextPolicy(max_input_tokens=1000, reserve_output_tokens=100),
    "steering": "terminal",
}
"""The configuration at a session's start and in measured turns."""
LANES = ("default", "draft", "side")
KINDS = {"say": 40, "add": 12, "both": 6, "odd": 4, "loop": 3, "break": 3, "slow": 8, "form": 3, "narrow": 3}
BESIDES = {
    "nothing": 40, "steer": 14, "inject": 10, "signal": 12, "operate": 12, "configure": 4, "cancel": 6,
    "interrupt": 4, "join": 6, "repeat": 6, "look": 3,
}  # fmt: skip
PATIENCE = 20
"""Most retries of a command before it counts as lost."""


async def script(body: dict[str, Any]) -> Reply:
    """Reply as the newest user's message instructs."""
    messages = body["messages"]
    newest = next(message for message in reversed(messages) if message["role"] == "user")
    name, _, words = newest["content"].partition(": ")
    number, has_results = sum(name.encode()), messages[-1]["role"] == "tool"
    match words.partition(" ")[0]:
        case "loop":
            return Reply("once more", tool_calls=(ToolCall("look_up", {"order": number}),))
        case "add" if not has_results:
            return Reply(tool_calls=(ToolCall("add", {"a": number, "b": 1}),))
        case "both" if not has_results:
            return Reply(
                "both", tool_calls=(ToolCall("add", {"a": number, "b": 1}), ToolCall("look_up", {"order": number}))
            )
        case "odd" if not has_results:
            return Reply(tool_calls=(ToolCall("nobody", {}), ToolCall("add", '{"a": '), ToolCall("add", {"a": "x"})))
        case "break":
            return Reply("no", status=HTTPStatus.BAD_REQUEST)
        case "slow":
            await asyncio.sleep(0.2)
        case "form":
            return Reply("{}")
    return Reply(f"{name} was read among {len(messages)} messages")


async def insist(what: Callable[[], Awaitable[T]], ledger: Ledger) -> T:
    """What comes of something that may be sent again, once a worker is there for it.

    Raises:
        ClewError: The session refused the message, or no worker accepted it after all attempts.
    """
    for _ in range(PATIENCE):
        try:
            return await what()
        except (WorkerUnavailable, ServerUnreachable, Closed) as error:
            ledger.insisted[f"{type(error).__name__}: {str(error)[:150]}"] += 1
            await asyncio.sleep(0.2)
    return await what()


class User:
    """Sends one message after the other, and does something else beside it."""

    def __init__(self, session: Session, ledger: Ledger, name: str, seed: int) -> None:
        self._session = session
        self._ledger = ledger
        self._name = name
        self._chance = random.Random(f"{name}-{seed}")
        self._numbers = 0
        self._repeatable: list[tuple[str, dict[str, Any]]] = []
        self._receipts: list[tuple[str, dict[str, Any], InputReceipt]] = []
        self._operated: list[tuple[str, dict[str, Any]]] = []

    async def turn(self) -> None:
        """One message from its sending to its outcome."""
        kind, beside = self._one_of(KINDS), self._one_of(BESIDES)
        request_id = self._new("r")
        arguments: dict[str, Any] = {"content": f"{request_id}: {kind} {self._words()}"}
        arguments["on_busy"] = {"interrupt": "interrupt", "join": "steer"}.get(beside, "queue")
        if arguments["on_busy"] != "steer":
            # What joins a run brings no settings of its own; whether it will is not known yet.
            arguments |= self._settings(kind)
        outcome = asyncio.create_task(self._ask(request_id, arguments))
        await asyncio.sleep(self._chance.choice((0, 0.01, 0.03)))
        try:
            await self._beside(beside, request_id)
        except ClewError as error:
            self._ledger.problems.append(f"{beside} beside {request_id} failed: {error!r}")
        if await outcome:
            self._repeatable = [*self._repeatable[-20:], (request_id, arguments)]

    async def _ask(self, request_id: str, arguments: dict[str, Any]) -> RequestOutcome | None:
        ledger = self._ledger
        try:
            outcome = await insist(lambda: self._request_outcome(request_id, arguments), ledger)
        except ClewError as error:
            ledger.problems.append(f"message {request_id} was refused: {error!r}")
            return None
        ledger.requests[request_id] = arguments["content"]
        ledger.outcomes[request_id] = outcome
        return outcome

    async def _request_outcome(self, request_id: str, arguments: dict[str, Any]) -> RequestOutcome:
        request: Request = await self._session.message(request_id=request_id, **arguments)
        return await request.result()

    async def _beside(self, what: str, request_id: str) -> None:
        match what:
            case "steer" | "inject":
                await self._submit(what)
            case "signal":
                await self._signal()
            case "operate":
                await self._operate()
            case "configure":
                await self._configure()
            case "cancel":
                await self._cancel(request_id)
            case "repeat":
                await self._repeat()
            case "look":
                await self._look()

    async def _submit(self, kind: str) -> None:
        input_id = self._new("i")
        arguments: dict[str, Any] = {"content": f"{input_id}: also {self._words()}"} | self._input_options()

        async def submit() -> InputReceipt:
            send = self._session.steer if kind == "steer" else self._session.inject
            return await send(input_id=input_id, **arguments)

        try:
            receipt = await insist(submit, self._ledger)
        except Refusal:
            self._ledger.refused.add(input_id)
            return
        self._ledger.inputs[input_id] = arguments["content"]
        self._receipts = [*self._receipts[-20:], (kind, {"input_id": input_id, **arguments}, receipt)]

    async def _signal(self) -> None:
        """What a signal asks for may be refused; its trace says so."""
        name = self._new("s")
        kind = self._chance.choice(("steer", "inject", "modify_context", "nonsense"))
        if kind == "modify_context":
            arguments: dict[str, Any] = {"op_id": name, **self._operation()}
        else:
            arguments = {"input_id": name, "content": f"{name}: also {self._words()}", **self._input_options()}
        await insist(lambda: self._send(kind, arguments), self._ledger)
        self._ledger.signalled.add(name)

    async def _send(self, signal: str, arguments: dict[str, Any]) -> None:
        async with translate_errors(self._session.id):
            await self._session._handle.workflow.signal(signal, arguments)

    async def _operate(self) -> None:
        op_id = self._new("o")
        arguments = {"op_id": op_id, **self._operation()}
        receipt = await insist(lambda: _operate(self._session, arguments), self._ledger)
        # What was sent twice for want of an answer is a duplicate, and was taken all the same.
        self._ledger.operations[op_id] = receipt.seq
        self._operated = [*self._operated[-5:], (op_id, arguments)]

    async def _configure(self) -> None:
        chance = self._chance
        changes: dict[str, Any] = chance.choice(
            (
                {"system_prompt": f"You answer {chance.choice(('briefly', 'kindly', 'at length'))}."},
                {"model": chance.choice(("bench:first", "bench:second"))},
                {"tools": chance.choice((["add", "look_up"], ["add"]))},
                {"context_policy": ContextPolicy(max_input_tokens=chance.choice((900, 1500, 3000)))},
                {"context_policy": ContextPolicy(keep_last_turns=chance.choice((1, 3, 5)))},
                {"steering": chance.choice(("terminal", "step"))},
            )
        )
        receipt = await insist(lambda: self._session.configure(**changes), self._ledger)
        if receipt.seq is not None:
            self._ledger.configured.add(receipt.seq)

    async def _cancel(self, request_id: str) -> None:
        inputs: Literal["drop", "follow_up"] = self._chance.choice(("drop", "follow_up"))
        try:
            receipt = await insist(lambda: self._session.cancel(request_id, inputs=inputs), self._ledger)
        except Refusal:
            return
        if receipt.cancelled:
            self._ledger.cancelled.add(request_id)

    async def _look(self) -> None:
        """A context may have to be fetched from the archive first; whoever asks is told."""
        with suppress(Archived):
            await insist(self._session.context, self._ledger)
        await insist(self._session.transcript, self._ledger)

    async def _repeat(self) -> None:
        """Send a command again: the answer is the same, and the thread has no further entry."""
        ledger, session = self._ledger, self._session
        if self._repeatable:
            request_id, arguments = self._chance.choice(self._repeatable)
            again = await insist(lambda: self._request_outcome(request_id, arguments), ledger)
            if again != ledger.outcomes[request_id]:
                ledger.problems.append(f"{request_id} was told {ledger.outcomes[request_id]}, and then {again}")
        if self._receipts:
            kind, arguments, receipt = self._chance.choice(self._receipts)
            send = session.steer if kind == "steer" else session.inject
            if await insist(lambda: send(**arguments), ledger) != receipt:
                ledger.problems.append(f"{arguments['input_id']} has another receipt the second time")
        if self._operated:
            op_id, arguments = self._chance.choice(self._operated)
            second = await insist(lambda: _operate(session, arguments), ledger)
            if second.status != "duplicate":
                ledger.problems.append(f"{op_id} was {second.status} the second time")
        ledger.repeated += 1

    def _settings(self, kind: str) -> dict[str, Any]:
        match kind:
            case "loop":
                return {"max_iterations": 2}
            case "form":
                return {"output_schema": {"type": "object"}}
            case "narrow":
                return {"context_policy": ContextPolicy(max_messages=4), "model": "bench:second"}
        return {}

    def _input_options(self) -> dict[str, Any]:
        chance = self._chance
        return {"at": chance.choice(("terminal", "step")), "on_failure": chance.choice(("follow_up", "drop"))}

    def _operation(self) -> dict[str, Any]:
        """A replacement, a reset, or another lane."""
        lane = self._chance.choice(LANES)
        if self._chance.random() < 0.5:
            return {"context_ref": lane, "operation": {"type": "switch"}}
        said = [
            {"role": "user", "content": f"before: {self._words()}"},
            {"role": "assistant", "content": self._words()},
        ]
        messages = said if self._chance.random() < 0.5 else []
        operation: dict[str, Any] = {"type": "replace", "result_context": {"messages": messages}}
        if self._chance.random() < 0.3:
            operation["base_seq"] = 0
        return {"context_ref": lane, "operation": operation}

    def _one_of(self, weights: dict[str, int]) -> str:
        return self._chance.choices(tuple(weights), tuple(weights.values()))[0]

    def _new(self, letter: str) -> str:
        self._numbers += 1
        return f"{self._name}-{letter}{self._numbers}"

    def _words(self) -> str:
        return " ".join(self._chance.choices(_WORDS, k=self._chance.randint(3, 25)))


async def _operate(session: Session, arguments: dict[str, Any]) -> OperationReceipt:
    operation = make_input(
        ContextOperation, {name: arguments[name] for name in ("op_id", "context_ref", "operation")}
    )
    return await session._handle.call("submit_context_operation", operation, OperationReceipt)


def plain(request_id: str) -> str:
    """What a message says that is measured: it asks for a round of a tool, and an answer."""
    return f"{request_id}: add {' '.join(_WORDS)}"


_WORDS = (
    *("ball", "thread", "labyrinth", "clew", "wool", "wander", "turn", "bull", "gate", "torch", "stone", "stair"),
    *("echo", "dark", "way", "back", "out", "hall", "spindle"),
)
