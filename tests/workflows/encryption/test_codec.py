"""Payloads are encrypted for one workflow, and what cannot be decrypted is named or marked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from obstore.store import MemoryStore
from temporalio.api.common.v1 import Payload
from temporalio.converter import ActivitySerializationContext, PayloadCodec, WorkflowSerializationContext

from clew.errors import NewerVersion, UnknownKey
from clew_activities.archive import Archive, Store
from clew_activities.archive.backends import Bucket
from clew_workflows.encryption import (
    FOREIGN_FIELD,
    NO_ENCRYPTION,
    PLAIN_FIELD,
    SEAL_FIELD,
    UNDECODABLE,
    AdmittingCodec,
    Changed,
    Encryption,
    EncryptionCodec,
    Sealer,
    Unsealed,
)
from clew_workflows.encryption.sealing import CodecSealer
from tests.support.archives import begin_archive, make_entries
from tests.support.encrypted import Reversing, make_encryption


class Sealing(Reversing):
    """A codec of one's own that accepts nothing plain."""

    accepts_plain = False


PLAIN = Payload(metadata={"encoding": b"json/plain"}, data=b'"a secret sentence"')


def for_workflow(workflow_id: str) -> WorkflowSerializationContext:
    """Make the context of a workflow's payloads."""
    return WorkflowSerializationContext(namespace="default", workflow_id=workflow_id)


def for_activity(workflow_id: str) -> ActivitySerializationContext:
    """Make the context of an activity's payloads."""
    return ActivitySerializationContext(
        namespace="default",
        activity_id="1",
        activity_type="call_model",
        activity_task_queue="clew",
        workflow_id=workflow_id,
        workflow_type="AgentSession",
        is_local=False,
    )


def make_codec(*kids: str) -> EncryptionCodec:
    """Make a codec with these keys."""
    return EncryptionCodec(make_encryption(*kids).cipher)


async def encrypt(codec: PayloadCodec, payload: Payload = PLAIN) -> Payload:
    """Encrypt one payload."""
    (encrypted,) = await codec.encode([payload])
    return encrypted


async def test_a_payload_is_decrypted_as_it_was() -> None:
    """Nothing of the payload is readable, its encoding included; equal payloads differ."""
    codec = make_codec("k1").with_context(for_workflow("s"))
    encrypted = await encrypt(codec)
    assert b"secret" not in encrypted.SerializeToString()
    assert b"json" not in encrypted.SerializeToString()
    assert encrypted.data != (await encrypt(codec)).data
    assert await codec.decode([encrypted, PLAIN]) == [PLAIN, PLAIN]


async def test_every_key_decrypts_and_the_first_encrypts() -> None:
    """A key stays in the list until nothing is encrypted with it any more."""
    old, new = make_codec("k1"), make_codec("k2", "k1")
    assert await new.decode([await encrypt(old)]) == [PLAIN]
    with pytest.raises(UnknownKey, match="'k2', which this process does not have: add it to CLEW_ENCRYPTION_KEYS"):
        await old.decode([await encrypt(new)])
    with pytest.raises(UnknownKey, match="'k2'"):
        await make_codec().decode([await encrypt(new)])


async def test_a_payload_belongs_to_one_workflow() -> None:
    """What was encrypted for one session is not decrypted in another; readers without a session decrypt both."""
    codec = make_codec("k1")
    encrypted = await encrypt(codec.with_context(for_workflow("mine")))
    assert await codec.decode([encrypted]) == [PLAIN]
    assert await codec.with_context(for_activity("mine")).decode([encrypted]) == [PLAIN]
    assert await codec.with_context(for_workflow("mine-2026-11-22T13:00:00Z")).decode([encrypted]) == [PLAIN]
    for other in ("yours", "mine-2"):
        with pytest.raises(UnknownKey, match="'mine'"):
            await codec.with_context(for_workflow(other)).decode([encrypted])


@pytest.mark.parametrize("field", ["data", "clew-key", "clew-workflow"])
async def test_a_changed_payload_is_refused(field: str) -> None:
    """Neither the text nor the id of its workflow can be changed without its key."""
    encrypted = await encrypt(make_codec("k1", "k2").with_context(for_workflow("mine")))
    if field == "data":
        encrypted.data = encrypted.data[:-1] + bytes([encrypted.data[-1] ^ 1])
    else:
        encrypted.metadata[field] = {"clew-key": b"k2", "clew-workflow": b"yours"}[field]
    with pytest.raises(UnknownKey, match="was changed"):
        await make_codec("k1", "k2").decode([encrypted])


async def test_a_worker_marks_the_inputs_that_it_cannot_decrypt() -> None:
    """An error would fail the workflow task again and again. What activities get raises one: a retry may help."""
    encrypted = await encrypt(make_codec("k2").with_context(for_workflow("s")))
    worker = AdmittingCodec(make_codec("k1"), accepts_plain=False)
    (marked,) = await worker.with_context(for_workflow("s")).decode([encrypted])
    assert marked.metadata["encoding"] == UNDECODABLE
    assert b"'k2'" in marked.data
    with pytest.raises(UnknownKey):
        await worker.with_context(for_activity("s")).decode([encrypted])


