"""Where a company's network needs it, HTTPS believes an authority of one's own and goes by a proxy."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clew.local.child import LOOPBACK
from tests.support.processes import ROOT
from tests.support.tls import make_certificates

CALLS = {
    "model": """
import asyncio, sys
from clew_activities.providers import make_http_client

async def main(url):
    async with make_http_client() as http:
        print((await http.get(url)).status_code)

asyncio.run(main(sys.argv[1]))
""",
    "store": """
import asyncio
from clew_activities.archive import ObjectMissing, Store

async def main():
    try:
        await Store.from_url("s3://bucket/prefix").get("one")
    except ObjectMissing:
        print(404)

asyncio.run(main())
""",
}
"""Calls an address as a model is called, and reads an object of a bucket that is not there."""


class Handler(BaseHTTPRequestHandler):
    """Has nothing, and says so. As a proxy it notes what it should connect to, and refuses."""

    connected: list[str]

    def do_GET(self) -> None:
        """Answer that there is no such thing."""
        body = b"<Error><Code>NoSuchKey</Code></Error>"
        self.send_response(404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_CONNECT(self) -> None:
        """Note the address."""
        self.connected.append(self.path)
        self.send_error(403)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
        """Say nothing."""


@contextmanager
def serve(context: ssl.SSLContext | None = None) -> Iterator[tuple[int, list[str]]]:
    """Run a server on loopback; the value is its port, and where it was to connect as a proxy."""
    connected: list[str] = []
    handler = type("OneHandler", (Handler,), {"connected": connected})
    with ThreadingHTTPServer((LOOPBACK, 0), handler) as server:
        if context is not None:
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, connected
        finally:
            server.shutdown()
            thread.join()


def call(part: str, url: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Call a model's address, or a bucket's, in a process with these variables."""
    ours = {name: value for name, value in os.environ.items() if not re.search("proxy|cert", name, re.IGNORECASE)}
    packages = [str(ROOT / name) for name in ("client", "workflows", "activities", "audit")]
    keys = {"AWS_ACCESS_KEY_ID": "one", "AWS_SECRET_ACCESS_KEY": "two", "AWS_REGION": "us-east-1"}
    return subprocess.run(
        [sys.executable, "-c", CALLS[part], url],
        env={**ours, **keys, "PYTHONPATH": os.pathsep.join(packages), "AWS_ENDPOINT_URL": url, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.mark.slow
@pytest.mark.parametrize("part", CALLS)
def test_models_and_the_store_believe_the_authorities_of_a_file(part: str, tmp_path: Path) -> None:
    """`SSL_CERT_FILE` names it; without the authority in it neither is reached."""
    with serve(make_certificates(tmp_path)) as (port, _):
        url = f"https://{LOOPBACK}:{port}"
        believed = call(part, url, SSL_CERT_FILE=str(tmp_path / "ca.crt"))
        assert believed.stdout.strip() == "404", believed.stderr
        assert call(part, url).returncode != 0


@pytest.mark.slow
@pytest.mark.parametrize("part", CALLS)
def test_models_and_the_store_are_reached_by_the_proxy(part: str) -> None:
    """`HTTPS_PROXY` names it, and `NO_PROXY` what is reached without it."""
    with serve() as (port, connected):
        proxy = {"HTTPS_PROXY": f"http://{LOOPBACK}:{port}"}
        assert call(part, "https://models.example", **proxy).returncode != 0
        assert connected
        assert {address.rpartition(".")[2] for address in connected} == {"example:443"}
        connected.clear()
        assert call(part, f"https://{LOOPBACK}:1", **proxy, NO_PROXY=LOOPBACK).returncode != 0
        assert connected == []
