"""The activity `run_tool`: one attempt of one tool call."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic_core import PydanticSerializationError, to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError

from clew.tools import Tool, ToolContext
from clew.tools.definition import DEFAULT_TIMEOUT_SECONDS
from clew_activities.archive.blob_store import Blobs
from clew_activities.live_writer import LiveWriter
from clew_activities.offload import count_tokens
from clew_activities.providers.sanitize import clean
from clew_activities.tools.mcp.mcp_settings import McpRefused, McpUnavailable
from clew_activities.tools.mcp.mcp_tools import McpTool, McpTools, UnknownMcpTool
from clew_activities.tools.os_threads import (
    DEFAULT,
    ThreadedCall,
    ToolThreads,
    ToolThreadSettings,
    TooManyAbandoned,
    find_code_file,
)
from clew_activities.tools.registry import Tools
from clew_activities.tools.result_parts import CallReader, Piece, ResultParts, collect_pieces
from clew_activities.tools.stored_results import BUILT_IN, Results, Unreadable, read_result, view_blob
from clew_workflows.contract import LateResultInput, ToolProgress
from clew_workflows.contract.content import Part
from clew_workflows.contract.limits import MAX_MESSAGE_BLOB_BYTES
from clew_workflows.contract.messages import describe_bytes, replace_data, truncate_result
from clew_workflows.contract.names import find_server
from clew_workflows.contract.payloads import ToolMessage
from clew_workflows.protocol import STORING_SECONDS, RunTool, ToolAnswered, make_idempotency_key

log = logging.getLogger("clew.worker")

MAX_ERROR_CHARACTERS = 2000
MAX_PROGRESS_CHARACTERS = 1000
"""Characters of a progress report."""
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class Progress:
    """The newest progress of one call, for its viewers.

    Attributes:
        note_report: Called in the event loop when there is another report; None: nobody is told.
    """

    def __init__(self, call: RunTool) -> None:
        self.note_report: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._progress = ToolProgress(
            request_id=call.request_id,
            run_id=call.run_id,
            call_id=call.call_id,
            iteration=call.iteration,
            tool_call_id=call.tool_call_id,
            name=call.name,
        )

    def describe(self) -> tuple[dict[str, Any]]:
        """Make the details of a heartbeat."""
        return (self._progress.as_dict(),)

    def report(self, text: object, fraction: object = None) -> None:
        """Take a report of the tool, from any thread. One that cannot be written would fail the heartbeat."""
        is_number = isinstance(fraction, int | float) and 0 <= fraction <= 1
        reported = {"text": clean(_make_text(text)[:MAX_PROGRESS_CHARACTERS])}
        self._progress = self._progress.model_copy(
            update=reported | {"fraction": float(fraction) if is_number else None}  # type: ignore[arg-type]
        )
        if self.note_report is not None:
            # The loop may be closed while a worker stops.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.note_report)

    def show(self, _text_from: int, _thinking_from: int) -> ToolProgress:
        """Show the newest report."""
        return self._progress


class ToolActivities:
    """Runs the tools of this worker.

    `storing_seconds` bounds the conversion of a result to text. The session waits for `STORING_SECONDS` after the
    tool's own timeout.
    """

    def __init__(
        self,
        tools: Tools,
        results: Results,
        *,
        threads: ToolThreadSettings = DEFAULT,
        storing_seconds: float = STORING_SECONDS,
        mcp_tools: McpTools | None = None,
        blobs: Blobs | None = None,
        live: LiveWriter | None = None,
    ) -> None:
        self._live = live or LiveWriter()
        self._tools = tools
        self._mcp_tools = mcp_tools or McpTools()
        self._results = results
        self._blobs = blobs or Blobs(results.archive)
        self._parts = ResultParts(self._blobs)
        self.threads = ToolThreads(threads)
        self._storing_seconds = storing_seconds

    def close(self) -> None:
        """Close the tools' threads and event loops. No call may run any more."""
        self.threads.close()

    @activity.defn(name="run_tool")
    async def run_tool(self, call: RunTool) -> ToolAnswered:
        """Make one attempt of a tool call. Every failure of the tool becomes a result that the model reads."""
        progress = Progress(call)
        async with self._live.show(progress.describe, progress.show) as progress.note_report:
            answer = await self._answer(call, progress)
            details = activity.cancellation_details()
            if details and (details.cancel_requested or details.not_found) and not answer.in_doubt:
                await _send_late_result(call, answer)
            return await _count_answer(answer, call)

    async def _answer(self, call: RunTool, progress: Progress) -> ToolAnswered:
        info = activity.info()
        # If the worker has a tool of that name itself, the worker's is used.
        tool = self._tools.get(call.name, BUILT_IN.get(call.name))
        if tool is None and find_server(call.name):
            return await self._call_mcp_tool(call, progress)
        if not isinstance(tool, Tool):
            return _make_problem(f"tool {call.name!r} is not registered on the worker", call)
        context = ToolContext(
            session_id=info.workflow_id or "",
            request_id=call.request_id,
            tool_call_id=call.tool_call_id,
            idempotency_key=make_idempotency_key(info.workflow_id or "", call.tool_call_id),
            attempt=info.attempt,
            agent=call.agent,
            metadata=call.metadata or {},
            request_metadata=call.request_metadata or {},
            _report=progress.report,
            _blobs=CallReader(self._blobs, self._results.threads, call.family, call.request_id),
        )
        return await self._run(tool, call, context)

    async def _call_mcp_tool(self, call: RunTool, progress: Progress) -> ToolAnswered:
        """Pass a call on to its MCP server. If the connection breaks, the call may have taken effect."""
        tool: McpTool | None = None
        seconds = DEFAULT_TIMEOUT_SECONDS
        clock = asyncio.timeout(seconds)
        try:
            async with clock:
                tool = await self._mcp_tools.find(call.name)
                if tool is None:
                    return _make_problem(f"{call.name!r} is not a tool of the worker's MCP servers any more", call)
                seconds = tool.timeout_seconds
                clock.reschedule(asyncio.get_running_loop().time() + seconds)
                result, is_error = await self._mcp_tools.call(tool, call.arguments, progress.report)
        except (McpUnavailable, UnknownMcpTool) as error:
            if isinstance(error, McpRefused):
                answer = _make_error(str(error), call)
            else:
                answer = _make_problem(str(error), call, sent=tool is not None)
            return answer.model_copy(update={"in_doubt": tool is not None and not tool.idempotent})
        except TimeoutError:
            if tool is not None and not tool.idempotent:
                raise ApplicationError("it took too long", type="tool_timeout", non_retryable=True) from None
            return _make_error(f"tool {call.name!r} took longer than {seconds:g} seconds", call)
        if isinstance(result, str):
            answer = await self._make_text_answer(replace_data(clean(result)).encode(), call)
            return answer.model_copy(update={"is_error": is_error})
        pieces = [clean(replace_data(piece)) if isinstance(piece, str) else piece for piece in result]
        return await self._answer_parts(pieces, call, asyncio.get_running_loop().time() + self._storing_seconds)

    async def _run(self, tool: Tool[..., Any], call: RunTool, context: ToolContext) -> ToolAnswered:
        tool_call = ThreadedCall(tool.name, context.session_id, call.tool_call_id, find_code_file(tool.function))
        clock = asyncio.timeout(tool.timeout_seconds)
        try:
            async with clock:
                # Validators are the tool author's code and may block.
                arguments = await self.threads.call(
                    tool_call, lambda: _bind_arguments(tool, call, context), is_async=False
                )
                if tool is view_blob:
                    return ToolAnswered(content=[await self._results.view(**arguments)])
                if tool is read_result:
                    value: Any = await self._results.read(call, **arguments)
                else:
                    value = await self.threads.call(
                        tool_call, lambda: tool.function(**arguments), is_async=tool.is_async
                    )
        except (_InvalidArguments, Unreadable, TooManyAbandoned) as error:
            return _make_error(str(error), call)
        except (asyncio.CancelledError, KeyboardInterrupt):
            raise
        # A tool may raise any exception, such as a library's panic. It must not end the worker.
        except BaseException as error:
            if isinstance(error, TimeoutError) and clock.expired():
                if not tool.idempotent:
                    # The call cannot be repeated: the workflow writes its result for the model.
                    raise ApplicationError("it took too long", type="tool_timeout", non_retryable=True) from None
                return _make_error(f"tool {call.name!r} took longer than {tool.timeout_seconds:g} seconds", call)
            message = _describe_error(error)
            if context.attempt <= tool.retries:
                raise ApplicationError(message, type="tool_failed") from None
            return _make_error(message, call)
        # From here on no error may fail the activity: the tool has run, and a retry would run it again.
        until = asyncio.get_running_loop().time() + self._storing_seconds
        try:
            async with asyncio.timeout_at(until):
                # The conversion may run the tool author's code, and takes time for a large result.
                data = await self.threads.call(tool_call, lambda: _convert_result(value, call), is_async=False)
        except Exception as error:
            return _make_error(
                f"tool {call.name!r} has run, but its result cannot be written: {_describe_error(error)}", call
            )
        if isinstance(data, list):
            return await self._answer_parts(data, call, until)
        return await self._make_text_answer(data, call)

    async def _answer_parts(self, pieces: list[Piece], call: RunTool, until: float) -> ToolAnswered:
        """Make the answer of pieces with media. Of texts that are too large a part is in the first of them.

        The tool has run, so nothing that goes wrong with its media fails the call: the model reads what it was.
        """
        parts, has_failed = await self._parts.make_parts(pieces, call, until=until)
        texts = [part["text"] for part in parts if part["type"] == "text"]
        if len(texts) == len(parts):
            answer = await self._make_text_answer("\n".join(texts).encode(), call)
            return answer.model_copy(update={"is_error": has_failed})
        if sum(len(text.encode()) for text in texts) <= call.max_result_bytes:
            return ToolAnswered(content=parts)
        answer = await self._make_text_answer("\n".join(texts).encode(), call)
        shown: Part = {"type": "text", "text": answer.text}
        return answer.model_copy(update={"content": [shown, *(part for part in parts if part["type"] != "text")]})

    async def _make_text_answer(self, data: bytes, call: RunTool) -> ToolAnswered:
        return await self._results.make_answer(data, call, readable=read_result.name not in self._tools)


