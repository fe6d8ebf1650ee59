"""The page about images, recordings and files: its TypeScript stores one, asks about it, and reads it again."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle

from clew import Image
from clew.local import Reply
from clew_activities import inspection
from clew_activities.archive import Store
from clew_workflows.contract.limits import MAX_BLOB_BYTES, MAX_MESSAGE_BLOB_BYTES, MAX_PARTS
from clew_workflows.encryption import Encryption
from docs.generate import DOCS
from tests.support.encrypted import run_worker
from tests.support.hostile_input import assert_unharmed
from tests.support.media import make_pdf, make_png
from tests.support.npm import NODE, install_package
from tests.support.page_code import find_block, list_blocks, run_block
from tests.support.s3 import BUCKET, make_s3_env, run_s3
from tests.support.stack import Stack
from tests.support.waiting import PATIENCE_SECONDS

PAGE = (DOCS / "content.md").read_text(encoding="utf-8")
CLIENT = "@temporalio/client@1.24.0"

PAGE_HARNESS = """
import { openAsBlob } from "node:fs";
import { createInterface } from "node:readline";
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
async function post(path, body = null) {
  console.log(JSON.stringify([path, body]));
  return JSON.parse((await answers.next()).value);
}
const file = new File([await openAsBlob("screen.png")], "screen.png", { type: "image/png" });
"""
"""What a page has: a file that its user chose, and a backend, which is the test."""


LISTS = tuple(
    EventType.Value(f"EVENT_TYPE_{name}")
    for name in ("UPSERT_WORKFLOW_SEARCH_ATTRIBUTES", "WORKFLOW_PROPERTIES_MODIFIED", "TIMER_STARTED", "TIMER_FIRED")
)
"""Events that bring lists up to date, a few in ten seconds, however many turns there are."""


async def read_turns(handle: WorkflowHandle[Any, Any]) -> int:
    """Read the bytes of a session's history, without those of lists."""
    events = [event async for event in handle.fetch_history_events()]
    return sum(event.ByteSize() for event in events if event.event_type not in LISTS)


async def measure_turns(stack: Stack) -> list[int]:
    """Measure what turns without a blob, with two and with six add to a session's history, in bytes."""
    session, sides, sizes = await stack.open("fine"), count(30), list[int]()
    handle = stack.clew.temporal.get_workflow_handle(session.id)
    # The first image brings the tool that shows one again.
    for images in (1, 0, 2, 6):
        named = (Image.from_bytes(make_png(next(sides), 20), name="screen.png") for _ in range(images))
        await session.ask(["look", *named])
        sizes.append(await read_turns(handle))
    return [after - before for before, after in pairwise(sizes)]


async def test_the_history_grows_as_the_page_says(stack: Stack) -> None:
    """By so many bytes for each blob, and for the check of a message, whatever the sizes of the blobs are."""
    # A timer that brings the lists up to date may begin a task within a turn.
    without, two, six = map(min, zip(*[await measure_turns(stack) for _ in range(3)], strict=True))
    blob = (six - two) / 4
    for name, measured in (("A blob adds", blob), ("The check itself adds", two - without - 2 * blob)):
        match = re.search(rf"{name} some ([\d ]+) bytes", " ".join(PAGE.split()))
        assert match, name
        assert measured == pytest.approx(int(match[1].replace(" ", "")), rel=0.25)


def test_the_limits_are_those_of_the_code() -> None:
    """The page has the limits that the code has."""
    for name, value in (
        ("a blob", f"{MAX_BLOB_BYTES // 2**20} MiB"),
        ("all blobs of a message", f"{MAX_MESSAGE_BLOB_BYTES // 2**20} MiB"),
        ("parts of a message", f"{MAX_PARTS}"),
        (
            "an image",
            f"{inspection.MAX_SIDE:,} pixels on a side, {inspection.MAX_PIXELS // 10**6} million in all".replace(
                ",", " ", 1
            ),
        ),
    ):
        assert f"| {name} | {value} |" in PAGE


