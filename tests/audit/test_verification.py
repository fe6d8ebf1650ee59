"""`verify_archive` reads every object of a session's archive, the stored tool results included."""

from __future__ import annotations

import hashlib

import pytest

from clew import Clew
from clew.errors import NotFound
from clew.local import ToolCall
from clew_activities.archive import Archive
from clew_audit.verification import verify_archive
from tests.support.archives import ArchiveInUse
from tests.support.rolling import make_id
from tests.support.scripts import make_tool_script
from tests.support.stack import Stack

SIZE = 5_000
TEXT = b"x" * SIZE


async def test_a_stored_result_is_read(stack: Stack, clew: Clew, archive: Archive) -> None:
    """It is counted while it is whole; a shorter one, another one of its size and none are problems."""
    model = stack.add_model(make_tool_script(ToolCall("flood", {"size": SIZE})))
    limits = {"max_tool_result_bytes": 1_024}
    session = await clew.open(make_id(), model=model, tools=["flood"], limits=limits)
    await session.ask("flood")
    await session.close()
    path = f"default/families/s-{session.id}/results/{hashlib.sha256(TEXT).hexdigest()}"
    report = await verify_archive(archive, session.id)
    assert (report.results, report.problems) == (1, [])
    for damaged, says in ((b"x" * 10, "checksum"), (b"y" * SIZE, "checksum"), (None, "missing")):
        await stack.store.delete(path)
        if damaged is not None:
            await stack.store.put(path, damaged)
        report = await verify_archive(archive, session.id)
        assert report.results == 1
        (problem,) = report.problems
        assert "the result in entry" in problem
        assert says in problem


async def test_a_session_that_is_archived_meanwhile_is_whole(archive_in_use: ArchiveInUse) -> None:
    """The state that the head named is deleted before it is read: the newer one counts."""
    report = await verify_archive(archive_in_use, archive_in_use.session.id)
    assert report.problems == []
    assert archive_in_use.replaced


async def test_a_session_without_an_archive_is_not_found(clew: Clew, archive: Archive) -> None:
    """There is nothing to verify."""
    with pytest.raises(NotFound, match="has no archive in this store"):
        await verify_archive(archive, make_id())
