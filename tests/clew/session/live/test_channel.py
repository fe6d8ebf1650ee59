"""The live channel's addresses, names and items."""

from __future__ import annotations

import pytest

from clew.session.live.channel import Channel, Said, check_address, find_group, list_secrets
from clew_workflows.contract.outputs import ReplyProgress, ToolProgress
from clew_workflows.host.local_runs import Decided
from tests.support.encrypted import make_encryption

REPLY = ReplyProgress(
    request_id="r-1", run_id="run-1", call_id="c-1", attempt=2, iteration=1, offset=3, text="a secret"
)
TOOL = ToolProgress(request_id="r-1", run_id="run-1", call_id="c-1", iteration=1, tool_call_id="t-1", name="look")
ITEMS: list[Said | Decided] = [
    Said("run", "7", 2, REPLY),
    Said("run", "8", 1, TOOL, has_ended=True),
    Decided("s-1", "run", 12, 1_700_000_000_123_456_789, {"entries": [], "status": {"rev": 1, "status": "idle"}}),
    Decided("s-1", "run", 12, 1, None),
]


def make_channel(*kids: str, namespace: str = "default") -> Channel:
    """Make a channel with these keys."""
    return Channel("redis://127.0.0.1", namespace, make_encryption(*kids).sealer)


@pytest.mark.parametrize("kids", [(), ("k1",)])
@pytest.mark.parametrize("item", ITEMS, ids=["reply", "tool", "decided", "too large"])
def test_an_item_is_read_as_it_was_written(item: Said | Decided, kids: tuple[str, ...]) -> None:
    """With encryption and without it."""
    channel = make_channel(*kids)
    assert channel.decode("s-1", channel.encode("s-1", item)) == item


def test_an_encrypted_item_is_for_its_session_alone() -> None:
    """Its text cannot be read, and another session, namespace or key does not take it. Nor does anybody fail."""
    channel = make_channel("k1")
    data = channel.encode("s-1", ITEMS[0])
    assert b"secret" not in data
    assert channel.decode("s-2", data) is None
    assert make_channel("k1", namespace="other").decode("s-1", data) is None
    assert make_channel("k2").decode("s-1", data) is None
    assert make_channel().decode("s-1", data) is None
    assert channel.decode("s-1", make_channel().encode("s-1", ITEMS[0])) is None, "it was not encrypted"


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b"{}", b'{"run_id":"r","task":[1]}', b'{"run_id":"r","reply":{}}']
)
def test_what_is_no_item_is_left_out(data: bytes) -> None:
    """Somebody else has written it."""
    assert make_channel().decode("s-1", data) is None


def test_names_of_streams_tell_nothing() -> None:
    """Each session has its own, in each namespace; both of a session are in one group."""
    channel = make_channel()
    names = {channel.name_stream("ada"), channel.name_stream("bob"), channel.name_decisions("ada")}
    names.add(make_channel(namespace="other").name_stream("ada"))
    assert len(names) == 4
    assert not any(b"ada" in name or b"bob" in name for name in names)
    assert find_group(channel.name_stream("ada")) == find_group(channel.name_decisions("ada"))


@pytest.mark.parametrize(
    "address",
    ["redis://h", "redis://:pass@h:6379/0", "rediss://user:pass@h:1?ssl_ca_certs=/ca.crt", "redis://[::1]:1"],
)
def test_addresses(address: str) -> None:
    """With a password, a database and TLS."""
    check_address(address)


@pytest.mark.parametrize("address", ["localhost:6379", "http://h", "redis://", "redis://h:port", "unix:///tmp/s"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """The message says what is expected, and does not repeat what may be a password."""
    with pytest.raises(ValueError, match="CLEW_LIVE must be an address") as refused:
        check_address(address.replace("h:", "geheim:"))
    assert "geheim" not in str(refused.value)


def test_the_password_is_one_of_the_secrets() -> None:
    """As it is, not as the address writes it."""
    assert list_secrets("redis://:a%2Fb@h") == ("a/b",)
    assert list_secrets("redis://h") == list_secrets(None) == ()
