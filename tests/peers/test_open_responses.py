"""The responses and the events of `clew serve`, checked with the published schema of Open Responses.

The compliance suite of Open Responses is in no package index. Its six cases are here: a text, a stream, a prompt of
the system, a function, an image and a conversation, and beside them what may end a response otherwise.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from httpx_sse import aconnect_sse

from clew.local import Reply
from tests.support.client_suites import PROGRAMS, run_program
from tests.support.media import make_png
from tests.support.serving import run_service
from tests.support.simulated_model import simulate
from tests.support.stack import Stack

SECONDS = 60
IMAGE = f"data:image/png;base64,{base64.b64encode(make_png()).decode()}"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CASES: list[dict[str, Any]] = [
    {"input": "Hi"},
    {"input": [{"type": "message", "role": "user", "content": "Hi"}]},
    {"input": [{"role": "system", "content": "Be a pirate."}, {"role": "user", "content": "Hi"}]},
    {"input": "Weather in 'Porto'?", "tools": [WEATHER], "tool_choice": "required"},
    {
        "input": [
            {
                "role": "user",
                "content": [
                    {"type": "input_text", "text": "What is it?"},
                    {"type": "input_image", "image_url": IMAGE, "detail": "low"},
                ],
            }
        ]
    },
    {
        "input": [
            {"role": "user", "content": "I am Ada."},
            {"role": "assistant", "content": "Hello Ada."},
            {"role": "user", "content": "Who am I?"},
        ]
    },
]
INAPPLICABLE = {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "o", "schema": {"type": "object"}}}}
"""The published schema permits null alone as the JSON Schema that a response repeats."""


@pytest.mark.slow
async def test_what_is_sent_meets_the_schema_of_open_responses(stack: Stack, tmp_path: Path) -> None:
    """Each response and each event, of each case, with a stream and without."""
    models = [
        stack.add_model(simulate),
        stack.add_model(lambda _body: Reply("Once", finish_reason="content_filter")),
        stack.add_model(lambda _body: Reply("Once", finish_reason="length")),
        stack.add_model(lambda _body: Reply.error(400, "no such thing")),
    ]
    rows: list[dict[str, Any]] = []
    async with run_service(stack.clew) as served:
        for model in models:
            for case in CASES if model == models[0] else CASES[:1]:
                body = {"model": model, **case}
                made = await served.http.post("/v1/responses", json=body)
                assert made.status_code == httpx.codes.OK, made.text
                rows.append(made.json())
                async with aconnect_sse(served.http, "POST", "/v1/responses", json=body | {"stream": True}) as source:
                    rows += [json.loads(event.data) async for event in source.aiter_sse()]
        listed = (await served.http.post("/v1/responses", json={"model": models[0], **INAPPLICABLE})).json()
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    assert len(rows) > len(CASES) * 8
    status, printed = await run_program(PROGRAMS / "open_responses.py", file, environ={}, seconds=SECONDS)
    assert status == 0, printed[-5000:]
    file.write_text(json.dumps(listed))
    status, printed = await run_program(PROGRAMS / "open_responses.py", file, environ={}, seconds=SECONDS)
    assert status == 1, "what is listed passes"
    assert "JsonSchemaResponseFormat.schema" in printed
    assert "JsonSchemaResponseFormat.description" not in printed
