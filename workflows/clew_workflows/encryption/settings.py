"""The one setting of encryption: keys, or a codec of one's own."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module

from temporalio.converter import (
    DataConverter,
    DefaultFailureConverter,
    DefaultFailureConverterWithEncodedAttributes,
    PayloadCodec,
)

from clew_workflows.encryption.cipher import KEYS_VARIABLE, Cipher, EncryptionKeys, read_encryption_keys
from clew_workflows.encryption.codec import AdmittingCodec, EncryptionCodec
from clew_workflows.encryption.sealing import NO_ENCRYPTION, PLAIN_VARIABLE, CodecSealer, KeySealer, Sealer

CODEC_VARIABLE = "CLEW_ENCRYPTION_CODEC"
"""The variable that names a codec of one's own, as `module:name`."""


@dataclass(frozen=True)
class Encryption:
    """How a process encrypts the texts of conversations. The repr shows no key.

    Attributes:
        keys: The keys: the first one encrypts, all decrypt. Without keys and without a codec nothing is encrypted.
        own_codec: A codec of one's own, instead of keys.
        accepts_plain: Whether inputs of sessions and objects of the archive are accepted that are not encrypted. A
            codec of one's own has an attribute of this name; without it they are.
    """

    keys: EncryptionKeys = field(default_factory=EncryptionKeys)
    own_codec: PayloadCodec | None = None
    accepts_plain: bool = False

    @property
    def is_on(self) -> bool:
        """Whether texts are encrypted."""
        return self.own_codec is not None or bool(self.keys.by_kid)

    @cached_property
    def cipher(self) -> Cipher:
        """The keys, ready for use.

        Raises:
            ExtraMissing: There are keys, and the extra `encryption` is not installed.
        """
        return Cipher(self.keys)

    @cached_property
    def codec(self) -> PayloadCodec:
        """The codec of Temporal's payloads."""
        return self.own_codec or EncryptionCodec(self.cipher, accepts_plain=self.accepts_plain)

    @cached_property
    def sealer(self) -> Sealer:
        """What encrypts the archive's objects, exports and checkpoints."""
        if self.own_codec:
            return CodecSealer(self.own_codec)
        return KeySealer(self.cipher, accepts_plain=self.accepts_plain)


def read_encryption(environ: Mapping[str, str] = os.environ) -> Encryption:
    """Read `CLEW_ENCRYPTION_KEYS`, `CLEW_ENCRYPTION_CODEC` and `CLEW_ENCRYPTION_ACCEPT_PLAIN`.

    Raises:
        ExtraMissing: There are keys, and the extra `encryption` is not installed.
        ValueError: A value cannot be used. The message repeats no key.
    """
    keys, name = read_encryption_keys(environ), environ.get(CODEC_VARIABLE, "").strip()
    if keys.by_kid and name:
        raise ValueError(f"{KEYS_VARIABLE} and {CODEC_VARIABLE} are both set: set one of them")
    plain = environ.get(PLAIN_VARIABLE, "").strip().lower() in ("1", "true", "yes", "on")
    encryption = Encryption(keys, _load_codec(name) if name else None, plain)
    # Refuse keys without the library here, not at the first payload.
    _ = encryption.cipher
    return encryption


def encrypt_payloads(converter: DataConverter, encryption: Encryption) -> DataConverter:
    """Make a data converter that encrypts payloads, and the messages and stack traces of failures.

    A converter that has a codec keeps it. Without encryption the converter can still name the key that is missing.
    """
    if converter.payload_codec is not None:
        return converter
    converter = replace(converter, payload_codec=encryption.codec)
    if encryption.is_on and converter.failure_converter_class is DefaultFailureConverter:
        converter = replace(converter, failure_converter_class=DefaultFailureConverterWithEncodedAttributes)
    return converter


def find_sealer(converter: DataConverter) -> Sealer:
    """Find what encrypts objects with the keys of a data converter."""
    match converter.payload_codec:
        case None:
            return NO_ENCRYPTION
        case EncryptionCodec() as codec:
            return KeySealer(codec.cipher, accepts_plain=codec.accepts_plain)
        case codec:
            return CodecSealer(codec)


def is_encrypting(converter: DataConverter) -> bool:
    """Whether a data converter encrypts. A codec of one's own counts as one that does."""
    codec = converter.payload_codec
    return codec is not None and not (isinstance(codec, EncryptionCodec) and codec.cipher.kid is None)


def admit_payloads(converter: DataConverter) -> DataConverter:
    """Make a worker's data converter: no input of a workflow that cannot be decoded fails a workflow task."""
    codec = converter.payload_codec
    if codec is None or isinstance(codec, AdmittingCodec):
        return converter
    # A codec of one's own may leave payloads as they are, unless it says otherwise.
    accepts_plain = bool(getattr(codec, "accepts_plain", True))
    return replace(converter, payload_codec=AdmittingCodec(codec, accepts_plain=accepts_plain))


def _load_codec(name: str) -> PayloadCodec:
    module, colon, attribute = name.partition(":")
    try:
        if not colon:
            raise ValueError("it is not MODULE:NAME")
        codec = getattr(import_module(module), attribute)
        codec = codec() if callable(codec) else codec
        if not isinstance(codec, PayloadCodec):
            raise ValueError("it is not a temporalio.converter.PayloadCodec, nor a function that returns one")
    except Exception as error:
        raise ValueError(f"{CODEC_VARIABLE}: {name[:200]!r} cannot be used: {error}") from error
    return codec
