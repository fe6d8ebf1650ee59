"""Make what a terminal shows from a session's events. Pure: no clock, no terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clew.cli.chat.painting import (
    Block,
    BlockSplitter,
    Live,
    MediaBlock,
    NoteBlock,
    ReplyBlock,
    RunningTool,
    SourcesBlock,
    ToolBlock,
    UserBlock,
    WaitingBlock,
)
from clew.session.events import (
    ApprovalRequired,
    Change,
    EntryCommitted,
    LiveTurn,
    ResultRequired,
    Retrying,
    SessionEvent,
    StatusChanged,
    TextAdded,
    ThinkingAdded,
    ToolFinished,
    ToolProgressed,
    ToolStarted,
    Voided,
)
from clew.session.session_reads import WaitingCall
from clew_workflows.contract.content import Content, list_media
from clew_workflows.contract.messages import ToolCall
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    OperationPayload,
    RunPayload,
    SessionPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)

THINKING_CHARACTERS = 200
"""Characters of the newest reasoning that the live part shows at most."""
_ACTIVITIES = {
    "preparing": "preparing",
    "checking": "checking",
    "awaiting_model": "waiting for the model",
    "stopping": "stopping",
    "awaiting_tools": "running tools",
    "awaiting_external": "waiting for a result",
    "summarizing": "summarizing",
    "hibernating": "hibernating",
}
"""What a session does in each status in which it works."""


class Screen:
    """The screen of one session: takes events in order and returns the blocks that they finish.

    Attributes:
        status: The session's status; empty: not known yet.
        lanes: The lanes that have been seen.
        models: The models that have been seen.
    """

    def __init__(self) -> None:
        self.status = ""
        self.lanes: set[str] = set()
        self.models: set[str] = set()
        self._request_id: str | None = None
        self._own_requests: set[str] = set()
        self._own_ids: set[str] = set()
        self._turn = LiveTurn()
        self._reply = BlockSplitter()
        self._call_id = ""
        self._thinking = ""
        self._retry = ""
        self._retry_at: str | None = None
        self._calls: dict[str, ToolCall] = {}
        self._running: dict[str, RunningTool] = {}
        self._approvals: dict[str, WaitingBlock] = {}
        self._externals: set[str] = set()
        self._of_subagents: dict[tuple[str, str, str], WaitingBlock] = {}
        self._inputs: dict[str, str] = {}
        self._last_error = ""

    @property
    def ended(self) -> str | None:
        """`hibernated` or `closed`, if the session has no workflow; else None."""
        return self.status if self.status in ("hibernated", "closed") else None

    @property
    def is_active(self) -> bool:
        """Whether a request is being served, or one of this chat waits for that."""
        return self._request_id is not None or bool(self._own_requests)

    @property
    def can_cancel(self) -> bool:
        """Whether there is something to cancel: a request, or a summary that is being written."""
        return self.is_active or self.status == "summarizing"

    @property
    def waiting_calls(self) -> tuple[WaitingBlock, ...]:
        """The tool calls that wait for a decision, the oldest first."""
        of_subagents = (block for block in self._of_subagents.values() if block.needs == "approval")
        return (*self._approvals.values(), *of_subagents)

    @property
    def external_calls(self) -> list[str]:
        """The ids of the external tool calls that wait for their results."""
        return sorted(self._externals)

    @property
    def live(self) -> Live:
        """The part of the screen below the blocks."""
        return Live(
            markdown=self._reply.pending,
            tools=tuple(self._running.values()),
            activity=self._find_activity(),
            retry_at=self._retry_at,
            inputs=tuple(self._inputs.values()),
            approvals=self.waiting_calls,
        )

    def take_calls_of_subagents(self, calls: Iterable[WaitingCall]) -> list[Block]:
        """Take the calls that wait in subagents, all of them; return those that are new."""
        waiting: dict[tuple[str, str, str], WaitingBlock] = {
            (one.session_id, one.call.tool_call_id, one.needs): WaitingBlock(
                one.call.tool_call_id, one.call.name, one.call.arguments, one.needs, one.session_id
            )
            for one in calls
        }
        before, self._of_subagents = self._of_subagents, waiting
        return [block for key, block in waiting.items() if key not in before]

    def send(self, own_id: str, text: str, *, is_steer: bool) -> UserBlock:
        """Show a message that this chat sends, under the request's or the input's id."""
        self._own_ids.add(own_id)
        return UserBlock(text, is_steer=is_steer)

    def accept(self, own_id: str, text: str, *, is_steer: bool) -> None:
        """Note that the session has accepted the message."""
        if own_id not in self._own_ids:
            return  # its entry has been shown already
        if is_steer:
            self._inputs[own_id] = text
        else:
            self._own_requests.add(own_id)

    def take(self, event: SessionEvent) -> list[Block]:
        """Take an event; return the blocks to print."""
        blocks: list[Block] = []
        for change in self._turn.take(event):
            blocks += self._show(change)
        return blocks

    def _show(self, change: Change) -> Iterable[Block]:
        match change:
            case TextAdded():
                return self._add_text(change)
            case ThinkingAdded():
                self._end_retry()
                self._thinking = (self._thinking + change.text)[-THINKING_CHARACTERS:]
            case Voided():
                return self._void(change)
            case EntryCommitted():
                return self._take_entry(change)
            case ToolStarted():
                self._approvals.pop(change.tool_call_id, None)
                self._running[change.tool_call_id] = RunningTool(change.name, change.arguments)
            case ToolProgressed():
                started = self._running.get(change.tool_call_id)
                arguments = started.arguments if started else {}
                self._running[change.tool_call_id] = RunningTool(change.name, arguments, change.text, change.fraction)
            case ToolFinished():
                self._running.pop(change.tool_call_id, None)
            case ApprovalRequired():
                waiting = WaitingBlock(change.tool_call_id, change.name, change.arguments, "approval")
                self._approvals[change.tool_call_id] = waiting
                return [waiting]
            case ResultRequired():
                self._externals.add(change.tool_call_id)
                return [WaitingBlock(change.tool_call_id, change.name, change.arguments, "result")]
            case Retrying():
                self._retry, self._retry_at = f"waiting for attempt {change.attempt}", change.next_at
                call = f"{change.tool_call_id}: " if change.tool_call_id else ""
                return [NoteBlock(f"{call}attempt {change.attempt} follows: {change.message}", "warning")]
            case StatusChanged():
                return self._change_status(change)
        return ()

    def _find_activity(self) -> str:
        if self._retry:
            return self._retry
        if self._thinking:
            return f"thinking: {self._thinking}"
        if self._running or self._reply.pending.strip():
            return ""
        return _ACTIVITIES.get(self.status, "sending" if self._own_requests and not self._request_id else "")

    def _end_retry(self) -> None:
        self._retry, self._retry_at = "", None

    def _add_text(self, added: TextAdded) -> Iterator[Block]:
        """Add text of a reply. What is printed cannot be taken back."""
        self._thinking = ""
        self._end_retry()
        if added.call_id != self._call_id:
            yield from self._finish_reply()
            self._call_id = added.call_id
        shown = self._reply.taken + len(self._reply.pending)
        if added.offset > shown:
            yield from self._finish_reply()
            yield NoteBlock(f"[{added.offset - shown} characters are missing here]")
            self._reply, self._call_id = BlockSplitter(taken=added.offset), added.call_id
        elif added.offset < shown:
            yield from self._go_back(added.offset)
        yield from map(ReplyBlock, self._reply.add(added.text))

    def _finish_reply(self) -> Iterator[Block]:
        yield from map(ReplyBlock, self._reply.finish())
        self._reply, self._call_id, self._thinking = BlockSplitter(), "", ""

    def _void(self, voided: Voided) -> Iterator[Block]:
        self._end_retry()
        if not voided.starts_over:
            return self._go_back(len(voided.text))
        taken, self._reply, self._thinking = self._reply.taken, BlockSplitter(), ""
        return iter([NoteBlock(f"[attempt {voided.attempt}: the reply starts over]", "warning")] if taken else [])

    def _go_back(self, offset: int) -> Iterator[Block]:
        if not self._reply.cut(offset):
            yield NoteBlock(f"[the reply is replaced{f' from character {offset} on' if offset else ''}]")
            self._reply = BlockSplitter(taken=offset)

    def _change_status(self, event: StatusChanged) -> Iterator[Block]:
        self.status, self._request_id = event.status, event.request_id
        # Calls may wait while hooks check others of their reply.
        if event.status not in ("awaiting_approval", "checking"):
            self._approvals.clear()
        if self.ended:
            self._own_requests.clear()
            self._inputs.clear()
            yield from self._finish_reply()
            yield NoteBlock(
                "the session is closed" if self.ended == "closed" else "the session hibernates: a message wakes it"
            )

    def _take_entry(self, committed: EntryCommitted) -> Iterator[Block]:
        match body := committed.body:
            case None:  # of a later release
                yield NoteBlock(f"entry {committed.seq}: {committed.entry.kind}")
            case UserMessage():
                self.lanes.add(body.context_ref)
                yield from self._take_user_message(body)
            case AssistantMessage():
                self.lanes.add(body.context_ref)
                self._end_retry()
                yield from self._finish_reply()
                yield from _show_media(body.content)
                if body.provider_calls or body.citations:
                    yield SourcesBlock(tuple(body.provider_calls or ()), tuple(body.citations or ()))
                self._calls = {call["id"]: call for call in body.tool_calls or ()}
            case ToolMessage():
                self._running.pop(body.tool_call_id, None)
                self._externals.discard(body.tool_call_id)
                call = self._calls.get(body.tool_call_id)
                arguments = body.edited_arguments or (call["arguments"] if call else None)
                name = body.name or (call["name"] if call else body.tool_call_id)
                told = "\n".join(filter(None, [_get_texts(body.content), body.problem]))
                yield ToolBlock(name, arguments, told, body.is_error or body.in_doubt)
                yield from _show_media(body.content)
            case ApprovalPayload():
                self._approvals.pop(body.tool_call_id, None)
                decision = "approved" if body.decision == "approve" else "denied"
                changed = " with other arguments" if body.arguments is not None else ""
                yield NoteBlock(f"{body.tool_call_id} is {decision}{changed}{_append(body.reason)}")
            case RunPayload():
                yield from self._end_run(body, committed.entry.refs.get("request_id"))
            case InputPayload():
                if body.event == "dropped":  # with its run
                    yield from self._finish_reply()
                text = self._inputs.pop(body.input_id or "", body.content)
                yield NoteBlock(f"not read ({body.event}: {body.reason}): {_shorten(text)}", "warning")
            case ErrorPayload():
                self._last_error = f"{body.type}: {body.message}"
                yield NoteBlock(self._last_error, "warning" if body.retried else "error")
            case _:
                yield from self._take_change(body)

    def _take_user_message(self, message: UserMessage) -> Iterator[Block]:
        own_id = message.input_id or message.request_id
        if own_id not in self._own_ids:
            is_steer = message.input_id is not None
            yield UserBlock(_get_texts(message.content), message.source, is_steer=is_steer)
            yield from _show_media(message.content)
            return
        self._own_ids.discard(own_id)
        if message.input_id is not None:
            self._inputs.pop(message.input_id, None)
            yield NoteBlock(f"read: {_shorten(_get_texts(message.content))}")
        yield from _show_media(message.content)

    def _end_run(self, run: RunPayload, request_id: str | None) -> Iterator[Block]:
        yield from self._finish_reply()
        self._own_requests.discard(request_id or "")
        self._request_id = None if self._request_id == request_id else self._request_id
        self._running.clear()
        self._approvals.clear()
        self._externals.clear()
        self._of_subagents.clear()
        self._end_retry()
        if run.status == "cancelled":
            yield NoteBlock(f"cancelled{_append(run.reason)}", "warning")
        elif run.status == "failed":
            error = f"{run.error.type}: {run.error.message}" if run.error else run.termination_reason
            if error != self._last_error:
                yield NoteBlock(error, "error")
        elif run.termination_reason != "final_answer":
            yield NoteBlock(f"ended: {run.termination_reason}", "warning")
        self._last_error = ""

    def _take_change(self, body: object) -> Iterator[Block]:
        """Take an entry that no request makes: the configuration, lanes, summaries, relatives."""
        match body:
            case ConfigPayload():
                self.models.add(body.model)
                if body.changes and (changes := [name for name in body.changes if name != "tools"]):
                    text = f"the model is {body.model}" if changes == ["model"] else f"changed: {', '.join(changes)}"
                    yield NoteBlock(text)
            case OperationPayload():
                self.lanes.add(body.context_ref)
                yield NoteBlock(_describe_operation(body))
            case SummaryPayload():
                yield NoteBlock(f"entries {body.from_seq} to {body.to_seq} are summarized")
            case ForkPayload(event="forked_to"):
                yield NoteBlock(f"session {body.session_id} is a fork of this one, up to entry {body.fork_seq}")
            case ForkPayload():
                yield NoteBlock(f"this session is a fork of {body.session_id}, from entry {body.fork_seq} on")
            case SessionPayload(event="woken" | "recovered"):
                yield NoteBlock(f"the session was {body.event}{_append(body.reason)}")
            case _:
                pass


def _get_texts(content: Content) -> str:
    """Return the texts of a message, without its other parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part["type"] == "text")


def _show_media(content: Content) -> Iterator[Block]:
    if media := list_media(content):
        yield MediaBlock(tuple(media))


def _describe_operation(body: OperationPayload) -> str:
    operation, lane = body.operation, body.context_ref
    match operation.type:
        case "switch":
            return f"lane {lane} is active"
        case "replace" if operation.reason == "compaction":
            return f"lane {lane} is compacted: a summary stands for its earlier messages"
        case "replace":
            return f"the context of lane {lane} is replaced"
        case "expand":
            return f"lane {lane} shows the messages that were summarized"
        case other:
            return f"lane {lane}: {other}"


def _append(reason: str | None) -> str:
    return f": {reason}" if reason else ""


def _shorten(text: str, characters: int = 60) -> str:
    line = " ".join(text[: 4 * characters].split())
    return line if len(line) <= characters else f"{line[: characters - 1]}…"
