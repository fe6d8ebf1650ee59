"""The items of this API, made from the entries of a thread. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic_core import to_json

from clew.serve.openai import ids
from clew_workflows.contract.content import Content, Part
from clew_workflows.contract.messages import Citation, Message, ProviderCall, ToolCall
from clew_workflows.contract.payloads import (
    ApprovalPayload,
    AssistantMessage,
    OperationPayload,
    ToolMessage,
    UserMessage,
)
from clew_workflows.thread.entries import Entry

SERVER_LABEL = "clew"
"""The label of the server whose tools are the session's own: the API has them as tools of an MCP server."""
GIVEN = "caller"
"""The source of replies and results that came with a message."""
REPAIR = "repair"
"""The source of the message with which a session has an answer corrected that does not meet its schema."""
ITEM_REF = "openai_item"
"""The caller's ref of a message of a snapshot: the id of its item."""


def make_message(name: str, text: str, *, status: str = "completed", phase: str | None = None) -> dict[str, Any]:
    """Make a reply's message with a text; an empty one has no content."""
    content = [make_text(text)] if text or status == "completed" else []
    made = {"id": name, "type": "message", "role": "assistant", "status": status, "content": content}
    return made if phase is None else {**made, "phase": phase}


def make_text(text: str, citations: Sequence[Citation] = ()) -> dict[str, Any]:
    """Make the part with the text of a reply."""
    annotations = list(map(make_annotation, citations))
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}


def make_refusal(name: str, text: str) -> dict[str, Any]:
    """Make the message with the reason for which a provider gave no answer, or not all of one."""
    content = [{"type": "refusal", "refusal": text}]
    return {"id": name, "type": "message", "role": "assistant", "status": "completed", "content": content}


def make_annotation(citation: Citation) -> dict[str, Any]:
    """Make the annotation of a citation. One without a place is at the beginning of the text."""
    return {
        "type": "url_citation",
        "url": citation["url"],
        "title": citation.get("title") or citation["url"],
        "start_index": citation.get("start", 0),
        "end_index": citation.get("end", 0),
    }


def make_reasoning(name: str, text: str, status: str = "completed") -> dict[str, Any]:
    """Make the item with the text of a reply's reasoning."""
    summary = [{"type": "summary_text", "text": text}] if text else []
    return {"id": name, "type": "reasoning", "summary": summary, "status": status}


def make_function_call(session_id: str, call: ToolCall, status: str = "completed") -> dict[str, Any]:
    """Make the item of a call of one of the caller's functions."""
    return {
        "id": ids.encode(ids.FUNCTION_CALL, session_id, call["id"]),
        "type": "function_call",
        "call_id": ids.encode(ids.CALL, session_id, call["id"]),
        "name": call["name"],
        "arguments": dump_arguments(call["arguments"]),
        "status": status,
    }


def make_server_call(
    session_id: str, call: ToolCall, result: ToolMessage, *, was_approved: bool = False
) -> dict[str, Any]:
    """Make the item of a call that the session has run itself: a call of an MCP server's tool."""
    made = {
        "id": ids.encode(ids.SERVER_CALL, session_id, call["id"]),
        "type": "mcp_call",
        "server_label": SERVER_LABEL,
        "name": call["name"],
        "arguments": dump_arguments(call["arguments"]),
        "approval_request_id": make_approval_request(session_id, call)["id"] if was_approved else None,
        "error": None,
        "output": None,
        "status": "completed",
    }
    if result.is_error or result.in_doubt:
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": result.text}]}
        return made | {"error": error, "status": "failed"}
    return made | {"output": result.text}


def make_approval_request(session_id: str, call: ToolCall) -> dict[str, Any]:
    """Make the item of a call that waits for a person's decision."""
    return {
        "id": ids.encode(ids.APPROVAL_REQUEST, session_id, call["id"]),
        "type": "mcp_approval_request",
        "server_label": SERVER_LABEL,
        "name": call["name"],
        "arguments": dump_arguments(call["arguments"]),
    }


def make_provider_call(session_id: str, call_id: str, number: int, call: ProviderCall) -> dict[str, Any] | None:
    """Make the item of a call that the model's provider ran itself; None: the API has no form for it."""
    failed = "error" in call
    match call["tool"]:
        case "web_search":
            query = call.get("input", "")
            sources = [{"type": "url", "url": source["url"]} for source in call.get("sources", ())]
            return {
                "id": ids.encode(ids.SEARCH, session_id, call_id, str(number)),
                "type": "web_search_call",
                "status": "failed" if failed else "completed",
                "action": {"type": "search", "query": query, "queries": [query], "sources": sources},
            }
        case "code_execution":
            output = call.get("error") or call.get("output")
            return {
                "id": ids.encode(ids.CODE, session_id, call_id, str(number)),
                "type": "code_interpreter_call",
                "status": "failed" if failed else "completed",
                "code": call.get("input"),
                "container_id": SERVER_LABEL,
                "outputs": [{"type": "logs", "logs": output}] if output else [],
            }
    return None


def make_function_output(session_id: str, result: ToolMessage) -> dict[str, Any]:
    """Make the item of a function's result."""
    return _make_output(session_id, result.tool_call_id, result.text)


def _make_output(session_id: str, tool_call_id: str, output: str) -> dict[str, Any]:
    return {
        "id": ids.encode(ids.FUNCTION_OUTPUT, session_id, tool_call_id),
        "type": "function_call_output",
        "call_id": ids.encode(ids.CALL, session_id, tool_call_id),
        "output": output,
        "status": "completed",
    }


