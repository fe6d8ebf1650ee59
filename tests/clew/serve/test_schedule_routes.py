"""The routes of schedules, over HTTP against a Temporal server: what a tenant and a key may do with them."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from clew.schedules import Schedules
from tests.support.openapi import check_answer
from tests.support.serving import Served, make_http, make_key, run_service
from tests.support.stack import Stack
from tests.support.waiting import wait_until

NEVER = {"cron": "0 0 1 1 *", "message": {"content": "hello"}}
"""Times that do not come while a test runs."""


@pytest.fixture(scope="module")
async def served(stack: Stack) -> AsyncIterator[Served]:
    async with run_service(stack.clew) as running:
        yield running
        schedules = Schedules(stack.clew)
        for row in [row async for row in schedules.list()]:
            if row.schedule_id.startswith(running.tenant):
                await schedules.delete(row.schedule_id)


async def call(served: Served, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    """Call a route, and return the JSON of its answer, which is what the OpenAPI document says."""
    response = await served.http.request(method, path, json=body)
    assert response.status_code == status, response.text
    check_answer(method, path, status, response.json())
    return response.json()


def name_schedule() -> str:
    return f"s-{uuid.uuid4().hex[:12]}"


@pytest.mark.slow
async def test_a_schedule_sends_its_message_to_a_session_of_the_tenant(served: Served, stack: Stack) -> None:
    """Its session, its requests and itself have the names that the caller knows, and the session the tenant."""
    name, model = name_schedule(), stack.add_model("fine")
    body = {**NEVER, "schedule_id": name, "session_id": name, "config": {"model": model}, "paused": True}
    made = await call(served, "POST", "/v1/schedules", body)
    assert (made["schedule_id"], made["session_id"], made["paused"]) == (name, name, True)
    await call(served, "POST", f"/v1/schedules/{name}/trigger", {})

    async def has_sent() -> bool:
        state = await call(served, "GET", f"/v1/schedules/{name}")
        return bool(state["recent"]) and not state["running"]

    await wait_until(has_sent)
    (sent,) = (await call(served, "GET", f"/v1/schedules/{name}"))["recent"]
    answer = await call(served, "GET", f"/v1/sessions/{name}/requests/{sent['request_id']}")
    assert (answer["status"], answer["answer"], answer["session_id"]) == ("completed", "fine", name)
    assert (await call(served, "GET", f"/v1/sessions/{name}"))["metadata"] == {"tenant": served.tenant}
    again = await call(served, "POST", "/v1/schedules", body, status=400)
    assert again["error"]["code"] == "invalid_input"


async def test_a_tenant_reaches_its_own_schedules_only(served: Served, stack: Stack) -> None:
    """Another tenant lists, reads, changes, starts and deletes none of them, whatever name it sends."""
    name = name_schedule()
    body = {**NEVER, "schedule_id": name, "session_id": name, "config": {"model": stack.add_model("fine")}}
    await call(served, "POST", "/v1/schedules", body)

    async def is_listed() -> bool:
        return name in [row["schedule_id"] for row in (await call(served, "GET", "/v1/schedules"))["schedules"]]

    await wait_until(is_listed)
    assert (await served.stranger.get("/v1/schedules")).json() == {"schedules": []}
    for other in (name, f"{served.tenant}:{name}"):
        path = f"/v1/schedules/{other}"
        tried = [
            await served.stranger.get(path),
            await served.stranger.patch(path, json={"note": "mine"}),
            await served.stranger.post(f"{path}/pause"),
            await served.stranger.post(f"{path}/trigger"),
            await served.stranger.delete(path),
        ]
        assert {answer.status_code for answer in tried} == ({404} if other == name else {400})
        assert served.tenant not in tried[0].text.replace(other, "")
    assert "note" not in await call(served, "GET", f"/v1/schedules/{name}")
    assert (await call(served, "DELETE", f"/v1/schedules/{name}"))["schedule_id"] == name


@pytest.mark.parametrize(
    ("fields", "changes", "param"),
    [
        ({"agents": ("shop",)}, {"config": {"agent": "other"}}, "agent"),
        ({"agents": ("shop",)}, {"config": {"agent": "shop", "system_prompt": "Obey."}}, "system_prompt"),
        ({"agents": ("shop",)}, {"message": {"content": "hi", "max_iterations": 9}}, "max_iterations"),
        ({}, {"config": {"agent": "shop", "webhooks": [{"url": "https://example.com", "secret": "s"}]}}, "webhooks"),
        ({"max_open_sessions": 3}, {"session_prefix": "p", "session_id": None}, "session_prefix"),
    ],
)
async def test_a_key_schedules_what_it_may_do_itself(
    served: Served, stack: Stack, fields: dict[str, Any], changes: dict[str, Any], param: str
) -> None:
    """A schedule is no way around the limits of a key: neither when it is made nor when it is changed."""
    token, key = make_key("limited", served.tenant, **fields)
    body = {**NEVER, "schedule_id": name_schedule(), "session_id": "one", "config": {"agent": "shop"}}
    async with run_service(stack.clew, key) as other, make_http(other.address, token) as http:
        refused = await http.post("/v1/schedules", json={**body, **changes})
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, param)
        assert (await http.post("/v1/schedules", json=body)).status_code == 200
        refused = await http.patch(f"/v1/schedules/{body['schedule_id']}", json=changes)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, param)
        assert (await http.delete(f"/v1/schedules/{body['schedule_id']}")).status_code == 200
