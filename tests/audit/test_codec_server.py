"""The codec server decrypts for those who have its token, in the origins that it allows, within bounds."""

from __future__ import annotations

import asyncio
import json
from base64 import b64encode

import httpx
import pytest
from google.protobuf.json_format import MessageToDict, ParseDict
from temporalio.api.common.v1 import Payload, Payloads
from temporalio.converter import WorkflowSerializationContext

from clew.encryption import EncryptionCodec
from clew_audit.codec_server import MAX_BODY_BYTES, CodecServer, Request, Response
from clew_audit.http_server import MAX_CONNECTIONS, serve_http
from tests.support.encrypted import make_encryption

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
    """Those of any session; one that is not encrypted, or whose key is missing, stays as it is."""
    foreign = await encrypt("k2")
    decoded = await post("/decode", write(await encrypt("k1"), PLAIN, foreign), origin=UI)
    assert (decoded.status, read(decoded)) == (200, [PLAIN, PLAIN, foreign])
    encoded = read(await post("/encode", write(PLAIN)))
    assert b"secret" not in encoded[0].data
    assert read(await post("/encode", write(*encoded))) == encoded
    assert read(await post("/decode", write(*encoded))) == [PLAIN]


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
        serve_http(make_server().answer, "127.0.0.1", 0) as port,
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
        waiting = [await asyncio.open_connection("127.0.0.1", port) for _ in range(MAX_CONNECTIONS + 8)]
        closed = await asyncio.wait_for(waiting[-1][0].read(), 5)
        assert closed == b""
        for _, writer in waiting:
            writer.close()
