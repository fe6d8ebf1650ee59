"""The lines that may be typed in a chat. One table of commands: parsing, help and completion come from it. Pure."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Literal

from clew.cli.reach import find_waiting_approval, wait_for_answer
from clew.cli.shared_options import find_login_name
from clew.session.handle import make_id
from clew.session.session import Session
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.outputs import Context, Receipt, SessionStatus, TranscriptMessage

Kind = Literal["lane", "model", "approval", "external", "session"]
"""What the first word of a command's argument names, for completion."""


@dataclass(frozen=True, slots=True)
class Command:
    """A command of the chat.

    Attributes:
        name: Its name, without the slash.
        argument: Its argument as the help shows it: `TEXT` is required, `[TEXT]` is not; empty: it takes none.
        help: What it does.
        kind: What the first word of the argument names.
    """

    name: str
    argument: str
    help: str
    kind: Kind | None = None

    @property
    def usage(self) -> str:
        """The command as it is typed."""
        return f"/{self.name} {self.argument}".rstrip()


COMMANDS = {
    command.name: command
    for command in (
        Command("status", "", "show what the session is doing"),
        Command("context", "", "show what the model gets, with token counts"),
        Command("transcript", "", "show all messages"),
        Command(
            "attach", "[PATH]", "send a file with the next message; without PATH list them, `clear` removes them"
        ),
        Command("steer", "TEXT", "correct the active request"),
        Command("cancel", "[REASON]", "cancel the active request"),
        Command(
            "approve",
            "[ID [REASON]]",
            "approve a waiting tool call, the only one without ID",
            "approval",
        ),
        Command("deny", "[ID [REASON]]", "deny it; the model reads the reason", "approval"),
        Command("submit", "ID TEXT", "give the result of an external tool call", "external"),
        Command("compact", "", "replace earlier messages by a summary"),
        Command("fork", "[SESSION]", "go on in a new session that begins with these messages"),
        Command("open", "SESSION", "go on in another session", "session"),
        Command("switch", "LANE", "make another lane active; a new one is empty", "lane"),
        Command("model", "[PROVIDER:NAME]", "change the model, or say which one it is", "model"),
        Command("wait", "", "show the reply of the active request"),
        Command("help", "", "list the commands"),
        Command("quit", "", "leave; the session stays"),
    )
}
"""The commands by their names."""

_ALIASES = {"exit": "quit"}


@dataclass(frozen=True, slots=True)
class Message:
    """A line for the model.

    Attributes:
        text: The text.
    """

    text: str


@dataclass(frozen=True, slots=True)
class Typed:
    """A command as it was typed.

    Attributes:
        name: Its name.
        argument: Its argument; empty: none.
    """

    name: str
    argument: str = ""