async def test_a_worker_marks_the_inputs_that_are_not_encrypted() -> None:
    """Only where it encrypts and is not told to accept them. Callers cannot write or remove a mark."""
    forged = Payload(metadata={"encoding": UNDECODABLE, PLAIN_FIELD: b"0"}, data=b"x")

    async def decode(codec: PayloadCodec, payload: Payload, accepts_plain: bool) -> Payload:
        admitting = AdmittingCodec(codec, accepts_plain=accepts_plain).with_context(for_workflow("s"))
        (decoded,) = await admitting.decode([payload])
        return decoded

    assert (await decode(make_codec("k1"), PLAIN, False)).metadata[PLAIN_FIELD] == b"1"
    assert await decode(make_codec("k1"), PLAIN, True) == PLAIN
    own = make_codec("k1").with_context(for_workflow("s"))
    encrypted = await decode(own, await encrypt(own), False)
    assert (encrypted.data, PLAIN_FIELD in encrypted.metadata) == (PLAIN.data, False)
    (admitted,) = (
        await AdmittingCodec(own, accepts_plain=False)
        .with_context(for_workflow("s"))
        .decode([await encrypt(own, forged)])
    )
    assert admitted.metadata["encoding"] == b"unknown"
    assert PLAIN_FIELD not in admitted.metadata


async def test_a_worker_says_by_what_an_input_is_known() -> None:
    """Two encryptions of one text differ, a copy does not; what was encrypted for an activity says so."""
    own = make_codec("k1").with_context(for_workflow("s"))
    admitting = AdmittingCodec(own, accepts_plain=False).with_context(for_workflow("s"))
    first, second = await encrypt(own), await encrypt(own)
    one, again, other = await admitting.decode([first, first, second])
    assert one.metadata[SEAL_FIELD] == again.metadata[SEAL_FIELD] != other.metadata[SEAL_FIELD]
    assert FOREIGN_FIELD not in one.metadata
    text = await encrypt(make_codec("k1").with_context(for_activity("s")))
    (foreign,) = await admitting.decode([text])
    assert FOREIGN_FIELD in foreign.metadata
    del text.metadata["clew-kind"]
    (changed,) = await admitting.decode([text])
    assert changed.metadata["encoding"] == UNDECODABLE


@pytest.mark.parametrize("encryption", [make_encryption("k1"), Encryption(own_codec=Sealing())])
def test_an_object_is_decrypted_under_its_name_alone(encryption: Encryption) -> None:
    """With keys, and with a codec of one's own. What is not encrypted is refused."""
    sealer = encryption.sealer
    sealed = sealer.seal(b"a \0 secret", "sessions/s-1.json")
    assert sealer.unseal(sealed, "sessions/s-1.json") == b"a \0 secret"
    with pytest.raises(Changed):
        sealer.unseal(sealed, "sessions/s-2.json")
    with pytest.raises(Unsealed):
        sealer.unseal(b"a \0 secret", "sessions/s-1.json")


async def test_a_codec_of_ones_own_may_raise_any_error() -> None:
    """Its error becomes the mark's reason."""

    class Failing(PayloadCodec):
        async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
            return list(payloads)

        async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
            raise OSError("the key service is away")

    worker = AdmittingCodec(Failing(), accepts_plain=True).with_context(for_workflow("s"))
    (marked,) = await worker.decode([PLAIN])
    assert (marked.metadata["encoding"], marked.data) == (UNDECODABLE, b"the key service is away")


async def test_a_payload_of_a_newer_version_is_refused_by_its_version() -> None:
    """The message names both versions; a payload without a version is no payload of Clew's."""
    codec = make_codec("k1")
    encrypted = await encrypt(codec)
    assert encrypted.metadata["clew-version"] == b"1"
    encrypted.metadata["clew-version"] = b"2"
    with pytest.raises(NewerVersion, match="encrypted payload is of version 2, and this version of Clew reads 1"):
        await codec.decode([encrypted])
    for version in (b"", b"-1", b"x", b"0", b"9" * 5000):
        encrypted.metadata["clew-version"] = version
        with pytest.raises(UnknownKey, match="unknown format"):
            await codec.decode([encrypted])


@pytest.mark.parametrize("sealer", [make_encryption("k1").sealer, CodecSealer(make_codec("k1"))])
def test_an_object_of_a_newer_version_is_refused_by_its_version(sealer: Sealer) -> None:
    """It is not taken for one that is not encrypted, with or without the key."""
    sealed = sealer.seal(b"a secret sentence", "name")
    assert sealed[7:8] == b"1"
    newer = sealed[:7] + b"2" + sealed[8:]
    for reader in (sealer, NO_ENCRYPTION):
        with pytest.raises(NewerVersion, match="encrypted object is of version 2, and this version of Clew reads 1"):
            reader.unseal(newer, "name")
        with pytest.raises(UnknownKey, match="unknown format"):
            reader.unseal(sealed[:7] + b"0" + sealed[8:], "name")


async def test_an_archive_of_newer_encryption_is_left_as_it_is() -> None:
    """The error names the object, and nothing overwrites it."""
    sealer, memory = make_encryption("k1").sealer, Bucket(MemoryStore())
    archive = Archive(Store(memory, sealer=sealer), "default")
    head = await begin_archive(archive, "root", make_entries(0, 1))
    path = "default/sessions/s-root.json"
    sealed = await memory.get(path)
    await memory.put(path, newer := sealed[:7] + b"2" + sealed[8:])
    with pytest.raises(NewerVersion, match=f"^{path}: encrypted object is of version 2"):
        await archive.read_head("root")
    with pytest.raises(NewerVersion):
        await archive.set_head(head, head)
    assert await memory.get(path) == newer
