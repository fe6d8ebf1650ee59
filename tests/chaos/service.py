"""`clew serve` in a process of its own, which is killed, stopped and drained, and comes back at its port."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, aclosing, suppress
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import ServerSentEvent, aconnect_sse

from clew.errors import REFUSALS, ClewError, ServerUnreachable
from clew.local import StartFailed
from clew.local.child import LOOPBACK, Child, child_process, free_ports
from clew_workflows.contract.errors import make_error
from tests.chaos.plan import TENANT
from tests.chaos.processes import send_signal
from tests.support.serving import make_key

STRANGER = "other"
"""A tenant that must read nothing of what the other one has."""
DRAIN_SECONDS = 3
_START_SECONDS, _RETRY_SECONDS, _ANSWER_SECONDS = 60.0, 0.5, 70.0
_PASSING = (429, 502, 503, 504)
"""Statuses of what may be sent again."""
# Log records that no fault excuses.
_WRONG = ("panicked at", "a stream has failed")
_RECORD = re.compile(r"^(?=\d{4}-\d\d-\d\d[ T])", re.MULTILINE)


class Web:
    """The service as the callers with one key have it."""

    def __init__(self, address: str, token: str) -> None:
        headers = {"Authorization": f"Bearer {token}"}
        self._http = httpx.AsyncClient(base_url=address, headers=headers, timeout=_ANSWER_SECONDS, trust_env=False)

    async def close(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def call(self, method: str, path: str, **options: Any) -> httpx.Response:
        """Send a request, and return its answer.

        Raises:
            Refusal: The service refused it, with a word of the contract.
            ClewError: There was no answer, or one after which the request is to be sent again.
            RuntimeError: The answer is none that the service may give.
        """
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"the service does not answer: {type(error).__name__}") from error
        if answer.is_success:
            return answer
        try:
            problem = answer.json()["error"]
        except (ValueError, KeyError, TypeError):
            raise RuntimeError(f"the service answers {answer.status_code}: {answer.text[:100]!r}") from None
        code, about = str(problem.get("code")), f"the service answers {answer.status_code}: {problem}"
        if code in REFUSALS:
            raise make_error(code, str(problem.get("message")))
        if answer.status_code in _PASSING:
            raise ClewError(about[:200])
        raise RuntimeError(about)

    async def receive(
        self, path: str, *, from_seq: int | None = None, cursor: str = ""
    ) -> AsyncGenerator[ServerSentEvent, None]:
        """Receive server-sent events, until the stream ends.

        Raises:
            ClewError: There is no stream, or it was cut.
            NotFound: There is no such session.
        """
        params = {} if from_seq is None else {"from_seq": from_seq}
        headers = {"Last-Event-ID": cursor} if cursor else {}
        try:
            async with aconnect_sse(self._http, "GET", path, params=params, headers=headers) as source:
                if not source.response.is_success:
                    await source.response.aread()
                    code = str(source.response.json().get("error", {}).get("code"))
                    raise make_error(code, "") if code in REFUSALS else ClewError(f"no stream: {code}")
                async with aclosing(source.aiter_sse()) as events:
                    async for event in events:
                        yield event
        except httpx.HTTPError as error:
            raise ServerUnreachable(f"the stream was cut: {type(error).__name__}") from error


class Service:
    """The process. A killed one is started again.

    Attributes:
        tenant: The service for the tenant's callers.
        stranger: The service for those of another tenant.
        operator: The service for operators, who reach all sessions.
        faults: How often the process was killed, stopped or drained.
        records: Log records that no fault excuses.
    """

    def __init__(self, address: str, env: Mapping[str, str], folder: Path) -> None:
        (self._port,) = free_ports(1)
        self.faults = 0
        self.records: list[str] = []
        rows: list[str] = []
        tokens: list[str] = []
        for tenant in (TENANT, STRANGER, "*"):
            token, key = make_key(f"of-{len(rows)}", tenant)
            tokens.append(token)
            rows.append(f'[[key]]\nname = "{key.name}"\nhash = "{key.hash}"\ntenant = "{tenant}"\n')
        self.tenant, self.stranger, self.operator = (Web(f"http://{LOOPBACK}:{self._port}", one) for one in tokens)
        keys = folder / "keys.toml"
        keys.write_text("\n".join(f"{row}requests_per_minute = 100000\n" for row in rows))
        options = ("--keys", keys, "--port", str(self._port), "--address", address)
        self._command = (sys.executable, "-m", "clew.cli", "serve", *options, "--drain-seconds", str(DRAIN_SECONDS))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
        self._env = {**kept, **env, "PYTHONUNBUFFERED": "1"}
        self._log = folder / "service.log"
        self._lock = asyncio.Lock()
        self._process: Child | None = None
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Service:
        await self._start()
        return self

    async def __aexit__(self, *_error: object) -> None:
        for web in (self.tenant, self.stranger, self.operator):
            await web.close()
        await self._end()

    async def fail(self, how: str, seconds: float) -> None:
        """Kill the process, let it drain, or stop it, for some seconds."""
        async with self._lock:
            self.faults += 1
            if how == "stop":
                send_signal(self._process, signal.SIGSTOP)
                try:
                    await asyncio.sleep(seconds)
                finally:
                    send_signal(self._process, signal.SIGCONT)
                return
            if self._process and how == "kill":
                await self._process.kill()
            await self._end()
            await asyncio.sleep(seconds)
            await self._start()

    async def change_environment(self, changes: Mapping[str, str]) -> None:
        """Restart the process with other variables."""
        async with self._lock:
            await self._end()
            self._env |= changes
            await self._start()

    async def _start(self) -> None:
        """Start it, as often as it takes: the Temporal server may be away."""
        while True:
            try:
                running = child_process("serve", self._command, env=self._env, grace_seconds=DRAIN_SECONDS + 5)
                self._process = await self._stack.enter_async_context(running)
                await self._process.wait_until(self._lives, _START_SECONDS)
                return
            except StartFailed:
                await self._end()
                await asyncio.sleep(_RETRY_SECONDS)

    async def _lives(self) -> bool:
        with suppress(ClewError):
            return (await self.operator.call("GET", "/health/live")).is_success
        return False

    async def _end(self) -> None:
        """Let it drain and end, and read its log."""
        send_signal(self._process, signal.SIGCONT)
        if self._process:
            await self._process.stop(DRAIN_SECONDS + 5)
            text = self._process.log.read_text(errors="replace")
            with self._log.open("a") as log:
                log.write(text)
            self.records += [one.strip() for one in _RECORD.split(text) if any(word in one for word in _WRONG)]
        self._process = None
        await self._stack.aclose()
