"""The codec server: decrypts payloads for the Temporal UI and CLI, for those who have its token.

It speaks Temporal's remote codec protocol: `POST /decode` and `POST /encode` with `{"payloads": [...]}`. A caller
sends the token as `Authorization: Bearer …`, or has entered it on the page `/`, which sets a cookie that the UI sends
along. Every size, time and number of connections is bounded, and a caller without the token gets nothing read but the
form of the page. Payloads are never logged.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from html import escape
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs

from google.protobuf.json_format import MessageToDict, ParseDict, ParseError
from temporalio.api.common.v1 import Payloads
from temporalio.converter import PayloadCodec

from clew_activities.http_server import Request, Response
from clew_workflows.contract.errors import Refusal
from clew_workflows.encryption import is_encrypted

TOKEN_VARIABLE = "CLEW_CODEC_TOKEN"
"""The variable that holds the token."""
MIN_TOKEN_CHARACTERS = 16
MAX_BODY_BYTES = 8 * 1024 * 1024
"""Largest body of a request: the payloads of an event, in base64."""
MAX_LOGIN_BYTES = 16_384
"""Largest body of a login: the form with the token."""
PROBLEM_FIELD = "clew-problem"
"""The metadata with the reason why a payload was not decoded."""
COOKIE = "clew-codec"
COOKIE_SECONDS = 12 * 3600
"""Seconds until the token has to be entered again."""
PREFLIGHT_SECONDS = 600

_JSON = "application/json"


class CodecServer:
    """Answers requests.

    `origins` are the origins of the UIs that browsers may send requests from, each exactly as in `https://host:port`.
    """

    def __init__(self, codec: PayloadCodec, token: str, origins: Sequence[str]) -> None:
        """Check the settings.

        Raises:
            ValueError: The token is too short.
        """
        if len(token) < MIN_TOKEN_CHARACTERS:
            raise ValueError(
                f"{TOKEN_VARIABLE} needs at least {MIN_TOKEN_CHARACTERS} characters: `openssl rand -hex 32`"
            )
        self._codec = codec
        self._token = token.encode()
        self._origins = frozenset(origin.rstrip("/") for origin in origins)
        # What the cookie holds opens nothing but this server.
        self._cookie = hmac.digest(self._token, b"clew codec cookie", hashlib.sha256).hex()

    def admit(self, request: Request) -> Response | int:
        """Decide by the head of a request: the answer, or the most bytes that its body may have.

        Only a body that is needed is read, and one of payloads only for a caller who has the token.
        """
        origin = request.headers.get("origin")
        if request.path in ("/", "/login"):
            return self._admit_page(request)
        if request.path not in ("/encode", "/decode"):
            return _refuse(404, "there is no such path: POST /decode or /encode")
        if origin is not None and origin not in self._origins:
            return _refuse(403, "requests from this origin are not allowed: name it with --origin")
        cors = _allow(origin)
        if request.method == "OPTIONS":
            return Response(204, cors | _make_preflight(request) if origin else {})
        if request.method != "POST":
            return _refuse(405, "POST is the only method", cors)
        if not self._is_authorized(request):
            return _refuse(401, "the token is missing or wrong", {**cors, "WWW-Authenticate": "Bearer"})
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != _JSON:
            return _refuse(415, "the body must be application/json", cors)
        return MAX_BODY_BYTES

    async def answer(self, request: Request) -> Response:
        """Answer a request."""
        admitted = self.admit(request)
        if isinstance(admitted, Response):
            return admitted
        cors = _allow(request.headers.get("origin"))
        if len(request.body) > admitted:
            return _refuse(413, f"the body has more than {admitted} bytes", cors)
        if request.path == "/login":
            return self._log_in(request)
        try:
            payloads = _parse(request.body)
        except (ParseError, ValueError, TypeError, AttributeError, RecursionError):
            return _refuse(400, 'the body is not {"payloads": [...]} in the form of protobuf', cors)
        await self._convert(payloads, decode=request.path == "/decode")
        return Response(200, {**cors, "Content-Type": _JSON}, json.dumps(MessageToDict(payloads)).encode())

    async def _convert(self, payloads: Payloads, *, decode: bool) -> None:
        """Decode or encode each payload. One that cannot be decoded stays as it is, with the reason beside it."""
        for payload in payloads.payloads:
            if decode:
                try:
                    (converted,) = await self._codec.decode([payload])
                # A codec of one's own may raise any error.
                except Exception as error:
                    reason = str(error) if isinstance(error, Refusal) else type(error).__name__
                    payload.metadata[PROBLEM_FIELD] = reason.encode(errors="replace")
                    continue
            elif is_encrypted(payload):
                continue
            else:
                (converted,) = await self._codec.encode([payload])
            payload.CopyFrom(converted)

    def _is_authorized(self, request: Request) -> bool:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(token.strip().encode(), self._token):
            return True
        # A browser sends the cookie from any page: only those of the UIs may use it.
        return "origin" in request.headers and hmac.compare_digest(_read_cookie(request), self._cookie)

    def _admit_page(self, request: Request) -> Response | int:
        if request.method == "GET" and request.path == "/":
            return _make_page("")
        if request.method != "POST" or request.path != "/login":
            return _refuse(405, "GET / or POST /login")
        if request.headers.get("origin", "").partition("://")[2] != request.headers.get("host"):
            return _refuse(403, "the token can be entered on this page only")
        return MAX_LOGIN_BYTES

    def _log_in(self, request: Request) -> Response:
        (token, *_) = parse_qs(request.body.decode(errors="replace")).get("token", [""])
        if not hmac.compare_digest(token.strip().encode(), self._token):
            return _make_page("The token is wrong.", 403)
        secure = "; Secure" if request.headers.get("origin", "").startswith("https:") else ""
        cookie = f"{COOKIE}={self._cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={COOKIE_SECONDS}{secure}"
        page = _make_page("This browser can decode now, for 12 hours.")
        return Response(200, {**page.headers, "Set-Cookie": cookie}, page.body)


def _parse(body: bytes) -> Payloads:
    value = json.loads(body)
    if not isinstance(value, dict):
        raise ParseError("no object")
    return ParseDict(value, Payloads(), ignore_unknown_fields=True)


def _allow(origin: str | None) -> dict[str, str]:
    """Make the headers that let pages of an origin read the answer; none for a caller that is no browser."""
    if not origin:
        return {}
    return {
        "Access-Control-Allow-Origin": origin,
        "Access-Control-Allow-Credentials": "true",
        "Vary": "Origin",
    }


def _make_preflight(request: Request) -> dict[str, str]:
    headers = {
        "Access-Control-Allow-Methods": "POST",
        "Access-Control-Allow-Headers": "authorization, authorization-extras, content-type, x-namespace",
        "Access-Control-Max-Age": str(PREFLIGHT_SECONDS),
    }
    if request.headers.get("access-control-request-private-network") == "true":
        headers["Access-Control-Allow-Private-Network"] = "true"
    return headers


def _read_cookie(request: Request) -> str:
    try:
        cookies = SimpleCookie(request.headers.get("cookie", ""))
    except CookieError:
        return ""
    value = cookies[COOKIE].value if COOKIE in cookies else ""
    return value if value.isascii() else ""


def _refuse(status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps({"message": message}).encode()
    return Response(status, {**(headers or {}), "Content-Type": _JSON}, body)


def _make_page(message: str, status: int = 200) -> Response:
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Clew codec server</title>
<body style="font: 16px system-ui; max-width: 32rem; margin: 4rem auto; padding: 0 1rem">
<h1 style="font-size: 1.3rem">Decode in the Temporal UI</h1>
<p role="status">{escape(message)}</p>
<form method="post" action="/login">
<label>Token <input type="password" name="token" autocomplete="off" required></label>
<button>Enter</button></form>
<p>Then set this server as the codec server in the UI, with <i>Include cross-origin credentials</i>.</p>
"""
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; "
        "frame-ancestors 'none'",
        "Cache-Control": "no-store",
        "Referrer-Policy": "same-origin",
    }
    return Response(status, headers, page.encode())
