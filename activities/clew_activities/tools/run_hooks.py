"""The activity `run_hooks`: a user's hooks check messages, tool calls and answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, get_args

from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_activities.archive.blob_store import Blobs
from clew_activities.archive.thread_source import get_own_session, query_session
from clew_activities.heartbeats import send_heartbeats
from clew_activities.providers import Redaction
from clew_activities.providers.sanitize import clean
from clew_activities.tools.os_threads import ThreadedCall, ToolThreads, find_code_file
from clew_activities.tools.result_parts import CallReader
from clew_activities.user_modules import load_defined
from clew_workflows.contract.content import get_text, list_media
from clew_workflows.contract.hooks import CheckedAnswer, CheckedMessage, CheckedToolCall, Hook, HookPoint, Refuse
from clew_workflows.contract.limits import MAX_REASON_CHARACTERS
from clew_workflows.contract.payloads import UserMessage
from clew_workflows.protocol import HOOK_SECONDS, CheckedItem, HooksAnswered, Outdated, RunHooks

Hooks = Mapping[HookPoint, Sequence[Hook]]
"""The hooks of each point that has some, in the order of `HookPoint`."""


class HooksUnusable(ValueError):
    """The hooks cannot be used. The message names the module and says what to do."""


def load_hooks(modules: Iterable[str]) -> Sequence[Hook]:
    """Import modules and collect their hooks.

    Raises:
        HooksUnusable: A module cannot be imported or defines no hook.
    """
    return load_defined(modules, Hook, "hook", "decorate a function with check_message", HooksUnusable)


def collect_hooks(hooks: Iterable[Hook]) -> Hooks:
    """Collect hooks by their points, each once."""
    distinct, points = list(dict.fromkeys(hooks)), get_args(HookPoint)
    by_point = {point: [hook for hook in distinct if hook.point == point] for point in points}
    return {point: hooks_of_point for point, hooks_of_point in by_point.items() if hooks_of_point}


class HookActivities:
    """Runs the hooks of this worker, in the threads of its tools."""

    def __init__(self, hooks: Hooks, threads: ToolThreads, redaction: Redaction, blobs: Blobs) -> None:
        self._blobs = blobs
        self._hooks = hooks
        self._threads = threads
        self._redaction = redaction

    @activity.defn(name="run_hooks")
    async def run_hooks(self, call: RunHooks) -> HooksAnswered | Outdated:
        """Have all hooks of a point check each item. An item is refused by the first hook that refuses it.

        If this worker has hooks for other points than the one that prepared the session, none is called.

        Raises:
            ApplicationError: A hook has failed, or the worker has none for the point.
        """
        async with send_heartbeats():
            if call.hooks is not None and call.hooks != tuple(self._hooks):
                return Outdated(deployment="", hooks=tuple(self._hooks))
            if call.point not in self._hooks:
                message = f"the worker has no hook for {call.point!r}: all workers need the same CLEW_HOOKS"
                raise ApplicationError(message, type="hook_failed")
            async with asyncio.timeout(HOOK_SECONDS):
                refusals = [await self._check(call, item) for item in call.items]
            return HooksAnswered(request_id=call.request_id, refusals=tuple(refusals))

    async def _check(self, call: RunHooks, item: CheckedItem) -> str | None:
        if item.run_id:
            async for committed in _read_messages(item):
                if (refused := await self._check(call, committed)) is not None:
                    return refused
            return None
        checked = await _make_checked(call, item, CallReader(self._blobs, None, None, call.request_id))
        for hook in self._hooks[call.point]:
            threaded = ThreadedCall(
                hook.name, activity.info().workflow_id or "", call.request_id, find_code_file(hook.function)
            )
            try:
                value = await self._threads.call(threaded, lambda hook=hook: hook(checked), is_async=hook.is_async)  # type: ignore[misc]
            except Refuse as refusal:
                reason = self._redaction.redact_text(clean(str(refusal)))[:MAX_REASON_CHARACTERS]
                return reason or f"{hook.name} gave no reason"
            except (asyncio.CancelledError, KeyboardInterrupt):
                raise
            # A hook may raise any exception. It must not end the worker, and must not let anything pass.
            except BaseException as error:
                message = self._redaction.redact_text(clean(f"{type(error).__name__}: {error}"))
                raise ApplicationError(f"hook {hook.name!r}: {message[:1000]}", type="hook_failed") from None
            if value is not None:
                message = (
                    f"hook {hook.name!r} returned {type(value).__name__}: return None, or raise clew.hooks.Refuse"
                )
                raise ApplicationError(message, type="hook_failed", non_retryable=True)
        return None


async def _read_messages(item: CheckedItem) -> AsyncIterator[CheckedItem]:
    """Read the user's messages that a run has committed."""
    next_seq: int | None = item.seq
    while next_seq is not None:
        query = {"from_seq": next_seq, "kind": "ai_message", "run_id": item.run_id}
        page: dict[str, Any] = await query_session(get_own_session(), "entries", query)
        for entry in page["entries"]:
            payload = UserMessage.from_json(entry["payload"])
            # Of an input whose sender is named, the entry does not say whether it was steered or injected.
            source = payload.source or "message"
            kind = source if source in ("message", "inject") else "steer"
            yield CheckedItem(
                kind=kind, text=payload.text, media=list_media(payload.content), metadata=payload.metadata
            )
        next_seq = page.get("next_seq")


async def _make_checked(
    call: RunHooks, item: CheckedItem, blobs: CallReader
) -> CheckedMessage | CheckedToolCall | CheckedAnswer:
    session_id = activity.info().workflow_id or ""
    match call.point:
        case "request":
            return CheckedMessage(
                session_id=session_id,
                request_id=call.request_id,
                kind=item.kind,
                text=item.text,
                metadata=item.metadata or {},
                media=item.media,
                _blobs=blobs,
            )
        case "tool":
            return CheckedToolCall(
                session_id=session_id,
                request_id=call.request_id,
                tool_call_id=item.tool_call_id,
                name=item.name,
                arguments=item.arguments,
            )
        case "answer":
            page: dict[str, Any] = await query_session(
                get_own_session(), "entries", {"from_seq": item.seq, "limit": 1}
            )
            content = page["entries"][0]["payload"]["content"]
            return CheckedAnswer(
                session_id=session_id,
                request_id=call.request_id,
                text=get_text(content),
                media=list_media(content),
                _blobs=blobs,
            )
