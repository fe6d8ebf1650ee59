"""The health port of a worker."""

from __future__ import annotations

import asyncio
import socket
import struct

import httpx
import pytest

from clew.local.child import LOOPBACK, free_ports
from clew_activities.worker.health import Health, serve_health
from clew_activities.worker.process import WorkerLoop
from tests.support.scraping import run_observed_worker
from tests.support.stack import Stack


@pytest.fixture
async def address() -> tuple[str, int]:
    return LOOPBACK, free_ports(1)[0]


async def pass_check() -> str | None:
    return None


async def fail_check() -> str | None:
    return "it is away"


async def break_check() -> str | None:
    raise OSError("https://user:hunter2@store")


async def hang_check() -> str | None:
    await asyncio.Event().wait()
    return None


async def test_a_worker_is_live_and_ready(stack: Stack) -> None:
    """A worker process whose server and store answer."""
    async with run_observed_worker(stack, "health") as worker, httpx.AsyncClient(trust_env=False) as http:
        for path in ("/live", "/ready"):
            answer = await http.get(worker.health + path)
            assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_a_part_that_does_not_answer_is_named() -> None:
    """The reason is the part's own, the class of its error, or that the time is over. No address leaks."""
    checks = {"pollers": pass_check, "server": fail_check, "store": break_check, "disk": hang_check}
    assert await Health(checks, check_seconds=0.05).find_problems() == {
        "server": "it is away",
        "store": "OSError",
        "disk": "no answer within 0.05 seconds",
    }


async def test_a_worker_that_is_not_ready_is_still_live(address: tuple[str, int]) -> None:
    """`/ready` answers 503 with the reason, `/live` 200; other paths and methods are refused."""
    async with serve_health(address, {"server": fail_check}), httpx.AsyncClient(trust_env=False) as http:
        url = f"http://{address[0]}:{address[1]}"
        ready = await http.get(f"{url}/ready")
        assert (ready.status_code, ready.json()) == (503, {"status": "not ready", "server": "it is away"})
        assert (await http.get(f"{url}/live")).status_code == 200
        assert (await http.head(f"{url}/live")).status_code == 200
        assert (await http.get(f"{url}/other")).status_code == 404
        assert (await http.post(f"{url}/live")).status_code == 405


async def test_probes_do_not_reach_the_server_each_time() -> None:
    """A result is repeated for a moment: a second probe costs no check."""
    checks = 0

    async def count() -> str | None:
        nonlocal checks
        checks += 1
        return None

    port = Health({"server": count})
    await asyncio.gather(*(port.find_problems() for _ in range(10)))
    assert checks == 1


@pytest.mark.parametrize("sent", [b"", b"\xff\xfe\r\n\r\n", b"GET /" + b"x" * 10_000, b"\r\n\r\n"])
async def test_what_is_no_request_does_no_harm(address: tuple[str, int], sent: bytes) -> None:
    """The connection is closed, and the next request is answered."""
    async with serve_health(address, {}):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(sent)
        writer.write_eof()
        await reader.read()
        writer.close()
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"http://{address[0]}:{address[1]}/live")).status_code == 200


async def test_a_port_that_is_taken_is_told(address: tuple[str, int]) -> None:
    """The worker cannot start, and the message names the port."""
    async with serve_health(address, {}):
        with pytest.raises(ValueError, match=f"the health port {address[0]}:{address[1]} cannot be opened"):
            async with serve_health(address, {}):
                pass


def test_a_client_that_leaves_during_a_check_is_no_error(address: tuple[str, int]) -> None:
    """On the worker's event loop: nothing is written to the closed connection, and the next client is answered."""
    errors: list[object] = []

    async def leave() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        asked, left = asyncio.Event(), asyncio.Event()

        async def check() -> str | None:
            asked.set()
            await left.wait()
            return None

        async with serve_health(address, {"slow": check}), httpx.AsyncClient(trust_env=False) as http:
            _, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /ready HTTP/1.1\r\nhost: h\r\n\r\n")
            await asked.wait()
            # Not closed in order, so that the server's side is closed at once.
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()
            url = f"http://{address[0]}:{address[1]}"
            assert (await http.get(f"{url}/live")).status_code == 200
            left.set()
            assert (await http.get(f"{url}/ready")).status_code == 200

    with asyncio.Runner(loop_factory=WorkerLoop) as runner:
        runner.run(leave())
    assert errors == []
