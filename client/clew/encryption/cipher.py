"""AES-256-GCM under the keys of a process. Pure but for the random nonces."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from clew.encryption.keys import KEYS_VARIABLE, EncryptionKeys, is_kid
from clew.errors import UnknownKey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
TAG_BYTES = 16


class Changed(UnknownKey):
    """An encrypted text was changed, or stands in another's place."""


class Unsealed(UnknownKey):
    """A text is not encrypted, though it must be."""


class Cipher:
    """Encrypts with the first key of a process and decrypts with all. Without keys it decrypts nothing."""

    def __init__(self, keys: EncryptionKeys) -> None:
        """Take the keys.

        Raises:
            ValueError: There are keys, and the extra `encryption` is not installed.
        """
        self._ciphers = {kid: _make_cipher(key) for kid, key in keys.by_kid.items()}
        self._first = next(iter(self._ciphers), None)

    @property
    def kid(self) -> str | None:
        """The id of the key that encrypts; None: there is none."""
        return self._first

    @property
    def kids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(self._ciphers)

    def encrypt(self, data: bytes, binding: bytes) -> bytes:
        """Encrypt data with the first key. Only with the same `binding` it can be decrypted."""
        assert self._first is not None, "there is no key"
        nonce = os.urandom(NONCE_BYTES)
        return nonce + self._ciphers[self._first].encrypt(nonce, data, binding)

    def decrypt(self, kid: str, data: bytes, binding: bytes) -> bytes:
        """Decrypt what `encrypt` has returned.

        Raises:
            UnknownKey: The process does not have the key.
            Changed: The data or its binding was changed.
        """
        if not is_kid(kid):
            raise Changed("it is encrypted with a key whose id is not valid: it was changed")
        if kid not in self._ciphers:
            raise UnknownKey(
                f"it is encrypted with the key {kid!r}, which this process does not have: add it to {KEYS_VARIABLE}"
            )
        from cryptography.exceptions import InvalidTag  # noqa: PLC0415 - an extra

        try:
            return self._ciphers[kid].decrypt(data[:NONCE_BYTES], data[NONCE_BYTES:], binding)
        except (InvalidTag, ValueError):
            raise Changed(
                f"it cannot be decrypted with the key {kid!r}: it was changed, or another key has this id"
            ) from None


def _make_cipher(key: bytes) -> AESGCM:
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415 - an extra
    except ModuleNotFoundError:
        raise ValueError(f"{KEYS_VARIABLE} needs the extra `encryption`: pip install 'clew[encryption]'") from None
    return AESGCM(key)
