"""The worker's event loop."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from clew.local import Reply, scripted_model
from clew.local.child import LOOPBACK
from clew_activities.providers import make_http_client
from clew_activities.worker.capacity import Capacity, make_room
from clew_activities.worker.runtime import WorkerLoop

HANGING = 20


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let lookups of `hangs.test` wait for an event. `answers.test` is this machine."""
    event, look_up = threading.Event(), socket.getaddrinfo

    def resolve(host: Any, *args: Any, **kwargs: Any) -> Any:
        if host in ("hangs.test", b"hangs.test"):
            event.wait(60)
        return look_up(LOOPBACK, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    yield event
    event.set()


def test_lookups_that_hang_do_not_block_those_of_other_calls(answered: threading.Event) -> None:
    """Twenty names are looked up without an answer, and the model at another one is called."""

    async def call() -> None:
        loop = asyncio.get_running_loop()
        make_room(loop, Capacity(model_calls=HANGING + 1))
        waiting = [asyncio.ensure_future(loop.getaddrinfo("hangs.test", 80)) for _ in range(HANGING)]
        async with scripted_model(lambda _body: Reply("here")) as model, make_http_client() as http:
            url = model.base_url.replace(LOOPBACK, "answers.test")
            response = await http.post(f"{url}/chat/completions", json={"messages": []}, timeout=10)
        assert response.json()["choices"][0]["message"]["content"] == "here"
        assert not any(lookup.done() for lookup in waiting)
        answered.set()
        await asyncio.gather(*waiting)

    with asyncio.Runner(loop_factory=WorkerLoop) as runner:
        runner.run(call())
