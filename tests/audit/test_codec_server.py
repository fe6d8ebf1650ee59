"""The codec server decrypts for those who have its token, in the origins that it allows, within bounds."""

from __future__ import annotations

import asyncio
import json
import time
from base64 import b64encode
from collections.abc import Sequence

import httpx
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import WorkflowSerializationContext

from clew_activities.http_server import MAX_CONNECTIONS, REQUEST_SECONDS, Request, Response, serve_http
from clew_audit.codec_server import (
    MAX_BODY_BYTES,
    MAX_LOGIN_BYTES,
    PROBLEM_FIELD,
    CodecServer,
)
from clew_workflows.encryption import EncryptionCodec
from tests.support.encrypted import Reversing, make_encryption
from tests.support.waiting import PATIENCE_SECONDS

TOKEN = "a-token-of-many-characters"
UI = "https://temporal.example.com"
JSON = {"content-type": "application/json"}
BEARER = {"authorization": f"Bearer {TOKEN}"}
PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a secret"')


def make_server(*kids: str) -> CodecServer:
    """Make a server with these keys, or with `k1`."""
    return CodecServer(make_encryption(*(kids or ("k1",))).codec, TOKEN, [UI])


def write(*payloads: Payload) -> bytes:
    """Write a body."""
    return json.dumps(MessageToDict(Payloads(payloads=payloads))).encode()


def read(response: Response | httpx.Response) -> list[Payload]:
    """Read the payloads of a response."""
    body = response.body if isinstance(response, Response) else response.content
    return list(ParseDict(json.loads(body), Payloads()).payloads)


async def encrypt(*kids: str) -> Payload:
    """Encrypt a payload of a session."""
    codec = EncryptionCodec(make_encryption(*kids).cipher)
    context = WorkflowSerializationContext(namespace="default", workflow_id="s")
    (encrypted,) = await codec.with_context(context).encode([PLAIN])
    return encrypted


