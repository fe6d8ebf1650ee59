"""Builders of stream events, and recorded streams: OpenAI's chunks first, then Anthropic's named events."""

from typing import Any


def chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def tool(arguments: Any = "", name: str | None = None, **fields: Any) -> dict[str, Any]:
    return fields | {"function": {"arguments": arguments} | ({"name": name} if name is not None else {})}


def usage(**counts: Any) -> dict[str, Any]:
    return chunk() | {"choices": [], "usage": counts}


HELLO_STREAM: list[Any] = [
    chunk(role="assistant", content=""),
    chunk(content="Hel"),
    chunk(content="lo"),
    chunk("stop"),
    usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, prompt_tokens_details={"cached_tokens": 4}),
    "[DONE]",
]

TOOL_STREAM: list[Any] = [
    chunk(role="assistant", content=None, tool_calls=[tool("", "add", index=0, id="call_a", type="function")]),
    chunk(tool_calls=[tool('{"a": ', index=0)]),
    chunk(tool_calls=[tool("", "add", index=1, id="call_b", type="function")]),
    chunk(tool_calls=[tool('{"a": 3, "b": 4}', index=1)]),
    chunk(tool_calls=[tool('1, "b": 2}', index=0)]),
    chunk("tool_calls"),
    "[DONE]",
]


def start(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def opening(**usage: Any) -> dict[str, Any]:
    message: dict[str, Any] = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 0, "output_tokens": 1} | usage,
    }
    return {"type": "message_start", "message": message}


def closing(reason: str = "end_turn", details: Any = None, **usage: Any) -> list[dict[str, Any]]:
    fields = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [
        {"type": "message_delta", "delta": fields, "usage": {"output_tokens": 0} | usage},
        {"type": "message_stop"},
    ]


ANTHROPIC_STREAM: list[Any] = [
    opening(input_tokens=10, cache_read_input_tokens=70, cache_creation_input_tokens=20),
    {"type": "ping"},
    start(0, type="thinking", thinking="", signature=""),
    delta(0, type="thinking_delta", thinking="Let me "),
    delta(0, type="thinking_delta", thinking="think."),
    delta(0, type="signature_delta", signature="c2ln"),
    stop(0),
    start(1, type="redacted_thinking", data="ZGF0YQ=="),
    stop(1),
    start(2, type="text", text=""),
    delta(2, type="text_delta", text="I will "),
    delta(2, type="text_delta", text="add."),
    stop(2),
    start(3, type="tool_use", id="toolu_1", name="add", input={}),
    delta(3, type="input_json_delta", partial_json=""),
    delta(3, type="input_json_delta", partial_json='{"a": 1, '),
    delta(3, type="input_json_delta", partial_json='"b": 2}'),
    stop(3),
    start(4, type="tool_use", id="toolu_2", name="now", input={}),
    stop(4),
    *closing("tool_use", output_tokens=33),
]
