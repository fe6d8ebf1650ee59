"""Encryption of objects: those of the archive, exports and checkpoints."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Coroutine
from functools import cached_property
from typing import Protocol, TypeVar

from google.protobuf.message import DecodeError
from temporalio.api.common.v1 import Payload
from temporalio.converter import PayloadCodec

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.encryption.cipher import (
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
_MAGIC = b"\0clewAE%d" % FORMAT.version
_CODEC_MAGIC = b"\0clewPC%d" % FORMAT.version
_KID_END = len(_MAGIC) + MAX_KID_CHARACTERS
HEADER_BYTES = _KID_END
"""Bytes of an object's beginning from which `Sealer.is_current` decides."""
_PLAIN_ENCODING = b"binary/plain"

log = logging.getLogger("clew_workflows.encryption")


class Sealer(Protocol):
    """Encrypts objects. An empty object stays empty."""

    @property
    def is_on(self) -> bool:
        """Whether objects are encrypted."""
        ...

    @property
    def overhead(self) -> int | None:
        """Bytes that encryption adds to an object; None: they differ."""
        ...

    @property
    def blocks(self) -> bool:
        """Whether calls may wait for another service, so that they must not run on an event loop."""
        ...

    def seal(self, data: bytes, name: str) -> bytes:
        """Encrypt an object. It can be decrypted only under the same name."""
        ...

    def unseal(self, data: bytes, name: str) -> bytes:
        """Decrypt an object. One that is not encrypted is returned as it is, if there are no keys.

        With keys it is returned only in a migration, and that is logged.

        Raises:
            Unsealed: The object is not encrypted, and there are keys.
            NewerVersion: A newer version of Clew has encrypted it.
            UnknownKey: The process does not have the key.
            Changed: The object was changed, or has another name.
        """
        ...

    def is_current(self, data: bytes) -> bool:
        """Whether the beginning of an object says that it need not be encrypted anew."""
        ...


class KeySealer:
    """Encrypts objects with the first key and decrypts with all. Without keys it encrypts nothing.

    An encrypted object has a header of fixed size, with the key's id.
    """

    def __init__(self, cipher: Cipher, *, accepts_plain: bool = False) -> None:
        self._cipher = cipher
        self._accepts_plain = accepts_plain

    @property
    def is_on(self) -> bool:
        """Whether there is a key."""
        return self._cipher.kid is not None

    @property
    def overhead(self) -> int | None:
        """Bytes that encryption adds to an object."""
        return _KID_END + NONCE_BYTES + TAG_BYTES if self.is_on else 0

    @property
    def blocks(self) -> bool:
        """False."""
        return False

    def seal(self, data: bytes, name: str) -> bytes:
        """Encrypt an object with the first key."""
        kid = self._cipher.kid
        if kid is None or not data:
            return data
        header = _make_header(kid)
        return header + self._cipher.encrypt(data, _bind(header, name))

    def unseal(self, data: bytes, name: str) -> bytes:
        """Decrypt an object."""
        _check_version(data)
        if data.startswith(_CODEC_MAGIC):
            raise UnknownKey("it is encrypted with a codec: set CLEW_ENCRYPTION_CODEC")
        if not data.startswith(_MAGIC):
            return _admit(data, name, self._accepts_plain) if self.is_on else data
        header = data[:_KID_END]
        kid = header[len(_MAGIC) :].rstrip(b"\0").decode(errors="replace")
        return self._cipher.decrypt(kid, data[_KID_END:], _bind(header, name))

    def is_current(self, data: bytes) -> bool:
        """Whether an object is encrypted with the first key, or empty."""
        kid = self._cipher.kid
        return not data or (not data.startswith(_MAGIC) if kid is None else data.startswith(_make_header(kid)))


class CodecSealer:
    """Encrypts objects with a codec of payloads, on an event loop of its own."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec
        # A codec of one's own may leave objects as they are, unless it says otherwise.
        self._accepts_plain = bool(getattr(codec, "accepts_plain", True))

    @property
    def is_on(self) -> bool:
        """True."""
        return True

    @property
    def overhead(self) -> int | None:
        """None: only the codec knows."""
        return None

    @property
    def blocks(self) -> bool:
        """True: a codec may ask a key service."""
        return True

    def seal(self, data: bytes, name: str) -> bytes:
        """Encrypt an object together with its name."""
        if not data:
            return data
        payload = Payload(metadata={"encoding": _PLAIN_ENCODING}, data=name.encode() + b"\0" + data)
        (encoded,) = self._run(self._codec.encode([payload]))
        return _CODEC_MAGIC + encoded.SerializeToString()

    def unseal(self, data: bytes, name: str) -> bytes:
        """Decrypt an object."""
        _check_version(data)
        if data.startswith(_MAGIC):
            raise UnknownKey("it is encrypted with a key: set CLEW_ENCRYPTION_KEYS")
        if not data.startswith(_CODEC_MAGIC):
            return _admit(data, name, self._accepts_plain)
        try:
            payload = Payload.FromString(data[len(_CODEC_MAGIC) :])
        except DecodeError:
            raise Changed("it is encrypted, and was changed") from None
        try:
            (decoded,) = self._run(self._codec.decode([payload]))
        except Exception as error:
            raise UnknownKey(f"the codec of CLEW_ENCRYPTION_CODEC cannot decrypt it: {error}") from error
        actual, _, unsealed = decoded.data.partition(b"\0")
        if actual != name.encode():
            raise Changed("it was encrypted as another object")
        return unsealed

    def is_current(self, data: bytes) -> bool:
        """Whether an object is empty: the codec alone knows the key of an encrypted one."""
        return not data

    def _run(self, work: Coroutine[None, None, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @cached_property
    def _loop(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, name="clew-codec", daemon=True).start()
        return loop


NO_ENCRYPTION = KeySealer(Cipher(EncryptionKeys()))
"""Writes objects as they are."""


def _admit(data: bytes, name: str, accepts_plain: bool) -> bytes:
    """Admit an object that is not encrypted, in a migration."""
    if not accepts_plain:
        raise Unsealed(
            f"it is not encrypted: if it is of a time before encryption, run `clew rekey` with {PLAIN_VARIABLE}=1"
        )
    if data:
        log.warning("%s is not encrypted, and is believed because plain objects are accepted", name)
    return data


def _check_version(data: bytes) -> None:
    """Check the version of an encrypted object; one that is not encrypted has none."""
    beginning, version = data[: len(_MAGIC) - 1], data[len(_MAGIC) - 1 : len(_MAGIC)]
    if beginning not in (_MAGIC[:-1], _CODEC_MAGIC[:-1]) or not version.isdigit():
        return
    if version == b"0":
        raise Changed("it is encrypted in an unknown format: it was changed")
    FORMAT.check(int(version))


def _make_header(kid: str) -> bytes:
    return _MAGIC + kid.encode().ljust(MAX_KID_CHARACTERS, b"\0")


def _bind(header: bytes, name: str) -> bytes:
    return b"\0".join((b"clew object", header, name.encode()))
