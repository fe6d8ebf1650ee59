"""The live channel: streams in Redis or Valkey, in which workers write what sessions do, for their viewers.

Nothing depends on it: where the channel is silent, viewers read heartbeats and query the session. Each session has
two streams. Their items are JSON, encrypted if the worker encrypts:

- `Said`: what a call says as it runs. Like a heartbeat it has a `ReplyProgress` or a `ToolProgress`, and says from
  which character on its text is: an item that comes twice, or late, changes nothing. An entry replaces it.
- `Decided`: what the query `follow` would answer after a workflow task. It counts if the history has that task.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote, urlsplit

from pydantic_core import from_json, to_json
from temporalio.client import Client

from clew_workflows.contract.errors import ClewError
from clew_workflows.contract.extras import ExtraMissing
from clew_workflows.contract.outputs import ReplyProgress, ToolProgress
from clew_workflows.encryption import Sealer, find_sealer
from clew_workflows.host.local_runs import Decided

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.cluster import RedisCluster

Connection: TypeAlias = "Redis | RedisCluster"
"""A connection to a server, or to a cluster."""
VARIABLE = "CLEW_LIVE"
FIELD = b"d"
"""The field of a stream's item that has its JSON."""
GROUPS = 16
"""Groups of streams. In a cluster those of a group are on one server, so that one call reads them."""
DECISIONS_SECONDS = 600
"""Seconds after its last decision in which a session's decisions are kept."""
CONNECT_SECONDS = 2.0
"""Time within which the server accepts a connection."""
_SCHEMES = ("redis", "rediss")


def read_address(environ: Mapping[str, str]) -> str | None:
    """Read `CLEW_LIVE`: the address of a Redis or Valkey server; None: there is none.

    Raises:
        ExtraMissing: The extra `live` is not installed.
        ValueError: The address is not valid.
    """
    address = environ.get(VARIABLE) or None
    if address is not None:
        check_address(address)
    return address


def check_address(address: str) -> None:
    """Check the address of a server. It may hold a password: no message quotes it.

    Raises:
        ExtraMissing: The extra `live` is not installed.
        ValueError: The address is not valid.
    """
    try:
        from redis.asyncio.connection import parse_url  # noqa: PLC0415 - an extra
    except ImportError:
        raise ExtraMissing(VARIABLE, "live") from None
    try:
        parts = urlsplit(address)
        parse_url(address)
        is_valid = parts.scheme in _SCHEMES and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"{VARIABLE} must be an address such as redis://:PASSWORD@HOST:6379/0, or rediss:// with TLS"
        )


def list_secrets(address: str | None) -> tuple[str, ...]:
    """List the password that an address holds."""
    password = urlsplit(address).password if address else None
    return (unquote(password),) if password else ()


@dataclass(frozen=True, slots=True)
class Said:
    """What a call has said: all of it, or what is new.

    Attributes:
        run_id: The workflow run of the call.
        activity_id: The call's activity.
        attempt: The number of its attempt.
        progress: What it has said. The text goes on at `offset`.
        has_ended: The attempt is over.
    """

    run_id: str
    activity_id: str
    attempt: int
    progress: ReplyProgress | ToolProgress
    has_ended: bool = False


Item: TypeAlias = Said | Decided


@dataclass(frozen=True, slots=True)
class Channel:
    """The channel of one namespace.

    Attributes:
        address: The server.
        namespace: Temporal's namespace.
        sealer: Encrypts the items.
    """

    address: str
    namespace: str
    sealer: Sealer

    @classmethod
    def of(cls, client: Client, address: str) -> Channel:
        """Make the channel of the sessions that a client reaches."""
        return cls(address, client.namespace, find_sealer(client.data_converter))

    def name_stream(self, session_id: str) -> bytes:
        """Name the stream of a session. The name does not tell the session's id."""
        digest = hashlib.sha256(f"{self.namespace}\0{session_id}".encode()).hexdigest()[:32]
        return b"clew:{%d}:%s" % (int(digest[:8], 16) % GROUPS, digest.encode())

    def name_decisions(self, session_id: str) -> bytes:
        """Name the stream of a session's decisions."""
        return self.name_stream(session_id) + b":decisions"

    def encode(self, session_id: str, item: Item) -> bytes:
        """Make the data of an item. It may wait for a codec of one's own (`sealer.blocks`)."""
        data = to_json(self._describe(item))
        return self.sealer.seal(data, self._name_item(session_id))

    def decode(self, session_id: str, data: bytes) -> Item | None:
        """Read an item; None: it cannot be read, and viewers ask the server instead."""
        try:
            item: dict[str, Any] = from_json(self.sealer.unseal(data, self._name_item(session_id)))
            run_id = str(item["run_id"])
            if "task" in item:
                event_id, started_at = map(int, item["task"])
                return Decided(session_id, run_id, event_id, started_at, item["page"])
            progress = (
                ReplyProgress.model_validate(item["reply"])
                if "reply" in item
                else ToolProgress.model_validate(item["tool"])
            )
            has_ended = bool(item.get("has_ended"))
            return Said(run_id, str(item["activity_id"]), int(item["attempt"]), progress, has_ended)
        except (ClewError, ValueError, TypeError, LookupError):
            return None

    @staticmethod
    def _describe(item: Item) -> dict[str, Any]:
        if isinstance(item, Decided):
            return {"run_id": item.run_id, "task": item.task, "page": item.page}
        kind = "reply" if isinstance(item.progress, ReplyProgress) else "tool"
        return {
            "run_id": item.run_id,
            "activity_id": item.activity_id,
            "attempt": item.attempt,
            kind: item.progress.as_dict(),
            **({"has_ended": True} if item.has_ended else {}),
        }

    def _name_item(self, session_id: str) -> str:
        return f"live {self.namespace}/{session_id}"


def find_group(stream: bytes) -> int:
    """Find the group of a stream."""
    return int(stream[stream.index(b"{") + 1 : stream.index(b"}")])


@cache
def find_errors() -> tuple[type[Exception], ...]:
    """Find the errors that say that the server does not answer, or not as it should."""
    from redis.exceptions import RedisError  # noqa: PLC0415 - an extra

    return (RedisError, OSError, TimeoutError)


async def connect(address: str, answer_seconds: float) -> Connection:
    """Connect to a server, or to the cluster that it belongs to.

    Raises:
        OSError, RedisError, TimeoutError: No server answers at the address (`find_errors`).
    """
    from redis.asyncio import Redis  # noqa: PLC0415 - an extra
    from redis.asyncio.cluster import RedisCluster  # noqa: PLC0415 - an extra
    from redis.asyncio.retry import Retry  # noqa: PLC0415 - an extra
    from redis.backoff import NoBackoff  # noqa: PLC0415 - an extra

    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": answer_seconds,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "client_name": "clew",
    }
    single = Redis.from_url(address, **options)
    try:
        answer = await single.info("cluster")
    except BaseException:
        await single.aclose()
        raise
    if not answer.get("cluster_enabled"):
        return single
    await single.aclose()
    cluster: RedisCluster = RedisCluster.from_url(address, **options)
    return cluster
