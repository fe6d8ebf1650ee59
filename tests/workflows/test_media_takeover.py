"""Workers die while they store, inspect or load media: an upload or a turn ends right all the same."""

from __future__ import annotations

import asyncio
import hashlib
import json
import uuid
from pathlib import Path
from typing import Any

import pytest

from clew import Image
from clew.local import Reply
from clew_activities import inspection_process
from tests.support.media import make_png
from tests.support.processes import list_children, open_session_on, run_worker_process
from tests.support.stack import Stack
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
SLOW_PDF = b"%PDF-1.7\n" + b"1 0 obj <</Kids [1 0 R]>> endobj\n" * 25_000
"""A file whose pages take long to count, and are none."""


def make_settings(folder: Path) -> dict[str, str]:
    """Make the variables of workers that share a store and whose models take images."""
    models = folder / "models.json"
    models.write_text(json.dumps({"scripted:*": {"window": 100_000, "takes": ["image"]}}))
    return {"CLEW_STORE": str(folder / "store"), "CLEW_MODELS": str(models)}


def list_files(folder: Path, kind: str) -> list[Path]:
    """List the objects of a kind in the store."""
    return [path for path in folder.glob(f"store/**/{kind}/**/*") if path.is_file()]


@pytest.mark.long
async def test_an_upload_survives_the_death_of_its_worker(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL between two chunks: the next worker takes the others, and no chunk is left."""
    queue, settings = f"queue-{uuid.uuid4().hex}", make_settings(tmp_path)
    data = make_png(60, 61, size=12_000_000)
    async with run_worker_process(stack, queue, **settings) as first:
        session = await open_session_on(stack, queue, "fine")
        upload = asyncio.create_task(session.put_blob(data))
        await wait_until(lambda: list_files(tmp_path, "uploads"))
        await first.kill()
        assert not list_files(tmp_path, "blobs")
        async with run_worker_process(stack, queue, **settings):
            assert (await upload)["digest"] == hashlib.sha256(data).hexdigest()
            assert await session.read_blob(hashlib.sha256(data).hexdigest()) == data
            assert not list_files(tmp_path, "uploads")


@pytest.mark.long
async def test_an_inspection_survives_the_death_of_its_worker(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL while a child process reads a file: the next worker inspects it, and the child ends."""
    queue, settings = f"queue-{uuid.uuid4().hex}", make_settings(tmp_path)
    async with run_worker_process(stack, queue, **settings) as first:
        session = await open_session_on(stack, queue, "fine")
        upload = asyncio.create_task(session.put_blob(SLOW_PDF))
        await wait_until(lambda: list_children(first.pid, inspection_process.__file__))
        await first.kill()
        async with run_worker_process(stack, queue, **settings):
            blob = await upload
            assert (blob["media_type"], blob.get("pages")) == ("application/pdf", None)


async def test_a_turn_survives_the_death_of_its_worker_after_the_image_is_stored(
    stack: Stack, tmp_path: Path
) -> None:
    """SIGKILL between the storing of an image and the model's call: the model sees the image, once."""
    queue, settings, image = f"queue-{uuid.uuid4().hex}", make_settings(tmp_path), make_png(62, 63, size=900_000)
    async with run_worker_process(stack, queue, **settings) as first:
        session = await open_session_on(stack, queue, "fine")
        asking = asyncio.create_task(session.ask(["look", Image.from_bytes(image)]))
        await wait_until(lambda: list_files(tmp_path, "blobs"))
        await first.kill()
        async with run_worker_process(stack, queue, **settings):
            assert await asking == "fine"
            (message,) = [
                entry for entry in await session.entries(kind="ai_message") if entry.payload["role"] == "user"
            ]
            assert [part["type"] for part in message.as_dict()["payload"]["content"]] == ["text", "image"]
            assert await session.read_blob(hashlib.sha256(image).hexdigest()) == image


async def test_a_call_with_an_image_survives_the_death_of_its_worker(stack: Stack, tmp_path: Path) -> None:
    """SIGKILL while the model looks: the next worker loads the image again, and sends the same bytes."""
    queue, settings, called = f"queue-{uuid.uuid4().hex}", make_settings(tmp_path), asyncio.Event()

    async def script(_body: dict[str, Any]) -> Reply:
        if called.is_set():
            return Reply("at last")
        called.set()
        return Reply("never heard to its end " * 100, tokens_per_second=5)

    async with run_worker_process(stack, queue, **settings) as first:
        session = await open_session_on(stack, queue, script)
        request = await session.message(["look", Image.from_bytes(make_png(64, 65, size=700_000))])
        await called.wait()
        await first.kill()
        async with run_worker_process(stack, queue, **settings):
            assert await request.answer() == "at last"
            bodies = stack.list_requests((await session.status()).model)
            assert len(bodies) == 2
            assert bodies[0]["messages"] == bodies[1]["messages"]
            assert json.dumps(bodies[1]).count("data:image/png;base64,") == 1
