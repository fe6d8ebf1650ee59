"""The conversation of a report: messages with their tool calls, and what happened between them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple, overload

from clew.report.report_types import (
    Call,
    EventItem,
    Item,
    Media,
    MessageItem,
    Page,
    Piece,
    ProviderUse,
    Text,
    ToolUse,
)
from clew_workflows.contract.content import Blob, Content, Part, describe_part, get_text, list_media
from clew_workflows.contract.messages import Citation, ProviderCall, Source, ToolCall, list_cited_pages
from clew_workflows.contract.payloads import (
    AppliedCorrected,
    AppliedPin,
    AppliedReplace,
    AppliedSwitch,
    AppliedUnpin,
    AppliedWithdraw,
    ApprovalPayload,
    AssistantMessage,
    ConfigPayload,
    ErrorPayload,
    ForkPayload,
    InputPayload,
    MessagePayload,
    OperationPayload,
    RunPayload,
    SessionPayload,
    SummaryPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import Entry
from clew_workflows.thread.thread import Thread

MAX_NAME_CHARACTERS = 200
"""Most characters of a tool's name: a model may call a tool that does not exist by any name."""
MAX_TEXT_CHARACTERS = 20_000
"""Most characters of one text."""
MAX_CHARACTERS = 4_000_000
"""Most characters of all texts."""
_DECISIONS = {"approve": "approved", "deny": "denied"}
_SESSION_EVENTS = {
    "hibernated": "the session hibernated",
    "woken": "the session was opened again",
    "recovered": "the session was repaired",
    "closed": "the session was closed",
}


@dataclass(slots=True)
class Texts:
    """Takes the texts of a session into a report. Every text of the conversation passes here.

    Attributes:
        included: Whether the report has texts; if not, it has their lengths.
        room: The characters that the report still has room for.
    """

    included: bool = True
    room: int = MAX_CHARACTERS

    @overload
    def take(self, text: str, most: int = ...) -> Text: ...
    @overload
    def take(self, text: str | None, most: int = ...) -> Text | None: ...
    def take(self, text: str | None, most: int = MAX_TEXT_CHARACTERS) -> Text | None:
        """Take a text, or its first characters, at most `most`; None stays None."""
        if text is None:
            return None
        shown = min(len(text), most, self.room) if self.included else 0
        self.room -= shown
        return Text(content=text[:shown], left_out=len(text) - shown)

    def take_parts(self, content: Content) -> tuple[Piece, ...]:
        """Take the parts of a content; a text alone has none."""
        return () if isinstance(content, str) else tuple(map(self._take_part, content))

    def take_media(self, contents: Iterable[Content]) -> tuple[Piece, ...]:
        """Take the images, recordings and files of contents, without their texts."""
        return tuple(self._take_part(part) for content in contents for part in list_media(content))

    def _take_part(self, part: Part) -> Piece:
        if part["type"] == "text":
            return Piece(text=self.take(part["text"]))
        described: dict[str, Any] = dict(part.get("blob") or {})
        # A later release may have written further fields.
        blob = {name: value for name, value in described.items() if name in Blob.__annotations__}
        if not self.included:
            # The digest would tell a reader who has the file that it was sent.
            shown = {name: value for name, value in blob.items() if name not in ("name", "digest")}
            details = ", ".join(f"{name} {value}" for name, value in shown.items())
            description = f"[{part['type']}: {details or 'an address'}]"
        else:
            shown = {name: value for name, value in blob.items() if name != "name"}
            description = describe_part(part)
        return Piece(media=Media(kind=part["type"], description=Text(content=description), **shown))

    def take_json(self, value: Mapping[str, Any]) -> Text:
        """Take a JSON object: in one line if it is short, else indented."""
        line = json.dumps(value, ensure_ascii=False)
        return self.take(line if len(line) <= 80 else json.dumps(value, ensure_ascii=False, indent=2))


def collect_results(thread: Thread) -> dict[str, Entry]:
    """Collect the results of tool calls, by the ids of the calls; a late one replaces the one that was in doubt."""
    return {
        body.tool_call_id: entry
        for entry in thread
        if entry.kind == "ai_message" and isinstance(body := entry.body, ToolMessage)
    }


