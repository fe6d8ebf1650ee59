"""Where a worker sends webhooks to, and how it reads its settings."""

from __future__ import annotations

import asyncio
import json
import socket
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import httpcore
import pytest
from temporalio.exceptions import ApplicationError
from temporalio.testing import ActivityEnvironment

from clew.contract import Webhook, WebhookMessage
from clew.local.child import LOOPBACK
from clew_activities.webhook_sending import (
    MAX_OPEN_ATTEMPTS,
    MAX_WAIT,
    POSTPONED,
    UNANSWERED,
    AddressRefused,
    GuardedBackend,
    WebhookActivities,
    WebhookSettings,
    find_embedded,
    is_public,
    read_retry_after,
    read_webhook_settings,
)
from clew_workflows.contract.webhooks import WebhookData
from clew_workflows.protocol import Notice, NoticeSent, SendNotice
from tests.support.waiting import wait_until
from tests.support.webhooks import SECRET, SETTINGS, Receiver, find_free_port, listen

PUBLIC = ("8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1")
PRIVATE = (
    "127.0.0.1",
    "127.255.255.254",
    "0.0.0.0",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "192.0.2.1",
    "198.18.0.1",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "192.0.0.192",
    "192.88.99.1",
    "168.63.129.16",
    "100.100.100.200",
    "::ffff:168.63.129.16",
    "64:ff9b::192.0.0.192",
    "3fff::1",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "64:ff9b::a00:1",
    "64:ff9b:1::a00:1",
    "2002:7f00:1::",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "fc00::1",
    "fd12:3456::1",
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
)


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_sent_to(text: str) -> None:
    """By https, in every form of an address."""
    address = ip_address(text)
    assert is_public(find_embedded(address))
    assert WebhookSettings().allows(address, encrypted=True)
    assert not WebhookSettings().allows(address, encrypted=False)


@pytest.mark.parametrize("text", PRIVATE)
def test_other_addresses_are_not(text: str) -> None:
    """A worker connects to no address of its own network, in any form that an address has."""
    assert not WebhookSettings().allows(ip_address(text), encrypted=True)


def test_named_networks_are_sent_to() -> None:
    """Also without https; a mapped address is the one that it reaches."""
    settings = WebhookSettings(networks=(ip_network("10.1.0.0/16"), ip_network("fd00:1::/64")))
    for text in ("10.1.2.3", "::ffff:10.1.2.3", "fd00:1::5"):
        assert settings.allows(ip_address(text), encrypted=False)
    assert not settings.allows(ip_address("10.2.0.1"), encrypted=True)


async def test_a_name_cannot_change_between_the_check_and_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is resolved once. Of its addresses only those are connected to that were checked and may be."""
    asked: list[str] = []
    connected: list[str] = []

    async def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        asked.append(host)
        addresses = ["10.0.0.1", "8.8.8.8"] if len(asked) == 1 else ["127.0.0.1"]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    async def connect_tcp(_self: Any, host: str, *_: Any) -> Any:
        connected.append(host)
        raise httpcore.ConnectError("no answer")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
    monkeypatch.setattr(httpcore.AnyIOBackend, "connect_tcp", connect_tcp)
    backend = GuardedBackend(WebhookSettings(), encrypted=True)
    with pytest.raises(httpcore.ConnectError):
        await backend.connect_tcp("rebinding.example", 443)
    assert (asked, connected) == (["rebinding.example"], ["8.8.8.8"])
    with pytest.raises(AddressRefused):
        await backend.connect_tcp("rebinding.example", 443)
    assert connected == ["8.8.8.8"]


@pytest.mark.parametrize("host", ["localhost", "127.1", "2130706433", "0x7f000001", "0"])
async def test_other_names_of_this_machine_are_refused(host: str) -> None:
    """What a resolver reads as an address of this machine is one."""
    with pytest.raises((AddressRefused, httpcore.ConnectError)):
        await GuardedBackend(WebhookSettings(), encrypted=True).connect_tcp(host, 443)


async def test_a_connection_is_to_the_first_address_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that does not answer is followed by the next one."""
    async with await asyncio.start_server(lambda _reader, writer: writer.close(), LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]

        async def getaddrinfo(_host: str, _port: int, **_: Any) -> list[Any]:
            # Nothing listens at the first one.
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, port)) for each in ("127.9.9.9", LOOPBACK)]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo, raising=False)
        settings = WebhookSettings(networks=(ip_network("127.0.0.0/8"),))
        stream = await GuardedBackend(settings, encrypted=False).connect_tcp("here.example", port)
        assert stream.get_extra_info("server_addr")[0] == LOOPBACK
        await stream.aclose()


def test_a_receiver_may_say_when_to_ask_again() -> None:
    """In seconds or as a date, at most six hours; what is neither is ignored."""
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True)
    assert read_retry_after("120") == timedelta(seconds=120)
    assert timedelta(seconds=60) < (read_retry_after(soon) or timedelta()) <= timedelta(seconds=90)
    assert read_retry_after("999999999999") == MAX_WAIT
    for text in (None, "", "soon", "-1", "Wed, 21 Oct 2015 07:28:00 GMT", "0", "²"):
        assert read_retry_after(text) is None


def write_file(folder: Path, document: object) -> dict[str, str]:
    path = folder / "webhooks.json"
    path.write_text(json.dumps(document))
    return {"CLEW_WEBHOOKS": str(path), "CLEW_WEBHOOK_SECRET_MAIN": SECRET}


