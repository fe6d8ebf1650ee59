"""A task queue's sessions in every state at once: at rest, at work, waiting, hibernating, rolling over."""

from __future__ import annotations

import asyncio
from typing import Any

from clew import Agent, Clew, Request, Session
from clew.local import Reply, ToolCall
from clew.local.scripted import Script
from tests.support.rolling import FailingStore, SlowModel, make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack
from tests.support.toolbox import get_gate
from tests.support.waiting import wait_until

WAITING = ("at rest", "approving", "ordering", "delegating", "rolling over")
"""States of sessions that have no call in flight."""
WORKING = ("calling", "queueing", "using a tool", "summarizing")
"""States of sessions that have one."""
EVENTS = 60
"""Events of a history at which the sessions are to roll over."""


class SessionsInEveryState:
    """Sessions in every state.

    Attributes:
        boss: The agent whose session has a subagent.
        sessions: The sessions, by their state.
        answers: The answers that their requests will have, by their state.
    """

    def __init__(self, stack: Stack, store: FailingStore) -> None:
        self.sessions: dict[str, Session] = {}
        self._stack = stack
        self._store = store
        self._calling, self._queueing, self._helping = SlowModel(), SlowModel(), SlowModel()
        self._summarizing = SlowModel(lambda _body: Reply("fine"))
        self._gate = make_id()
        self._requests: dict[str, list[Request]] = {}
        self.answers = {
            "calling": ["re: go"],
            "queueing": ["re: go", "re: and then"],
            "using a tool": [f"{self._gate} is open"],
            "approving": ["done"],
            "ordering": ["brewed"],
            "delegating": ["re: help"],
            "rolling over": ["fine"] * 16,
        }
        helper = Agent("helper", model=stack.add_model(self._helping))
        delegate = stack.add_model(make_tool_script(ToolCall("helper", {"task": "help"})))
        self.boss = Agent("boss", model=delegate, tools=[helper.as_tool()])

    async def open(self, clew: Clew) -> None:
        """Open the sessions, and bring each to its state."""
        await (await self._open(clew, "at rest", "fine")).ask("go")
        hibernated = await self._open(clew, "hibernated", "fine")
        await hibernated.ask("go")
        await hibernated.hibernate()
        await self._open(clew, "calling", self._calling, "go")
        await self._open(clew, "queueing", self._queueing, "go", "and then")
        await self._open(
            clew,
            "using a tool",
            make_tool_script(ToolCall("wait_for", {"gate": self._gate})),
            "go",
            tools=["wait_for"],
        )
        await self._open(clew, "approving", make_tool_script(ToolCall("guarded", {})), "go", tools=["guarded"])
        await self._open(
            clew, "ordering", make_tool_script(ToolCall("order", {"item": "tea"})), "go", tools=["order"]
        )
        self.sessions["delegating"] = delegating = await clew.open(make_id(), agent="boss")
        self._requests["delegating"] = [await delegating.message("go")]
        await self._begin_a_summary(await self._open(clew, "summarizing", self._summarizing))
        for model in (self._calling, self._queueing, self._helping):
            await model.wait_for_call()
        await self._wait_for_activity(clew, "using a tool", "run_tool")
        await self._wait_for_pending("approving", "pending_approvals")
        await self._wait_for_pending("ordering", "pending_external_calls")
        await self._begin_a_rollover(clew)

    def finish_rollover(self) -> None:
        """Let the store answer again, so that the session that rolls over goes on."""
        self._store.ready.set()

    async def finish(self) -> dict[str, list[str]]:
        """Give each session what it waits for, and return the answers to its requests."""
        for model in (self._calling, self._queueing, self._helping, self._summarizing):
            model.release(2)
        get_gate(self._gate).set()
        await self.sessions["approving"].approve("tool00001")
        await self.sessions["ordering"].submit_tool_result("tool00001", "brewed")
        await self._summary
        return {state: [await request.answer() for request in made] for state, made in self._requests.items() if made}

    async def _open(self, clew: Clew, state: str, script: Script | str, *messages: str, **config: Any) -> Session:
        model = self._stack.add_model(script)
        self.sessions[state] = session = await clew.open(make_id(), model=model, on_busy="queue", **config)
        self._requests[state] = [await session.message(message) for message in messages]
        return session

    async def _wait_for_pending(self, state: str, field: str) -> None:
        async def is_pending() -> bool:
            return bool(getattr(await self.sessions[state].status(), field))

        await wait_until(is_pending)

    async def _wait_for_activity(self, clew: Clew, state: str, name: str) -> None:
        workflow = clew.temporal.get_workflow_handle(self.sessions[state].id)

        async def is_pending() -> bool:
            activities = (await workflow.describe()).raw_description.pending_activities
            return any(activity.activity_type.name == name for activity in activities)

        await wait_until(is_pending)

    async def _begin_a_summary(self, session: Session) -> None:
        for number in range(4):
            self._summarizing.release()
            await session.ask(f"go {number} times " * 20)
            await self._summarizing.wait_for_call()
        self._summary = asyncio.create_task(session.summarize())
        await self._summarizing.wait_for_call()

    async def _begin_a_rollover(self, clew: Clew) -> None:
        """Have a session fill its event history, and hold back the answer of the store."""
        session = await self._open(clew, "rolling over", "fine")
        self._store.ready.clear()
        self._requests["rolling over"] = [await session.message(f"go {number}") for number in range(16)]
        await self._wait_for_activity(clew, "rolling over", "archive")
