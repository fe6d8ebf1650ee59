"""What a session has done, for the assertions of a test."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from clew import Entry, Session
from clew_workflows.contract.content import Part, get_text, list_media
from clew_workflows.contract.messages import Citation, Message, ProviderCall, ToolCall, list_cited_pages
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    RunPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread import Thread
from clew_workflows.thread.context.contexts import find_own_settings, rebuild_context

SHOWN_CHARACTERS = 500
"""Most characters of a text that the rendering of a thread shows."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """A tool call of a model.

    Attributes:
        name: The tool.
        arguments: The arguments with which it ran: the model's, or those that a person set instead.
        tool_call_id: The id of the call.
        result: The text of the result that the model reads; None: there is none yet.
        media: The images, recordings and files of the result, as parts; `Session.read_blob` reads one.
        is_error: Whether the result describes a failure.
        decision: The decision of a person; None: the call needed none, or it has not been made.
    """

    name: str
    arguments: Mapping[str, Any]
    tool_call_id: str
    result: str | None = None
    media: Sequence[Part] = ()
    is_error: bool = False
    decision: Literal["approve", "deny"] | None = None


@dataclass(frozen=True)
class ThreadView:
    """A thread, as the assertions of a test read it. `str` renders it for people.

    Attributes:
        entries: All entries of the thread.
    """

    entries: Sequence[Entry]
    _thread: Thread = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_thread", Thread(self.entries))

    @classmethod
    async def read(cls, session: Session) -> Self:
        """Read the thread of a session."""
        return cls(await session.entries())

    @property
    def calls(self) -> list[CalledTool]:
        """The tool calls of all replies, in order."""
        results: dict[str, ToolMessage] = {}
        for entry in self.entries:
            # A late result replaces one in doubt.
            if isinstance(entry.body, ToolMessage):
                results[entry.body.tool_call_id] = entry.body
        return [
            self._make_call(call, results.get(call["id"]))
            for reply in self._replies
            for call in reply.tool_calls or ()
        ]

    @property
    def tools_called(self) -> list[str]:
        """The names of the tools that were called, in order."""
        return [call.name for call in self.calls]

    @property
    def provider_calls(self) -> list[ProviderCall]:
        """The calls of tools that the provider ran itself, of all replies, in order."""
        return [call for reply in self._replies for call in reply.provider_calls or ()]

    @property
    def drawn(self) -> list[Part]:
        """The images and recordings of all replies, as parts, in order; `Session.read_blob` reads one."""
        return [part for reply in self._replies for part in list_media(reply.content)]

    @property
    def citations(self) -> list[Citation]:
        """The sources that the replies name, in order."""
        return [citation for reply in self._replies for citation in reply.citations or ()]

    @property
    def final_answer(self) -> str | None:
        """The text of the newest reply that calls no tool; None: there is none."""
        return next((reply.text for reply in reversed(self._replies) if not reply.tool_calls), None)

    @property
    def contexts_shown(self) -> list[list[Message]]:
        """The messages that each model call was shown, in order. They are projected from the thread once more."""
        return [
            rebuild_context(self._thread, recipe, find_own_settings(self._thread, recipe)).messages
            for entry in self.entries
            if (recipe := entry.recipe)
        ]

    def expect_tools(self, *names: str) -> None:
        """Assert that these tools were called, in this order, and no others.

        Raises:
            AssertionError: Others were called. The message shows the thread.
        """
        self._expect(self.tools_called == list(names), f"called {self.tools_called}, expected {list(names)}")

    def expect_call(self, name: str, **arguments: Any) -> CalledTool:
        """Assert that a tool was called with at least these arguments, and return its first such call.

        Raises:
            AssertionError: It was not. The message shows the thread.
        """
        for call in self.calls:
            if call.name == name and arguments.items() <= dict(call.arguments).items():
                return call
        self._expect(False, f"no call {name}({_dump(arguments)})")
        raise AssertionError

    def expect_answer(self, text: str) -> None:
        """Assert that the final answer contains a text.

        Raises:
            AssertionError: It does not. The message shows the thread.
        """
        self._expect(
            text in (self.final_answer or ""), f"the final answer is {self.final_answer!r}, expected {text!r} in it"
        )

    def __str__(self) -> str:
        """Render the thread: a line for each message, approval, run and error."""
        return "\n".join(f"{entry.seq:>4}  {line}" for entry in self.entries if (line := _render(entry)))

    @property
    def _replies(self) -> list[AssistantMessage]:
        return [entry.body for entry in self.entries if isinstance(entry.body, AssistantMessage)]

    def _make_call(self, call: ToolCall, result: ToolMessage | None) -> CalledTool:
        edited = result.edited_arguments if result else None
        approval = self._thread.find_approval(call["id"])
        return CalledTool(
            name=call["name"],
            arguments=call["arguments"] if edited is None else edited,
            tool_call_id=call["id"],
            result=get_text(result.message["content"]) if result else None,
            media=list_media(result.content) if result else (),
            is_error=result.is_error if result else False,
            decision=approval.read(ApprovalPayload).decision if approval else None,
        )

    def _expect(self, is_met: bool, problem: str) -> None:
        if not is_met:
            raise AssertionError(f"{problem}\nthe thread:\n{self}")


def _render(entry: Entry) -> str:
    """Render an entry in one line; empty for kinds that no assertion reads."""
    match entry.body:
        case ConfigPayload(model=model, tools=tools):
            return f"config: {model}; tools: {', '.join(tool['name'] for tool in tools) or 'none'}"
        case UserMessage(content=content):
            return f"user: {_shorten(get_text(content))}"
        case AssistantMessage(content=content, tool_calls=calls) as reply:
            shown = [f"{call['name']}({_dump(call['arguments'])})" for call in calls or ()]
            shown += [f"{call['tool']}: {_shorten(call.get('input', ''))}" for call in reply.provider_calls or ()]
            pages = list_cited_pages(reply.citations or ())
            shown += [f"[{number}] {_shorten(page['url'])}" for number, page in enumerate(pages, 1)]
            return f"assistant: {' '.join(filter(None, (_shorten(get_text(content)), *shown)))}"
        case ToolMessage() as result:
            mark = "in doubt" if result.in_doubt else "error" if result.is_error else ""
            return f"tool {result.name}{mark and f', {mark}'}: {_shorten(get_text(result.message['content']))}"
        case ApprovalPayload(decision=decision, reason=reason):
            return f"approval: {decision}{(reason and f', {reason}') or ''}"
        case ErrorPayload(type=word, message=message):
            return f"error: {word}: {_shorten(message)}"
        case RunPayload() as run:
            return f"run: {run.status}, {run.termination_reason}"
        case _:
            return ""


def _shorten(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"


def _dump(arguments: Mapping[str, Any]) -> str:
    return _shorten(", ".join(f"{name}={json.dumps(value, default=str)}" for name, value in arguments.items()))