async def _send_late_result(call: RunTool, answer: ToolAnswered) -> None:
    """Send a result that the session no longer waits for: it may have continued in another workflow run.

    If it has not, it takes the activity's own result, and ignores the second of the two.
    """
    late = LateResultInput(
        tool_call_id=call.tool_call_id, content=answer.content, result=answer.result, is_error=answer.is_error
    )
    session = activity.client().get_workflow_handle(activity.info().workflow_id or "")
    # A session that has ended keeps the result in doubt.
    with suppress(RPCError):
        await session.signal("late_result", late.model_dump(mode="json", exclude_none=True))


async def _count_answer(answer: ToolAnswered, call: RunTool) -> ToolAnswered:
    message = ToolMessage(
        context_ref="",
        role="tool",
        content=answer.content,
        tool_call_id=call.tool_call_id,
        name=call.name,
        edited_arguments=call.arguments if call.edited else None,
    )
    counted, tokens = await count_tokens(message, call.encoding)
    return answer.model_copy(update={"tokens": tokens, "note_tokens": counted.note_tokens, "pieces": counted.pieces})


class _InvalidArguments(Exception):
    """The arguments of a call are not valid for its tool. The model reads the message."""


def _bind_arguments(tool: Tool[..., Any], call: RunTool, context: ToolContext) -> dict[str, Any]:
    try:
        return tool.bind(call.arguments, context)
    except Exception as error:
        raise _InvalidArguments(f"invalid arguments: {_describe_problems(error)}") from None


