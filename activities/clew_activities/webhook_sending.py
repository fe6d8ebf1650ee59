"""Webhooks: the activity that sends a notice to a URL, signed by Standard Webhooks, and where a worker may send to.

The URLs come from callers, so a worker connects to public addresses alone, by https, without redirects and proxies.
The address that is checked is the one that is connected to: a name cannot be resolved to another one in between.
Responses are not read beyond their status.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import httpcore
import httpx
import standardwebhooks
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json
from temporalio import activity
from temporalio.exceptions import ApplicationError

from clew_activities.heartbeats import send_heartbeats
from clew_workflows.contract import SessionConfig
from clew_workflows.contract.errors import InvalidInput
from clew_workflows.contract.invalid import describe_problems
from clew_workflows.contract.limits import MAX_WEBHOOKS
from clew_workflows.contract.messages import compute_digest
from clew_workflows.contract.webhooks import Webhook
from clew_workflows.protocol import Failure, NoticeSent, SendNotice

# A worker's settings.


WEBHOOKS_VARIABLE = "CLEW_WEBHOOKS"
SECRET_PREFIX = "CLEW_WEBHOOK_SECRET_"
NETWORKS_VARIABLE = "CLEW_WEBHOOK_NETWORKS"
KEY_PREFIX = "whsec_"
"""What each secret begins with, as Standard Webhooks write it."""
MIN_SECRET_BYTES = 24
MAX_SECRET_BYTES = 64
"""Least and most bytes of a secret, as Standard Webhooks has them."""

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_webhooks: TypeAdapter[tuple[Webhook, ...]] = TypeAdapter(tuple[Webhook, ...])


@dataclass(frozen=True, kw_only=True)
class WebhookSettings:
    """What a worker knows of webhooks.

    Attributes:
        webhooks: Those that all sessions have beside their own.
        secrets: The secrets by their names, each with those that it replaces: the messages are signed with all.
        networks: The networks to which messages are sent although they are private, and without https too.
    """

    webhooks: tuple[Webhook, ...] = ()
    secrets: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)
    networks: tuple[Network, ...] = ()

    @property
    def all_secrets(self) -> Sequence[str]:
        """Every secret, for the redaction."""
        return [secret for secrets in self.secrets.values() for secret in secrets]

    def extend(self, deployment: str) -> str:
        """Extend the digest of a deployment, so that open sessions notice a change of the worker's own webhooks."""
        if not self.webhooks:
            return deployment
        own = [webhook.model_dump(mode="json") for webhook in self.webhooks]
        return compute_digest([deployment, own])[: len(deployment)]

    def find_problem(self, config: SessionConfig) -> Failure | None:
        """Find the first webhook of a configuration that this worker does not send to."""
        for webhook in config.webhooks:
            if problem := self.find_webhook_problem(webhook):
                return Failure(type=InvalidInput.type, message=f"webhooks: {webhook.url}: {problem}"[:1000])
        return None

    def find_webhook_problem(self, webhook: Webhook) -> str | None:
        """Find why this worker does not send to a webhook; None: its host is still to be resolved."""
        if problem := self.find_url_problem(webhook.url):
            return problem
        if webhook.secret not in self.secrets:
            return f"the worker has no secret {webhook.secret!r}: set {SECRET_PREFIX}{webhook.secret.upper()}"
        return None

    def find_url_problem(self, url: str) -> str | None:
        """Find why this worker does not send to a URL; None: its host is still to be resolved."""
        parts = urlsplit(url)
        if parts.scheme == "http" and not self.networks:
            return f"its scheme must be https outside of the networks that {NETWORKS_VARIABLE} names"
        try:
            address = ip_address(parts.hostname or "")
        except ValueError:
            address = None
        if address is not None and not self.allows(address, encrypted=parts.scheme == "https"):
            return f"the worker sends to no such address: {NETWORKS_VARIABLE} names the networks beside public ones"
        return None

    def allows(self, address: Address, *, encrypted: bool) -> bool:
        """Whether messages are sent to an address."""
        bare = find_embedded(address)
        named = any(each in network for network in self.networks for each in {address, bare})
        return named or (encrypted and is_public(bare))


