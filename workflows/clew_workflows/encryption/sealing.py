"""Encryption of objects: those of the archive, exports and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from functools import cached_property
from typing import TypeVar

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.encryption.cipher import (
    KEYS_VARIABLE,
    MAX_KID_CHARACTERS,
    NONCE_BYTES,
    TAG_BYTES,
    Changed,
    Cipher,
    EncryptionKeys,
    Unsealed,
)
from clew_workflows.values import Format

T = TypeVar("T")

PLAIN_VARIABLE = "CLEW_ENCRYPTION_ACCEPT_PLAIN"
"""The variable that lets workers accept inputs and objects which are not encrypted, for the time of a migration."""

MAX_OVERHEAD_BYTES = 65_536
"""Bytes that encryption may add to an object. With a codec that adds more the largest ones are unreadable."""

FORMAT = Format("encrypted object")
# Both end with the version, in one digit.
_KEY_MAGIC = b"\0clewAE%d" % FORMAT.version
_CODEC_MAGIC = b"\0clewPC%d" % FORMAT.version
HEADER_BYTES = len(_KEY_MAGIC) + MAX_KID_CHARACTERS
"""Bytes of an object's beginning from which `Sealer.is_current` decides."""
_PLAIN_ENCODING = b"binary/plain"

log = logging.getLogger("clew_workflows.encryption")


class Sealer(ABC):
    """Encrypts objects. An empty object stays empty.

    Attributes:
        is_on: Whether objects are encrypted.
        overhead: Bytes that encryption adds to an object; None: they differ.
        blocks: Whether calls may wait for another service, so that they must not run on an event loop.
    """

    def __init__(self, magic: bytes, *, is_on: bool, overhead: int | None, blocks: bool, accepts_plain: bool) -> None:
        self.is_on, self.overhead, self.blocks = is_on, overhead, blocks
        self._magic, self._accepts_plain = magic, accepts_plain

    @abstractmethod
    def is_current(self, data: bytes) -> bool:
        """Whether the beginning of an object says that it need not be encrypted anew."""

    @abstractmethod
    def _encrypt(self, data: bytes, name: str) -> bytes: ...

    @abstractmethod
    def _decrypt(self, data: bytes, name: str) -> bytes: ...

    def seal(self, data: bytes, name: str) -> bytes:
        """Encrypt an object. It can be decrypted only under the same name."""
        return self._encrypt(data, name) if data and self.is_on else data

    def unseal(self, data: bytes, name: str) -> bytes:
        """Decrypt an object. One that is not encrypted is returned as it is, if there are no keys.

        With keys it is returned only in a migration, and that is logged.

        Raises:
            Unsealed: The object is not encrypted, and there are keys.
            NewerVersion: A newer version of Clew has encrypted it.
            UnknownKey: The process does not have the key.
            Changed: The object was changed, or has another name.
        """
        magic = _read_magic(data)
        if magic is None:
            return self._admit(data, name) if self.is_on else data
        if magic != self._magic:
            variable = KEYS_VARIABLE if magic == _KEY_MAGIC else "CLEW_ENCRYPTION_CODEC"
            raise UnknownKey(f"it is encrypted in another way: set {variable}")
        return self._decrypt(data, name)

    def _admit(self, data: bytes, name: str) -> bytes:
        """Admit an object that is not encrypted, in a migration."""
        if not self._accepts_plain:
            raise Unsealed(
                f"it is not encrypted: if it is older than encryption, run `clew rekey` with {PLAIN_VARIABLE}=1"
            )
        if data:
            log.warning("%s is not encrypted, and is accepted because plain objects are accepted", name)
        return data


