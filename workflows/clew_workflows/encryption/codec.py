"""The codecs of Temporal's payloads: each is AES-256-GCM, bound to the workflow and the kind that it belongs to."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Sequence

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.api.failure.v1 import Failure
from temporalio.converter import (
    ActivitySerializationContext,
    DataConverter,
    PayloadCodec,
    SerializationContext,
    WithSerializationContext,
    WorkflowSerializationContext,
)
from temporalio.exceptions import FailureError

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.encryption.cipher import NONCE_BYTES, Cipher
from clew_workflows.values import Format

FORMAT = Format("encrypted payload")
ENCODING = b"binary/encrypted"
"""The encoding of an encrypted payload."""
KEY_FIELD = "clew-key"
"""The metadata with the key's id."""
VERSION_FIELD = "clew-version"
"""The metadata with the version of the format."""
WORKFLOW_FIELD = "clew-workflow"
"""The metadata with the id of the workflow that the payload belongs to."""

KIND_FIELD = "clew-kind"
"""The metadata with the kind of the payload; absent: an input or an answer of a workflow."""
ACTIVITY = b"activity"
"""The kind of the inputs, results and heartbeats of activities."""

# A schedule knows only the beginning of the ids of the workflows that it will start.
_SCHEDULED = re.compile(r"-\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


class EncryptionCodec(PayloadCodec, WithSerializationContext):
    """Encrypts payloads with the first key and decrypts with all. Without keys it encrypts nothing.

    A payload that is not encrypted is returned as it is.

    Attributes:
        cipher: The keys.
        accepts_plain: Whether sessions on a worker with this codec accept inputs that are not encrypted.
    """

    def __init__(
        self, cipher: Cipher, *, accepts_plain: bool = False, workflow_id: str | None = None, kind: bytes = b""
    ) -> None:
        self.cipher = cipher
        self.accepts_plain = accepts_plain or cipher.kid is None
        self._workflow_id = workflow_id
        self._kind = kind

    def with_context(self, context: SerializationContext) -> EncryptionCodec:
        """Return the codec of one workflow's payloads. Without keys it is the same for all."""
        if not self.cipher.kids:
            return self
        workflow_id = find_workflow_id(context)
        kind = ACTIVITY if isinstance(context, ActivitySerializationContext) else b""
        return EncryptionCodec(self.cipher, accepts_plain=self.accepts_plain, workflow_id=workflow_id, kind=kind)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encrypt each payload."""
        if self.cipher.kid is None:
            return list(payloads)
        return [self._encrypt(payload, self.cipher.kid) for payload in payloads]

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decrypt each payload that is encrypted.

        Raises:
            NewerVersion: A newer version of Clew has encrypted a payload.
            UnknownKey: The process does not have the key, or the payload was changed or belongs to another workflow.
        """
        return [self._decrypt(payload) if is_encrypted(payload) else payload for payload in payloads]

    def _encrypt(self, payload: Payload, kid: str) -> Payload:
        workflow = (self._workflow_id or "").encode()
        metadata = {"encoding": ENCODING, VERSION_FIELD: b"%d" % FORMAT.version, KEY_FIELD: kid.encode()}
        if workflow:
            metadata[WORKFLOW_FIELD] = workflow
        if self._kind:
            metadata[KIND_FIELD] = self._kind
        data = self.cipher.encrypt(payload.SerializeToString(), _bind(kid, workflow, self._kind))
        return Payload(metadata=metadata, data=data)

    def _decrypt(self, payload: Payload) -> Payload:
        FORMAT.check(_read_version(payload))
        kid = payload.metadata[KEY_FIELD].decode(errors="replace")
        workflow = payload.metadata.get(WORKFLOW_FIELD, b"")
        binding = _bind(kid, workflow, payload.metadata.get(KIND_FIELD, b""))
        data = self.cipher.decrypt(kid, payload.data, binding)
        try:
            decrypted, bound = Payload.FromString(data), workflow.decode()
        except (DecodeError, UnicodeDecodeError):
            raise UnknownKey(f"the text that was encrypted with the key {kid!r} is not a payload") from None
        if bound and self._workflow_id and not _belongs(bound, self._workflow_id):
            raise UnknownKey(f"it was encrypted for the workflow {bound!r}, not for {self._workflow_id!r}")
        return decrypted


def is_encrypted(payload: Payload) -> bool:
    """Whether `EncryptionCodec` has encrypted the payload."""
    return payload.metadata.get("encoding") == ENCODING and KEY_FIELD in payload.metadata


def identify(payload: Payload) -> str | None:
    """Identify an encrypted payload; None: it is not encrypted.

    The id is the nonce: no two encryptions share one. No party without the key can change it.
    """
    return b64encode(payload.data[:NONCE_BYTES]).decode() if is_encrypted(payload) else None


def find_workflow_id(context: SerializationContext) -> str | None:
    """Find the workflow of a payload; None: it belongs to none."""
    if isinstance(context, WorkflowSerializationContext | ActivitySerializationContext):
        return context.workflow_id
    return None


def _read_version(payload: Payload) -> int:
    version = payload.metadata.get(VERSION_FIELD, b"")
    if not re.fullmatch(rb"[1-9][0-9]{0,8}", version):
        raise UnknownKey("it is encrypted in an unknown format: it was changed")
    return int(version)


def _bind(kid: str, workflow: bytes, kind: bytes) -> bytes:
    return b"\0".join((b"clew payload", kid.encode(), workflow, kind))


def _belongs(bound: str, workflow_id: str) -> bool:
    if bound == workflow_id:
        return True
    return workflow_id.startswith(bound) and _SCHEDULED.fullmatch(workflow_id[len(bound) :]) is not None


# What a worker does with payloads that it cannot decrypt, and with those that are not encrypted.
#
# A codec that raises an error fails the workflow task, and the server repeats the task for ever. So callers' inputs
# reach the session with a mark, and the session refuses them.


UNDECODABLE = b"clew/undecodable"
"""The encoding of a payload that the worker cannot decrypt; its data is the reason."""
PLAIN_FIELD = "clew-plain"
"""The metadata that marks a payload which came unencrypted, though the worker encrypts."""

SEAL_FIELD = "clew-seal"
"""The metadata with the id of an encrypted payload."""
FOREIGN_FIELD = "clew-foreign"
"""The metadata that marks a payload which was encrypted as the text of an activity."""
_MARKS = (PLAIN_FIELD, SEAL_FIELD, FOREIGN_FIELD)


class AdmittingCodec(PayloadCodec, WithSerializationContext):
    """A worker's codec: it marks the inputs of workflows that the codec inside it cannot decode.

    What activities get and return is decoded by the codec inside alone. Its error fails the attempt of the activity,
    or the workflow task, and another worker may have the key.

    Attributes:
        accepts_plain: Whether sessions accept inputs that are not encrypted.
    """

    def __init__(self, codec: PayloadCodec, *, accepts_plain: bool, marks: bool = False) -> None:
        self._codec = codec
        self.accepts_plain = accepts_plain
        self._marks = marks

    def with_context(self, context: SerializationContext) -> AdmittingCodec:
        """Return the codec of one workflow's or one activity's payloads."""
        codec = self._codec
        if isinstance(codec, WithSerializationContext):
            codec = codec.with_context(context)
        marks = isinstance(context, WorkflowSerializationContext)
        if codec is self._codec and marks == self._marks:
            return self
        return AdmittingCodec(codec, accepts_plain=self.accepts_plain, marks=marks)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Encode the payloads."""
        return await self._codec.encode(payloads)

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Decode the payloads; those of a workflow are marked where that is not possible."""
        if not self._marks:
            return await self._codec.decode(payloads)
        return [await self._admit(payload) for payload in payloads]

    async def _admit(self, payload: Payload) -> Payload:
        try:
            (decoded,) = await self._codec.decode([payload])
        except Exception as error:
            return Payload(metadata={"encoding": UNDECODABLE}, data=str(error)[:500].encode())
        marked = Payload()
        marked.CopyFrom(decoded)
        # A caller may not write these marks.
        if marked.metadata.get("encoding") == UNDECODABLE:
            marked.metadata["encoding"] = b"unknown"
        for mark in _MARKS:
            marked.metadata.pop(mark, None)
        if not self.accepts_plain and decoded == payload:
            marked.metadata[PLAIN_FIELD] = b"1"
        if seal := identify(payload):
            marked.metadata[SEAL_FIELD] = seal.encode()
            if payload.metadata.get(KIND_FIELD) == ACTIVITY:
                marked.metadata[FOREIGN_FIELD] = b"1"
        return marked


# Messages of failures, which workers that encrypt send as payloads.


async def read_message(failure: Failure, converter: DataConverter) -> str:
    """Read the message of a failure, and decrypt it if it is encrypted.

    Raises:
        UnknownKey: The process does not have the key.
    """
    if not failure.HasField("encoded_attributes"):
        return failure.message
    copied = Failure()
    copied.CopyFrom(failure)
    error = await converter.decode_failure(copied)
    return error.message if isinstance(error, FailureError) else str(error)
