"""Requests, streams and validators for the tests of the providers."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter

from clew.contract import ModelOptions
from clew_activities.providers import Redaction
from clew_activities.providers.interface import Decoder, ModelRequest, Provider
from clew_activities.providers.reply import RedactedDecoder
from clew_workflows.contract.messages import Message, ToolSpec
from clew_workflows.protocol import ModelReply

ADD: ToolSpec = {
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}

HELLO: Message = {"role": "user", "content": "hello"}


def make_request(
    *messages: Message,
    model: str = "m",
    tools: Sequence[ToolSpec] = (),
    output_schema: dict[str, Any] | None = None,
    cache_key: str | None = None,
    **options: Any,
) -> ModelRequest:
    set_options: dict[str, Any] = {"max_output_tokens": 4096, **options}
    return ModelRequest(
        model=model,
        messages=messages or (HELLO,),
        tools=tools,
        options=ModelOptions(**set_options),
        output_schema=output_schema,
        cache_key=cache_key,
    )


def make_redacted_decoder(provider: Provider, redaction: Redaction | None = None) -> RedactedDecoder:
    return RedactedDecoder(provider.make_decoder(make_request()), redaction or Redaction())


def make_call(name: str = "add", call_id: str = "tc_1", content: str = "", **arguments: Any) -> Message:
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": call_id, "name": name, "arguments": arguments}],
    }


def make_result(content: str, call_id: str = "tc_1") -> Message:
    return {"role": "tool", "content": content, "tool_call_id": call_id, "name": "add"}


def decode(decoder: Decoder, events: Iterable[Any]) -> ModelReply:
    for event in events:
        decoder.feed("message", event if isinstance(event, str) else json.dumps(event))
    return decoder.finish()


def encode_events(events: Iterable[Any]) -> bytes:
    """Encode events as server-sent events, each named by its `type` if it has one."""
    frames = []
    for event in events:
        name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
        frames.append(f"{name}data: {event if isinstance(event, str) else json.dumps(event)}\n\n")
    return "".join(frames).encode()


def assert_accepted(params: Any, body: dict[str, Any]) -> None:
    """Assert that a body is valid for the official package's type, and has no unknown field."""
    adapter = TypeAdapter(params)  # its iterators are lazy and need it alive
    assert _drain(adapter.validate_python(body)) == body


def _drain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _drain(item) for key, item in value.items()}
    if isinstance(value, str | int | float | bool | None):
        return value
    return [_drain(item) for item in value]
