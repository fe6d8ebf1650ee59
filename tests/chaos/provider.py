"""A model provider with faults: a proxy before the scripted model."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections import Counter
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

from tests.chaos.http import Aborted, Connection, FaultyProxy, HttpAnswer, HttpRequest, forward

OTHER_HOST = "127.0.0.2"
"""A host that the keys of this provider must not reach."""
_HUGE_BYTES = 24 * 1024 * 1024
_USAGE = re.compile(rb'"usage": ?{"prompt_tokens": ?(\d+), ?"completion_tokens": ?(\d+)')
_JSON = {"content-type": "application/json"}
_EVENTS = {"content-type": "text/event-stream"}


class FaultyProvider(FaultyProxy):
    """A proxy before the scripted model.

    Attributes:
        served: The usage of each reply that it has passed on, or begun to.
    """

    def __init__(self, address: str, seed: int) -> None:
        super().__init__(address, seed)
        self.served: Counter[tuple[int, int]] = Counter()

    async def _answer(self, request: HttpRequest, connection: Connection, fault: str | None) -> None:
        if fault is None:
            await self._pass_on(request, connection)
            return
        self.faults[fault] += 1
        await self._fail(fault, request, connection)

    async def _fail(self, fault: str, request: HttpRequest, connection: Connection) -> None:
        match fault:
            case "reset":
                raise Aborted
            case "stall":
                await self._stall(connection)
            case "limit-seconds":
                await connection.answer(
                    HttpAnswer(429, {**_JSON, "retry-after": "1"}, b'{"error":{"message":"slow down"}}')
                )
            case "limit-date":
                later = format_datetime(datetime.now(UTC) + timedelta(seconds=2), usegmt=True)
                await connection.answer(
                    HttpAnswer(429, {**_JSON, "retry-after": later}, b'{"error":{"message":"slow down"}}')
                )
            case "error":
                # A careless server repeats the key that it was sent.
                sent = request.headers.get("authorization", "")
                body = json.dumps({"error": {"message": f"broken for {sent}"}}).encode()
                await connection.answer(HttpAnswer(500, _JSON, body))
            case "cut":
                await self._pass_on(request, connection, self._chance.randrange(200, 1500))
            case "garbage":
                await connection.answer(self._chance.randbytes(2000))
            case "redirect":
                target = f"http://{OTHER_HOST}:9/v1/chat/completions"
                await connection.answer(HttpAnswer(307, {"location": target}))
            case "malformed":
                await connection.answer(
                    HttpAnswer(200, _EVENTS, b'data: {"choices": [{"delta": {"cont\n\ndata: 7\n\n')
                )
            case "huge":
                delta = b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % (b"x" * 60_000)
                await connection.answer(HttpAnswer(200, _EVENTS, length=_HUGE_BYTES))
                for _ in range(_HUGE_BYTES // len(delta)):
                    await connection.answer(delta)
            case _:
                raise ValueError(f"no fault {fault!r}")

    async def _stall(self, connection: Connection) -> None:
        """Send nothing until the client gives up, or the faults are over."""
        ends = [asyncio.create_task(connection.wait_for_hangup()), asyncio.create_task(self.over.wait())]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for end in ends:
                end.cancel()
        raise Aborted

    async def _pass_on(self, request: HttpRequest, connection: Connection, left: float = math.inf) -> None:
        """Pass a request on, and so many bytes of its answer; then the connection is cut."""
        passed = b""
        async with aclosing(forward(request, self._address)) as chunks:
            async for chunk in chunks:
                part = chunk if left >= len(chunk) else chunk[: int(left)]
                passed += part
                if usage := _USAGE.search(passed):
                    self.served[int(usage[1]), int(usage[2])] += 1
                    passed = b""
                await connection.answer(part)
                left -= len(chunk)
                if left <= 0:
                    raise Aborted