async def post(path: str, body: bytes, **headers: str) -> Response:
    """Send a request with the token."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await make_server().answer(Request("POST", path, JSON | BEARER | named, body))


async def test_payloads_are_decoded_and_encoded() -> None:
    """Those of any session; one that is not encrypted stays as it is."""
    decoded = await post("/decode", write(await encrypt("k1"), PLAIN), origin=UI)
    assert (decoded.status, read(decoded)) == (200, [PLAIN, PLAIN])
    encoded = read(await post("/encode", write(PLAIN)))
    assert b"secret" not in encoded[0].data
    assert read(await post("/encode", write(*encoded))) == encoded
    assert read(await post("/decode", write(*encoded))) == [PLAIN]


async def test_each_payload_that_cannot_be_decoded_is_answered_as_such() -> None:
    """It stays as it is, beside the reason; the good ones around it are decoded. A second try gives the same."""
    newer, oldest, foreign = await encrypt("k1"), await encrypt("k1"), await encrypt("k2")
    newer.metadata["clew-version"], oldest.metadata["clew-version"] = b"2", b"0"
    cipher = make_encryption("k1").cipher
    malformed = Payload(metadata={"encoding": b"binary/encrypted", "clew-version": b"1", "clew-key": b"k1"})
    malformed.data = cipher.encrypt(b"\xff no protobuf", b"clew payload\0k1\0")
    bad = [newer, oldest, foreign, malformed]
    decoded = await post("/decode", write(await encrypt("k1"), *bad, PLAIN))
    assert decoded.status == 200
    first, *answered, last = read(decoded)
    assert (first, last) == (PLAIN, PLAIN)
    assert all(payload.metadata[PROBLEM_FIELD] for payload in answered)
    assert b"'k2'" in answered[2].metadata[PROBLEM_FIELD]
    assert read(await post("/decode", write(*answered))) == answered
    for payload in answered:
        del payload.metadata[PROBLEM_FIELD]
    assert answered == bad


async def test_a_codec_that_fails_spoils_no_other_payload() -> None:
    """A codec of one's own may raise any error; its message, which may hold a text, is not repeated."""

    class Failing(Reversing):
        async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
            if payloads[0].data == b"bad":
                raise OSError("a secret")
            return await super().decode(payloads)

    codec = Failing()
    good = await codec.encode([PLAIN])
    server = CodecServer(codec, TOKEN, [UI])
    body = write(Payload(data=b"bad"), *good)
    response = await server.answer(Request("POST", "/decode", JSON | BEARER, body))
    bad, decoded = read(response)
    assert (bad.metadata[PROBLEM_FIELD], decoded) == (b"OSError", PLAIN)


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/login", {"origin": "http://{host}"}, 413),
        ("/login", {"origin": "http://evil.example.com"}, 403),
        ("/decode", JSON, 401),
        ("/encode", JSON | {"authorization": "Bearer wrong"}, 401),
        ("/decode", BEARER, 415),
        ("/nowhere", {}, 404),
    ],
)
@pytest.mark.parametrize("is_announced", [True, False])
async def test_a_body_is_read_only_if_it_is_needed(
    path: str, headers: dict[str, str], status: int, is_announced: bool
) -> None:
    """A large body from a caller without the token is answered by its head, or by its first kilobytes."""
    async with serve_http(make_server(), "127.0.0.1", 0) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        host = f"127.0.0.1:{port}"
        size = f"content-length: {MAX_BODY_BYTES}" if is_announced else "transfer-encoding: chunked"
        lines = [f"POST {path} HTTP/1.1", f"host: {host}", size]
        lines += [f"{name}: {value.format(host=host)}" for name, value in headers.items()]
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n")
        if not is_announced:
            writer.write(b"%x\r\n" % MAX_LOGIN_BYTES + bytes(MAX_LOGIN_BYTES) + b"\r\n1\r\n-\r\n")
        # The body never ends: the server answers all the same.
        async with asyncio.timeout(PATIENCE_SECONDS):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 %d " % status)
        writer.close()


async def test_an_error_of_the_server_is_an_answer() -> None:
    """An error that nobody expected is answered with 500."""

    class Broken(CodecServer):
        async def answer(self, request: Request) -> Response:
            raise KeyError(request.path)

    async with (
        serve_http(Broken(make_encryption("k1").codec, TOKEN, []), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER, trust_env=False) as client,
    ):
        assert (await client.post("/decode", content=b"{}", headers=JSON)).status_code == 500


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer wrong"}, 401),
        ({"authorization": f"Basic {b64encode(TOKEN.encode()).decode()}"}, 401),
        ({"authorization": "Bearer \u00fc"}, 401),
        ({"cookie": f"clew-codec={TOKEN}", "origin": UI}, 401),
        ({"cookie": "clew-codec=\u00fc", "origin": UI}, 401),
        ({**BEARER, "origin": "https://evil.example.com"}, 403),
        ({**BEARER, "origin": f"{UI}.evil.com"}, 403),
        ({**BEARER, "origin": "null"}, 403),
        (BEARER, 200),
        ({**BEARER, "origin": UI}, 200),
    ],
)
async def test_the_token_and_the_origin_decide(headers: dict[str, str], status: int) -> None:
    """Nothing is decoded for anyone else, and no browser may read the answer in another origin."""
    body = write(await encrypt("k1"))
    response = await make_server().answer(Request("POST", "/decode", JSON | headers, body))
    assert response.status == status
    assert (b64encode(b'"a secret"') in response.body) == (status == 200)
    allowed = response.headers.get("Access-Control-Allow-Origin")
    assert allowed == (UI if headers.get("origin") == UI else None)
    assert TOKEN not in str(response)


