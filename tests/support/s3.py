"""A real HTTP server that speaks S3, its bucket's versions, and a bucket without space."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, cast
from xml.etree import ElementTree

import httpx

from tests.support.waiting import PATIENCE_SECONDS

BUCKET = "clew"
# The server reads who calls, and does not verify the signature.
_SIGNED = {
    "authorization": "AWS4-HMAC-SHA256 Credential=AKIAEXAMPLE/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=none"
}
_HOP_BY_HOP = {"connection", "content-length", "date", "server", "transfer-encoding"}
_NAMESPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@contextmanager
def run_s3() -> Iterator[str]:
    """Run the server, with an empty bucket `BUCKET`, and yield its address."""
    from moto.server import ThreadedMotoServer  # noqa: PLC0415 - takes a second

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        address = f"http://{host}:{port}"
        # The first request imports the backend: that takes seconds on a busy machine.
        httpx.put(f"{address}/{BUCKET}", timeout=PATIENCE_SECONDS).raise_for_status()
        yield address
    finally:
        server.stop()


def make_s3_env(address: str) -> dict[str, str]:
    """Make the environment of a worker whose bucket is on this server."""
    return {
        "AWS_ENDPOINT_URL": address,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": "AKIAEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "not-to-be-seen",
        "AWS_REGION": "us-east-1",
    }


def keep_versions(address: str) -> None:
    """Have the bucket keep the versions of its objects."""
    body = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    httpx.put(f"{address}/{BUCKET}?versioning", content=body).raise_for_status()


def list_versions(address: str) -> dict[str, str]:
    """List the newest version of each object that is not deleted."""
    answer = httpx.get(f"{address}/{BUCKET}?versions&max-keys=100000").raise_for_status()
    versions = ElementTree.fromstring(answer.content).iter(f"{_NAMESPACE}Version")
    fields = [{field.tag.removeprefix(_NAMESPACE): field.text or "" for field in version} for version in versions]
    return {version["Key"]: version["VersionId"] for version in fields if version["IsLatest"] == "true"}


def restore_versions(address: str, versions: dict[str, str]) -> None:
    """Give each object the content of a version, and delete those without one, as a restore to a time does."""
    current = list_versions(address)
    with httpx.Client(base_url=f"{address}/{BUCKET}/", headers=_SIGNED) as client:
        for key in current.keys() - versions.keys():
            client.delete(key).raise_for_status()
        for key, version in versions.items():
            if current.get(key) != version:
                old = client.get(key, params={"versionId": version}).raise_for_status()
                client.put(key, content=old.content).raise_for_status()


class FullBucket(ThreadingHTTPServer):
    """Passes requests on to a server that speaks S3. While it is `full`, it refuses writes as one without space does.

    Attributes:
        full: Whether writes are refused.
        refused: The number of writes that were refused.
    """

    daemon_threads = True

    def __init__(self, target: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.full = False
        self.refused = 0
        self.client = httpx.Client(base_url=target)

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.server_port}"

    @contextmanager
    def run(self) -> Iterator[FullBucket]:
        """Serve in a thread."""
        thread = Thread(target=self.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()
            self.client.close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _pass_on(self) -> None:
        bucket = cast("FullBucket", self.server)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if bucket.full and self.command in ("PUT", "POST"):
            bucket.refused += 1
            self._answer(HTTPStatus.INSUFFICIENT_STORAGE, {}, b"<Error><Code>InsufficientStorage</Code></Error>")
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        answer = bucket.client.request(self.command, self.path, headers=headers, content=body)
        kept = {name: value for name, value in answer.headers.items() if name not in _HOP_BY_HOP}
        length = answer.headers.get("content-length") if self.command == "HEAD" else None
        self._answer(answer.status_code, kept, answer.content, length)

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", length or str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _pass_on  # noqa: N815 - the standard library's names

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Log nothing."""