NO_WEBHOOKS = WebhookSettings()


def read_webhook_settings(environ: Mapping[str, str]) -> WebhookSettings:
    """Read `CLEW_WEBHOOKS`, `CLEW_WEBHOOK_SECRET_…` and `CLEW_WEBHOOK_NETWORKS`.

    Raises:
        ValueError: A value cannot be used. The message never holds a secret.
    """
    settings = WebhookSettings(
        webhooks=_read_file(environ.get(WEBHOOKS_VARIABLE, "").strip()),
        secrets={
            name.removeprefix(SECRET_PREFIX).lower(): _read_secrets(name, value)
            for name, value in environ.items()
            if name.startswith(SECRET_PREFIX) and value.strip()
        },
        networks=tuple(_read_networks(environ.get(NETWORKS_VARIABLE, ""))),
    )
    for webhook in settings.webhooks:
        if problem := settings.find_webhook_problem(webhook):
            raise ValueError(f"{WEBHOOKS_VARIABLE}: {webhook.url}: {problem}")
    return settings


def _read_file(path: str) -> tuple[Webhook, ...]:
    if not path:
        return ()
    try:
        webhooks = _webhooks.validate_json(Path(path).read_bytes())
    except ValidationError as error:
        problem = describe_problems(error, Webhook)
        raise ValueError(f"{WEBHOOKS_VARIABLE}: {path!r} is not valid: {problem}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{WEBHOOKS_VARIABLE}: {path!r} cannot be read: {type(error).__name__}") from None
    if len(webhooks) > MAX_WEBHOOKS:
        raise ValueError(
            f"{WEBHOOKS_VARIABLE}: {path!r} has {len(webhooks)} webhooks, at most {MAX_WEBHOOKS} are taken"
        )
    return webhooks


def _read_secrets(variable: str, value: str) -> tuple[str, ...]:
    secrets = tuple(value.split())
    for secret in secrets:
        text = secret.removeprefix(KEY_PREFIX)
        try:
            size = len(b64decode(text + "=" * (-len(text) % 4), validate=True)) if text != secret else 0
        except ValueError:
            size = 0
        if not MIN_SECRET_BYTES <= size <= MAX_SECRET_BYTES:
            raise ValueError(
                f"{variable} must be whsec_ and {MIN_SECRET_BYTES} to {MAX_SECRET_BYTES} bytes in base64, as "
                "`openssl rand -base64 32` makes them; after a space the secret that it replaces"
            )
    return secrets


def _read_networks(text: str) -> Iterable[Network]:
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            yield ip_network(part)
        except ValueError:
            raise ValueError(
                f"{NETWORKS_VARIABLE} must be a list of networks, as in 10.1.0.0/16,fd00:1::/64, not {part[:50]!r}"
            ) from None


# Addresses: which are public, whatever form they are written in.


_NAT64 = ip_network("64:ff9b::/96")
_GLOBAL_UNICAST = ip_network("2000::/3")
_NEVER_PUBLIC = tuple(
    map(
        ip_network,
        (
            # Of special purpose, which the tables of Python 3.11 do not all have.
            # Source: https://www.iana.org/assignments/iana-ipv4-special-registry and iana-ipv6-special-registry
            *("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20"),
            # Where a cloud answers its machines, beside link-local addresses: Azure, and with 192.0.0.192 Oracle.
            "168.63.129.16/32",
        ),
    )
)