async def test_a_browser_may_ask_first() -> None:
    """The preflight names the headers that the Temporal UI sends, also for a page of a public address."""
    asking = {"origin": UI, "access-control-request-private-network": "true"}
    response = await make_server().answer(Request("OPTIONS", "/decode", asking))
    assert response.status == 204
    assert {"authorization", "content-type", "x-namespace"} <= set(
        response.headers["Access-Control-Allow-Headers"].split(", ")
    )
    assert response.headers["Access-Control-Allow-Private-Network"] == "true"
    assert (await make_server().answer(Request("OPTIONS", "/decode", {"origin": "https://evil"}))).status == 403


async def test_a_browser_gets_a_cookie_for_the_token() -> None:
    """The cookie does not hold the token, works in the UI's origin alone, and the page takes no foreign form."""
    server, form = make_server(), f"token={TOKEN}".encode()
    own = {"origin": "https://codec.example.com", "host": "codec.example.com"}
    assert (await server.answer(Request("POST", "/login", own, b"token=wrong"))).status == 403
    assert (await server.answer(Request("POST", "/login", own | {"origin": "https://evil"}, form))).status == 403
    cookie = (await server.answer(Request("POST", "/login", own, form))).headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Secure"} <= set(cookie.split("; "))
    assert TOKEN not in cookie
    sent = JSON | {"cookie": cookie.partition(";")[0]}
    body = write(await encrypt("k1"))
    assert (await server.answer(Request("POST", "/decode", sent | {"origin": UI}, body))).status == 200
    assert (await server.answer(Request("POST", "/decode", sent, body))).status == 401


@pytest.mark.parametrize(
    "body", [b"", b"{", b"1", b'"x"', b"[1]", b'{"payloads": 1}', b'{"payloads": [{"data": 1}]}', b"[" * 9999]
)
async def test_a_malformed_body_is_refused(body: bytes) -> None:
    """No JSON, another shape or too deep: the answer is 400."""
    assert (await post("/decode", body)).status == 400


async def test_a_short_token_is_refused() -> None:
    """A server that anyone can use does not start."""
    for token in ("", "short"):
        with pytest.raises(ValueError, match="CLEW_CODEC_TOKEN"):
            CodecServer(make_encryption("k1").codec, token, [])


async def test_it_is_served_within_bounds() -> None:
    """Connections are kept alive; what is too large, too slow or not HTTP ends its own connection."""
    async with (
        serve_http(make_server(), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER, trust_env=False) as client,
    ):
        for _ in range(2):
            response = await client.post(
                "/decode?preserveStorageRefs=true", content=write(await encrypt("k1")), headers=JSON
            )
            assert read(response) == [PLAIN]
        large = await client.post("/decode", content=bytes(MAX_BODY_BYTES + 1), headers=JSON)
        assert large.status_code == 413
        assert (await client.get("/")).headers["content-type"].startswith("text/html")
        assert (await client.get("/decode")).status_code == 405
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"no http\r\n\r\n")
        assert b"400" in await reader.readline()
        writer.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.2"])
async def test_connections_that_send_nothing_block_no_request(address: str) -> None:
    """The oldest of the address that has the most of them give way, also to a request of that address."""
    async with (
        serve_http(make_server(), "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=BEARER) as client,
        asyncio.timeout(PATIENCE_SECONDS),
    ):
        own = await asyncio.open_connection("127.0.0.1", port)
        waiting = [await open_half(address, port) for _ in range(MAX_CONNECTIONS + 16)]
        begun = time.monotonic()
        assert (await client.get("/decode")).status_code == 405
        assert time.monotonic() - begun < REQUEST_SECONDS / 4
        assert await waiting[0][0].read() == b""
        if address != "127.0.0.1":
            own[1].write(b"GET /decode HTTP/1.1\r\nHost: a\r\n\r\n")
            assert b"405" in await own[0].readline()
        for _, writer in (own, *waiting):
            writer.close()


async def open_half(address: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from an address, and send the begin of a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
    writer.write(b"GET /decode HTTP/1.1\r\n")
    return reader, writer
