"""The files of each released version, and of the next one, are read by today's code."""

from __future__ import annotations

import io

import pytest
from pydantic_core import from_json
from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import WorkflowSerializationContext

from clew.contract import ContextOperation
from clew.contract.payloads import ToolMessage
from clew.errors import TokenSignature
from clew_activities.archive import Archive
from clew_activities.checkpoint_signing import verify_token
from clew_audit.audit import audit_file
from clew_audit.differences import Calls, verify_calls
from clew_audit.exports import read_export
from clew_workflows.contract.tokens import load_encodings
from clew_workflows.encryption import encrypt_payloads
from clew_workflows.session import carried
from clew_workflows.session.checkpoints import make_op_id, make_restore_operation
from clew_workflows.thread.thread import Thread
from tests.support.corpus import FOLDER, NAMESPACE, SEALED, Corpus, list_corpora, read_corpus

MAX_BYTES = 1_000_000
"""Largest file of a corpus."""


@pytest.fixture(scope="module", params=list_corpora())
def corpus(request: pytest.FixtureRequest) -> Corpus:
    load_encodings()
    return read_corpus(request.param)


@pytest.fixture
async def archive(corpus: Corpus) -> Archive:
    return await corpus.open_archive()


def test_a_corpus_is_small() -> None:
    """It is a file of the repository."""
    sizes = {path.name: path.stat().st_size for path in FOLDER.iterdir() if path.is_file()}
    assert max(sizes.values()) < MAX_BYTES, sizes


async def test_archives_are_read_whole(corpus: Corpus, archive: Archive) -> None:
    """No object of a session's archive has a problem, and its state is one that the session continues from."""
    archived = await archive.list_sessions(None, 100)
    assert set(archived) >= {"rollover-1", "control-1", "results-1"}
    for session_id in archived:
        head = await archive.read_head(session_id)
        assert head
        assert head.summary
        checks = [check async for check in archive.verify(head.family, head.root)]
        assert checks
        assert [check for check in checks if check.problem] == []
        assert [entry.seq async for entry in archive.read(head.family, head.root)] == list(range(head.last_seq + 1))
        assert head.state
        session = carried.restore(from_json(await archive.read_state(head.family, head.state)))
        assert session.state.session_id == session_id
        assert session.thread.last_seq == head.last_seq
        # A state is written again as it was read.
        again = carried.restore(carried.carry(session))
        assert again.state == session.state
        assert list(again.thread) == list(session.thread)


async def test_stored_results_are_read(corpus: Corpus, archive: Archive) -> None:
    """Each large result that an entry refers to is there, as long as the entry says."""
    messages = [entry.body for entry in corpus.read_export("results-1")]
    stored = [body.result for body in messages if isinstance(body, ToolMessage) and body.result]
    assert stored
    head = await archive.read_head("results-1")
    assert head
    for result in stored:
        text, size = await archive.get_result(head.family, result.digest)
        assert len(text) == size == result.bytes


async def test_histories_and_archives_audit_clean(corpus: Corpus, archive: Archive) -> None:
    """History, archive and the context of each model call agree, for each session."""
    for session_id in corpus.sessions:
        report = await audit_file(corpus.open_histories(session_id), archive)
        assert report.clean, [difference.as_dict() for difference in report.differences]
        assert report.entries
        assert report.calls.unverified == []


async def test_exports_audit_clean(corpus: Corpus, archive: Archive) -> None:
    """An export has the archive's entries, and each of its model calls has the context that it had."""
    for session_id in corpus.exported:
        entries = corpus.read_export(session_id)
        head = await archive.read_head(session_id)
        if head:
            archived = [entry async for entry in archive.read(head.family, head.root)]
            assert [entry.as_dict() for entry in archived] == [entry.as_dict() for entry in entries[: len(archived)]]
        calls = Calls()
        assert [one async for one in verify_calls(Thread(entries), calls)] == []
        assert calls.unverified == []
        summaries = sum(made.calls for entry in entries if (made := entry.summary_recipe))
        assert calls.verified == sum(entry.recipe is not None for entry in entries) + summaries


async def test_what_is_encrypted_is_decrypted(corpus: Corpus, archive: Archive) -> None:
    """Archive, export and payload hold what they hold in plain, and nothing of it is readable."""
    sealed, encryption = await corpus.open_sealed_archive(), corpus.encryption
    assert not [path for path, data in corpus.files.items() if path.startswith("sealed/") and b"content" in data]
    head = await sealed.read_head(SEALED)
    assert head == await archive.read_head(SEALED)
    assert head
    assert head.state
    assert {check.problem async for check in sealed.verify(head.family, head.root)} == {None}
    assert carried.restore(from_json(await sealed.read_state(head.family, head.state))).state.session_id == SEALED
    entries = [entry async for entry in sealed.read(head.family, head.root)]
    exported = read_export(io.BytesIO(corpus.files["sealed/export.jsonl"]), encryption.sealer)
    assert exported == corpus.read_export(SEALED)
    assert entries == exported[: len(entries)]
    payload = Payload.FromString(corpus.files["sealed/payload"])
    context = WorkflowSerializationContext(NAMESPACE, SEALED)
    converter = encrypt_payloads(pydantic_data_converter, encryption).with_context(context)
    assert await converter.decode([payload], [str]) == [SEALED]


def test_a_checkpoint_is_restored(corpus: Corpus) -> None:
    """Its signature is verified, and its context is an operation that a new session applies."""
    token, keys = corpus.checkpoint
    payload = verify_token(token, keys, NAMESPACE, None)
    operation = ContextOperation.model_validate(make_restore_operation(payload, make_op_id(token)), strict=False)
    assert operation.context_ref == "default"
    assert "use tools" in str(payload["context"])
    with pytest.raises(TokenSignature):
        verify_token(token[:-2] + "AA", keys, NAMESPACE, None)