def _convert_result(value: Any, call: RunTool) -> bytes | list[Piece]:
    """Convert a result: a text to UTF-8, one with media to pieces."""
    limit = MAX_MESSAGE_BLOB_BYTES if call.max_media_bytes is None else call.max_media_bytes
    pieces = collect_pieces(value, limit, lambda item: _encode_result(item).decode())
    if pieces is None:
        return _encode_result(value)
    return [clean(replace_data(piece)) if isinstance(piece, str) else piece for piece in pieces]


def _encode_result(value: Any) -> bytes:
    """Encode a result as UTF-8 text, with descriptions in place of data that is not text."""
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value)
        value = describe_bytes(len(value)) if b"\0" in value else value
    if not isinstance(value, str):
        try:
            value = _dump_json(value)
        except Exception:  # JSON cannot express it: an object that contains itself
            value = _make_text(value)
    text = replace_data(value)
    try:
        return str.encode(text)
    except UnicodeEncodeError:
        return clean(text).encode()


def _dump_json(value: Any) -> str:
    try:
        return to_json(value, fallback=str, inf_nan_mode="constants").decode()
    except PydanticSerializationError:  # bytes that are not UTF-8, a lone surrogate
        plain = _describe_bytes(_ANY.dump_python(value, fallback=str))
    if isinstance(value, bytes):
        return str(plain)
    try:
        return to_json(plain, fallback=str, inf_nan_mode="constants").decode()
    except PydanticSerializationError:
        return _make_text(plain)


def _describe_bytes(value: Any) -> Any:
    """Replace bytes within a value by their description."""
    match value:
        case bytes() | bytearray() | memoryview():
            return describe_bytes(len(value))
        case dict():
            return {key: _describe_bytes(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [_describe_bytes(item) for item in value]
        case _:
            return value


def _make_problem(problem: str, call: RunTool, *, sent: bool = False) -> ToolAnswered:
    """Make the result of a call that the operator's setup cannot carry out. The operator reads why, and no model.

    `sent`: the tool may have run.
    """
    log.warning("tool %r of session %s: %s", call.name, activity.info().workflow_id, problem)
    told = "has given no result: it may have run" if sent else "cannot be used at present"
    answer = _make_error(f"tool {call.name!r} {told}", call)
    return answer.model_copy(update={"problem": clean(problem)[:MAX_ERROR_CHARACTERS]})


def _make_error(text: str, call: RunTool) -> ToolAnswered:
    data = clean(f"error: {text}").encode()
    fits = len(data) <= call.max_result_bytes
    return ToolAnswered(
        content=data.decode() if fits else truncate_result(data, call.max_result_bytes)[0], is_error=True
    )


def _describe_error(error: BaseException) -> str:
    return clean(f"{type(error).__name__}: {_make_text(error)}"[:MAX_ERROR_CHARACTERS])


def _make_text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"a {type(value).__name__} that cannot be shown ({type(error).__name__})"


def _describe_problems(error: Exception) -> str:
    if not isinstance(error, ValidationError):
        return _describe_error(error)
    problems = error.errors(include_url=False, include_context=False, include_input=False)[:5]
    lines = [f"{'.'.join(str(part)[:50] for part in problem['loc'])}: {problem['msg']}" for problem in problems]
    return "; ".join(lines)[:MAX_ERROR_CHARACTERS]
