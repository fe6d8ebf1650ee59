"""Keys in environment variables, as `kid:base64key,…`. Pure."""

from __future__ import annotations

import re
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass, field

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
