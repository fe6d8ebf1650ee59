"""AES-256-GCM under the keys of a process. Pure, except for the random nonces."""

from __future__ import annotations

import os
import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from clew_workflows.contract.errors import UnknownKey
from clew_workflows.contract.extras import ExtraMissing

# Keys in environment variables, as `kid:base64key,…`. Pure.


KEYS_VARIABLE = "CLEW_ENCRYPTION_KEYS"
"""The variable that holds the encryption keys."""
KEY_BYTES = 32
"""Bytes of an encryption key, and of the shortest key that signs."""
MAX_KID_CHARACTERS = 64
"""Characters of the longest key id."""

_KID = re.compile(r"[A-Za-z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class EncryptionKeys:
    """The keys of a process. The first one encrypts, every one decrypts. The repr shows none of them.

    Attributes:
        by_kid: The keys by their ids.
    """

    by_kid: Mapping[str, bytes] = field(default_factory=dict, repr=False)


def read_encryption_keys(environ: Mapping[str, str]) -> EncryptionKeys:
    """Read the keys in `CLEW_ENCRYPTION_KEYS`; none if it is not set.

    Raises:
        ValueError: The value has another form. The message does not repeat it: it holds keys.
    """
    keys = parse_keys(KEYS_VARIABLE, environ.get(KEYS_VARIABLE, ""))
    for number, key in enumerate(keys.values(), 1):
        if len(key) != KEY_BYTES:
            raise ValueError(
                f"{KEYS_VARIABLE}: key {number} has {len(key)} bytes: encode {KEY_BYTES} random bytes, for example "
                "with `openssl rand -base64 32`"
            )
    return EncryptionKeys(keys)


def parse_keys(variable: str, text: str) -> dict[str, bytes]:
    """Parse `kid:base64key` pairs, separated by commas, in their order.

    Args:
        variable: The variable that holds them, for messages.
        text: Its value.

    Raises:
        ValueError: The text has another form, or a key has less than `KEY_BYTES`. The message does not repeat it.
    """
    keys: dict[str, bytes] = {}
    for number, pair in enumerate(filter(None, map(str.strip, text.split(","))), 1):
        kid, _, key = pair.partition(":")
        if not is_kid(kid) or kid in keys:
            raise ValueError(
                f"{variable}: key {number} must be kid:key with an id that no other key has, "
                "made of letters, digits, '_' and '-'"
            )
        try:
            keys[kid] = b64decode(key, validate=True)
        except ValueError:
            raise ValueError(f"{variable}: key {number} is not base64: encode {KEY_BYTES} random bytes") from None
        if len(keys[kid]) < KEY_BYTES:
            raise ValueError(
                f"{variable}: key {number} has {len(keys[kid])} bytes: encode at least {KEY_BYTES} random bytes"
            )
    return keys


def is_kid(text: str) -> bool:
    """Whether a text may be the id of a key: 1 to 64 letters, digits, `_` and `-`."""
    return _KID.fullmatch(text) is not None


if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

NONCE_BYTES = 12
TAG_BYTES = 16


class Changed(UnknownKey):
    """An encrypted text was changed, or belongs to another object."""


class Unsealed(UnknownKey):
    """A text is not encrypted, though it must be."""


class Cipher:
    """Encrypts with the first key of a process and decrypts with all. Without keys it decrypts nothing."""

    def __init__(self, keys: EncryptionKeys) -> None:
        """Take the keys.

        Raises:
            ExtraMissing: There are keys, and the extra `encryption` is not installed.
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
        raise ExtraMissing(KEYS_VARIABLE, "encryption") from None
    return AESGCM(key)
