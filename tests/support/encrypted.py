"""Workers and clients that encrypt."""

from __future__ import annotations

import os
import uuid
from base64 import b64encode
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from temporalio.api.common.v1 import Payload
from temporalio.client import WorkflowHandle
from temporalio.converter import PayloadCodec

from clew import Clew
from clew_activities.archive import Store
from clew_workflows.encryption import Encryption, EncryptionKeys
from tests.support.stack import Stack, serve

needs_plain = pytest.mark.skipif(
    "CLEW_ENCRYPTION_KEYS" in os.environ, reason="looks into payloads that are not encrypted"
)
"""The mark of a test that cannot hold if all processes encrypt."""
KEY_BYTES = {kid: kid.encode().ljust(32, b"-") for kid in ("k1", "k2", "k3")}


def make_encryption(*kids: str, accepts_plain: bool = False) -> Encryption:
    """Make the encryption of a process with these keys of `KEY_BYTES`; the first one encrypts."""
    return Encryption(EncryptionKeys({kid: KEY_BYTES[kid] for kid in kids}), accepts_plain=accepts_plain)


def write_keys(*kids: str) -> str:
    """Write these keys of `KEY_BYTES` as `CLEW_ENCRYPTION_KEYS` takes them."""
    return ",".join(f"{kid}:{b64encode(KEY_BYTES[kid]).decode()}" for kid in kids)


@asynccontextmanager
async def run_worker(
    stack: Stack, encryption: Encryption, *, task_queue: str | None = None, store: Store | None = None
) -> AsyncIterator[Stack]:
    """Run a worker with these keys on a task queue of its own, with the scripted models and the server of a stack."""
    clew = await Clew.connect(
        stack.server.address, task_queue=task_queue or f"encrypted-{uuid.uuid4().hex}", encryption=encryption
    )
    store = store or Store.from_url("memory://", sealer=encryption.sealer)
    async with serve(clew, stack.environ, store=store):
        yield Stack(clew, stack.server, stack.provider, stack.scripts, store, stack.names)


async def connect(stack: Stack, encryption: Encryption) -> Clew:
    """Connect a client with these keys to the task queue of a stack."""
    return await Clew.connect(stack.server.address, task_queue=stack.clew.task_queue, encryption=encryption)


async def read_history_bytes(handle: WorkflowHandle[object, object]) -> bytes:
    """Read a workflow's history as the server stores it."""
    return b"".join([event.SerializeToString() async for event in handle.fetch_history_events()])


class Reversing(PayloadCodec):
    """A codec of one's own: it reverses the bytes of a payload."""

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Reverse payloads."""
        return [Payload(metadata={"encoding": b"reversed"}, data=p.SerializeToString()[::-1]) for p in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Read reversed payloads."""
        return [Payload.FromString(p.data[::-1]) for p in payloads]
