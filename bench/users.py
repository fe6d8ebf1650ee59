"""Simulated callers of `bench.endless`: each sends messages and other commands, chosen at random from a seed.

The second word of a message tells the scripted model what to do.
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
from clew.session.transport import make_input, translate_errors
from clew_workflows.contract.outcomes import RequestOutcome

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


async def reply_as_told(body: dict[str, Any]) -> Reply:
    """Reply as the newest user message instructs."""
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


async def retry(send: Callable[[], Awaitable[T]], ledger: Ledger) -> T:
    """Send a command until a worker answers it.

    Raises:
        ClewError: The session refused the message, or no worker accepted it after all attempts.
    """
    for _ in range(PATIENCE):
        try:
            return await send()
        except (WorkerUnavailable, ServerUnreachable, Closed) as error:
            ledger.retried[f"{type(error).__name__}: {str(error)[:150]}"] += 1
            await asyncio.sleep(0.2)
    return await send()


class User:
    """Sends one message after another, and another command beside each."""

    def __init__(self, session: Session, ledger: Ledger, name: str, seed: int) -> None:
        self._session = session
        self._ledger = ledger
        self._name = name
        self._chance = random.Random(f"{name}-{seed}")
        self._numbers = 0
        self._repeatable: list[tuple[str, dict[str, Any]]] = []
        self._receipts: list[tuple[str, dict[str, Any], InputReceipt]] = []
        self._operated: list[tuple[str, dict[str, Any]]] = []

    async def take_turn(self) -> None:
        """Send a message, and wait for its outcome."""
        kind, beside = self._choose(KINDS), self._choose(BESIDES)
        request_id = self._make_id("r")
        arguments: dict[str, Any] = {"content": f"{request_id}: {kind} {self._make_words()}"}
        arguments["on_busy"] = {"interrupt": "interrupt", "join": "steer"}.get(beside, "queue")
        if arguments["on_busy"] != "steer":
            # A message that joins a run must not have settings, and it may join one.
            arguments |= self._make_settings(kind)
        outcome = asyncio.create_task(self._ask(request_id, arguments))
        await asyncio.sleep(self._chance.choice((0, 0.01, 0.03)))
        try:
            await self._send_beside(beside, request_id)
        except ClewError as error:
            self._ledger.problems.append(f"{beside} beside {request_id} failed: {error!r}")
        if await outcome:
            self._repeatable = [*self._repeatable[-20:], (request_id, arguments)]

    async def _ask(self, request_id: str, arguments: dict[str, Any]) -> RequestOutcome | None:
        ledger = self._ledger
        try:
            outcome = await retry(lambda: self._request_outcome(request_id, arguments), ledger)
        except ClewError as error:
            ledger.problems.append(f"message {request_id} was refused: {error!r}")
            return None
        ledger.requests[request_id] = arguments["content"]
        ledger.outcomes[request_id] = outcome
        return outcome

    async def _request_outcome(self, request_id: str, arguments: dict[str, Any]) -> RequestOutcome:
        request: Request = await self._session.message(request_id=request_id, **arguments)
        return await request.result()

    async def _send_beside(self, kind: str, request_id: str) -> None:
        match kind:
            case "steer" | "inject":
                await self._submit(kind)
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
                await self._read()

    async def _submit(self, kind: str) -> None:
        input_id = self._make_id("i")
        arguments: dict[str, Any] = {
            "content": f"{input_id}: also {self._make_words()}"
        } | self._choose_input_options()

        async def submit() -> InputReceipt:
            send = self._session.steer if kind == "steer" else self._session.inject
            return await send(input_id=input_id, **arguments)

        try:
            receipt = await retry(submit, self._ledger)
        except Refusal:
            self._ledger.refused.add(input_id)
            return
        self._ledger.inputs[input_id] = arguments["content"]
        self._receipts = [*self._receipts[-20:], (kind, {"input_id": input_id, **arguments}, receipt)]

    async def _signal(self) -> None:
        """Send a signal. The session may reject it, in an entry."""
        name = self._make_id("s")
        kind = self._chance.choice(("steer", "inject", "modify_context", "nonsense"))
        if kind == "modify_context":
            arguments: dict[str, Any] = {"op_id": name, **self._make_operation()}
        else:
            arguments = {
                "input_id": name,
                "content": f"{name}: also {self._make_words()}",
                **self._choose_input_options(),
            }
        await retry(lambda: self._send(kind, arguments), self._ledger)
        self._ledger.signalled.add(name)

    async def _send(self, signal: str, arguments: dict[str, Any]) -> None:
        async with translate_errors(self._session.id):
            await self._session._handle.workflow.signal(signal, arguments)

    async def _operate(self) -> None:
        op_id = self._make_id("o")
        arguments = {"op_id": op_id, **self._make_operation()}
        receipt = await retry(lambda: _operate(self._session, arguments), self._ledger)
        # A retried command may be answered as a duplicate: the session took the first attempt.
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
        receipt = await retry(lambda: self._session.configure(**changes), self._ledger)
        if receipt.seq is not None:
            self._ledger.configured.add(receipt.seq)

    async def _cancel(self, request_id: str) -> None:
        inputs: Literal["drop", "follow_up"] = self._chance.choice(("drop", "follow_up"))
        try:
            receipt = await retry(lambda: self._session.cancel(request_id, inputs=inputs), self._ledger)
        except Refusal:
            return
        if receipt.cancelled:
            self._ledger.cancelled.add(request_id)

    async def _read(self) -> None:
        """Read the context and the transcript. A context in the archive is refused as archived."""
        with suppress(Archived):
            await retry(self._session.context, self._ledger)
        await retry(self._session.transcript, self._ledger)

    async def _repeat(self) -> None:
        """Send commands again: each must get the same answer."""
        ledger, session = self._ledger, self._session
        if self._repeatable:
            request_id, arguments = self._chance.choice(self._repeatable)
            again = await retry(lambda: self._request_outcome(request_id, arguments), ledger)
            if again != ledger.outcomes[request_id]:
                ledger.problems.append(f"{request_id} got {ledger.outcomes[request_id]}, and then {again}")
        if self._receipts:
            kind, arguments, receipt = self._chance.choice(self._receipts)
            send = session.steer if kind == "steer" else session.inject
            if await retry(lambda: send(**arguments), ledger) != receipt:
                ledger.problems.append(f"{arguments['input_id']} got another receipt the second time")
        if self._operated:
            op_id, arguments = self._chance.choice(self._operated)
            second = await retry(lambda: _operate(session, arguments), ledger)
            if second.status != "duplicate":
                ledger.problems.append(f"{op_id} was {second.status} the second time")
        ledger.repeated += 1

    def _make_settings(self, kind: str) -> dict[str, Any]:
        match kind:
            case "loop":
                return {"max_iterations": 2}
            case "form":
                return {"output_schema": {"type": "object"}}
            case "narrow":
                return {"context_policy": ContextPolicy(max_messages=4), "model": "bench:second"}
        return {}

    def _choose_input_options(self) -> dict[str, Any]:
        chance = self._chance
        return {"at": chance.choice(("terminal", "step")), "on_failure": chance.choice(("follow_up", "drop"))}

    def _make_operation(self) -> dict[str, Any]:
        """Make an operation: a replacement, a reset, or a switch."""
        lane = self._chance.choice(LANES)
        if self._chance.random() < 0.5:
            return {"context_ref": lane, "operation": {"type": "switch"}}
        said = [
            {"role": "user", "content": f"before: {self._make_words()}"},
            {"role": "assistant", "content": self._make_words()},
        ]
        messages = said if self._chance.random() < 0.5 else []
        operation: dict[str, Any] = {"type": "replace", "result_context": {"messages": messages}}
        if self._chance.random() < 0.3:
            operation["base_seq"] = 0
        return {"context_ref": lane, "operation": operation}

    def _choose(self, weights: dict[str, int]) -> str:
        return self._chance.choices(tuple(weights), tuple(weights.values()))[0]

    def _make_id(self, letter: str) -> str:
        self._numbers += 1
        return f"{self._name}-{letter}{self._numbers}"

    def _make_words(self) -> str:
        return " ".join(self._chance.choices(_WORDS, k=self._chance.randint(3, 25)))


async def _operate(session: Session, arguments: dict[str, Any]) -> OperationReceipt:
    operation = make_input(
        ContextOperation, {name: arguments[name] for name in ("op_id", "context_ref", "operation")}
    )
    return await session._handle.call("submit_context_operation", operation, OperationReceipt)


def make_plain_message(request_id: str) -> str:
    """Make the content of a measured message: it asks for a tool call and an answer."""
    return f"{request_id}: add {' '.join(_WORDS)}"


_WORDS = (
    *("ball", "thread", "labyrinth", "clew", "wool", "wander", "turn", "bull", "gate", "torch", "stone", "stair"),
    *("echo", "dark", "way", "back", "out", "hall", "spindle"),
)
