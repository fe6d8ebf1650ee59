"""The keys of encrypted rounds. Clients and workers change them while they run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import DataConverter, DefaultFailureConverterWithEncodedAttributes

from clew_workflows.encryption.cipher import Cipher, EncryptionKeys
from clew_workflows.encryption.codec import EncryptionCodec
from tests.support.encrypted import KEY_BYTES

FIRST_KEYS = ("k1",)
ROTATION = (("k1", "k2"), ("k2", "k1"))
"""The keys after each step of a rotation: all processes have taken one before the next one begins."""
NEWEST_KEYS = ("k2",)
OLDEST_KEYS = ("k1", "k2")
"""The keys of a process that has not heard of the rotation: it reads all, and writes with the old key."""
MARKER = b"labyrinth"
"""A word of many texts, which no process writes where it can be read."""


class Keys(Cipher):
    """The keys of a round's clients: each text is encrypted with the newest. Without keys they encrypt nothing."""

    def __init__(self, *kids: str) -> None:
        super().__init__(EncryptionKeys({kid: KEY_BYTES[kid] for kid in kids}))

    def change(self, kids: Sequence[str]) -> None:
        """Take other keys, as a process does that reads its settings again."""
        vars(self).update(vars(Keys(*kids)))

    def make_converter(self) -> DataConverter:
        """Make the data converter of a client."""
        converter = replace(pydantic_data_converter, payload_codec=EncryptionCodec(self))
        if self.kid is None:
            return converter
        return replace(converter, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
