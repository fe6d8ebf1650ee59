"""A receiver of webhooks that fails at random, and the rules of what it is told."""

from __future__ import annotations

import json
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

import standardwebhooks

from clew.contract import Webhook
from clew.contract.payloads import AssistantMessage, ConfigPayload, RunPayload
from clew_workflows.thread.entries import Entry
from tests.chaos.http import Aborted, Connection, HttpAnswer, HttpRequest, run_server
from tests.support.webhooks import SECRET

WEBHOOK_ENV = {"CLEW_WEBHOOK_SECRET_MAIN": SECRET, "CLEW_WEBHOOK_NETWORKS": "127.0.0.0/8"}
"""What workers must know to send to the receiver."""
PATH = "/hook"
UNTOLD = "no webhook was told of the outcome"
_FAILURE_SHARE, _RESET_SHARE = 0.4, 0.05
_TOLERANCE_SECONDS = 300


@dataclass(frozen=True)
class Delivery:
    """A request of a worker.

    Attributes:
        id: The id of the message.
        message: The message.
        is_taken: Whether the receiver has taken it.
    """

    id: str
    message: Mapping[str, Any]
    is_taken: bool

    @property
    def session(self) -> str:
        """The session that it tells of."""
        return str(self.message["data"]["session_id"])


class Receiver:
    """A receiver.

    Attributes:
        deliveries: What it was told.
        problems: Requests that no worker may send.
        failures: The requests that it has not taken.
    """

    def __init__(self, seed: int) -> None:
        self.deliveries: list[Delivery] = []
        self.problems: list[str] = []
        self.failures = 0
        self._chance = random.Random(f"receiver-{seed}")
        self._fails = True
        self._address = ""

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[Self]:
        """Serve on a free port of loopback."""
        async with run_server(self.handle) as self._address:
            yield self

    @property
    def webhook(self) -> Webhook:
        """The webhook of the sessions that tell it."""
        return Webhook(url=f"http://{self._address}{PATH}", secret="main")

    def end_faults(self) -> None:
        """Take everything from now on."""
        self._fails = False

    async def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Verify a request, and take it or fail."""
        if problem := check_signature(request.headers, request.body):
            self.problems.append(problem)
        sent_at = int(request.headers.get("webhook-timestamp", "0"))
        # The clock of the worker may have jumped: a receiver refuses that, and is told again.
        is_taken = abs(time.time() - sent_at) < _TOLERANCE_SECONDS
        is_taken = is_taken and not (self._fails and self._chance.random() < _FAILURE_SHARE)
        if not problem:
            message = json.loads(request.body)
            self.deliveries.append(Delivery(request.headers["webhook-id"], message, is_taken))
        self.failures += not is_taken
        if not is_taken and self._chance.random() < _RESET_SHARE:
            raise Aborted
        await connection.answer(HttpAnswer(204) if is_taken else HttpAnswer(503, {"retry-after": "1"}))


def check_signature(headers: Mapping[str, str], body: bytes) -> str | None:
    """Check the signature of a request, whatever its time is; returns what is wrong."""
    try:
        name, at = headers["webhook-id"], datetime.fromtimestamp(int(headers["webhook-timestamp"]), UTC)
        signatures = headers["webhook-signature"].split()
    except (KeyError, ValueError, OverflowError) as error:
        return f"a request without {error!r}"
    if standardwebhooks.Webhook(SECRET).sign(name, at, body.decode()) not in signatures:
        return f"the message {name} has the signatures {signatures}, of which none is right"
    return None


def check_deliveries(
    deliveries: Sequence[Delivery],
    threads: Mapping[str, Sequence[Entry]],
    url: str,
    inherited: Mapping[str, int],
    gone: Collection[str] = (),
) -> Iterator[tuple[str, str]]:
    """Compare what a receiver was told with the threads. Yields sessions with what is wrong.

    Args:
        deliveries: What it was told.
        threads: The complete thread of each session.
        url: The receiver's URL.
        inherited: The seq up to which the thread of a fork is its parent's.
        gone: The sessions that were deleted: nobody can read what has happened in them.
    """
    ids: dict[tuple[Any, ...], set[str]] = defaultdict(set)
    told: set[tuple[str, int]] = set()
    for delivery in deliveries:
        session, data, event = delivery.session, delivery.message["data"], delivery.message["type"]
        calls = tuple(call["tool_call_id"] for call in data.get("tool_calls", ()))
        ids[session, event, data["request_id"], data["seq"], calls].add(delivery.id)
        if delivery.is_taken and event == "request.ended":
            told.add((session, data["seq"]))
        if session not in gone:
            problem = _check_told(event, data, threads.get(session), url)
            yield from [(session, f"a webhook was told of {event}: {problem}")] if problem else []
    for (session, event, request_id, *_), known in ids.items():
        if len(known) > 1:
            yield session, f"{event} of {request_id} was told with the ids {sorted(known)}"
    for session, entries in threads.items():
        for seq in _list_ends(entries, url):
            if seq > inherited.get(session, -1) and (session, seq) not in told:
                yield session, f"{UNTOLD} at {seq}"


def _list_ends(entries: Sequence[Entry], url: str) -> Iterator[int]:
    """List the outcomes of which a URL is to be told."""
    is_told = False
    for entry in entries:
        match entry.body:
            case ConfigPayload(webhooks=webhooks):
                is_told = url in {webhook["url"] for webhook in webhooks}
            case RunPayload() if is_told:
                yield entry.seq


def _check_told(event: str, data: Mapping[str, Any], entries: Sequence[Entry] | None, url: str) -> str | None:
    if entries is None:
        return "there is no such session"
    configs = [entry.body for entry in entries if isinstance(entry.body, ConfigPayload)]
    if url not in {webhook["url"] for config in configs for webhook in config.webhooks}:
        return "the session has no such webhook"
    if event in ("request.ended", "limit.reached"):
        entry = entries[data["seq"]] if data["seq"] < len(entries) else None
        ended = entry.body if entry else None
        if entry is None or not isinstance(ended, RunPayload):
            return f"there is no outcome at {data['seq']}"
        if (entry.refs.get("request_id"), ended.status) != (data["request_id"], data["status"]):
            return f"{data['request_id']} is {data['status']}, but {entry.refs.get('request_id')} is {ended.status}"
        return None
    known = {call for entry in entries if isinstance(entry.body, AssistantMessage) for call in entry.body.call_ids}
    unknown = {call["tool_call_id"] for call in data.get("tool_calls", ())} - known
    return f"no reply has the calls {sorted(unknown)}" if unknown else None