def find_embedded(address: Address) -> Address:
    """Find the IPv4 address that an IPv6 address reaches: mapped, by 6to4 or by NAT64; else the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address.ipv4_mapped:
        return address.ipv4_mapped
    if address.sixtofour:
        return address.sixtofour
    if address in _NAT64:
        return IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def is_public(address: Address) -> bool:
    """Whether an address is one of the public Internet: not private, loopback, link-local, reserved or multicast."""
    if isinstance(address, IPv6Address) and address not in _GLOBAL_UNICAST:
        return False
    if any(address in network for network in _NEVER_PUBLIC):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved)


class AddressRefused(Exception):
    """A worker does not connect to any of a host's addresses."""


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Opens connections to addresses that the settings allow.

    A name is resolved once, its addresses are checked, and the connection is to one of those that were checked. TLS
    verifies the certificate against the name.
    """

    def __init__(self, settings: WebhookSettings, *, encrypted: bool) -> None:
        self._settings = settings
        self._encrypted = encrypted
        # httpcore has a class of this name for machines without anyio, too.
        self._backend = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of httpcore
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of a host that answers.

        Raises:
            AddressRefused: None of its addresses may be connected to.
            httpcore.ConnectError: The host has no address, or none answers.
        """
        try:
            resolved = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise httpcore.ConnectError(f"the host has no address: {error}") from error
        addresses = list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in resolved))
        allowed = [text for text in addresses if self._settings.allows(ip_address(text), encrypted=self._encrypted)]
        if not allowed:
            raise AddressRefused(
                f"the worker sends to none of the host's addresses: {NETWORKS_VARIABLE} names the networks beside "
                "public ones"
            )
        for text in allowed[:-1]:
            try:
                return await self._backend.connect_tcp(text, port, timeout, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout):
                continue
        return await self._backend.connect_tcp(allowed[-1], port, timeout, local_address, socket_options)


# The activity.


ATTEMPT_SECONDS = 30.0
"""Seconds of one attempt, from the resolution of the name to the status of the answer."""
CONNECT_SECONDS = 10.0
"""Seconds in which one address must accept the connection."""
MAX_BODY_BYTES = 20_000
"""Largest body. Standard Webhooks advises to keep below 20 KB."""
MAX_WAIT = timedelta(hours=6)
"""Longest wait until the next attempt that a receiver may ask for."""
MAX_OPEN_ATTEMPTS = 16
"""Most attempts of one tenant, or without tenants to one receiver, that a worker makes at a time."""
POSTPONED = timedelta(seconds=2)
"""The wait of an attempt for which the others leave no room."""
GONE = "webhook_gone"
"""The type of the failure where the receiver no longer wants messages. It is final."""
REFUSED = "webhook_refused"
"""The type of the failure where the worker does not send to the URL. It is final."""
UNANSWERED = "webhook_unanswered"
"""The type of a failure that another attempt follows."""


