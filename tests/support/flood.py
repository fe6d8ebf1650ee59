"""A process that sends one request many times at once: `python -m tests.support.flood FILE`, a `Flood` as JSON."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
from pydantic import BaseModel


class Flood(BaseModel):
    """A request that is sent many times at once.

    Attributes:
        address: The service.
        token: The key.
        method: The method.
        path: The path.
        body: The file of the body; absent: there is none.
        times: How often it is sent.
        seconds: Seconds after which the client leaves: streams, waits and half-sent bodies have no end of their own.
        sends_half: The second half of the body never comes.
    """

    address: str
    token: str
    method: str = "POST"
    path: str
    body: Path | None = None
    times: int
    seconds: float = 60.0
    sends_half: bool = False


async def run_flood(flood: Flood) -> Counter[str]:
    """Send a request several times at once. Returns how often each status and word was answered."""
    answers: Counter[str] = Counter()
    body = flood.body.read_bytes() if flood.body else b""
    headers = {
        "Authorization": f"Bearer {flood.token}",
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        "Content-Length": str(len(body)),
    }

    async def send_half() -> AsyncIterator[bytes]:
        yield body[: len(body) // 2]
        await asyncio.Event().wait()

    async def send() -> None:
        try:
            async with (
                asyncio.timeout(flood.seconds),
                http.stream(flood.method, flood.path, content=send_half() if flood.sends_half else body) as answer,
            ):
                if (answer.headers.get("content-type") or "").startswith("text/event-stream"):
                    answers[f"{answer.status_code} events"] += 1
                    await answer.aread()
                    return
                await answer.aread()
                error = answer.json().get("error") or {}
                answers[f"{answer.status_code} {error.get('code')} {error.get('message')}"] += 1
        except TimeoutError:
            answers["0 left"] += 1
        except httpx.TransportError as error:
            answers[f"0 {type(error).__name__}"] += 1

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=flood.address, headers=headers, timeout=300, limits=limits) as http:
        await asyncio.gather(*(send() for _ in range(flood.times)))
    return answers


if __name__ == "__main__":
    for answer, count in asyncio.run(run_flood(Flood.model_validate_json(Path(sys.argv[1]).read_text()))).items():
        sys.stdout.write(f"{count} {answer}\n")
