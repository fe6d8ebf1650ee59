"""The sessions of a corpus: each has another part of a session's life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from clew import Agent, Clew, ContextPolicy, Limits, Session
from clew.local import Reply, ToolCall
from tests.support import toolbox
from tests.support.waiting import wait_until

START: dict[str, Any] = {"model": "scripted:any", "tools": ["add"], "system_prompt": "Be brief."}
"""The configuration of a scenario's session."""
STRICT = 1_500
"""Largest prompt of the model `strict`, in tokens."""


async def conversation(session: Session) -> None:
    """Three turns, the second with two tool calls side by side."""
    await session.ask("hello")
    await session.ask("use tools")
    await session.ask("goodbye", context_policy=None, max_iterations=3)


async def failures(session: Session) -> None:
    """A refusal by the provider, an iteration limit, an unknown signal, and a close."""
    with suppress(Exception):
        await session.ask("fail")
    await (await session.message("use tools", max_iterations=1)).result()
    await session._handle.workflow.signal("no_such_signal", {"a": 1})
    await session.ask("hello")
    await session.close()


async def control(session: Session) -> None:
    """Steering, a queue, deferred operations and configuration, an interruption, an approval, a cancel, a schema."""
    request = await session.message("slowly")
    await session.steer("faster")
    await session.inject("by the way", at="step")
    await session.replace_context([{"role": "user", "content": "before"}], op_id="o-1")
    await session.replace_context([{"role": "user", "content": "instead"}], op_id="o-2")
    await session.configure(require_approval=["add"])
    await session.message("queued", on_busy="queue")
    await session.message("joining", on_busy="steer")
    await request.result()
    first = await session.message("slowly", on_busy="queue")
    await (await session.message("urgent", on_busy="interrupt")).result()
    await first.result()
    guarded = await session.message("use tools")

    async def wait() -> bool:
        return len((await session.status()).pending_approvals) == 2

    await wait_until(wait)
    pending = (await session.status()).pending_approvals
    await session.deny(pending[0].tool_call_id, reason="no")
    await session.approve(pending[1].tool_call_id, arguments={"a": 3, "b": 4})
    await guarded.result()
    await session.configure(tools=[], require_approval=[])
    await session.switch_context("draft", op_id="o-3")
    cancelled = await session.message("slowly")
    await session.cancel()
    await cancelled.result()
    await (await session.message("in a form", output_schema={"type": "object"}, max_iterations=3)).result()
    await session.close()


async def rollover(session: Session) -> None:
    """Rollovers, one of them within a request; a context of many turns; a hibernation and its end; a close."""
    await session.configure(context_policy=ContextPolicy(max_input_tokens=2300, keep_last_turns=1))
    for turn in range(50):
        await session.ask(f"turn {turn} " + "word " * 20)
    await session.ask("all of it", context_policy=ContextPolicy(max_input_tokens=50_000))
    await (await session.message("dig", max_iterations=14)).result()
    await session.hibernate()
    again = await Clew(session._handle.client).open(session.id)
    await again.ask("hello again")
    await again.close()


async def defaults(session: Session) -> None:
    """The worker's defaults for the session's model, for the model of one request, and for the next model."""
    await session.ask("hello")
    await session.ask("use tools", model="scripted:gpt-4")
    await session.configure(model="scripted:gpt-4o-mini")
    await session.ask("hello again")
    await session.configure(context_policy=ContextPolicy(keep_last_turns=2))
    await session.ask("goodbye", context_policy=ContextPolicy(max_messages=8))
    await session.close()


async def limits(session: Session) -> None:
    """A provider that refuses long prompts, in a first call and after tools, and whose token counts are higher."""
    await session.configure(context_policy=ContextPolicy(max_input_tokens=1_200, reserve_output_tokens=200))
    for turn in range(12):
        await session.ask(f"turn {turn} " + '"quoted" ' * 30)
    await session.configure(model="scripted:strict", context_policy=ContextPolicy(max_input_tokens=8_000))
    await session.ask("use tools")
    for turn in range(12):
        await session.ask(f"turn {turn} " + "word " * 60)
    with suppress(Exception):
        await session.ask("much too long " * 500)
    await session.ask("goodbye")
    await session.close()


