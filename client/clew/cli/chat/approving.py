"""The answers to tool calls that wait for approval: yes, no, or other arguments."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from temporalio.exceptions import TemporalError

from clew.cli import reach
from clew.cli.chat.blocks import WaitingBlock
from clew.cli.chat.commands import Decision
from clew.cli.chat.display import Display
from clew.cli.options import find_login_name
from clew.errors import ClewError
from clew.session.session import Session


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
