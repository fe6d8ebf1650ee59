"""Histories that other libraries have written, as the messages that a session begins with. Pure.

| format | what a file holds |
|---|---|
| `chat` | messages of Chat Completions |
| `responses` | items of the Responses API; sessions of the OpenAI Agents SDK have the same |
| `langchain` | messages of LangChain, as the state and the checkpoints of LangGraph have them |
| `pydantic_ai` | messages of Pydantic AI, as `all_messages_json` writes them |
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from clew.serve.openai import asks, bodies
from clew.serve.openai.content_parts import Parts
from clew.serve.openai.refusals import InvalidValue, translate_validation_error
from clew.serve.problems import Problem
from clew.session.transport import make_input
from clew_workflows.contract.errors import ClewError, Refusal, TooLarge
from clew_workflows.contract.inputs import Snapshot
from clew_workflows.contract.limits import MAX_SYSTEM_PROMPT_BYTES
from clew_workflows.contract.messages import replace_data

Format = Literal["chat", "responses", "langchain", "pydantic_ai"]
_SYSTEM_ROLES = ("system", "developer")
_chat_messages = TypeAdapter(list[bodies.ChatMessage])
_FILE_ELSEWHERE = "a `file_id` names a file of another service: write its bytes in its place, in base64"
_NUMBER = re.compile(r"\[(\d+)\]")
_MAX_WORD = 50
"""Most characters of a name that an error repeats."""


class HistoryInvalid(ClewError):
    """The file is no history, or has an item that cannot be imported. The message names the file and the item."""


@dataclass(frozen=True)
class History:
    """A history.

    Attributes:
        format: Its format.
        digest: The SHA-256 of its items, as 64 hexadecimal digits.
        messages: The messages, as `Session.replace_context` takes them. A content may have `Media` with bytes.
        system_prompt: The texts of its system messages and its instructions; None: it has none.
    """

    format: Format
    digest: str
    messages: list[dict[str, Any]]
    system_prompt: str | None


def read_file(data: bytes, name: str) -> History:
    """Read a file of JSON, or of JSON Lines with a message or an item each. `name` names it in errors.

    Raises:
        HistoryInvalid: It holds no history, or an item cannot be imported.
    """
    document = _parse(data, name)
    items, instructions = _find_items(document, name)
    return _make_history(items, instructions, name)


def read_rows(rows: Sequence[str], name: str) -> History:
    """Read the items of a session of the OpenAI Agents SDK, each as JSON. `name` names their file in errors.

    Raises:
        HistoryInvalid: An item cannot be imported.
    """
    items: list[Any] = []
    for number, row in enumerate(rows):
        try:
            items.append(from_json(row, allow_inf_nan=False))
        except ValueError as error:
            raise _make_error(name, f"it is not JSON: {error}", number) from None
    return _make_history(items, None, name)


def _make_error(name: str, reason: str, number: int | None = None) -> HistoryInvalid:
    """Make an error. `number`: of the item, counted from 0; None: it is about all of the file."""
    if number is None:
        return HistoryInvalid(f"{name}: {reason}. Nothing was imported")
    return HistoryInvalid(
        f"{name}: item {number}: {reason.rstrip('.')}. Correct it or remove it: nothing was imported"
    )


def _parse(data: bytes, name: str) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        lines = [line for line in data.splitlines() if line.strip()]
        if len(lines) < 2:
            raise _make_error(name, f"it is not JSON: {error}") from None
    rows: list[Any] = []
    for number, line in enumerate(lines):
        try:
            rows.append(from_json(line, allow_inf_nan=False))
        except ValueError as error:
            reason = f"it is neither JSON nor JSON Lines: {error}"
            raise _make_error(name, reason, number if number else None) from None
    if isinstance(rows[0], dict) and "messages" in rows[0]:
        raise _make_error(name, f"it has {len(rows)} histories, one a line: write each to a file of its own")
    return rows


def _find_items(document: Any, name: str) -> tuple[list[Any], str | None]:
    """Find the items of a document, and the instructions that it has beside them."""
    match document:
        case list() as items:
            return items, None
        case (
            {"messages": list() as items}
            | {"values": {"messages": list() as items}}
            | {"channel_values": {"messages": list() as items}}
        ):
            return items, None
        case {"input": _} | {"output": list()}:
            sent, got = document.get("input") or [], document.get("output") or []
            sent = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
            if isinstance(sent, list) and isinstance(got, list):
                instructions = document.get("instructions")
                return [*sent, *got], instructions if isinstance(instructions, str) else None
    raise _make_error(
        name,
        "it holds no history: it must be a list of messages or items, or an object with `messages`, with `input` and "
        "`output`, or with the `values` of a state of LangGraph",
    )


def _make_history(items: list[Any], instructions: str | None, name: str) -> History:
    if not items:
        raise _make_error(name, "it has no messages")
    for number, item in enumerate(items):
        if not isinstance(item, dict):
            raise _make_error(name, "a message or an item is an object", number)
    kind = _find_format(items, name)
    try:
        said = _READERS[kind](items)
        prompts = [instructions, *(_join(one.content) for one in said if one.role in _SYSTEM_ROLES)]
        messages = asks.make_snapshot([one for one in said if one.role not in _SYSTEM_ROLES])
    except _UnknownPart as error:
        raise _make_error(name, str(error), error.number) from None
    except (Problem, TooLarge) as error:
        path = getattr(error, "param", None) or str(error)
        reason = _FILE_ELSEWHERE if path.endswith(".file_id") else str(error)
        raise _make_error(name, reason, _find_number(path)) from None
    if not messages:
        raise _make_error(name, "it has no messages besides those of the system")
    system_prompt = "\n\n".join(filter(None, prompts)) or None
    if system_prompt and len(system_prompt.encode()) > MAX_SYSTEM_PROMPT_BYTES:
        raise _make_error(
            name,
            f"its system messages have {len(system_prompt.encode())} bytes together, at most "
            f"{MAX_SYSTEM_PROMPT_BYTES} are accepted: shorten them",
        )
    messages = [{**message, "content": _clean(message["content"])} for message in messages]
    _check(messages, name)
    return History(kind, hashlib.sha256(to_json(items)).hexdigest(), messages, system_prompt)


def _find_number(path: str) -> int | None:
    """Find the number of an item in the path to a problem."""
    found = _NUMBER.search(path)
    return int(found[1]) if found else None


def _find_format(items: Sequence[Mapping[str, Any]], name: str) -> Format:
    first = items[0]
    if isinstance(first.get("parts"), list) and first.get("kind") in ("request", "response"):
        return "pydantic_ai"
    if "lc" in first or ("role" not in first and _find_langchain_role(first.get("type")) is not None):
        return "langchain"
    if any(item.get("type") is not None or _has_response_parts(item) for item in items):
        return "responses"
    if "role" in first:
        return "chat"
    raise _make_error(
        name,
        "it is neither a message of Chat Completions, LangChain or Pydantic AI, which has a `role`, a `type` or "
        "`parts`, nor an item of Responses",
        0,
    )


def _has_response_parts(item: Mapping[str, Any]) -> bool:
    content = item.get("content")
    parts = content if isinstance(content, list) else []
    return any(isinstance(part, dict) and part.get("type") in _RESPONSE_PARTS for part in parts)


_RESPONSE_PARTS = ("input_text", "output_text", "input_image", "input_file")
"""Parts that Chat Completions has under other names."""


def _read_chat(items: list[Any]) -> list[asks.Said]:
    try:
        read = _chat_messages.validate_python(items)
    except ValidationError as error:
        raise _name_messages(translate_validation_error(error, items)) from None
    return asks.read_messages(read)


def _name_messages(problem: InvalidValue) -> InvalidValue:
    """Name the list in the path of a problem, which begins with the number of a message."""
    path = problem.param or ""
    return type(problem)(problem.message.replace(f"'{path}'", f"'messages{path}'", 1), param=f"messages{path}")


def _read_responses(items: list[Any]) -> list[asks.Said]:
    said, _ = asks.read_items(items)
    for one in said:
        if one.is_reference:
            raise InvalidValue("only the service that made it has what it refers to", param=one.param)
    return said


def _join(content: Parts) -> str:
    return "\n".join(part for part in content if isinstance(part, str))


def _clean(content: Any) -> Any:
    """Replace data URLs and long base64 in texts by their descriptions: no model reads them as texts."""
    if isinstance(content, str):
        return replace_data(content)
    return [replace_data(part) if isinstance(part, str) else part for part in content]


def _check(messages: Sequence[Mapping[str, Any]], name: str) -> None:
    """Check that a session accepts the messages, but for the bytes of their media."""
    checked: list[dict[str, Any]] = []
    for message in messages:
        content = message["content"]
        if isinstance(content, list):
            if any(isinstance(part, Mapping) for part in content):
                # What a caller of `clew serve` may name. A new session has no blobs.
                raise _make_error(name, _FILE_ELSEWHERE)
            content = [{"type": "text", "text": part if isinstance(part, str) else ""} for part in content]
        checked.append({**message, "content": content})
    try:
        make_input(Snapshot, {"messages": checked})
    except Refusal as error:
        raise _make_error(name, str(error)) from None


# Messages of LangChain, as messages of Chat Completions.


class _UnknownPart(Exception):
    """A message of LangChain has no form in Chat Completions.

    Attributes:
        number: The number of the message.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(reason)
        self.number = number


