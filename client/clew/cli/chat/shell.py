"""The chat on a terminal: prints a session's blocks above a line that stays free, and sends what is typed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from prompt_toolkit.history import History
from prompt_toolkit.input import Input
from prompt_toolkit.output import Output
from temporalio.exceptions import TemporalError

from clew.cli import reach
from clew.cli.attachments import Attachment, add_files, change_attached, format_attached, make_content
from clew.cli.chat.display import Display, Meter
from clew.cli.chat.painting import MediaBlock, WaitingBlock
from clew.cli.chat.pictures import Pictures, can_draw, find_protocol, measure_room
from clew.cli.chat.screen import Screen
from clew.cli.chat.typed_lines import (
    Decision,
    Kind,
    Message,
    Mistake,
    Typed,
    carry_out,
    format_help,
    parse_decision,
    parse_line,
)
from clew.cli.hints import write_command
from clew.cli.shared_options import LOOK_SECONDS, Names, find_login_name, list_names
from clew.content import AnyContent
from clew.session.connection import Clew
from clew.session.events import EntryCommitted, SessionEvent, StatusChanged
from clew.session.handle import make_id
from clew.session.session import Session
from clew_workflows.contract import OnBusy
from clew_workflows.contract.content import Blob, describe_part
from clew_workflows.contract.errors import Busy, ClewError, Idle, ServerUnreachable, WorkerUnavailable
from clew_workflows.contract.outputs import SessionStatus
from clew_workflows.contract.payloads import UserMessage

WATCH_SECONDS = 3.0
"""Seconds between two looks at the status, while a request is active: does a worker answer, do subagents wait?"""
STATUS_SECONDS = 5.0
"""Seconds within which the session must answer such a look."""
FORK_SECONDS = 60.0
"""Seconds within which a fork must be ready."""
RECENT_ENTRIES = 24
"""Number of entries that are read for a resumed session's last turns."""
RECENT_TURNS = 2
"""Number of turns that a resumed session shows at most."""