@dataclass(frozen=True, slots=True)
class Conversation:
    """Makes the items of a conversation.

    Attributes:
        thread: The thread.
        texts: Takes the texts.
        calls: The model calls, by the seq of their reply.
        results: The results of tool calls, by the ids of the calls.
    """

    thread: Thread
    texts: Texts
    calls: Mapping[int, Call]
    results: Mapping[str, Entry]

    def list_items(self, first_seq: int, last_seq: int) -> Iterator[Item]:
        """List the items of some entries. The newest have priority where the texts exceed their limit."""
        entries = self.thread.slice(first_seq, last_seq)
        shown_calls = {
            call_id
            for entry in entries
            if isinstance(body := entry.body, AssistantMessage)
            for call_id in body.call_ids
        }
        items = [item for entry in reversed(entries) if (item := self._make_item(entry, shown_calls))]
        return reversed(items)

    def _make_item(self, entry: Entry, shown_calls: set[str]) -> Item | None:
        body = entry.body
        if isinstance(body, ToolMessage) and body.tool_call_id in shown_calls:
            return None
        if isinstance(body, ApprovalPayload) and body.tool_call_id in shown_calls:
            return None
        return self._make_message(entry, body) if isinstance(body, MessagePayload) else self.make_event(entry)

    def _make_message(self, entry: Entry, message: MessagePayload) -> MessageItem:
        take = self.texts.take
        reply = message if isinstance(message, AssistantMessage) else None
        return MessageItem(
            seq=entry.seq,
            at=entry.at,
            lane=message.context_ref,
            role=message.role,
            text=take(message.text),
            parts=self.texts.take_parts(message.content),
            tokens=entry.tokens,
            request_id=message.request_id,
            source=message.source if isinstance(message, UserMessage) else None,
            thinking=take(reply.thinking) if reply else None,
            tools=tuple(self._make_tool(entry, call) for call in reply.tool_calls or ()) if reply else (),
            provider_calls=tuple(map(self._make_provider_use, reply.provider_calls or ())) if reply else (),
            sources=tuple(self._list_sources(reply.citations or ())) if reply else (),
            result_of=message.tool_call_id if isinstance(message, ToolMessage) else None,
            interrupted=reply.interrupted if reply else False,
            call=self.calls.get(entry.seq),
        )

    def _make_provider_use(self, call: ProviderCall) -> ProviderUse:
        take = self.texts.take
        return ProviderUse(
            name=call["tool"][:MAX_NAME_CHARACTERS],
            input=take(call.get("input")),
            output=take(call.get("output")),
            error=take(call.get("error")),
            pages=tuple(map(self._make_page, call.get("sources", ()))),
        )

    def _list_sources(self, citations: Sequence[Citation]) -> Iterator[Page]:
        """List the pages that a reply names, with the words of each."""
        quotes: dict[str, dict[str, None]] = {}
        for citation in citations:
            if "quote" in citation:
                quotes.setdefault(citation["url"], {})[citation["quote"]] = None
        for page in list_cited_pages(citations):
            taken = tuple(map(self.texts.take, quotes.get(page["url"], ())))
            yield self._make_page(page).model_copy(update={"quotes": taken})

    def _make_page(self, source: Source) -> Page:
        return Page(url=self.texts.take(source["url"]), title=self.texts.take(source.get("title")))

    def _make_tool(self, reply: Entry, call: ToolCall) -> ToolUse:
        take, take_json = self.texts.take, self.texts.take_json
        entry = self.results.get(call["id"])
        result = entry.read(ToolMessage) if entry else None
        decided = self.thread.find_approval(call["id"])
        approval = decided.read(ApprovalPayload) if decided else None
        return ToolUse(
            tool_call_id=call["id"],
            name=call["name"][:MAX_NAME_CHARACTERS],
            arguments=take_json(call["arguments"]),
            decision=_DECISIONS[approval.decision] if approval else None,
            reason=take(approval.reason) if approval else None,
            by=(approval and approval.by) or (result and result.by) or None,
            edited_arguments=take_json(result.edited_arguments) if result and result.edited_arguments else None,
            result=take(result.text) if result else None,
            result_parts=self.texts.take_parts(result.content) if result else (),
            result_seq=entry.seq if entry else None,
            stored_bytes=result.result.bytes if result and result.result else None,
            seconds=count_seconds(reply.at, entry.at) if entry else None,
            is_error=result.is_error if result else False,
            in_doubt=result.in_doubt if result else False,
            late=result.late if result else False,
            subagent=result.subagent.session_id if result and result.subagent else None,
        )

    def make_event(self, entry: Entry, *, with_text: bool = True) -> EventItem:
        """Make the item of an entry that is no message."""
        described = self._describe(entry)
        return EventItem(
            seq=entry.seq,
            at=entry.at,
            lane=entry.lane,
            kind=described.kind,
            title=Text(content=described.title),
            text=self.texts.take(described.text or None) if with_text else None,
            parts=self.texts.take_media(described.contents) if with_text else (),
            is_error=described.is_error,
        )

    def _describe(self, entry: Entry) -> _Description:
        match entry.body:
            case ConfigPayload() as config:
                changed = f"changed: {', '.join(config.changes)}" if config.changes else "configured"
                agent = config.agent
                named = f"agent {agent.name} {agent.label or agent.version}" if agent else ""
                tools = ", ".join(tool["name"] for tool in config.tools)
                provided = ", ".join(config.provider_tools)
                rows = (
                    changed,
                    config.model,
                    named,
                    f"tools: {tools}" if tools else "",
                    f"tools of the provider: {provided}" if provided else "",
                )
                return _Description("configuration", "; ".join(filter(None, rows)), config.prompt)
            case RunPayload() as run:
                title = f"{run.status}: {run.termination_reason}, {_count(run.iterations, 'model call')}"
                text = run.error.message if run.error else run.reason
                return _Description("outcome", title, text, run.status == "failed")
            case ErrorPayload() as error:
                return _Description("error", error.type, error.message, is_error=True)
            case InputPayload() as unread:
                # The reason may quote the input.
                return _Description("input", f"{unread.kind} {unread.event}", f"{unread.reason}\n{unread.content}")
            case ApprovalPayload() as approval:
                by = f" by {approval.by}" if approval.by else ""
                title = f"{_DECISIONS[approval.decision]} {approval.tool_call_id}{by}"
                return _Description("approval", title, approval.reason)
            case SummaryPayload() as summary:
                title = f"entries {summary.from_seq} to {summary.to_seq} summarized by {summary.model}"
                return _Description("summary", title, summary.content)
            case ForkPayload() as fork:
                words = "a fork of" if fork.event == "forked_from" else "forked to"
                return _Description("fork", f"{words} {fork.session_id} at entry {fork.fork_seq}")
            case SessionPayload() as session:
                workflow = f": its workflow was {session.workflow}" if session.workflow else ""
                return _Description(session.event, f"{_SESSION_EVENTS[session.event]}{workflow}", session.reason)
            case OperationPayload() as applied:
                return _describe_operation(applied)
            case _:
                return _Description(entry.kind, entry.kind)