_LANGCHAIN_ROLES = {
    "human": "user",
    "ai": "assistant",
    "system": "system",
    "tool": "tool",
    "function": "function",
}
"""The roles of messages, by their types."""
_LEFT_OUT = frozenset(
    {
        # What `tool_calls` of the message has, too.
        "tool_call", "tool_call_chunk", "invalid_tool_call", "tool_use", "function_call", "input_json_delta",
        # What only the provider can read, or has done itself.
        "reasoning", "thinking", "redacted_thinking", "server_tool_call", "server_tool_result", "server_tool_use",
        "web_search_call", "code_interpreter_call", "file_search_call",
    }
)  # fmt: skip
"""Types of blocks in a reply that no other model reads."""
_AUDIO_FORMATS = {"audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/wav": "wav", "audio/x-wav": "wav"}


def _find_langchain_role(kind: Any) -> str | None:
    """Find the role of a type of messages; those of chunks end with `MessageChunk`."""
    if not isinstance(kind, str):
        return None
    return "chat" if kind == "chat" else _LANGCHAIN_ROLES.get(kind.removesuffix("MessageChunk").lower())


def _read_langchain(items: list[Any]) -> list[asks.Said]:
    return _read_chat([_convert_message(number, item) for number, item in enumerate(items)])


def _convert_message(number: int, item: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a message, in the form of `dumpd`, of `messages_to_dict` or of `model_dump`."""
    kind: Any
    fields: Mapping[str, Any]
    match item:
        case {"lc": _, "type": "constructor", "id": [*_, str(name)], "kwargs": dict(fields)}:
            kind = fields.get("type") or name.removesuffix("Chunk").removesuffix("Message").lower()
        case {"type": kind, "data": dict(fields)}:
            pass
        case _:
            fields, kind = item, item.get("type")
    role = _find_langchain_role(kind)
    if role == "chat":
        role = str(fields.get("role"))
    if role is None:
        raise _UnknownPart(number, f"there is no message of the type '{str(kind)[:_MAX_WORD]}' in LangChain's form")
    made: dict[str, Any] = {"role": role, "content": _convert_content(number, fields.get("content"))}
    if role == "assistant":
        calls = [_convert_call(call) for call in fields.get("tool_calls") or ()]
        calls += [_convert_call(call) for call in fields.get("invalid_tool_calls") or ()]
        made |= {"tool_calls": calls} if calls else {}
    elif role == "tool":
        made["tool_call_id"] = fields.get("tool_call_id")
    return made


def _convert_call(call: Any) -> Any:
    if not isinstance(call, dict):
        return call
    arguments = call.get("args")
    # The arguments of an invalid call are the text that the model wrote.
    text = arguments if isinstance(arguments, str | None) else to_json(arguments).decode()
    return {"id": call.get("id"), "type": "function", "function": {"name": call.get("name"), "arguments": text}}


def _convert_content(number: int, content: Any) -> Any:
    if not isinstance(content, list):
        return content
    converted = [_convert_block(number, block) for block in content]
    return [part for part in converted if part is not None]


def _convert_block(number: int, block: Any) -> dict[str, Any] | None:
    """Convert a block of a content; None: it is left out."""
    match block:
        case str():
            return {"type": "text", "text": block}
        case {"type": "text" | "text-plain", "text": str(text)}:
            return {"type": "text", "text": text}
        case {"type": "image_url", "image_url": str(url)} | {"type": "image", "url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image", "source": {"type": "url", "url": str(url)}}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"type": "image_url" | "input_audio" | "refusal"} | {"type": "file", "file": dict()}:
            return dict(block)
        case {"type": kind} if kind in _LEFT_OUT:
            return None
    media_type, data = _find_data(block)
    if data is None:
        raise _refuse_block(number, block)
    return _convert_data(number, block, media_type, data)


def _convert_data(number: int, block: Mapping[str, Any], media_type: str, data: str) -> dict[str, Any]:
    """Convert the bytes of an image, a recording or a file, in base64."""
    match block["type"]:
        case "image":
            return {"type": "image_url", "image_url": {"url": f"data:{media_type};base64,{data}"}}
        case "file":
            name = block.get("filename") or (block.get("extras") or block.get("metadata") or {}).get("filename")
            return {"type": "file", "file": {"file_data": f"data:{media_type};base64,{data}", "filename": name}}
        case "audio" if media_type in _AUDIO_FORMATS:
            return {"type": "input_audio", "input_audio": {"data": data, "format": _AUDIO_FORMATS[media_type]}}
    raise _refuse_block(number, block)


def _refuse_block(number: int, block: Any) -> _UnknownPart:
    return _UnknownPart(
        number, f"its content has a block of the type '{_name_kind(block, 'type')}', which is not imported"
    )


def _find_data(block: Any) -> tuple[str, str | None]:
    """Find the media type and the base64 of a block, where the versions of LangChain, and Anthropic, have them."""
    match block:
        case {"type": str(), "base64": str(data), "mime_type": str(media_type)}:
            return media_type, data
        case {"type": str(), "source_type": "base64", "data": str(data), "mime_type": str(media_type)}:
            return media_type, data
        case {"type": str(), "source": {"type": "base64", "data": str(data), "media_type": str(media_type)}}:
            return media_type, data
    return "", None


# Messages of Pydantic AI, as messages of Chat Completions. Each part of one may have a role of its own.


def _read_pydantic_ai(items: list[Any]) -> list[asks.Said]:
    converted: list[dict[str, Any]] = []
    numbers: list[int] = []
    newest = next((n for n in reversed(range(len(items))) if items[n].get("instructions")), None)
    for number, item in enumerate(items):
        made = list(_convert_parts(number, item))
        if number == newest:
            # Each request repeats them. Those of the newest one hold.
            made.insert(0, {"role": "system", "content": item["instructions"]})
        converted += made
        numbers += [number] * len(made)
    try:
        said = _read_chat(converted)
    except Problem as error:
        found = _find_number(error.param or "")
        raise _UnknownPart(numbers[found or 0], str(error)) from None
    return [_name_place(one, f"messages[{number}]") for one, number in zip(said, numbers, strict=True)]


def _name_place(said: asks.Said, path: str) -> asks.Said:
    return replace(said, param=path, calls=tuple(replace(call, param=path) for call in said.calls))


def _convert_parts(number: int, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    texts: list[str] = []
    calls: list[dict[str, Any]] = []
    for part in item.get("parts") or ():
        match part:
            case {"part_kind": "system-prompt", "content": content}:
                yield {"role": "system", "content": content}
            case {"part_kind": "user-prompt", "content": content} | {
                "part_kind": "retry-prompt",
                "content": content,
                "tool_name": None,
            }:
                yield {"role": "user", "content": _convert_prompt(number, content)}
            case {"part_kind": "tool-return" | "retry-prompt", "tool_call_id": name, "content": content}:
                text = content if isinstance(content, str) else to_json(content).decode()
                yield {"role": "tool", "tool_call_id": name, "content": text}
            case {"part_kind": "text", "content": str(text)}:
                texts.append(text)
            case {"part_kind": "tool-call", "tool_call_id": name, "tool_name": tool}:
                calls.append(_convert_call({"id": name, "name": tool, "args": part.get("args")}))
            case {"part_kind": "thinking" | "builtin-tool-call" | "builtin-tool-return"}:
                pass  # What only the provider can read, or has done itself.
            case _:
                raise _UnknownPart(number, f"it has a part of the kind '{_name_kind(part, 'part_kind')}'")
    if texts or calls:
        yield {"role": "assistant", "content": "\n".join(texts)} | ({"tool_calls": calls} if calls else {})


def _convert_prompt(number: int, content: Any) -> Any:
    if not isinstance(content, list):
        return content
    return [_convert_prompt_part(number, part) for part in content]


def _convert_prompt_part(number: int, part: Any) -> dict[str, Any]:
    match part:
        case str(text) | {"kind": "text-content", "content": str(text)}:
            return {"type": "text", "text": text}
        case {"kind": "image-url", "url": str(url)}:
            return {"type": "image_url", "image_url": {"url": url}}
        case {"kind": "binary", "data": str(data), "media_type": str(media_type)}:
            # Its base64 is the one for addresses.
            data = data.replace("-", "+").replace("_", "/")
            kind = media_type.partition("/")[0]
            kind = kind if kind in ("image", "audio") else "file"
            return _convert_data(number, {"type": kind}, media_type, data)
    raise _UnknownPart(
        number, f"its prompt has a part of the kind '{_name_kind(part, 'kind')}', which is not imported"
    )


def _name_kind(part: Any, key: str) -> str:
    return str(part.get(key) if isinstance(part, dict) else type(part).__name__)[:_MAX_WORD]


_READERS: Mapping[Format, Callable[[list[Any]], list[asks.Said]]] = {
    "chat": _read_chat,
    "responses": _read_responses,
    "langchain": _read_langchain,
    "pydantic_ai": _read_pydantic_ai,
}
