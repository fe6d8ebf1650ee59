"""Images, recordings and files in the results of tools, and how tools read those of the session."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from clew import Audio, File, Image, ToolContext, tool
from clew.errors import UnknownBlob
from clew_activities.archive import StoreUnavailable
from clew_activities.archive.blob_store import Blobs
from clew_activities.received_media import NewMedia, Unusable, decode_base64
from clew_workflows.contract.content import Blob
from clew_workflows.contract.limits import MAX_PARTS
from clew_workflows.protocol import ToolAnswered
from tests.support.media import make_pdf, make_png, make_wav
from tests.support.model_calls import KIB64, Worker, make_call

FAMILY = "session-1"


async def run_returning(value: Any, limit: int = KIB64, **fields: Any) -> tuple[ToolAnswered, Worker]:
    """Run a tool that returns a value, in a session with an archive."""

    @tool(name="it")
    def it() -> Any:
        return value

    worker = Worker(it)
    return await worker.run(make_call("it", None, limit, **({"family": FAMILY} | fields))), worker


async def test_an_image_is_stored_and_named_by_a_part() -> None:
    """The result has the description of the image, and the session's archive its bytes."""
    answer, worker = await run_returning(Image.from_bytes(make_png(30, 20), name="chart.png"))
    digest = hashlib.sha256(make_png(30, 20)).hexdigest()
    assert answer.content == [
        {
            "type": "image",
            "blob": {
                "digest": digest,
                "media_type": "image/png",
                "bytes": len(make_png(30, 20)),
                "width": 30,
                "height": 20,
                "name": "chart.png",
            },
        }
    ]
    assert not answer.is_error
    assert answer.tokens
    assert await worker.blobs.read(FAMILY, digest) == make_png(30, 20)


async def test_a_list_keeps_its_order_with_texts_and_values_between(tmp_path: Path) -> None:
    """Texts and JSON values between media are texts; neighbours are one."""
    (tmp_path / "note.wav").write_bytes(make_wav(2))
    answer, _ = await run_returning(
        ["before", {"pages": 2}, File.from_bytes(make_pdf(2)), "after", Audio.from_path(tmp_path / "note.wav")]
    )
    assert isinstance(answer.content, list)
    parts: list[Any] = answer.content
    assert [part["type"] for part in parts] == ["text", "file", "text", "audio"]
    assert parts[0]["text"] == 'before\n{"pages":2}'
    assert (parts[1]["blob"]["pages"], parts[3]["blob"]["seconds"]) == (2, 2)


@pytest.mark.parametrize(
    "value",
    [
        "text",
        ["a", "b"],
        [{"type": "text", "text": "a"}],
        {"type": "image", "url": "http://example.com/a.png"},
        {"type": "image", "blob": {"digest": "short"}},
        [{"type": "image"}, 7],
    ],
)
async def test_what_names_no_media_stays_text(value: Any) -> None:
    """A text, a list of texts and JSON that only resembles a part are texts, as they were."""
    answer, _ = await run_returning(value)
    assert isinstance(answer.content, str)
    assert not answer.is_error


async def test_json_may_name_a_blob_of_the_session_and_no_other() -> None:
    """A part whose blob the session has is a part; one whose blob it does not have is a text that says so."""
    _, worker = await run_returning("x")
    blob = await worker.blobs.store(FAMILY, make_png(40, 40))
    part = {"type": "image", "blob": blob}
    other = {"type": "image", "blob": {**blob, "digest": "0" * 64}}

    @tool(name="it")
    def it() -> Any:
        return [part, other]

    worker_of_it = Worker(it)
    await worker_of_it.blobs.store(FAMILY, make_png(40, 40))
    answer = await worker_of_it.run(make_call("it", family=FAMILY))
    assert isinstance(answer.content, list)
    assert answer.content[0] == part
    assert answer.content[1]["type"] == "text"
    assert not answer.is_error


@pytest.mark.parametrize(
    "media",
    [
        Image.from_bytes(b"%PDF-1.7 " + b"x" * 100),
        Image.from_bytes(b"<html><script>alert(1)</script></html>"),
        Image.from_bytes(b"<svg xmlns='http://www.w3.org/2000/svg'/>", "image/svg+xml"),
        Image.from_bytes(make_png(), "image/jpeg"),
        Image.from_bytes(make_png()[:20]),
        File.from_bytes(b"MZ" + b"\0" * 100),
        Audio.from_bytes(make_png()),
        Image.from_bytes(b""),
        File.from_path("/no/such/file"),
        Image.from_url("http://example.com/a.png"),
        Image.from_blob({"digest": "1", "media_type": "image/png", "bytes": 1}),
    ],
)
async def test_media_that_cannot_be_kept_is_a_readable_result(media: Any) -> None:
    """The tool has run: the model reads why its image is not there, and the call is an error without a retry."""
    answer, _ = await run_returning(media)
    assert answer.is_error
    assert isinstance(answer.content, str)
    assert "is not shown" in answer.content
    answer, _ = await run_returning(["the chart:", media])
    assert not answer.is_error
    assert answer.text.startswith("the chart:")


