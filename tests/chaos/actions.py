"""What callers do: one function for each word of `plan.CALLS`."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from clew import ContextPolicy
from clew.contract import ContextOperation
from clew.errors import AlreadyAnswered, AlreadyResolved, Archived, Busy, ClewError, Refusal
from clew.session.transport import make_input, translate_errors
from clew_workflows.contract.content import Content, get_text
from clew_workflows.contract.outputs import InputReceipt, OperationReceipt
from tests.chaos.callers import OUTCOME_SECONDS, Callers, GaveUp, choose_request, choose_start, make_words
from tests.chaos.model import FIRST, SECOND, SPARE, Verdict
from tests.chaos.offspring import burn, checkpoint, delete, fork, import_export
from tests.chaos.oracle import ExternalResult, Reader
from tests.chaos.plan import Action
from tests.chaos.rules import Span
from tests.chaos.web import peek, post, stream, upload
from tests.support.media import make_png

LANES = ("default", "draft", "side")
INPUT_BEHAVIOURS = ("say", "note", "charge", "slow", "rude", "unchecked", "leak")
IMAGE_BYTES = (0, 3000, 3000, 1_200_000)
"""Bytes of the noise in images. The largest are stored in several pieces."""
UNANSWERED_SECONDS = 60.0
"""Seconds in which a close without an answer may still happen."""
_HIBERNATE_ATTEMPTS = 10

Act = Callable[[Callers, Action, random.Random], Awaitable[None]]


async def message(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send a message, and wait for its outcome: half of them in one call, half in two."""
    request_id, behaviour = f"r-{action.number}", action.values["behaviour"]
    text = f"{request_id}: {behaviour} {make_words(chance)}"
    content: Content = text
    if behaviour == "look":
        image = make_png(*chance.choices(range(1, 200), k=2), size=chance.choice(IMAGE_BYTES))
        blob = await callers.persist(lambda: callers.session.put_blob(image, name=f"{request_id}.png"))
        content = [{"type": "text", "text": text}, {"type": "image", "blob": blob}]
    arguments: dict[str, Any] = {"content": content, "on_busy": action.values["on_busy"]}
    if arguments["on_busy"] != "steer":
        arguments |= _choose_settings(chance, behaviour)
    if action.number % 2:
        limit = asyncio.timeout(OUTCOME_SECONDS)
        try:
            async with limit:
                await callers.ask(request_id, arguments)
        except TimeoutError:
            if not limit.expired():
                raise
        return
    ledger, text = callers.promises.ledger, get_text(content)
    request = await callers.persist(
        lambda: callers.session.message(request_id=request_id, **arguments), request_id, text
    )
    ledger.requests[request_id] = text
    callers.promises.messages[request_id] = arguments
    callers.waiting[request_id] = request
    with suppress(TimeoutError, ClewError):
        async with asyncio.timeout(OUTCOME_SECONDS):
            await callers.read_outcome(request_id)


