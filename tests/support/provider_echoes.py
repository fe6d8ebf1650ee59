"""A provider whose answers contain the key, in every encoding and in every part of an answer."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote

from tests.support.provider_server import (
    FakeServer,
    close_message,
    encode_events,
    make_chunk,
    make_delta,
    make_tool,
    open_message,
    start_block,
)

WINDOW = 12
"""Consecutive characters of a key that count as a leak."""


def _quote(text: str, pattern: str) -> str:
    return "".join(pattern % ord(character) for character in text)


def _put_in_the_middle(text: str, between: str) -> str:
    return text[: len(text) // 2] + between + text[len(text) // 2 :]


FORMS: Mapping[str, Callable[[str], str]] = {
    "as it is": lambda key: key,
    "in lower case": str.lower,
    "in upper case": str.upper,
    "quoted": lambda key: json.dumps({"key": key}),
    "quoted twice": lambda key: json.dumps(json.dumps({"key": f'"{key}"'})),
    "escaped": lambda key: _quote(key, "\\u%04x"),
    "escaped twice": lambda key: json.dumps(_quote(key, "\\u%04X")),
    "escaped for Python": lambda key: _quote(key, "\\x%02x"),
    "entities": lambda key: _quote(key, "&#%d;"),
    "hexadecimal entities": lambda key: _quote(key, "&#x%X;"),
    "percent-encoded": lambda key: quote(key, safe=""),
    "percent-encoded in full": lambda key: _quote(key, "%%%02X"),
    "percent-encoded in lower case": lambda key: _quote(key, "%%%02x"),
    "percent-encoded twice": lambda key: _quote(key, "%%25%02x"),
    "percent-encoded in part": lambda key: "".join(
        _quote(character, "%%%02x") if index % 3 else character for index, character in enumerate(key)
    ),
    "base64": lambda key: base64.b64encode(key.encode()).decode(),
    "base64 of a header": lambda key: base64.b64encode(f"Bearer {key}".encode()).decode(),
    "base64 of a user": lambda key: base64.b64encode(f"a:{key}:b".encode()).decode(),
    "base64 for URLs": lambda key: base64.urlsafe_b64encode(f"::{key}".encode()).decode().rstrip("="),
    "base64 in lines": lambda key: base64.encodebytes(f"Authorization: Bearer {key}, and more".encode()).decode(),
    "base64 percent-encoded": lambda key: quote(base64.b64encode(f"x{key}".encode()), safe=""),
    "over lines": lambda key: _put_in_the_middle(key, "\n"),
    "over lines of Windows": lambda key: _put_in_the_middle(key, "\r\n"),
    "over lines of old": lambda key: _put_in_the_middle(key, "\r"),
    "folded": lambda key: _put_in_the_middle(key, "\r\n\t  "),
    "folded and quoted": lambda key: _put_in_the_middle(key, "\\r\\n  "),
    "folded and percent-encoded": lambda key: _put_in_the_middle(key, "%0d%0A%20"),
    "a character a line": "\n".join,
}
"""Encodings of a key; the key can be recovered from each."""


_READINGS: tuple[Callable[[str], str], ...] = (
    unquote,
    lambda text: re.sub(r"\\+(?:u00|x)([0-9a-fA-F]{2})", lambda match: chr(int(match[1], 16)), text),
    lambda text: re.sub(r"&#(\d+);", lambda match: chr(int(match[1]) % 128), text),
    lambda text: re.sub(r"&#x([0-9a-fA-F]+);", lambda match: chr(int(match[1], 16) % 128), text),
    lambda text: re.sub(r"(?:\\+[rn]|[\r\n])(?:\\+[rnt]|\s)*|\\", "", text),
)


def find_leaks(text: str, key: str) -> list[str]:
    """List the parts of a key that can be read in a text, in any form. It shares no code with the redaction."""
    views = {text}
    for _ in range(3):
        views |= {read(view) for view in views for read in _READINGS}
    windows = {key[at : at + WINDOW] for at in range(len(key) - WINDOW + 1)}
    encoded = {
        base64.b64encode(b"\0" * before + window.encode()).decode()[before + 1 : 14]
        for window in windows
        for before in range(3)
    }
    encoded |= {window.translate(str.maketrans("+/", "-_")) for window in encoded}
    # A key in another case is a leak too.
    views |= {view.lower() for view in views}
    windows |= {window.lower() for window in windows}
    return sorted(window for window in windows | encoded if any(window in view for view in views))


def _make_head(*lines: str, status: str = "200 OK") -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "", ""]).encode()


_STREAMED = ("content-type: text/event-stream", "transfer-encoding: chunked")


def _fold_line(text: str) -> str:
    """Fold a text as a header does: a line end would end the header."""
    return re.sub(r"[\r\n]+[ \t]*", "\r\n ", text)


FAILURES: Mapping[str, Callable[[FakeServer, str], None]] = {
    "malformed header": lambda server, key: server.answer_verbatim(_make_head(f"x echo {_fold_line(key)}: no")),
    "malformed status": lambda server, key: server.answer_verbatim(_make_head(status=_fold_line(key))),
    "malformed length": lambda server, key: server.answer_verbatim(_make_head(f"content-length: {_fold_line(key)}")),
    "broken chunk": lambda server, key: server.answer_verbatim(_make_head(*_STREAMED), key.encode() + b"\r\n"),
    "broken chunk later": lambda server, key: server.answer_verbatim(
        _make_head(*_STREAMED), b"2\r\n: \r\n", key.encode() + b"\r\n"
    ),
    "content type": lambda server, key: server.answer_verbatim(_make_head(f"content-type: text/{_fold_line(key)}")),
    "compression": lambda server, key: server.answer_verbatim(
        _make_head("content-type: text/event-stream", f"content-encoding: {_fold_line(key)}")
    ),
    "redirect": lambda server, key: server.answer_verbatim(
        _make_head(f"location: https://elsewhere/?key={_fold_line(key)}", "content-length: 0", status="302 Found")
    ),
    "error body": lambda server, key: server.answer_json({"error": {"message": f"wrong key {key}."}}, 401),
    "error type": lambda server, key: server.answer_json({"error": {"type": key, "code": key}}, 400),
    "error list": lambda server, key: server.answer_json({"detail": [{"input": {key: key}}]}, 422),
    "error text": lambda server, key: server.answer(f"<p>{key}</p>".encode(), status=502, content_type="text/html"),
    "error cut": lambda server, key: server.answer(
        (b"x" * 1990 + b" " + key.encode()) * 40, status=500, content_type="text/plain"
    ),
    "error event": lambda server, key: server.answer(
        encode_events([{"error": {"type": "overloaded_error", "message": key}}])
    ),
    "no event": lambda server, key: server.answer(encode_events([f"x {key}"])),
    "no event, cut": lambda server, key: server.answer(encode_events([f"{'x' * 150} {key} {'y' * 5000}"])),
    "refusal": lambda server, key: server.answer(
        encode_events([*[make_chunk(refusal=part) for part in key], make_chunk("stop")])
    ),
}
"""Answers that are failures, with a form of the key in them."""


def _make_answer(server: FakeServer, *deltas: dict[str, Any]) -> None:
    server.answer(encode_events([make_chunk(**fields) for fields in deltas] + [make_chunk("stop"), "[DONE]"]))


def _make_arguments(raw: str, name: str = "add") -> list[dict[str, Any]]:
    """Make a tool call whose arguments arrive one character at a time."""
    pieces = [{"tool_calls": [make_tool(piece, index=0)]} for piece in raw]
    return [{"tool_calls": [make_tool("", name, index=0, id="call_a")]}, *pieces]


REPLIES: Mapping[str, Callable[[FakeServer, str], None]] = {
    "text": lambda server, key: _make_answer(server, {"content": f"You sent {key}."}),
    "text in pieces": lambda server, key: _make_answer(server, *[{"content": piece} for piece in f"You sent {key}."]),
    "thinking in pieces": lambda server, key: _make_answer(
        server, *[{"reasoning_content": piece} for piece in f"They sent {key}."], {"content": "hm"}
    ),
    "whole": lambda server, key: server.answer_json(
        {"choices": [{"message": {"content": key}, "finish_reason": "stop"}]}
    ),
    "cut": lambda server, key: _make_answer(server, {"content": "x" * (256 * 1024 - 30) + key + "y" * 100}),
    "arguments": lambda server, key: _make_answer(server, *_make_arguments(json.dumps({"a": [{key: f"is {key}"}]}))),
    "malformed arguments": lambda server, key: _make_answer(server, *_make_arguments(f'{{"a": "{key}')),
    "tool name": lambda server, key: _make_answer(server, *_make_arguments("{}", name=f"tool {key}")),
    "tool name, cut": lambda server, key: _make_answer(server, *_make_arguments("{}", name="x" * 230 + key)),
}
"""Replies with a form of the key in them."""

ANTHROPIC: Mapping[str, Callable[[FakeServer, str], None]] = {
    "blocks": lambda server, key: server.answer(
        encode_events(
            [
                open_message(input_tokens=1),
                start_block(0, type="thinking", thinking="", signature=""),
                *[make_delta(0, type="thinking_delta", thinking=piece) for piece in f"hm {key}"],
                make_delta(0, type="signature_delta", signature=key),
                start_block(1, type="redacted_thinking", data=key),
                start_block(2, type="text", text=""),
                *[make_delta(2, type="text_delta", text=piece) for piece in f"ah {key}"],
                start_block(3, type="tool_use", id=key, name="add", input={}),
                *[make_delta(3, type="input_json_delta", partial_json=piece) for piece in json.dumps({key: [key]})],
                *close_message("tool_use"),
            ]
        )
    ),
    "stop details": lambda server, key: server.answer(
        encode_events([open_message(), *close_message("refusal", {"category": "x", "explanation": key})])
    ),
}
"""Answers of the Messages API with a form of the key in them."""
