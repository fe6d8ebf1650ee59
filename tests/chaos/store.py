"""A bucket with faults: a proxy before a server that speaks S3."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from dataclasses import dataclass
from hashlib import md5

from clew_workflows.encryption import Sealer
from tests.chaos.http import Aborted, Connection, FaultyProxy, HttpAnswer, HttpRequest, forward

STORE, NAMESPACE = "s3://clew/chaos", "default"
"""The store of the workers, and their namespace, which is a folder of the store."""
STALE_SECONDS = 5.0
"""Seconds for which a store that serves old objects does not show a write."""
_BROKEN = HttpAnswer(500, {"content-type": "application/xml"}, b"<Error><Code>InternalError</Code></Error>")
_MISSING = HttpAnswer(404, {"content-type": "application/xml"}, b"<Error><Code>NoSuchKey</Code></Error>")


@dataclass(frozen=True)
class Version:
    """What an object was before its newest write.

    Attributes:
        body: Its bytes; None: there was no object.
        until: Until when it may still be served, on the monotonic clock.
    """

    body: bytes | None
    until: float


class FaultyStore(FaultyProxy):
    """A proxy before the bucket. It reads heads, of encrypted rounds with the keys of the clients.

    A lost write is answered as if it was done, and never done. An old object is served for a few seconds after its
    write; conditional writes are decided by the newest one, as in every bucket that has them.
    """

    def __init__(self, address: str, seed: int, sealer: Sealer) -> None:
        super().__init__(address, seed)
        self._sealer = sealer
        self._now: dict[str, bytes] = {}
        self._before: dict[str, Version] = {}

    async def _answer(self, request: HttpRequest, connection: Connection, fault: str | None) -> None:
        is_object = request.path.count("/") > 1 and "?" not in request.target
        writes, reads = request.method == "PUT" and is_object, request.method in ("GET", "HEAD") and is_object
        answer: HttpAnswer | None = None
        match fault:
            case "fail":
                answer = _BROKEN
            case "slow":
                await asyncio.sleep(self._chance.choice((0.2, 1, 3, 8)))
            case "reset":
                self.faults[fault] += 1
                raise Aborted
            case "lost-answer":
                await self._pass_on(request)
                self.faults[fault] += 1
                raise Aborted
            case "lost-write" if writes:
                answer = HttpAnswer(200, {"etag": _make_etag(request.body)})
            case "stale" if reads:
                answer = self._find_old(request)
                fault = None if answer is None else fault
            case _:
                fault = None
        if fault:
            self.faults[fault] += 1
        await connection.answer(await self._pass_on(request) if answer is None else answer)

    def _find_old(self, request: HttpRequest) -> HttpAnswer | None:
        before = self._before.get(request.path)
        if before is None or before.until < time.monotonic() or "range" in request.headers:
            return None
        if before.body is None:
            # A head that is not there makes its session a new one: the store must show a new object at once.
            return None if _is_head(request) else _MISSING
        if _is_head(request) and self._read_execution(request) != self._read_execution(request, before):
            # Nor can a session tell an old head of an earlier execution from the head of another one.
            return None
        modified = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
        headers = {"etag": _make_etag(before.body), "last-modified": modified}
        body = b"" if request.method == "HEAD" else before.body
        return HttpAnswer(200, headers, body, len(before.body))

    def _read_execution(self, request: HttpRequest, version: Version | None = None) -> str | None:
        """Read which execution has written a version of a head, or the newest one."""
        body = version.body if version else self._now.get(request.path)
        name = request.path.removeprefix(f"{STORE.removeprefix('s3:/')}/{NAMESPACE}/")
        execution: str | None = json.loads(self._sealer.unseal(body or b"", name) or b"{}").get("run_id")
        return execution

    async def _pass_on(self, request: HttpRequest) -> bytes:
        async with aclosing(forward(request, self._address)) as chunks:
            answer = b"".join([chunk async for chunk in chunks])
        status = answer.split(b" ", 2)[1:2]
        if request.method == "PUT" and status == [b"200"]:
            until = time.monotonic() + STALE_SECONDS
            self._before[request.path] = Version(self._now.get(request.path), until)
            self._now[request.path] = request.body
        elif request.method == "DELETE":
            self._now.pop(request.path, None)
        return answer


def _is_head(request: HttpRequest) -> bool:
    return "/sessions/" in request.path


def _make_etag(body: bytes) -> str:
    return f'"{md5(body, usedforsecurity=False).hexdigest()}"'