def test_settings_are_read(tmp_path: Path) -> None:
    """The file, the secrets by the names of their variables with those that they replace, and the networks."""
    hook = {"url": "https://example.com/", "secret": "main", "events": ["request.ended"]}
    environ = write_file(tmp_path, [hook]) | {
        "CLEW_WEBHOOK_SECRET_MAIN": f"{SECRET} {SECRET}",
        "CLEW_WEBHOOK_SECRET_TEAM_2": SECRET,
        "CLEW_WEBHOOK_NETWORKS": "10.0.0.0/8, fd00::/8",
    }
    settings = read_webhook_settings(environ)
    assert settings.webhooks == (Webhook(url="https://example.com/", secret="main", events=("request.ended",)),)
    assert settings.secrets == {"main": (SECRET, SECRET), "team_2": (SECRET,)}
    assert settings.networks == (ip_network("10.0.0.0/8"), ip_network("fd00::/8"))
    assert SECRET in settings.all_secrets
    assert SECRET not in repr(settings)
    assert read_webhook_settings({}) == WebhookSettings()


@pytest.mark.parametrize(
    ("environ", "word"),
    [
        ({"CLEW_WEBHOOK_SECRET_MAIN": "hunter2"}, "CLEW_WEBHOOK_SECRET_MAIN"),
        ({"CLEW_WEBHOOK_SECRET_MAIN": "whsec_c2hvcnQ="}, "CLEW_WEBHOOK_SECRET_MAIN"),
        ({"CLEW_WEBHOOK_SECRET_MAIN": SECRET.removeprefix("whsec_")}, "CLEW_WEBHOOK_SECRET_MAIN"),
        ({"CLEW_WEBHOOK_SECRET_MAIN": f"{SECRET} {SECRET.removeprefix('whsec_')}"}, "CLEW_WEBHOOK_SECRET_MAIN"),
        ({"CLEW_WEBHOOK_SECRET_MAIN": "whsec_é"}, "CLEW_WEBHOOK_SECRET_MAIN"),
        ({"CLEW_WEBHOOK_NETWORKS": "10.0.0.1/8"}, "CLEW_WEBHOOK_NETWORKS"),
        ({"CLEW_WEBHOOKS": "/nowhere.json"}, "CLEW_WEBHOOKS"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(environ: dict[str, str], word: str) -> None:
    """A worker with it does not start. The message has the variable and no secret."""
    with pytest.raises(ValueError, match=word) as refused:
        read_webhook_settings(environ)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "document",
    [
        {"url": "https://example.com/"},
        [{"url": "http://example.com/", "secret": "main"}],
        [{"url": "https://example.com/", "secret": "other"}],
        [{"url": "https://10.0.0.1/", "secret": "main"}],
        [{"url": "https://example.com/", "secret": "main"}] * 9,
    ],
)
def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path, document: object) -> None:
    """A worker does not start whose own webhooks it could not tell."""
    with pytest.raises(ValueError, match="CLEW_WEBHOOKS"):
        read_webhook_settings(write_file(tmp_path, document))


def test_the_deployment_says_that_the_webhooks_of_the_worker_have_changed() -> None:
    """Open sessions are prepared again then; workers without webhooks have the deployment of before."""
    hook = Webhook(url="https://example.com/", secret="main")
    assert WebhookSettings().extend("0123456789abcdef") == "0123456789abcdef"
    extended = WebhookSettings(webhooks=(hook,)).extend("0123456789abcdef")
    assert extended != "0123456789abcdef"
    assert len(extended) == 16


def make_notice(receiver: Receiver, session_id: str) -> SendNotice:
    """Make a notice of a session for a receiver."""
    data = WebhookData(session_id=session_id, request_id="q", run_id="r", seq=1)
    message = WebhookMessage(type="request.ended", timestamp="2026-01-02T03:04:05Z", data=data)
    return SendNotice(notice=Notice(notice_id=f"msg_{session_id}", message=message), webhook=receiver.make_webhook())


async def test_receivers_that_hang_leave_room_for_those_of_others() -> None:
    """A tenant has so many attempts at a time; the next ones are made later, and another tenant's at once."""
    activities = WebhookActivities(SETTINGS)

    async def send(receiver: Receiver, session_id: str) -> NoticeSent:
        return await ActivityEnvironment().run(activities.send_notice, make_notice(receiver, session_id))

    async with listen(Receiver(find_free_port())) as hanging, listen(Receiver(find_free_port())) as other:
        hanging.holds = asyncio.Event()
        attempts = [asyncio.create_task(send(hanging, f"a:{n}")) for n in range(MAX_OPEN_ATTEMPTS)]
        await wait_until(lambda: hanging.waiting == MAX_OPEN_ATTEMPTS)
        with pytest.raises(ApplicationError, match="of the same tenant") as postponed:
            await send(other, "a:next")
        assert (postponed.value.type, postponed.value.next_retry_delay) == (UNANSWERED, POSTPONED)
        assert (await send(other, "b:one")).status == 204
        assert (await send(other, "alone")).status == 204
        hanging.holds.set()
        assert [sent.status for sent in await asyncio.gather(*attempts)] == [204] * MAX_OPEN_ATTEMPTS
        assert (await send(other, "a:next")).status == 204
