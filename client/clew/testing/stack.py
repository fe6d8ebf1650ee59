"""The stack of a test: a Temporal server, a worker and scripted models, in this process."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Self

from google.protobuf.duration_pb2 import Duration
from google.protobuf.field_mask_pb2 import FieldMask
from temporalio.api.common.v1 import FastForwardConfig, TimeSkippingConfig, WorkflowExecution
from temporalio.api.enums.v1 import FastForwardPollingResult
from temporalio.api.workflow.v1 import WorkflowExecutionOptions
from temporalio.api.workflowservice.v1 import (
    PollWorkflowExecutionTimeSkippingRequest,
    UpdateWorkflowExecutionOptionsRequest,
)
from temporalio.client import Client

from clew import Clew, Session
from clew.agents import Agent
from clew.local import scripted_model
from clew.testing._worker import BoundedWaits, MortalWorker, get_background
from clew.testing.scripts import Script, ScriptedRequest, Scripts, Stuck, make_providers
from clew.testing.view import ThreadView
from clew.tools import Tool, ToolDefinition
from clew_activities.archive import Store
from clew_activities.checkpoint_signing import Keys
from clew_activities.model.model_table import TakenMedia
from clew_activities.providers import make_http_client
from clew_activities.tools.registry import Tools, collect_tools
from clew_activities.worker import SessionWorker, WorkerSettings, make_worker
from clew_activities.worker.environment import ALL_WORK, Work
from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.outputs import PendingCall, SessionStatus

APPROVAL_SECONDS = 10.0
"""Seconds that `Stack.wait_for_approval` and `Stack.wait_for_external` wait by default."""
PATIENCE_SECONDS = 60.0
"""Seconds that a test waits for an answer of a session by default."""
POLL_SECONDS = 0.02
"""Seconds between two queries for an approval."""
REST_SECONDS = 1.0
"""Seconds after which a wait for a call fails, if the session has nothing to do."""
READ_SECONDS = 5.0
"""Seconds for reading the thread of a session that a test waits for in vain."""


class Stack:
    """A Temporal server, a worker and scripted models. `with` or `async with` starts and stops it.

    The Temporal server is shared by all stacks of the process and stopped at its end. Each stack has a task queue, a
    worker and a store of its own. They run on an event loop in a thread of their own: a test may use any event loop,
    or block its own.

    Args:
        tools: The tools of its worker.
        agents: The agents of its worker, with their tools and subagents. No real model is called: each agent has a
            scripted model, with the window and the prices of its own.
        scripts: The scripts of agents, of subagents, and of models that agents have as fallbacks, by their names.
            `Stack.script` sets one later. `open(script, agent="name")` has one for that session alone.
        models: Scripted models whose names are set, by the name after `scripted:`. `Stack.model` adds others.
        patience_seconds: The longest time that a test waits for a request, or for another answer of a session. After
            that it fails with `Stuck`.

    Attributes:
        clew: The client, connected to the server.
        task_queue: The task queue of the stack's sessions.

    Raises:
        KeyError: `scripts` names an agent that the stack does not have.
        ToolsUnusable: Two tools have one name, or the parameters of a tool are not valid JSON Schema.
    """

    clew: Clew

    def __init__(
        self,
        *,
        tools: Iterable[ToolDefinition] = (),
        agents: Iterable[Agent] = (),
        scripts: Mapping[str, Script] | None = None,
        models: Mapping[str, Script] | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self.task_queue = f"clew-testing-{uuid.uuid4().hex}"
        self._scripts = Scripts()
        self._tools: Tools = {}
        self._agents: tuple[Agent, ...] = ()
        self._own_models: dict[str, str] = {}
        self._deploy(list(tools), list(agents))
        for name, script in (models or {}).items():
            self._scripts.add_model(name, script)
        for name, script in (scripts or {}).items():
            self._scripts.set_script(name, script)
        self._patience_seconds = patience_seconds
        self._store = Store.from_url("memory://")
        self._keys = Keys({"testing": secrets.token_bytes(32)})
        self._exits = AsyncExitStack()
        self._workers: list[MortalWorker] = []

    def __enter__(self) -> Self:
        """Start the stack, and block until the worker polls."""
        self._background = get_background()
        self._background.run_blocking(self._start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the worker and the scripted models; raises as `check` does, unless the test has failed."""
        self._background.run_blocking(self._stop())
        if error is None:
            self.check()

    async def __aenter__(self) -> Self:
        """Start the stack, and return when the worker polls."""
        self._background = get_background()
        await self._background.run(self._start())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop the worker and the scripted models; raises as `check` does, unless the test has failed."""
        await self._background.run(self._stop())
        if error is None:
            self.check()

    def script(self, agent: str, script: Script) -> None:
        """Set the script of an agent, which replaces its model in all its sessions, those of subagents included.

        Args:
            agent: The name of an agent, of a subagent, or of a model, as `provider:name`, that an agent has as a
                fallback.
            script: The replies from now on.

        Raises:
            KeyError: The stack has no such agent.
        """
        self._scripts.set_script(agent, script)

    def check(self) -> None:
        """Check that every model that was called has a script, and that no agent's script has failed.

        Raises:
            ScriptFailed: One has not. The next call does not report it again.
        """
        self._scripts.check()

    def model(
        self,
        script: Script,
        name: str | None = None,
        *,
        like: str | None = None,
        takes: Collection[TakenMedia] | None = None,
    ) -> str:
        """Add a scripted model and return its name, as `provider:name`.

        Args:
            script: Its replies.
            name: The name after the colon. A model of that name gets another script. None: a new name is made.
            like: A model, as `provider:name`. A model with a new name has its window, its encoding and its prices,
                and takes what that takes.
            takes: What it takes of images, recordings and files: some of `image`, `audio`, `pdf` and `text`. It
                reads markers of the others. None: what models of its name take; of most names that is nothing.
        """
        return self._scripts.add_model(name, script, like, takes)

    def requests(self, model: str) -> list[ScriptedRequest]:
        """List the requests that a scripted model has received, oldest first, retries included.

        Args:
            model: The model, as `provider:name`, or the name of an agent.

        Raises:
            KeyError: The stack has no such model, and no such agent.
        """
        return self._scripts.get_requests(model)

    async def open(
        self,
        script: Script | None = None,
        session_id: str | None = None,
        *,
        takes: Collection[TakenMedia] | None = None,
        **options: Any,
    ) -> Session:
        """Open a session on this stack.

        Args:
            script: The replies of a scripted model of its own, which has the window and the prices of the agent's
                model; None: `options` name the model.
            session_id: The session's id; None: a new one.
            takes: What the model of `script` takes of images, recordings and files, as for `model`.
            options: The other arguments of `Clew.open`.
        """
        if script is not None:
            like = self._own_models.get(options.get("agent", ""))
            options["model"] = self.model(script, like=like, takes=takes)
        return await self.clew.open(session_id or f"test-{uuid.uuid4().hex}", **options)

    async def read(self, session: Session) -> ThreadView:
        """Read the thread of a session."""
        return await ThreadView.read(session)

    def render(self, session: Session, timeout_seconds: float) -> str:
        """Render the thread of a session for people, and block this thread meanwhile; never raises an error."""
        try:
            return str(self._background.run_blocking(ThreadView.read(session), timeout_seconds))
        except Exception as error:
            return f"the thread cannot be read: {type(error).__name__}: {error}"

    async def wait_for_approval(self, session: Session, timeout_seconds: float = APPROVAL_SECONDS) -> str:
        """Wait until a tool call waits for approval, and return its id.

        Raises:
            Stuck: None does in time, or no request runs any more. The message shows the thread.
        """
        return await self._wait_for_call(
            session, "approval", lambda status: status.pending_approvals, timeout_seconds
        )

    async def wait_for_external(self, session: Session, timeout_seconds: float = APPROVAL_SECONDS) -> str:
        """Wait until a call of an external tool waits for its result, and return its id.

        Raises:
            Stuck: None does in time, or no request runs any more. The message shows the thread.
        """
        return await self._wait_for_call(
            session, "its result", lambda status: status.pending_external_calls, timeout_seconds
        )

    async def _wait_for_call(
        self,
        session: Session,
        what: str,
        select: Callable[[SessionStatus], Sequence[PendingCall]],
        timeout_seconds: float,
    ) -> str:
        deadline = time.monotonic() + timeout_seconds
        rests_since: float | None = None
        while not (pending := select(status := await session.status())):
            now = time.monotonic()
            # The request may not have been sent yet.
            rests_since = (rests_since or now) if status.status in ("idle", "hibernating", "closed") else None
            if rests_since and now > rests_since + REST_SECONDS:
                raise Stuck(f"no tool call waits for {what}, and no request runs:\n{await self.read(session)}")
            if now > deadline:
                thread = await self.read(session)
                raise Stuck(f"no tool call waited for {what} within {timeout_seconds:g} s:\n{thread}")
            await asyncio.sleep(POLL_SECONDS)
        return pending[0].tool_call_id

    async def skip_time(self, session: Session, time_skipped: timedelta) -> None:
        """Move the clock of a session's workflow forward, and return when it has arrived there.

        The session's timers that are due on the way fire: timeouts of requests, of approvals and of idle sessions.
        While a model call or a tool call runs, time goes on as usual. Other sessions keep their time.

        Raises:
            RuntimeError: The session ended before, or no worker runs: its timers would not be handled.
            TimeoutError: A call still runs after half a minute.
        """
        if not self._workers:
            raise RuntimeError("no worker runs: restart_worker starts one")
        await self._background.run(self._skip_time(session.id, time_skipped))

    async def kill_worker(self) -> None:
        """Let the worker die: nothing of what runs on it is reported to the server any more, as after SIGKILL.

        The server takes the calls as lost at once, instead of after the heartbeat timeout of 8 seconds, and gives
        them to the next worker. Async code is cancelled. The threads of sync tools run on to their end, since threads
        cannot be killed, but their results are lost. `clew.local.worker_process` is a worker that SIGKILL does end.
        """
        await self._background.run(self._kill_workers())

    async def restart_worker(
        self, *, tools: Iterable[ToolDefinition] | None = None, agents: Iterable[Agent] | None = None
    ) -> None:
        """Start another worker. One that still runs is stopped first, as in a new deployment.

        Args:
            tools: The tools of the new worker; None: those of the worker before it.
            agents: Its agents; None: those of the worker before it.
        """
        self._deploy(tools, agents)
        await self._background.run(self._restart_workers())

    def _deploy(self, tools: Iterable[ToolDefinition] | None, agents: Iterable[Agent] | None) -> None:
        """Take tools and agents for the next worker, each agent with a scripted model instead of its own."""
        agents = None if agents is None else list(agents)
        self._own_models |= {agent.name: agent.model for agent in agents or ()}
        scripted_agents, scripted_tools = self._scripts.add_agents(agents or (), tools or ())
        if tools is not None:
            self._tools = collect_tools(scripted_tools)
        if agents is not None:
            self._agents = scripted_agents

    async def _describe(self, session_id: str) -> str:
        """Describe for people what a session waits for, with its thread."""
        session = self.clew.session(session_id)
        try:
            async with asyncio.timeout(READ_SECONDS):
                status = await session.status()
                return f"its status is {status.status}, request {status.request_id}:\n{await self.read(session)}"
        except (ClewError, TimeoutError) as error:
            worker = "" if self._workers else "; no worker runs: restart_worker starts one"
            return f"its thread cannot be read ({type(error).__name__}){worker}"

    async def _start(self) -> None:
        server = await self._background.start_server()
        try:
            models = await self._exits.enter_async_context(scripted_model(self._scripts.answer))
            self._providers = make_providers(models)
            self._http = await self._exits.enter_async_context(make_http_client())
            waits = BoundedWaits(self._patience_seconds, self._describe)
            self.clew = await Clew.connect(
                server.address, namespace=server.namespace, task_queue=self.task_queue, interceptors=[waits]
            )
            await self._start_workers()
        except BaseException:
            await self._stop()
            raise

    async def _stop(self) -> None:
        try:
            await self._stop_workers()
        finally:
            await self._exits.aclose()

    async def _start_workers(self) -> None:
        tools = (tool for tool in self._list_tools() if isinstance(tool, Tool))
        queues = sorted({tool.task_queue for tool in tools if tool.task_queue})
        makers: list[Callable[[Client], SessionWorker]] = [partial(self._make_worker, self.task_queue, ALL_WORK)]
        makers += [partial(self._make_worker, queue, ["tools"]) for queue in queues]
        for make in makers:
            worker = MortalWorker(self.clew.temporal, make)
            await worker.start()
            self._workers.append(worker)

    def _list_tools(self) -> Iterator[ToolDefinition]:
        yield from self._tools.values()
        for agent in self._agents:
            yield from agent.own_tools

    def _make_worker(self, task_queue: str, serves: Collection[Work], client: Client) -> SessionWorker:
        return make_worker(
            client,
            WorkerSettings(
                task_queue=task_queue,
                providers=self._providers,
                tools=self._tools,
                agents=self._agents,
                store=self._store,
                keys=self._keys,
                grace=timedelta(0),
                serves=serves,
                own_models=self._scripts.own_models,
            ),
            self._http,
        )

    async def _stop_workers(self) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.stop() for worker in workers))

    async def _kill_workers(self) -> None:
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.kill() for worker in workers))

    async def _restart_workers(self) -> None:
        await self._stop_workers()
        await self._start_workers()

    async def _skip_time(self, session_id: str, time_skipped: timedelta) -> None:
        client, skip_id = self.clew.temporal, uuid.uuid4().hex
        duration = Duration()
        duration.FromTimedelta(time_skipped)
        execution = WorkflowExecution(workflow_id=session_id)
        config = TimeSkippingConfig(
            enabled=True, fast_forward_config=FastForwardConfig(id=skip_id, duration=duration)
        )
        await client.workflow_service.update_workflow_execution_options(
            UpdateWorkflowExecutionOptionsRequest(
                namespace=client.namespace,
                workflow_execution=execution,
                workflow_execution_options=WorkflowExecutionOptions(time_skipping_config=config),
                update_mask=FieldMask(paths=["time_skipping_config"]),
            )
        )
        answer = await client.workflow_service.poll_workflow_execution_time_skipping(
            PollWorkflowExecutionTimeSkippingRequest(
                namespace=client.namespace, workflow_execution=execution, fast_forward_id=skip_id
            )
        )
        match answer.fast_forward_polling_result:
            case FastForwardPollingResult.FAST_FORWARD_POLLING_RESULT_FAST_FORWARD_COMPLETED:
                return
            case FastForwardPollingResult.FAST_FORWARD_POLLING_RESULT_POLL_TIMEOUT:
                raise TimeoutError(f"session {session_id!r} did not skip {time_skipped}: one of its calls runs")
            case _:
                raise RuntimeError(f"session {session_id!r} did not skip {time_skipped}: {answer.failed_reason}")


stack = Stack
"""Makes the stack of a test: `async with clew.testing.stack(tools=[refund]) as stack`."""