def make_input_message(name: str, content: Content, role: str = "user") -> dict[str, Any]:
    """Make the item of a message that somebody has sent."""
    parts: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
    converted = [_convert_part(part) for part in parts]
    return {"id": name, "type": "message", "role": role, "status": "completed", "content": converted}


def _convert_part(part: Part) -> dict[str, Any]:
    """Convert a part. An image, a recording or a file has its digest as `file_id`; the API keeps no recordings."""
    described: Any = part
    if described["type"] == "text":
        return {"type": "input_text", "text": described["text"]}
    blob = described.get("blob")
    if described["type"] == "image":
        file_id = blob["digest"] if blob else None
        detail = described.get("detail", "auto")
        return {"type": "input_image", "detail": detail, "file_id": file_id, "image_url": described.get("url")}
    return {"type": "input_file", "file_id": blob["digest"], "filename": blob.get("name")}


def dump_arguments(arguments: Mapping[str, Any]) -> str:
    """Write the arguments of a call as JSON."""
    return to_json(arguments).decode()


def is_given(entry: Entry) -> bool:
    """Whether an entry came with a message: no model of the session has written it."""
    return entry.refs.get("source") == GIVEN


# The items of a thread: those of a conversation.


class ThreadItems:
    """Makes the items of a lane's messages, entry by entry.

    Attributes:
        items: The items, oldest first.
    """

    def __init__(self, session_id: str) -> None:
        self.items: list[dict[str, Any]] = []
        self._session_id = session_id
        self._calls: dict[str, ToolCall] = {}
        self._functions: set[str] = set()

    def take(self, entry: Entry, functions: frozenset[str]) -> None:
        """Add the items of an entry. `functions`: the caller's functions then."""
        match entry.body:
            case UserMessage() as sent:
                if sent.source == REPAIR:
                    self._drop_reply()
                else:
                    self.items.append(make_input_message(ids.name_seq(self._session_id, entry.seq), sent.content))
            case AssistantMessage() as reply:
                # What came with a message has the caller's calls alone.
                own = functions | {call["name"] for call in reply.tool_calls or ()} if is_given(entry) else functions
                self.items += self._list_reply(entry, reply, own)
            case ToolMessage() as result:
                self._add_result(result)
            case ApprovalPayload() as decision:
                self._add_decision(decision)
            case OperationPayload() as operation:
                self._replace(entry, operation)

    def _list_reply(
        self, entry: Entry, reply: AssistantMessage, functions: frozenset[str]
    ) -> Iterator[dict[str, Any]]:
        call_id = entry.refs.get("call_id") or f"#{entry.seq}"
        if reply.thinking:
            yield make_reasoning(ids.encode(ids.REASONING, self._session_id, call_id), reply.thinking)
        if reply.text or not reply.tool_calls:
            name = ids.encode(ids.MESSAGE, self._session_id, call_id)
            status = "incomplete" if reply.interrupted else "completed"
            yield make_message(name, "", status=status) | {"content": [make_text(reply.text, reply.citations or ())]}
        for number, provided in enumerate(reply.provider_calls or (), 1):
            if made := make_provider_call(self._session_id, call_id, number, provided):
                yield made
        for call in reply.tool_calls or ():
            self._calls[call["id"]] = call
            if call["name"] in functions:
                self._functions.add(call["id"])
                yield make_function_call(self._session_id, call)

    def _drop_reply(self) -> None:
        """Drop the newest answer: the session had it corrected."""
        while self.items and self.items[-1]["type"] in ("message", "reasoning"):
            dropped = self.items.pop()
            if dropped["type"] == "message":
                break

    def _add_result(self, result: ToolMessage) -> None:
        call = self._calls.pop(result.tool_call_id, None)
        if result.tool_call_id in self._functions:
            self.items.append(make_function_output(self._session_id, result))
        elif call is not None:
            self.items.append(make_server_call(self._session_id, call, result))

    def _add_decision(self, decision: ApprovalPayload) -> None:
        if call := self._calls.get(decision.tool_call_id):
            request = make_approval_request(self._session_id, call)
            response = {
                "id": ids.encode(ids.APPROVAL_RESPONSE, self._session_id, decision.tool_call_id),
                "type": "mcp_approval_response",
                "approval_request_id": request["id"],
                "approve": decision.decision == "approve",
                "reason": decision.reason,
            }
            self.items += [request, response]

    def _replace(self, entry: Entry, operation: OperationPayload) -> None:
        """Take a snapshot's messages instead of those before it."""
        snapshot = operation.snapshot
        # A compaction shortens what a model sees, and leaves the conversation as it is.
        if snapshot is None or getattr(operation.operation, "is_compaction", False):
            return
        self.items, self._calls, self._functions = [], {}, set()
        for number, message in enumerate(snapshot.messages):
            self.items += list_snapshot_items(self._session_id, entry.seq, number, message)


def list_snapshot_items(
    session_id: str, seq: int, number: int, message: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """List the items of a snapshot's message: the one with a number, of the entry with a seq."""
    said: Message = message  # type: ignore[assignment]
    name = (message.get("refs") or {}).get(ITEM_REF) or ids.name_seq(session_id, seq, number)
    match said["role"]:
        case "assistant":
            if text := _join(said["content"]):
                yield make_message(name, text)
            for call in said.get("tool_calls") or ():
                yield make_function_call(session_id, call)
        case "tool":
            yield _make_output(session_id, said["tool_call_id"], _join(said["content"]))
        case role:
            yield make_input_message(name, said["content"], role)


def _join(content: Content) -> str:
    return content if isinstance(content, str) else "\n".join(str(part.get("text", "")) for part in content)