async def compacting(session: Session) -> None:
    """Summaries and compactions, by the session itself and on request, pins, and an expand."""
    policy = ContextPolicy(max_input_tokens=900, reserve_output_tokens=200, keep_last_turns=1)
    policy = policy.model_copy(update={"summarization": "request_new"})
    await session.configure(context_policy=policy, on_busy="queue")
    await session.ask("Remember 4711.")
    first = (await session.transcript())[0]["seq"]
    await session.pin(first, op_id="p-1")
    for turn in range(12):
        await session.ask(f"turn {turn} " + "word " * 40)
        await wait_until_idle(session)
    await session.ask("and " + "word " * 40)
    await session.ask("use tools")
    await session.configure(context_policy=ContextPolicy(summarization="use_existing"))
    await session.ask("hello")
    await session.summarize(to_seq=(await session.status()).rev - 2)
    await session.ask("hello")
    await session.ask("and now?")
    await session.compact(op_id="c-1")
    await session.ask("hello again")
    await session.expand(op_id="e-1")
    await session.configure(context_policy=ContextPolicy(summarization="compact"))
    for turn in range(12):
        await session.ask(f"another turn {turn} " + "word " * 40)
        await wait_until_idle(session)
    await session.unpin(first, op_id="u-1")
    await session.ask("goodbye")
    await session.close()


async def doubts(session: Session) -> None:
    """A cancelled round: one call has returned, the other returns late; several operations wait."""
    await session.configure(tools=["add", "ignore_cancel"])
    await session.ask("hello")
    first = await session.message("cut off", request_id="r-cut")
    await toolbox.get_gate("doubts-started").wait()
    await session.pin(2, op_id="p-1")
    await session.switch_context("draft", op_id="s-1")
    await session.switch_context("default", op_id="s-2")
    await session.configure(system_prompt="Be kind.")
    await session.configure(on_busy="queue")
    await session.cancel(reason="changed my mind")
    await first.result()
    await session.ask("and now?")
    toolbox.get_gate("doubts").set()

    async def has_late_result() -> bool:
        return any(entry.payload.get("late") for entry in await session.entries())

    await wait_until(has_late_result)
    await session.ask("what was it?")
    await session.close("recorded")


async def agents(session: Session) -> None:
    """A session of an agent, with a field of its own; a change of its agent's field by the caller."""
    await session.ask("hello")
    await session.configure(on_busy="queue")
    await session.ask("use tools")


async def agents_redeployed(session: Session) -> None:
    """A new version of the agent; another agent, one that no worker has, and the first again; a hibernation."""
    await session.ask("hello")
    await session.configure(agent="brief")
    await session.ask("use tools")
    await session.configure(agent="nobody")
    with suppress(Exception):
        await session.ask("hello")
    await session.configure(agent="support", tools=["add"])
    await session.hibernate()
    again = await Clew(session._handle.client).open(session.id)
    await again.ask("goodbye")
    await again.close()


async def external(session: Session) -> None:
    """Rounds that wait outside: a submitted result, a timeout, an error, a rollover meanwhile, a cancellation."""
    await session.configure(tools=["add", "order", "order_later"])
    await wait_outside(session, "order it", 1)
    await session.submit_tool_result("tool00002", {"number": 1})
    await wait_outside(session, "order more", 2)
    for number in range(33):
        await session.inject(f"note {number}", on_failure="drop")
        await asyncio.sleep(0.03)
    while (await session.status()).status == "awaiting_external":
        for call in (await session.status()).pending_external_calls:
            if call.name == "order":
                await session.submit_tool_result(call.tool_call_id, "sold out", is_error=True)
        await asyncio.sleep(0.05)
    await wait_outside(session, "order it", 1)
    await session.cancel()
    await session.ask("goodbye", on_busy="queue")
    await session.close()


async def subagents(session: Session) -> None:
    """Two subagents side by side, and one that is cancelled while it works."""
    await session.ask("share it")
    await session.message("share more")

    async def works() -> bool:
        return any(child.status == "working" for child in (await session.status()).subagents)

    async def has_ended() -> bool:
        return not (await session.status()).subagents

    await wait_until(works)
    await session.cancel()
    await wait_until(has_ended)
    await session.close()