async def steer(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send the active run an input of the user."""
    await _submit(callers, action, chance, "steer")


async def inject(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send the active run an input of a program."""
    await _submit(callers, action, chance, "inject")


async def _submit(callers: Callers, action: Action, chance: random.Random, kind: str) -> None:
    input_id = f"i-{action.number}"
    arguments = {"kind": kind, "input_id": input_id, **_make_input(input_id, chance)}
    receipt = await callers.persist(lambda: _send_input(callers, arguments), input_id, arguments["content"])
    callers.promises.ledger.inputs[input_id] = arguments["content"]
    callers.receipts.append((arguments, receipt))


async def _send_input(callers: Callers, arguments: Mapping[str, Any]) -> InputReceipt:
    fields = {name: value for name, value in arguments.items() if name != "kind"}
    send = callers.session.steer if arguments["kind"] == "steer" else callers.session.inject
    return await send(**fields)


async def signal(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send a signal. The session may reject it, in an entry."""
    name, kind = f"s-{action.number}", chance.choice(("steer", "inject", "modify_context", "nonsense"))
    fields = {"op_id": name, **_make_operation(chance)} if kind == "modify_context" else None
    fields = fields or {"input_id": name, **_make_input(name, chance)}

    async def send() -> None:
        began = time.time()
        async with translate_errors(callers.name):
            await callers.session._handle.workflow.signal(kind, fields)
        callers.promises.signals[name] = Span(began, time.time())

    await callers.persist(send, name, str(fields.get("content", "")))
    callers.promises.ledger.signalled.add(name)


async def cancel(callers: Callers, action: Action, chance: random.Random) -> None:
    """Cancel what runs, or a request by its id."""
    known = list(callers.promises.messages)[-4:]
    request_id = chance.choice([None, *known])
    inputs = chance.choice(("drop", "follow_up"))
    receipt = await callers.persist(lambda: callers.session.cancel(request_id, inputs=inputs))  # type: ignore[arg-type]
    if receipt.cancelled and receipt.request_id in callers.promises.messages:
        callers.promises.ledger.cancelled.add(receipt.request_id)


async def operate(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send a context operation."""
    op_id = f"o-{action.number}"
    fields = {"op_id": op_id, **_make_operation(chance)}
    if chance.random() < 0.3:
        seqs = [m["seq"] for m in await callers.persist(callers.session.transcript)][-6:]
        kind = chance.choice(("pin", "unpin", "expand"))
        fields = {"op_id": op_id, "operation": {"type": kind}}
        if kind != "expand":
            fields["operation"]["seqs"] = [chance.choice(seqs)] if seqs else [0]
    elif chance.random() < 0.2:
        fields = {"op_id": op_id, "operation": {"type": "replace", "reason": "compaction"}}
    receipt = await callers.persist(lambda: _send_operation(callers, fields), op_id)
    callers.promises.ledger.operations[op_id] = receipt.seq
    callers.operations[op_id] = fields
    callers.oracle.acknowledge(callers.name, receipt.seq)


async def _send_operation(callers: Callers, fields: Mapping[str, Any]) -> OperationReceipt:
    operation = make_input(ContextOperation, fields)
    return await callers.session._handle.call("submit_context_operation", operation, OperationReceipt)


async def configure(callers: Callers, action: Action, chance: random.Random) -> None:
    """Change the configuration."""
    changes: dict[str, Any] = chance.choice(
        (
            {"system_prompt": f"You answer {chance.choice(('briefly', 'kindly', 'at length'))}."},
            {"model": chance.choice((FIRST, SECOND))},
            {"fallbacks": chance.choice(([], [SPARE]))},
            {"context_policy": ContextPolicy(max_input_tokens=chance.choice((1500, 3000)))},
            {"context_policy": ContextPolicy(keep_last_turns=chance.choice((1, 3, 5)))},
            {"steering": chance.choice(("terminal", "step"))},
            {"on_busy": chance.choice(("queue", "reject"))},
            {"metadata": {"user": f"u-{chance.randrange(5)}"}},
        )
    )
    receipt = await callers.persist(lambda: callers.session.configure(**changes))
    if receipt.seq is not None:
        callers.promises.ledger.configured.add(receipt.seq)
        callers.oracle.acknowledge(callers.name, receipt.seq)


async def summarize(callers: Callers, action: Action, chance: random.Random) -> None:
    """Have a summary written."""
    receipt = await callers.persist(callers.session.summarize)
    callers.oracle.acknowledge(callers.name, receipt.seq)


async def resolve(callers: Callers, action: Action, chance: random.Random) -> None:
    """Decide about all tool calls that wait for a person."""
    status = await callers.persist(callers.session.status)
    for call in status.pending_approvals:
        approves = chance.random() < 0.7
        edited = {"arguments": {"cents": 1}} if chance.random() < 0.3 else {}

        async def decide(call_id: str = call.tool_call_id, approves: bool = approves, edited: Any = edited) -> Any:
            if approves:
                return await callers.session.approve(call_id, **edited)
            return await callers.session.deny(call_id, reason="not today")

        with suppress(Refusal):
            receipt = await callers.persist(decide)
            callers.promises.decisions[receipt.tool_call_id] = receipt.decision


async def submit(callers: Callers, action: Action, chance: random.Random) -> None:
    """Answer all tool calls that wait for a result from outside."""
    status = await callers.persist(callers.session.status)
    for call in status.pending_external_calls:
        content: Any = chance.choice(("shipped", {"state": "shipped", "items": [1, 2]}, None, "x" * 5000))
        is_error = chance.random() < 0.2
        answer = partial(callers.session.submit_tool_result, call.tool_call_id, content, is_error=is_error)
        with suppress(Refusal):
            receipt = await callers.persist(answer)
            callers.promises.results[receipt.tool_call_id] = ExternalResult(receipt.seq, content, is_error)
            callers.oracle.acknowledge(callers.name, receipt.seq)
            with suppress(AlreadyAnswered):
                await callers.session.submit_tool_result(receipt.tool_call_id, "twice")
                callers.oracle.report("client", callers.name, f"{receipt.tool_call_id} was answered twice")


async def hibernate(callers: Callers, action: Action, chance: random.Random) -> None:
    """Hibernate as soon as nothing runs. The next caller opens the session again."""
    for _ in range(_HIBERNATE_ATTEMPTS):
        try:
            receipt = await callers.session.hibernate("night")
        except Busy:
            await asyncio.sleep(0.5)
        else:
            callers.oracle.acknowledge(callers.name, receipt.last_seq)
            return


async def close(callers: Callers, action: Action, chance: random.Random) -> None:
    """Close the session. The next caller opens it again."""
    began, closes = time.time(), callers.promises.closes
    unanswered = Span(began, began + UNANSWERED_SECONDS)
    closes.append(unanswered)
    try:
        receipt = await callers.session.close("done")
    except Refusal:
        closes[closes.index(unanswered)] = Span(began, time.time())
        raise
    closes.remove(unanswered)
    if receipt.last_seq < 0:
        closes.append(Span(began, time.time()))
    callers.oracle.acknowledge(callers.name, receipt.last_seq)


async def repeat(callers: Callers, action: Action, chance: random.Random) -> None:
    """Send commands again: each must get the same answer."""
    ledger, oracle = callers.promises.ledger, callers.oracle
    if known := [name for name in list(callers.promises.messages)[-20:] if name in ledger.outcomes]:
        request_id = chance.choice(known)
        arguments = callers.promises.messages[request_id]
        request = await callers.persist(lambda: callers.session.message(request_id=request_id, **arguments))
        with suppress(TimeoutError, ClewError):
            async with asyncio.timeout(OUTCOME_SECONDS):
                callers.note_outcome(request_id, await request.result())
    if callers.receipts:
        sent, receipt = chance.choice(callers.receipts[-20:])
        again = await callers.persist(lambda: _send_input(callers, sent))
        if again != receipt:
            oracle.report("thread", callers.name, f"{sent['input_id']} got {receipt}, and then {again}")
    if callers.operations:
        fields = callers.operations[chance.choice(list(callers.operations)[-5:])]
        second = await callers.persist(lambda: _send_operation(callers, fields))
        if second.status != "duplicate":
            oracle.report("thread", callers.name, f"operation {fields['op_id']} was {second.status} the second time")
    ledger.repeated += 1


async def read(callers: Callers, action: Action, chance: random.Random) -> None:
    """Read the status, entries, the context and the transcript."""
    session, oracle = callers.session, callers.oracle
    promised = callers.promises.rev
    status = await callers.persist(session.status)
    if status.status != "preparing" and not status.closed:
        # A session that is opened again does not know its thread yet; one that has ended does not know later forks.
        oracle.check_rev(callers.name, status.rev, promised)
    start = max(0, status.rev - chance.choice((1, 10, 50, 10_000)))
    match chance.choice(("entries", "thread", "context", "transcript", "window")):
        case "entries":
            oracle.see_page(callers.name, await callers.persist(lambda: session.entries(from_seq=start)), start)
        case "thread":

            async def read_thread() -> list[Any]:
                return [entry async for entry in callers.clew.read_thread(callers.name, from_seq=start)]

            oracle.see_page(callers.name, await callers.persist(read_thread), start)
        case "context":
            with suppress(Archived):
                await callers.persist(session.context)
        case "transcript":
            seqs = [message["seq"] for message in await callers.persist(session.transcript)]
            if seqs != sorted(set(seqs)):
                oracle.report("reader", callers.name, "the transcript is not in order")
        case _:
            await callers.persist(lambda: session.window(1000))


async def follow(callers: Callers, action: Action, chance: random.Random) -> None:
    """Follow the session from a seq on, and reconnect with the cursor, or one of its newest requests."""
    start, connections = choose_start(callers, chance), chance.randint(1, 4)
    if (request_id := choose_request(callers, chance)) is not None:
        for _ in range(connections):
            reader = Reader(callers.oracle, callers.name, None, of_request=True)
            await reader.view(callers.session.request(request_id).events(), chance.uniform(1, 12))
        return
    reader = Reader(callers.oracle, callers.name, start)
    for _ in range(connections):
        await reader.view(callers.session.follow(reader.next), chance.uniform(1, 12))


async def list_sessions(callers: Callers, action: Action, chance: random.Random) -> None:
    """List the sessions: each is there once."""

    async def read_ids() -> list[str]:
        return [summary.session_id async for summary in callers.clew.sessions()]

    ids = await callers.persist(read_ids)
    if len(ids) != len(set(ids)):
        callers.oracle.report("reader", callers.name, f"the list has a session twice: {sorted(ids)}")


ACTIONS: Mapping[str, Callable[[Callers, Action, random.Random], Awaitable[Callers | None]]] = {
    "message": message, "steer": steer, "inject": inject, "signal": signal, "cancel": cancel, "operate": operate,
    "configure": configure, "summarize": summarize, "resolve": resolve, "submit": submit, "hibernate": hibernate,
    "close": close, "fork": fork, "checkpoint": checkpoint, "import": import_export, "delete": delete,
    "repeat": repeat, "read": read, "follow": follow, "list": list_sessions,
    "post": post, "stream": stream, "upload": upload, "peek": peek, "burn": burn,
}  # fmt: skip
"""The function of each word. Those that make a session return its callers."""


async def perform(callers: Callers, action: Action) -> Callers | None:
    """Perform an action, and count its end. A refusal, or no answer, is one; any other exception is a violation."""
    made = None
    try:
        made = await ACTIONS[action.kind](callers, action, random.Random(action.values["seed"]))
    except (ClewError, GaveUp) as error:
        callers.ends[type(error).__name__] += 1
        if not isinstance(error, (Refusal, GaveUp, AlreadyResolved)):
            callers.errors[f"{action.kind} ended: {type(error).__name__}: {str(error)[:120]}"] += 1
    except Exception as error:
        callers.oracle.report("client", callers.name, f"{action.kind} {action.number} raised {error!r}")
    else:
        callers.ends["done"] += 1
    return made


def _choose_settings(chance: random.Random, behaviour: str) -> dict[str, Any]:
    match behaviour:
        case "loop":
            return {"max_iterations": 3}
        case "down":
            return {"fallbacks": [SPARE], "model": chance.choice((FIRST, SECOND))}
        case "form" | "misform":
            return {"output_schema": Verdict.model_json_schema(), "max_iterations": 3}
    return chance.choice(
        (
            {},
            {},
            {},
            {"model": SECOND},
            {"fallbacks": [SPARE]},
            {"context_policy": ContextPolicy(max_messages=6)},
            {"timeout_seconds": 60},
        )
    )


def _make_input(name: str, chance: random.Random) -> dict[str, Any]:
    return {
        "content": f"{name}: {chance.choice(INPUT_BEHAVIOURS)} {make_words(chance)}",
        "at": chance.choice(("terminal", "step")),
        "on_failure": chance.choice(("follow_up", "drop")),
    }


def _make_operation(chance: random.Random) -> dict[str, Any]:
    lane = chance.choice(LANES)
    if chance.random() < 0.4:
        return {"context_ref": lane, "operation": {"type": "switch"}}
    said = [{"role": "user", "content": f"before: say {make_words(chance)}"}, {"role": "assistant", "content": "yes"}]
    operation: dict[str, Any] = {"type": "replace", "result_context": {"messages": chance.choice((said, []))}}
    if chance.random() < 0.3:
        operation["base_seq"] = 0
    return {"context_ref": lane, "operation": operation}