@dataclass(frozen=True, slots=True)
class Mistake:
    """A line that begins with a slash and is no valid command.

    Attributes:
        reason: What is wrong with it.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Decision:
    """A person's answer to the question whether a tool call may run.

    Attributes:
        verb: The answer.
        reason: Why.
    """

    verb: Literal["approve", "deny", "edit"]
    reason: str | None = None


_SLASH = re.compile(r"/(\w[\w-]*)(?:\s+(.+))?", re.DOTALL)
_ANSWERS: dict[str, Literal["approve", "deny", "edit"]] = {
    "y": "approve",
    "yes": "approve",
    "n": "deny",
    "no": "deny",
    "e": "edit",
    "edit": "edit",
}


def parse_line(line: str) -> Message | Typed | Mistake:
    """Parse a line without spaces around it: a command, or a message. `//` begins a message that begins with `/`."""
    if line.startswith("//"):
        return Message(line[1:])
    typed = _SLASH.fullmatch(line)
    if typed is None:
        return Message(line)
    name, argument = _ALIASES.get(typed[1], typed[1]), (typed[2] or "").strip()
    command = COMMANDS.get(name)
    if command is None:
        return Mistake(f"unknown command /{typed[1]}: /help lists the commands")
    if argument and not command.argument:
        return Mistake(f"/{name} takes no argument")
    required = len([word for word in command.argument.split() if not word.startswith("[")])
    if len(argument.split()) < required:
        return Mistake(f"/{name} needs {command.argument}")
    return Typed(name, argument)


def parse_decision(line: str) -> Decision | None:
    """Parse the answer to an approval: `y`, `n` with or without a reason, `e`; None: it is another line."""
    word, _, reason = line.partition(" ")
    verb = _ANSWERS.get(word.lower())
    if verb is None or (reason and verb != "deny"):
        return None
    return Decision(verb, reason.strip() or None)


def format_help(*, keys: bool) -> str:
    """List the commands, and with `keys` the keys of the chat on a terminal."""
    width = max(len(command.usage) for command in COMMANDS.values())
    lines = [f"{command.usage:{width}}  {command.help}" for command in COMMANDS.values()]
    lines.append(f"{'//…':{width}}  a message that begins with a slash")
    if keys:
        lines += ["", *(f"{key:{width}}  {effect}" for key, effect in KEYS.items())]
    return "\n".join(lines)


KEYS = {
    "Enter": "send: a message, or while a request is active a correction of it",
    "Alt-Enter": "begin a new line",
    "Esc, Ctrl-C": "cancel the active request; Ctrl-C with text typed discards the text",
    "Tab": "complete a command, a lane, a model, a tool call, a session",
    "Up, Ctrl-R": "earlier lines",
    "Ctrl-D": "leave; the session stays",
}
"""The keys of the chat, and what they do."""


def complete(line: str, names: dict[Kind, list[str]]) -> list[tuple[str, int, str]]:
    """Complete a line: texts, each with the characters that it replaces before the cursor and with its help.

    `names` are the names that are known of each kind.
    """
    if not line.startswith("/") or line.startswith("//"):
        return []
    word, space, argument = line.partition(" ")
    if not space:
        matching = [command for command in COMMANDS.values() if f"/{command.name}".startswith(word)]
        return [(f"/{command.name}", len(word), command.help) for command in matching]
    command = COMMANDS.get(word[1:])
    if command is None or command.kind is None or " " in argument:
        return []
    return [(name, len(argument), "") for name in names.get(command.kind, []) if name.startswith(argument)]


# Carry out the commands of a chat that ask or change one session.


@dataclass(frozen=True, slots=True)
class Transcript:
    """The messages of the active lane.

    Attributes:
        messages: The messages.
    """

    messages: list[TranscriptMessage]

    def as_dict(self) -> dict[str, Any]:
        """The messages as a JSON object."""
        return {"messages": self.messages}


Answer = SessionStatus | Context | Transcript | Receipt
"""What a session answers to a command; each has `as_dict`."""


async def carry_out(session: Session, typed: Typed) -> Answer:
    """Carry out a command that concerns the session, and return its answer.

    Raises:
        UnknownApproval: No tool call waits for approval.
        WorkerUnavailable: No worker answers in time.
        Refusal: The session refused it for another reason.
    """
    return await wait_for_answer(_start(session, typed), session.id)


def _start(session: Session, typed: Typed) -> Coroutine[Any, Any, Answer]:
    argument = typed.argument
    match typed.name:
        case "status":
            return session.status()
        case "context":
            return session.context()
        case "transcript":
            return _read_transcript(session)
        case "steer":
            return session.steer(argument)
        case "cancel":
            return session.cancel(reason=argument or None)
        case "approve" | "deny":
            return _decide(session, typed)
        case "submit":
            call_id, _, result = argument.partition(" ")
            return session.submit_tool_result(call_id, result.strip(), by=find_login_name())
        case "compact":
            return session.compact(op_id=make_id())
        case "switch":
            return session.switch_context(argument, op_id=make_id())
        case "model":
            return session.configure(model=argument)
        case name:
            raise InvalidInput(f"/{name} concerns the chat, not the session")


async def _read_transcript(session: Session) -> Transcript:
    return Transcript(await session.transcript())


async def _decide(session: Session, typed: Typed) -> Receipt:
    """Approve or deny the call that the first word names; without one, the only call that waits."""
    call_id, _, reason = typed.argument.partition(" ")
    call_id = call_id or await find_waiting_approval(session)
    if typed.name == "approve":
        return await session.approve(call_id, reason=reason.strip() or None, by=find_login_name())
    return await session.deny(call_id, reason=reason.strip() or None, by=find_login_name())