async def test_the_browser_sends_a_file_to_the_store(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page's function sends a file to a signed URL. Its Python starts and finishes the upload, and asks."""
    starting, finishing = find_block("content.md", "start_upload").split("# When the browser has sent the file:\n")
    (block,) = list_blocks("content.md", "js")
    image = make_png(121, 81, size=1_200_000)
    (tmp_path / "screen.png").write_bytes(image)
    (tmp_path / "page.mjs").write_text(
        PAGE_HARNESS + block + "console.log(JSON.stringify({ uploaded: await upload(file) }));\n"
    )
    with run_s3() as address:
        for name, value in make_s3_env(address).items():
            monkeypatch.setenv(name, value)
        async with (
            run_worker(stack, Encryption(), store=Store.from_url(f"s3://{BUCKET}/page")) as running,
            open_page(tmp_path) as (send, receive),
            asyncio.timeout(PATIENCE_SECONDS),
        ):
            session = await running.open()
            path, body = await receive()
            assert path == "/uploads"
            names = await run_block(starting, {"session": session, "Image": Image, **body})
            send(names["upload"].as_dict())
            path, _ = await receive()
            _, _, upload_id, last = path.split("/")
            assert last == "finish"
            blob = (await run_block(finishing, names | {"upload_id": upload_id}))["blob"]
            send(blob)
            assert await receive() == {"uploaded": blob}
            sent: Any = (await session.transcript())[0]["content"]
            assert sent[1]["blob"] == blob
            assert (blob["media_type"], blob.get("name"), blob["bytes"]) == ("image/png", "screen.png", len(image))
            assert await session.read_blob(blob) == image


def test_the_rules_let_browsers_send_files_from_one_page() -> None:
    """A bucket with the page's rules allows what a browser asks before it sends a file, to no other origin."""
    import boto3  # type: ignore[import-untyped]  # noqa: PLC0415 - takes a second

    rules = json.loads(find_block("content.md", "AllowedOrigins", "json"))
    with run_s3() as address:
        keys = {"aws_access_key_id": "AKIAEXAMPLE", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        bucket = boto3.client("s3", endpoint_url=address, **keys)
        bucket.put_bucket_cors(Bucket=BUCKET, CORSConfiguration={"CORSRules": rules})
        for origin, status in (("https://app.example.com", 200), ("https://other.example.com", 403)):
            headers = {
                "Origin": origin,
                "Access-Control-Request-Method": "PUT",
                "Access-Control-Request-Headers": "content-type",
            }
            assert httpx.options(f"{address}/{BUCKET}/staged/file", headers=headers).status_code == status


async def test_the_first_lines_send_an_image_and_a_file(
    stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session has the text, and both files under their names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "screen.png").write_bytes(make_png())
    (tmp_path / "invoice.pdf").write_bytes(make_pdf())
    session = await stack.open("fine")
    await run_block(find_block("content.md", "invoice = Image.from_path"), {"session": session})
    sent: Any = (await session.transcript())[0]["content"]
    text, screen, invoice = sent
    assert (text["text"], screen["type"], invoice["type"]) == ("What is wrong here?", "image", "file")
    assert (screen["blob"]["name"], invoice["blob"]["name"]) == ("screen.png", "invoice.pdf")


@asynccontextmanager
async def open_page(folder: Path) -> AsyncIterator[tuple[Callable[[Any], None], Callable[[], Awaitable[Any]]]]:
    """Run the page's script. Yields what sends JSON to it, and what receives JSON from it."""
    process = await asyncio.create_subprocess_exec(
        *(NODE, folder / "page.mjs"), cwd=folder, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    writer, reader = process.stdin, process.stdout
    assert writer is not None
    assert reader is not None

    async def receive() -> Any:
        return json.loads(await reader.readline())

    try:
        yield lambda value: writer.write(json.dumps(value).encode() + b"\n"), receive
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
async def test_the_typescript_sends_an_image(stack: Stack, tmp_path: Path) -> None:
    """It stores a blob of several chunks, and reads the same bytes. Skipped where npm cannot bring Temporal's SDK."""
    install_package(CLIENT, tmp_path)
    (block,) = list_blocks("content.md", "ts")
    (tmp_path / "client.mts").write_text(block.replace('taskQueue: "clew"', f'taskQueue: "{stack.clew.task_queue}"'))
    image = make_png(120, 80, size=2_500_000)
    (tmp_path / "screen.png").write_bytes(image)
    session = await stack.open(lambda _: Reply("fine"))
    process = await asyncio.create_subprocess_exec(
        *(NODE, "--disable-warning=ExperimentalWarning", tmp_path / "client.mts", session.id, "screen.png"),
        cwd=tmp_path,
        env={**os.environ, "TEMPORAL_ADDRESS": stack.server.address},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(120):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    told = json.loads(output)
    assert (told["status"], told["answer"], told["same"]) == ("completed", "fine", True)
    assert (told["blob"]["width"], told["blob"]["height"], told["blob"]["bytes"]) == (120, 80, len(image))
    assert await session.read_blob(told["blob"]) == image
    await assert_unharmed(stack, session.id)