class Shell:
    """A chat. Each line is handled while the next one is typed."""

    def __init__(
        self,
        clew: Clew,
        opened: reach.Opened,
        on_busy: OnBusy | None = None,
        write_resume: Callable[[str, str], str] = lambda session, _model: write_command("chat", session),
        *,
        history: History | None = None,
        input: Input | None = None,  # noqa: A002 - prompt_toolkit's name
        output: Output | None = None,
    ) -> None:
        self._clew = clew
        self._on_busy: OnBusy | None = on_busy
        self._write_resume = write_resume
        self._opened = opened
        self._session = opened.session
        self._screen = Screen()
        self._meter = Meter()
        self._visited: set[str] = set()
        self._names = Names()
        self._attached: list[Attachment] = []
        self._display = Display(
            live=lambda: self._screen.live,
            status_line=self._format_status_line,
            cancel=self._cancel,
            leave=self._leave_question,
            attach=self._attach_pasted,
            attached=lambda: tuple(each.title for each in self._attached),
            list_names=self._list_names,
            history=history,
            input=input,
            output=output,
        )
        protocol = find_protocol(os.environ)
        self._pictures = (
            Pictures(protocol, lambda: measure_room(*self._display.measure()), self._show_picture)
            if protocol and can_draw()
            else None
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._following: asyncio.Task[None] | None = None
        self._turns = asyncio.Lock()
        self._trouble = ""
        self._cancelling = False
        self._is_stale = self._refreshing = False
        self._approving = Approving(self._session, self._clew.session, self._display, self._start)

    async def run(self) -> int:
        """Chat until the input ends or `/quit`. Returns the exit code."""
        await self._enter(self._opened)
        display = self._display
        helpers = [
            asyncio.ensure_future(display.turn(lambda: self._screen.can_cancel)),
            asyncio.ensure_future(self._watch()),
            *([asyncio.ensure_future(self._pictures.run())] if self._pictures else []),
        ]
        try:
            while (line := await display.read_line(self._approving.prepare_line())) is not None:
                if self._handle_line(line):
                    break
            if self._tasks:  # what was typed last is sent before the end
                await asyncio.wait(self._tasks, timeout=reach.WORKER_SECONDS)
        finally:
            tasks = [*helpers, *self._tasks, *([self._following] if self._following else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        ending = "the request continues, and the session stays" if self._screen.is_active else "the session stays"
        model = (self._meter.status or self._opened.status).model
        display.print_note(f"{ending}: resume it with `{self._write_resume(self._session.id, model)}`")
        await display.flush()
        return 0

    def _handle_line(self, line: str) -> bool:
        """Begin to handle a line; True: it ends the chat."""
        if self._approving.edited:
            self._approving.send_edited(line)
            return False
        if not line:
            return False
        if self._screen.waiting_calls and (decision := parse_decision(line)):
            self._approving.decide(decision, self._screen.waiting_calls)
            return False
        match parse_line(line):
            case Message(text):
                self._send(text, is_steer=self._screen.is_active and self._on_busy in (None, "steer"))
            case Mistake(reason):
                self._display.print_note(reason, "warning")
            case Typed("quit"):
                return True
            case Typed() as typed:
                self._display.print_command(line)
                self._carry_out(typed)
        return False

    def _carry_out(self, typed: Typed) -> None:
        match typed:
            case Typed("help"):
                self._display.print_note(format_help(keys=True))
            case Typed("wait"):
                self._display.print_note(
                    "the reply is shown as it grows" if self._screen.is_active else "no request is active"
                )
            case Typed("model", ""):
                status = self._meter.status
                self._display.print_note(f"the model is {status.model}" if status else "not known yet")
            case Typed("attach", argument):
                self._attach(lambda: change_attached(self._attached, argument))
                self._display.print_note(format_attached(self._attached))
            case Typed("steer", text) if self._screen.is_active:
                self._send(text, is_steer=True)
            case Typed("fork", name):
                self._start(self._in_turn(self._fork(name)))
            case Typed("open", name):
                self._start(self._in_turn(self._open(name)))
            case Typed("switch" | "model" | "compact"):
                self._start(self._in_turn(self._ask_session(typed)))
            case _:
                self._start(self._ask_session(typed))

    async def _ask_session(self, typed: Typed) -> None:
        self._display.print_answer(await carry_out(self._session, typed))
        await self._refresh()

    async def _in_turn(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something after what was typed before: a message after `/fork` goes to the fork."""
        async with self._turns:
            await work

    # Messages

    def _send(self, text: str, *, is_steer: bool) -> None:
        """Send a message, or with `is_steer` a correction of the active run, with what is attached."""
        own_id = make_id()
        files, self._attached = self._attached, []
        self._display.print(self._screen.send(own_id, text, is_steer=is_steer))
        self._start(self._in_turn(self._deliver(own_id, text, files, is_steer)))

    async def _deliver(self, own_id: str, text: str, files: list[Attachment], is_steer: bool) -> None:
        try:
            await self._store_and_deliver(own_id, text, files, is_steer)
        except (ClewError, TemporalError):
            # They stay for another try.
            self._attached = [*files, *(each for each in self._attached if each not in files)]
            raise

    async def _store_and_deliver(self, own_id: str, text: str, files: list[Attachment], is_steer: bool) -> None:
        if self._screen.ended == "hibernated":
            self._session = (await reach.open_session(self._clew, self._session.id)).session
        screen, session = self._screen, self._session
        screen.send(own_id, text, is_steer=is_steer)  # it may be the screen of another session by now
        if files:
            self._display.hint = f"storing {', '.join(each.title for each in files)}"
        content = await make_content(session, text, files)
        if files:
            self._display.hint = ""
        if is_steer:
            try:
                return await self._steer(own_id, text, content)
            except Idle:  # the run has just ended
                pass
        message = session.message(content, request_id=own_id, on_busy=self._on_busy)
        try:
            await reach.wait_for_answer(message, session.id)
        except Busy:
            if self._on_busy is not None:
                raise
            return await self._steer(own_id, text, content)  # another client's message came first
        return screen.accept(own_id, text, is_steer=False)

    async def _steer(self, own_id: str, text: str, content: AnyContent) -> None:
        screen, session = self._screen, self._session
        await reach.wait_for_answer(session.steer(content, input_id=own_id), session.id)
        screen.accept(own_id, text, is_steer=True)

    def _attach_pasted(self, paths: Sequence[Path]) -> None:
        self._attach(lambda: add_files(self._attached, paths))

    def _attach(self, change: Callable[[], list[Attachment]]) -> None:
        try:
            self._attached = change()
        except ClewError as error:
            self._display.print_error(error)
        self._display.refresh()

    def _show_picture(self, blob: Blob, painted: str, printed: int) -> None:
        self._display.print_picture(describe_part({"type": "image", "blob": blob}), painted, printed)

    def _leave_question(self) -> bool:
        return self._approving.leave()

    def _cancel(self) -> None:
        if not self._screen.can_cancel:
            self._display.hint = "nothing is running: Ctrl-D leaves, /help lists the commands"
        elif not self._cancelling:
            self._cancelling = True
            self._start(self._cancel_run())
        self._display.refresh()

    async def _cancel_run(self) -> None:
        try:
            await reach.wait_for_answer(self._session.cancel(), self._session.id)
        except Idle:
            self._display.hint = "the request has just ended"
        finally:
            self._cancelling = False

    # Sessions

    async def _enter(self, opened: reach.Opened, *, recent: bool = True) -> None:
        """Go on in a session: show its last turns and follow it."""
        self._session, status = opened.session, opened.status
        self._visited.add(status.session_id)
        self._screen, self._meter = Screen(), Meter()
        self._approving = Approving(self._session, self._clew.session, self._display, self._start)
        self._meter.take_status(status)
        self._screen.models.add(status.model)
        self._screen.lanes.update(("default", status.active_context_ref))
        entries = f"{status.rev} entr{'y' if status.rev == 1 else 'ies'}"
        state = f"resumed, {entries}" if opened.resumed else "new"
        self._display.print_title(f"session {status.session_id}", f" · {status.model} · {state}")
        self._display.print_note("/help lists the commands and the keys")
        from_seq = await self._find_recent_turn(status) if opened.resumed and recent else status.rev
        if self._following:
            self._following.cancel()
        self._following = asyncio.ensure_future(self._follow(self._session, from_seq))
        self._start(self._read_names())

    async def _read_names(self) -> None:
        """Read the names of other sessions and models, for completion."""
        with suppress(ClewError, TemporalError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                self._names = await list_names(self._clew)

    async def _find_recent_turn(self, status: SessionStatus) -> int:
        first = max(status.rev - RECENT_ENTRIES, 0)
        entries = await self._session.entries(from_seq=first)
        turns = [
            entry.seq
            for entry in entries
            if entry.kind == "ai_message" and isinstance(entry.body, UserMessage) and entry.body.input_id is None
        ]
        if turns:
            return turns[-RECENT_TURNS:][0]
        return first if first else status.rev

    async def _fork(self, name: str) -> None:
        before = self._session.id
        made = await reach.wait_for_answer(self._session.fork(None, name or None), before, FORK_SECONDS)
        await self._enter(await reach.open_session(self._clew, made.id), recent=False)
        self._display.print_note(f"this is a fork of {before}: `/open {before}` returns to it")

    async def _open(self, name: str) -> None:
        before = self._session.id
        await self._enter(await reach.open_session(self._clew, name))
        if before != name:
            self._display.print_note(f"`/open {before}` returns")

    async def _follow(self, session: Session, from_seq: int) -> None:
        try:
            async with aclosing(session.follow(from_seq)) as events:
                async for event in events:
                    self._take(event)
        except (ClewError, TemporalError) as error:
            self._display.print_error(error)

    def _take(self, event: SessionEvent) -> None:
        self._trouble = ""
        if isinstance(event, EntryCommitted):
            self._meter.take_entry(event.entry)
        for block in self._screen.take(event):
            self._display.print(block)
            if isinstance(block, MediaBlock) and self._pictures:
                self._pictures.want(self._session, block.parts, self._display.printed)
        is_change = isinstance(event, EntryCommitted) and event.entry.kind != "ai_message"
        if (is_change or isinstance(event, StatusChanged)) and not self._screen.ended:
            self._is_stale = True
            if not self._refreshing:
                self._refreshing = True
                self._start(self._refresh_until_fresh())
        self._display.refresh()

    async def _refresh_until_fresh(self) -> None:
        """Read the status once for all entries that come meanwhile."""
        try:
            while self._is_stale:
                self._is_stale = False
                await self._refresh()
        finally:
            self._refreshing = False

    async def _refresh(self) -> None:
        """Read the status for the status line."""
        screen, meter, session = self._screen, self._meter, self._session
        try:
            status = await reach.wait_for_answer(session.status(), session.id, STATUS_SECONDS)
            meter.take_status(status)
            self._trouble = ""
            calls = await session.list_waiting_calls() if status.subagents else []
            for block in screen.take_calls_of_subagents(call for call in calls if call.session_id != session.id):
                self._display.print(block)
        except WorkerUnavailable:
            self._trouble = "no worker answers"
        except ServerUnreachable:
            self._trouble = "the server does not answer"
        except (ClewError, TemporalError):
            pass  # the session has just ended
        self._display.refresh()

    async def _watch(self) -> None:
        """Check that a worker answers while something is expected."""
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if (self._screen.can_cancel or self._trouble) and not self._screen.ended:
                await self._refresh()

    # Tasks

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """Do something while the line stays free; a failure is printed."""

        async def attempt() -> None:
            try:
                await work
            except (ClewError, TemporalError) as error:
                self._display.print_error(error)
            self._display.refresh()

        task = asyncio.ensure_future(attempt())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _format_status_line(self, columns: int) -> str:
        activity = "cancelling" if self._cancelling else self._screen.status.replace("_", " ")
        return self._meter.format_line(self._trouble or activity, columns)

    def _list_names(self) -> dict[Kind, list[str]]:
        return {
            "lane": sorted(self._screen.lanes),
            "model": sorted({*self._screen.models, *self._names.models}),
            # A call in a subagent is of another session: `y` and `n` decide it.
            "approval": [call.tool_call_id for call in self._screen.waiting_calls if not call.session_id],
            "external": self._screen.external_calls,
            "session": sorted({*self._visited, *self._names.sessions} - {self._session.id}),
        }


# The answers to tool calls that wait for approval: yes, no, or other arguments.


class Approving:
    """Decides the tool calls of one session and of its subagents, the oldest first.

    Attributes:
        edited: The call whose arguments are being edited; None: none.
    """

    def __init__(
        self,
        session: Session,
        find_session: Callable[[str], Session],
        display: Display,
        start: Callable[[Coroutine[Any, Any, None]], None],
    ) -> None:
        self.edited: WaitingBlock | None = None
        self._session = session
        self._find_session = find_session
        self._display = display
        self._start = start
        self._draft = ""
        self._by = find_login_name()
        self._decided: set[tuple[str, str]] = set()

    def prepare_line(self) -> str:
        """Set the text before the next line; returns the text that the line begins with."""
        self._display.question = f"arguments of {self.edited.name}" if self.edited else ""
        draft, self._draft = self._draft, ""
        return draft

    def decide(self, decision: Decision, waiting: tuple[WaitingBlock, ...]) -> None:
        """Approve, deny or edit the first call that is not decided yet."""
        undecided = [call for call in waiting if (call.session_id, call.tool_call_id) not in self._decided]
        if not undecided:
            return
        call = undecided[0]
        session = self._get_session(call)
        match decision.verb:
            case "edit":
                self.edited, self._draft = call, json.dumps(dict(call.arguments), ensure_ascii=False)
            case "approve":
                self._resolve(call, session.approve(call.tool_call_id, by=self._by))
            case "deny":
                self._resolve(call, session.deny(call.tool_call_id, reason=decision.reason, by=self._by))

    def send_edited(self, line: str) -> None:
        """Approve the edited call with the typed arguments; an empty line leaves the question open."""
        call, self.edited = self.edited, None
        if call is None or not line:
            return
        try:
            arguments = json.loads(line)
        except (ValueError, RecursionError) as error:
            problem = f"not valid JSON: {error}"
        else:
            if isinstance(arguments, dict):
                session = self._get_session(call)
                self._resolve(call, session.approve(call.tool_call_id, arguments=arguments, by=self._by))
                return
            problem = "arguments are a JSON object"
        self._display.print_note(problem, "warning")
        self.edited, self._draft = call, line

    def leave(self) -> bool:
        """Leave the arguments as they are; False: none are being edited."""
        was_editing, self.edited = self.edited is not None, None
        self._display.question = ""
        return was_editing

    def _get_session(self, call: WaitingBlock) -> Session:
        return self._find_session(call.session_id) if call.session_id else self._session

    def _resolve(self, call: WaitingBlock, work: Coroutine[Any, Any, Any]) -> None:
        key = (call.session_id, call.tool_call_id)
        self._decided.add(key)

        async def resolve() -> None:
            try:
                await reach.wait_for_answer(work, call.session_id or self._session.id)
            except (ClewError, TemporalError):
                self._decided.discard(key)
                raise

        self._start(resolve())
