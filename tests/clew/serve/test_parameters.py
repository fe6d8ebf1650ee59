"""Numbers in queries and headers: each is taken, or refused with a word of the contract."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from fastapi import FastAPI

from clew.serve import Keys, ServeSettings, make_app
from tests.support.serving import run_service
from tests.support.stack import Stack

VALUES = ("0", "-1", "1" + "0" * 30, "9" * 5000, "1.5", "ten", "", "null", "NaN", "\uff11")
STREAMS = re.compile(r"/(events|stream)$")


def list_numbers(app: FastAPI) -> Iterator[tuple[str, str]]:
    """List the parameters of the routes to read that are numbers: the path and the name."""
    for path, methods in app.openapi()["paths"].items():
        for parameter in methods.get("get", {}).get("parameters", ()):
            if _is_number(parameter["schema"]) and parameter["in"] == "query" and not STREAMS.search(path):
                yield path, parameter["name"]


def _is_number(schema: dict[str, Any]) -> bool:
    return schema.get("type") in ("integer", "number") or any(map(_is_number, schema.get("anyOf", ())))


NUMBERS = sorted(list_numbers(make_app(Keys([]), settings=ServeSettings())))


def test_the_routes_have_numbers() -> None:
    """The list is not empty by mistake."""
    assert ("/v1/sessions/{session_id}/window", "token_budget") in NUMBERS
    assert len(NUMBERS) >= 12


@pytest.mark.slow
async def test_each_number_is_taken_or_refused(stack: Stack) -> None:
    """0, negative, huge, a fraction, a text: 200, or 400 with the word that the contract has for it."""
    async with run_service(stack.clew) as served:
        await served.http.put("/v1/sessions/chat", json={"model": stack.add_model("fine")})
        sent = await served.http.post("/v1/sessions/chat/messages?wait=60", json={"content": "hi", "request_id": "r"})
        assert sent.status_code == 200
        response = (
            await served.http.post("/v1/responses", json={"model": stack.add_model("fine"), "input": "hi"})
        ).json()
        names = {"session_id": "chat", "request_id": "r", "response_id": response["id"]}
        for path, name in NUMBERS:
            named = re.sub(r"\{(\w+)(:path)?\}", lambda found: names.get(found[1], "none"), path)
            for value in VALUES:
                answer = await served.http.get(named, params={name: value})
                assert answer.status_code in (200, 400, 404), (named, name, value[:20], answer.text[:200])
                if answer.status_code == 400:
                    error = answer.json()["error"]
                    known = ("invalid_input", "invalid_value", "invalid_token_budget")
                    assert error["code"] in known, (named, name, error)
        for value in ("0", "-1"):
            refused = await served.http.get("/v1/sessions/chat/window", params={"token_budget": value})
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_token_budget")
