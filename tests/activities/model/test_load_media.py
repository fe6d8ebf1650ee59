"""The bytes of media in model calls: only those that a request needs are read, and their sum is bounded."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from temporalio.exceptions import ApplicationError

from clew_activities.archive import Archive, Store
from clew_activities.archive.blob_store import Blobs
from clew_activities.model.load_media import MediaLoader
from clew_activities.providers import ModelRequest
from clew_activities.providers.anthropic.provider import Anthropic
from clew_activities.providers.provider_errors import ContextLengthExceeded, MediaRefused
from clew_workflows.contract import ModelOptions
from clew_workflows.contract.content import Blob, MediaSort
from tests.support.media import make_pdf, make_png

PROVIDER = Anthropic("anthropic", "http://localhost")
TAKES: frozenset[MediaSort] = frozenset({"image", "pdf", "text"})


def make_blobs() -> Blobs:
    return Blobs(Archive(Store.from_url("memory://"), "default"))


def make_request(*blobs: Blob, takes: frozenset[MediaSort] = TAKES) -> ModelRequest:
    content: Any = [{"type": "image", "blob": blob} for blob in blobs] or "hello"
    return ModelRequest(
        model="claude-sonnet-5",
        messages=[{"role": "user", "content": content}],
        tools=(),
        options=ModelOptions(max_output_tokens=100),
        takes=takes,
    )


class Untouchable(Blobs):
    """Blobs that no call may read."""

    def __init__(self) -> None:
        super().__init__(Archive(Store.from_url("memory://"), "default"))

    async def find_family(self, session_id: str) -> str:
        raise AssertionError(f"the archive of {session_id} was read")


async def test_bytes_are_read_by_their_digests() -> None:
    """A request has each blob once, however often the context names it."""
    blobs = make_blobs()
    blob = await blobs.store("s-1", make_png(), name="square.png")
    async with MediaLoader(blobs).load(PROVIDER, make_request(blob, blob), "s-1") as loaded:
        assert loaded.blobs == {blob["digest"]: make_png()}


async def test_a_context_without_media_reads_no_store() -> None:
    """Neither do a context of texts and one whose images the model does not take."""
    loader = MediaLoader(Untouchable())
    blob = await make_blobs().store("s-1", make_png())
    for request in (make_request(), make_request(blob, takes=frozenset())):
        async with loader.load(PROVIDER, request, "s-1") as loaded:
            assert loaded is request


async def test_a_blob_of_another_session_is_unknown() -> None:
    """A blob that the session's family does not have fails the call for good."""
    blobs = make_blobs()
    blob = await blobs.store("s-2", make_png())
    with pytest.raises(ApplicationError) as error:
        async with MediaLoader(blobs).load(PROVIDER, make_request(blob), "s-1"):
            pass
    assert (error.value.type, error.value.non_retryable) == ("unknown_blob", True)


async def test_the_policy_can_refuse_markers() -> None:
    """The error names the part and the model; nothing is sent or read."""
    blob = await make_blobs().store("s-1", make_pdf(), name="invoice.pdf")
    request = make_request(blob, takes=frozenset({"image"}))
    with pytest.raises(MediaRefused, match=r"invoice\.pdf.*claude-sonnet-5") as error:
        async with MediaLoader(Untouchable()).load(PROVIDER, request, "s-1", refuses=True):
            pass
    assert (error.value.type, error.value.retryable) == ("unsupported_content", False)


async def test_too_many_bytes_are_not_read() -> None:
    """The sum of a request's media is checked by the descriptions."""
    huge: Any = {"digest": "0" * 64, "media_type": "application/pdf", "bytes": 40 * 1024 * 1024}
    large: Any = {**huge, "bytes": 20 * 1024 * 1024}
    with pytest.raises(ContextLengthExceeded):
        async with MediaLoader(Untouchable()).load(PROVIDER, make_request(large, large), "s-1"):
            pass


async def test_calls_wait_for_the_bytes_of_others() -> None:
    """All calls of a worker together hold a bounded number of bytes; one that holds too many still gets its turn."""
    blobs = make_blobs()
    blob = await blobs.store("s-1", make_png(size=3000))
    loader = MediaLoader(blobs, max_sending_bytes=6000)
    order: list[str] = []

    async def call(name: str, *named: Blob) -> None:
        async with loader.load(PROVIDER, make_request(*named), "s-1"):
            order.append(f"{name} begins")
            # Time in which the others would begin.
            for _ in range(5):
                await blobs.describe("s-1", blob["digest"])
            order.append(f"{name} ends")

    await asyncio.gather(call("small", blob), call("large", blob, blob, blob), call("last", blob))
    assert order == [f"{name} {verb}" for name in order_names(order) for verb in ("begins", "ends")]
    assert len(order) == 6


def order_names(order: list[str]) -> list[str]:
    return [line.removesuffix(" begins") for line in order if line.endswith(" begins")]