async def test_sizes_have_limits_for_each_blob_and_for_all() -> None:
    """A blob over its limit, and the blob that exceeds the limit of the result, are left out with the reason."""
    small, large = make_png(10, 10, size=10_000), make_png(11, 11, size=40_000)
    limits: dict[str, Any] = {"max_blob_bytes": 30_000, "max_media_bytes": 25_000}
    answer, _ = await run_returning([Image.from_bytes(data) for data in (large, small, small, small)], **limits)
    assert isinstance(answer.content, list)
    assert [part["type"] for part in answer.content] == ["text", "image", "image", "text"]


async def test_a_result_has_a_bounded_number_of_parts() -> None:
    """Of more parts than a message may have the first are kept, and a text says how many were not."""
    answer, _ = await run_returning([Image.from_bytes(make_png())] * (MAX_PARTS + 50))
    assert isinstance(answer.content, list)
    assert len(answer.content) == MAX_PARTS
    assert answer.content[-1]["type"] == "text"


async def test_large_texts_beside_an_image_are_stored_as_large_results_are() -> None:
    """The content has the beginning of the texts, then the image; the archive has all texts."""
    answer, _ = await run_returning(["x" * 3000, Image.from_bytes(make_png()), "y" * 3000], 1000)
    assert isinstance(answer.content, list)
    assert [part["type"] for part in answer.content] == ["text", "image"]
    assert answer.result is not None
    assert answer.result.bytes == 6001


class _Failing(Blobs):
    """Blobs of a store that fails, or never answers."""

    def __init__(self, error: Exception | None) -> None:
        self._error = error

    async def store(self, *_: Any, **__: Any) -> Blob:
        if self._error:
            raise self._error
        await asyncio.Event().wait()
        raise AssertionError


@pytest.mark.parametrize("error", [StoreUnavailable("families", "no route"), None])
async def test_a_store_that_fails_or_hangs_costs_no_second_run(error: Exception | None) -> None:
    """The result names the failure, and the call is not attempted again."""
    runs = []

    @tool(name="it", retries=3)
    def it() -> Any:
        runs.append(1)
        return ["done", Image.from_bytes(make_png())]

    worker = Worker(it, blobs=_Failing(error), storing_seconds=0.2)
    answer = await worker.run(make_call("it", family=FAMILY))
    assert "is not shown" in answer.text
    assert (len(runs), answer.is_error) == (1, False)


async def test_without_an_archive_the_model_reads_that_the_image_is_not_kept() -> None:
    """A session whose worker has no archive keeps the texts."""
    answer, _ = await run_returning(["done", Image.from_bytes(make_png())], family=None)
    assert answer.text.startswith("done\n[image: it is not shown")


def _read_sync(context: ToolContext, digest: str) -> str:
    return hashlib.sha256(context.read_blob_sync(digest)).hexdigest()


async def _read_async(context: ToolContext, digest: str) -> str:
    return hashlib.sha256(await context.read_blob({"type": "image", "blob": {"digest": digest}})).hexdigest()


@pytest.mark.parametrize("function", [_read_sync, _read_async])
async def test_a_tool_reads_blobs_of_the_session_alone(function: Callable[..., Any]) -> None:
    """Sync and async tools read a blob of their family; one of another family, and what is no digest, is unknown."""
    worker = Worker(tool(name="it")(function))
    mine = await worker.blobs.store(FAMILY, make_png(50, 50))
    other = await worker.blobs.store("another-session", make_png(51, 51))
    answer = await worker.run(make_call("it", {"digest": mine["digest"]}, family=FAMILY))
    assert answer.content == mine["digest"]
    for digest in (other["digest"], "../../heads/x"):
        answer = await worker.run(make_call("it", {"digest": digest}, family=FAMILY))
        assert answer.is_error
        assert UnknownBlob.__name__ in answer.text


def test_base64_is_decoded_or_named_as_what_is_wrong() -> None:
    """Line breaks and a lack of padding are accepted; other characters, no text and too much of it are not."""
    assert decode_base64("image", "aGVs\nbG8") == NewMedia("image", b"hello")
    for hostile in ("***", "", None, 7, "a", "é"):
        assert isinstance(decode_base64("image", hostile), Unusable)