async def results(session: Session) -> None:
    """Results that are stored in the archive: the model reads one of them on."""
    await session.configure(tools=["flood"], limits=Limits(max_tool_result_bytes=300))
    await session.ask("flood it")
    await session.ask("read on")
    await session.close()


async def wait_outside(session: Session, content: str, calls: int) -> None:
    """Send a message, and wait until so many external calls wait for their results."""
    await session.message(content, on_busy="queue")

    async def wait() -> bool:
        return len((await session.status()).pending_external_calls) >= calls

    await wait_until(wait)


async def wait_until_idle(session: Session) -> None:
    """Wait until the session writes no summary: a message would cancel the summary."""

    async def writes_none() -> bool:
        return (await session.status()).status != "summarizing"

    await wait_until(writes_none)


SCENARIOS: dict[str, Callable[[Session], Awaitable[None]]] = {
    "conversation-1": conversation,
    "failures-1": failures,
    "control-1": control,
    "rollover-1": rollover,
    "defaults-1": defaults,
    "limits-1": limits,
    "compacting-1": compacting,
    "doubts-1": doubts,
    "agents-1": agents,
    "external-1": external,
    "subagents-1": subagents,
    "results-1": results,
}
REDEPLOYED: dict[str, Callable[[Session], Awaitable[None]]] = {"agents-1": agents_redeployed}
"""How scenarios continue when the workers have been replaced by those of another deployment."""
STARTS: dict[str, dict[str, Any]] = {
    "agents-1": {"agent": "support", "metadata": {"customer": "4711"}},
    "subagents-1": {"agent": "boss", "metadata": {"customer": "4711"}},
}
"""The configurations of scenarios whose sessions have other ones."""
BOSS = Agent("boss", model="scripted:any", tools=[Agent("helper", model="scripted:any").as_tool()])
DEPLOYMENTS = (
    [Agent("support", model="scripted:any", system_prompt="Be kind.", tools=[toolbox.add], version="1"), BOSS],
    [
        Agent("support", model="scripted:any", system_prompt="Be very kind.", version="2", on_busy="steer"),
        Agent(
            "brief", model="scripted:gpt-4o-mini", tools=[toolbox.add], context_policy=ContextPolicy(max_messages=9)
        ),
    ],
)
"""The agents of the first workers and of the second ones."""


TOOL_CALLS = {
    "share it": tuple(ToolCall("helper", {"task": f"part {n}"}, f"c{n}") for n in (1, 2)),
    "share more": (ToolCall("helper", {"task": "slowly"}),),
    "order it": (ToolCall("add", {"a": 1, "b": 1}), ToolCall("order", {"item": "tea"}, "c2")),
    "order more": (ToolCall("order", {"item": "tea"}), ToolCall("order_later", {"item": "cups"}, "c2")),
    "flood it": (ToolCall("flood", {"size": 5_000}),),
    "read on": (ToolCall("read_result", {"tool_call_id": "tool00001", "offset": 300}),),
    "cut off": (ToolCall("add", {"a": 1, "b": 1}), ToolCall("ignore_cancel", {"gate": "doubts"})),
}
"""The calls with which the model answers a message."""


def reply_as_scenario(body: dict[str, Any]) -> Reply:
    """Reply as the model of the scenarios."""
    newest = body["messages"][-1]
    size = len(str(body["messages"])) // 4
    if body["model"] == "strict" and size > STRICT:
        return Reply(f"prompt is too long: {size} tokens > {STRICT} maximum", status=HTTPStatus.BAD_REQUEST)
    user_texts = [message["content"] for message in body["messages"] if message["role"] == "user"]
    match newest["role"], newest["content"]:
        case "user", "use tools":
            return Reply("adding", tool_calls=tuple(ToolCall("add", {"a": n, "b": n}, f"c{n}") for n in (1, 2)))
        case "user", str(text) if text in TOOL_CALLS:
            return Reply(tool_calls=TOOL_CALLS[text])
        case "user", "slowly":
            return Reply("one two three four five six", tokens_per_second=6)
        case _ if user_texts[-1:] == ["dig"]:
            return Reply(tool_calls=(ToolCall("add", {"a": 1, "b": 1}),))
        case "user", "fail":
            return Reply("no", status=HTTPStatus.FORBIDDEN)
        case _:
            return Reply(f"I read {len(body['messages'])} messages.")