class _Description(NamedTuple):
    """The description of an entry that is no message.

    Attributes:
        kind: What happened, in one word.
        title: What happened, in Clew's own words and names.
        text: The text that the entry has.
        is_error: Whether it is a failure.
        contents: The contents whose images, recordings and files are shown with it.
    """

    kind: str
    title: str
    text: str | None = None
    is_error: bool = False
    contents: Sequence[Content] = ()


def _describe_operation(applied: OperationPayload) -> _Description:
    match applied.operation:
        case AppliedReplace(result_context=snapshot, is_compaction=is_compaction):
            title = f"the context was replaced by {_count(len(snapshot.messages), 'message')}"
            text = "\n\n".join(f"{message['role']}: {get_text(message['content'])}" for message in snapshot.messages)
            contents = [message["content"] for message in snapshot.messages]
            return _Description("compaction" if is_compaction else "replace", title, text, contents=contents)
        case AppliedPin(seqs=seqs) | AppliedUnpin(seqs=seqs) as operation:
            listed = ", ".join(map(str, seqs[:20])) + (", …" if len(seqs) > 20 else "")
            return _Description(operation.type, f"entries {listed}")
        case AppliedSwitch():
            return _Description("switch", f"to the lane {applied.context_ref}")
        case AppliedWithdraw(from_seq=first):
            return _Description("withdraw", f"the messages from entry {first} on were not accepted by a hook")
        case AppliedCorrected(from_seq=first, to_seq=last):
            return _Description(
                "corrected", f"entries {first} to {last} leave the context: an answer and its correction"
            )
        case operation:
            return _Description(operation.type, "the latest compaction was undone")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def count_seconds(first: str, last: str) -> float | None:
    """Count the seconds between the times of two entries; None if either is not a time."""
    try:
        return max((datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds(), 0.0)
    except (ValueError, TypeError):
        return None
