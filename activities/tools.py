"""Tools on the worker: finding them, and running one call of one."""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.heartbeat import beating
from activities.providers.sanitize import clean
from activities.results import READ_RESULT, Results, Unreadable, truncated
from clew.tools import Tool, ToolContext
from workflows.effects import RunTool, ToolAnswered, idempotency_key

Tools = Mapping[str, Tool[..., Any]]
"""Every tool of a worker by its name."""

MAX_ERROR_CHARACTERS = 2000


class ToolsUnusable(Exception):
    """The modules named do not give a set of tools. Its message says what to do."""


def load_tools(modules: Iterable[str]) -> Tools:
    """The tools that some modules define, by name.

    Raises:
        ToolsUnusable: a module cannot be imported or has no tools, or two tools have one name.
    """
    tools: dict[str, Tool[..., Any]] = {}
    for name in modules:
        try:
            module = importlib.import_module(name)
        # A script that ends at its import would otherwise end the worker, in silence.
        except (Exception, SystemExit) as error:
            said = f"{type(error).__name__}: {error}"
            raise ToolsUnusable(f"the tools module {name!r} cannot be imported: {said}") from error
        found = [value for value in vars(module).values() if isinstance(value, Tool)]
        if not found:
            raise ToolsUnusable(f"the tools module {name!r} defines no tool: decorate functions with clew.tool")
        for tool in found:
            if tools.setdefault(tool.name, tool) is not tool:
                raise ToolsUnusable(f"two tools are called {tool.name!r}: give one of them another name")
    return tools


class ToolActivities:
    """Runs the tools of this worker."""

    def __init__(self, tools: Tools, results: Results) -> None:
        self._tools = tools
        self._results = results

    @activity.defn(name="run_tool")
    async def run_tool(self, call: RunTool) -> ToolAnswered:
        """One attempt of one tool call. Whatever goes wrong in the tool is an answer that the model reads."""
        progress: dict[str, str] = {"tool_name": call.name, "tool_call_id": call.tool_call_id}
        info = activity.info()
        async with beating(lambda: dict(progress)):
            # A tool of the worker's own that has this name wins.
            tool = self._tools.get(call.name, READ_RESULT if call.name == READ_RESULT.name else None)
            if tool is None:
                return _error(f"tool {call.name!r} is not registered on the worker", call)
            context = ToolContext(
                session_id=info.workflow_id or "",
                request_id=call.request_id,
                tool_call_id=call.tool_call_id,
                idempotency_key=idempotency_key(info.workflow_id or "", call.tool_call_id),
                attempt=info.attempt,
                # What cannot be encoded would end the heartbeats, and with them the call.
                _report=lambda text: progress.update(progress=clean(str(text)[:1000])),
            )
            try:
                arguments = tool.bind(call.arguments, context)
            except Exception as error:
                return _error(f"invalid arguments: {_explain(error)}", call)
            clock = asyncio.timeout(tool.timeout_seconds)
            try:
                async with clock:
                    if tool is READ_RESULT:
                        value: Any = await self._results.read(call, **arguments)
                    else:
                        value = await _invoke(tool, arguments)
            except Unreadable as error:
                return _error(str(error), call)
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            # A tool may raise anything, SystemExit and a foreign library's panic included, and must not take
            # the worker with it.
            except BaseException as error:
                if isinstance(error, TimeoutError) and clock.expired():
                    if not tool.idempotent:
                        # The workflow tells the model what is known of a call that cannot be repeated.
                        raise ApplicationError("it took too long", type="tool_timeout", non_retryable=True) from None
                    return _error(f"tool {call.name!r} took longer than {tool.timeout_seconds:g} seconds", call)
                said = _said(error)
                if info.attempt <= tool.retries:
                    raise ApplicationError(said, type="tool_failed") from None
                return _error(said, call)
            # Outside of all that: the tool has done its work, and no fault of its result does it again.
            return await self._results.shown(_encoded(value), call, readable=READ_RESULT.name not in self._tools)


async def _invoke(tool: Tool[..., Any], arguments: dict[str, Any]) -> Any:
    if tool.is_async:
        return await tool.function(**arguments)
    value = await _in_thread(lambda: tool.function(**arguments))
    # What a plain wrapper around an async function returns.
    return await value if inspect.isawaitable(value) else value


async def _in_thread(function: Callable[[], Any]) -> Any:
    """The function's result from a daemon thread of its own: one that hangs holds neither a pool nor the exit."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()

    def resolve(value: Any, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(value)
        else:
            # A future cannot hold StopIteration, nor let SystemExit pass through the loop.
            done.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    def work() -> None:
        value, failure = None, None
        try:
            value = context.run(function)
        except BaseException as error:
            failure = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        # The loop may be gone when a thread that was given up on comes back.
        if not loop.is_closed():
            loop.call_soon_threadsafe(resolve, value, failure)

    context = contextvars.copy_context()
    threading.Thread(target=work, name="clew-tool", daemon=True).start()
    return await done


def _encoded(value: Any) -> bytes:
    """A result as the text that is stored, in UTF-8."""
    if not isinstance(value, str):
        try:
            return to_json(value, fallback=str, inf_nan_mode="constants")
        except Exception:  # bytes that are no text, an object that holds itself: no JSON, and still a result
            value = _shown(value)
    try:
        return str.encode(value)
    except UnicodeEncodeError:
        return clean(value).encode()


def _error(text: str, call: RunTool) -> ToolAnswered:
    data = clean(f"error: {text}").encode()
    fits = len(data) <= call.max_result_bytes
    return ToolAnswered(content=data.decode() if fits else truncated(data, call.max_result_bytes)[0], is_error=True)


def _said(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {_shown(error)}"[:MAX_ERROR_CHARACTERS])


def _shown(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def _explain(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return _said(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    lines = [f"{'.'.join(str(part)[:50] for part in problem['loc'])}: {problem['msg']}" for problem in problems]
    return "; ".join(lines)[:MAX_ERROR_CHARACTERS]
