"""Builders of stream events, and recorded streams: OpenAI's chunks first, then Anthropic's named events."""

from typing import Any


def make_chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def make_tool(arguments: Any = "", name: str | None = None, **fields: Any) -> dict[str, Any]:
    return fields | {"function": {"arguments": arguments} | ({"name": name} if name is not None else {})}


def make_usage(**counts: Any) -> dict[str, Any]:
    return make_chunk() | {"choices": [], "usage": counts}


HELLO_STREAM: list[Any] = [
    make_chunk(role="assistant", content=""),
    make_chunk(content="Hel"),
    make_chunk(content="lo"),
    make_chunk("stop"),
    make_usage(prompt_tokens=10, completion_tokens=2, total_tokens=12, prompt_tokens_details={"cached_tokens": 4}),
    "[DONE]",
]

TOOL_STREAM: list[Any] = [
    make_chunk(
        role="assistant", content=None, tool_calls=[make_tool("", "add", index=0, id="call_a", type="function")]
    ),
    make_chunk(tool_calls=[make_tool('{"a": ', index=0)]),
    make_chunk(tool_calls=[make_tool("", "add", index=1, id="call_b", type="function")]),
    make_chunk(tool_calls=[make_tool('{"a": 3, "b": 4}', index=1)]),
    make_chunk(tool_calls=[make_tool('1, "b": 2}', index=0)]),
    make_chunk("tool_calls"),
    "[DONE]",
]


def start_block(index: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": index, "content_block": block}


def make_delta(index: int, **fields: Any) -> dict[str, Any]:
    return {"type": "content_block_delta", "index": index, "delta": fields}


def stop_block(index: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": index}


def open_message(**usage: Any) -> dict[str, Any]:
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


def close_message(reason: str = "end_turn", details: Any = None, **usage: Any) -> list[dict[str, Any]]:
    fields = {"stop_reason": reason, "stop_sequence": None, "stop_details": details}
    return [
        {"type": "message_delta", "delta": fields, "usage": {"output_tokens": 0} | usage},
        {"type": "message_stop"},
    ]


ANTHROPIC_STREAM: list[Any] = [
    open_message(input_tokens=10, cache_read_input_tokens=70, cache_creation_input_tokens=20),
    {"type": "ping"},
    start_block(0, type="thinking", thinking="", signature=""),
    make_delta(0, type="thinking_delta", thinking="Let me "),
    make_delta(0, type="thinking_delta", thinking="think."),
    make_delta(0, type="signature_delta", signature="c2ln"),
    stop_block(0),
    start_block(1, type="redacted_thinking", data="ZGF0YQ=="),
    stop_block(1),
    start_block(2, type="text", text=""),
    make_delta(2, type="text_delta", text="I will "),
    make_delta(2, type="text_delta", text="add."),
    stop_block(2),
    start_block(3, type="tool_use", id="toolu_1", name="add", input={}),
    make_delta(3, type="input_json_delta", partial_json=""),
    make_delta(3, type="input_json_delta", partial_json='{"a": 1, '),
    make_delta(3, type="input_json_delta", partial_json='"b": 2}'),
    stop_block(3),
    start_block(4, type="tool_use", id="toolu_2", name="now", input={}),
    stop_block(4),
    *close_message("tool_use", output_tokens=33),
]