class KeySealer(Sealer):
    """Encrypts objects with the first key and decrypts with all. Without keys it encrypts nothing.

    An encrypted object has a header of fixed size, with the key's id.
    """

    def __init__(self, cipher: Cipher, *, accepts_plain: bool = False) -> None:
        is_on = cipher.kid is not None
        overhead = HEADER_BYTES + NONCE_BYTES + TAG_BYTES if is_on else 0
        super().__init__(_KEY_MAGIC, is_on=is_on, overhead=overhead, blocks=False, accepts_plain=accepts_plain)
        self._cipher = cipher

    def is_current(self, data: bytes) -> bool:
        """Whether an object is encrypted with the first key, or empty."""
        kid = self._cipher.kid
        return not data or (not data.startswith(_KEY_MAGIC) if kid is None else data.startswith(_make_header(kid)))

    def _encrypt(self, data: bytes, name: str) -> bytes:
        assert self._cipher.kid is not None, "there is no key"
        header = _make_header(self._cipher.kid)
        return header + self._cipher.encrypt(data, _bind(header, name))

    def _decrypt(self, data: bytes, name: str) -> bytes:
        header = data[:HEADER_BYTES]
        kid = header[len(_KEY_MAGIC) :].rstrip(b"\0").decode(errors="replace")
        return self._cipher.decrypt(kid, data[HEADER_BYTES:], _bind(header, name))


class CodecSealer(Sealer):
    """Encrypts objects with a codec of payloads, on an event loop of its own: a codec may ask a key service."""

    def __init__(self, codec: PayloadCodec) -> None:
        # A codec of one's own may leave objects as they are, unless it says otherwise.
        accepts_plain = bool(getattr(codec, "accepts_plain", True))
        super().__init__(_CODEC_MAGIC, is_on=True, overhead=None, blocks=True, accepts_plain=accepts_plain)
        self._codec = codec

    def is_current(self, data: bytes) -> bool:
        """Whether an object is empty: the codec alone knows the key of an encrypted one."""
        return not data

    def _encrypt(self, data: bytes, name: str) -> bytes:
        payload = Payload(metadata={"encoding": _PLAIN_ENCODING}, data=name.encode() + b"\0" + data)
        (encoded,) = self._run(self._codec.encode([payload]))
        return _CODEC_MAGIC + encoded.SerializeToString()

    def _decrypt(self, data: bytes, name: str) -> bytes:
        try:
            payload = Payload.FromString(data[len(_CODEC_MAGIC) :])
        except DecodeError:
            raise Changed("it is encrypted, and was changed") from None
        try:
            (decoded,) = self._run(self._codec.decode([payload]))
        except Exception as error:
            raise UnknownKey(f"the codec of CLEW_ENCRYPTION_CODEC cannot decrypt it: {error}") from error
        actual, _, decrypted = decoded.data.partition(b"\0")
        if actual != name.encode():
            raise Changed("it was encrypted as another object")
        return decrypted

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="clew-codec", daemon=True).start()
        return loop


NO_ENCRYPTION = KeySealer(Cipher(EncryptionKeys()))
"""Writes objects as they are."""


def is_sealed(data: bytes) -> bool:
    """Whether an object is encrypted.

    Raises:
        Changed: It has the mark of an encrypted object, and was changed.
        NewerVersion: A newer version of Clew has encrypted it.
    """
    return _read_magic(data) is not None


def _read_magic(data: bytes) -> bytes | None:
    """Read how an object is encrypted, and check the version; None: it is not encrypted."""
    magic, version = data[: len(_KEY_MAGIC)], data[len(_KEY_MAGIC) - 1 : len(_KEY_MAGIC)]
    if magic[:-1] not in (_KEY_MAGIC[:-1], _CODEC_MAGIC[:-1]) or not version.isdigit():
        return None
    if version == b"0":
        raise Changed("it is encrypted in an unknown format: it was changed")
    FORMAT.check(int(version))
    return magic


def _make_header(kid: str) -> bytes:
    return _KEY_MAGIC + kid.encode().ljust(MAX_KID_CHARACTERS, b"\0")


def _bind(header: bytes, name: str) -> bytes:
    return b"\0".join((b"clew object", header, name.encode()))