class WebhookActivities:
    """Sends notices to webhooks."""

    def __init__(self, settings: WebhookSettings) -> None:
        self._settings = settings
        self._open: Counter[str] = Counter()

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return httpx.create_ssl_context()

    @activity.defn(name="send_notice")
    async def send_notice(self, request: SendNotice) -> NoticeSent:
        """Send a notice once. It is taken if the receiver answers with a status from 200 to 299.

        Raises:
            ApplicationError: It was not taken. `webhook_gone`, for a status of 410, and `webhook_refused` are final.
        """
        webhook, notice = request.webhook, request.notice
        if problem := self._settings.find_url_problem(webhook.url):
            raise ApplicationError(problem, type=REFUSED, non_retryable=True)
        if problem := self._settings.find_webhook_problem(webhook):
            # A worker that has the secret may make the next attempt.
            raise ApplicationError(problem, type=UNANSWERED)
        body = to_json(notice.message.as_dict())
        if len(body) > MAX_BODY_BYTES:
            raise ApplicationError(f"the message has {len(body)} bytes", type=REFUSED, non_retryable=True)
        headers = self._make_headers(webhook, notice.notice_id, body)
        try:
            with self._hold_place(find_sharer(notice.message.data.session_id, webhook.url)):
                async with send_heartbeats(), asyncio.timeout(ATTEMPT_SECONDS):
                    status, retry_after = await self._post(webhook.url, headers, body)
        except AddressRefused as error:
            raise ApplicationError(str(error), type=REFUSED, non_retryable=True) from None
        except TimeoutError:
            raise ApplicationError(f"no answer within {ATTEMPT_SECONDS:g} seconds", type=UNANSWERED) from None
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise ApplicationError(f"no answer: {reason[:300]}", type=UNANSWERED) from None
        if 200 <= status <= 299:
            return NoticeSent(status=status, attempt=activity.info().attempt)
        if status == 410:
            raise ApplicationError("the receiver answers 410 Gone", type=GONE, non_retryable=True)
        what = "a redirect, which is not followed" if 300 <= status <= 399 else "which is no success"
        raise ApplicationError(
            f"the receiver answers {status}, {what}", type=UNANSWERED, next_retry_delay=read_retry_after(retry_after)
        )

    @contextmanager
    def _hold_place(self, sharer: str) -> Iterator[None]:
        """Hold one of the places of a tenant: receivers that hang leave room for those of others.

        Raises:
            ApplicationError: It has none left.
        """
        if self._open[sharer] >= MAX_OPEN_ATTEMPTS:
            problem = f"{MAX_OPEN_ATTEMPTS} other attempts of the same tenant wait for their receivers"
            raise ApplicationError(problem, type=UNANSWERED, next_retry_delay=POSTPONED)
        self._open[sharer] += 1
        try:
            yield
        finally:
            self._open[sharer] -= 1
            if not self._open[sharer]:
                del self._open[sharer]

    def _make_headers(self, webhook: Webhook, notice_id: str, body: bytes) -> list[tuple[str, str]]:
        """Make the headers of an attempt. The signature is of its time, so that a replayed request is refused."""
        now, text = datetime.now(UTC), body.decode()
        signatures = [
            standardwebhooks.Webhook(secret).sign(notice_id, now, text)
            for secret in self._settings.secrets[webhook.secret]
        ]
        return [
            ("Host", urlsplit(webhook.url).netloc),
            ("Content-Type", "application/json"),
            ("Content-Length", str(len(body))),
            ("User-Agent", "clew-webhooks"),
            ("webhook-id", notice_id),
            ("webhook-timestamp", str(int(now.timestamp()))),
            ("webhook-signature", " ".join(signatures)),
        ]

    async def _post(self, url: str, headers: list[tuple[str, str]], body: bytes) -> tuple[int, str | None]:
        """Send the request; return the status and the `Retry-After` of the answer, whose body is not read."""
        encrypted = url.startswith("https:")
        backend = GuardedBackend(self._settings, encrypted=encrypted)
        timeouts = {"connect": CONNECT_SECONDS, "read": ATTEMPT_SECONDS, "write": ATTEMPT_SECONDS}
        async with (
            httpcore.AsyncConnectionPool(
                ssl_context=self._tls if encrypted else None, network_backend=backend, max_keepalive_connections=0
            ) as pool,
            pool.stream("POST", url, headers=headers, content=body, extensions={"timeout": timeouts}) as answer,
        ):
            after = next((value for name, value in answer.headers if name.lower() == b"retry-after"), None)
            return answer.status, after.decode("latin-1") if after else None


def find_sharer(session_id: str, url: str) -> str:
    """Find whose share of the attempts one has: that of the session's tenant, or without one that of the receiver."""
    tenant, colon, _ = session_id.partition(":")
    return f"{tenant}:" if colon else urlsplit(url).netloc


def read_retry_after(text: str | None) -> timedelta | None:
    """Read a `Retry-After` of seconds or of a date, `MAX_WAIT` at most; None: it has none, or another form."""
    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return min(timedelta(seconds=int(text[:9])), MAX_WAIT) or None
    try:
        left = parsedate_to_datetime(text) - datetime.now(UTC)
    except (ValueError, TypeError):
        return None
    return min(left, MAX_WAIT) if left > timedelta() else None
