"""Keys are read from one variable, and a mistake there is named without repeating a key."""

from __future__ import annotations

from base64 import b64encode

import pytest
from temporalio.contrib.pydantic import pydantic_data_converter
from temporalio.converter import PayloadCodec

from clew_workflows.encryption import Encryption, EncryptionKeys, encrypt_payloads, is_encrypting, read_encryption

KEY = b64encode(b"0123456789abcdef" * 2).decode()


def read(text: str) -> Encryption:
    """Read the setting with these keys."""
    return read_encryption({"CLEW_ENCRYPTION_KEYS": text})


def test_the_first_key_encrypts_and_all_decrypt() -> None:
    """The keys keep the order of the variable."""
    encryption = read(f" k2:{KEY} , k1:{KEY},")
    assert encryption.is_on
    assert encryption.cipher.kid == "k2"
    assert encryption.cipher.kids == {"k1", "k2"}


def test_without_keys_nothing_is_encrypted() -> None:
    """An empty variable turns encryption off."""
    assert not read("").is_on
    assert not is_encrypting(encrypt_payloads(pydantic_data_converter, read("")))
    assert is_encrypting(encrypt_payloads(pydantic_data_converter, read(f"k:{KEY}")))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"k1:{KEY},k1:{KEY}", "key 2 must be kid:key with an id that no other key has"),
        (KEY, "key 1 must be kid:key"),
        (f"k 1:{KEY}", "key 1 must be kid:key"),
        (f"k1:{KEY}!", "key 1 is not base64"),
        (f"k1:{KEY[:20]}", "key 1 has 15 bytes"),
        (f"k1:{b64encode(b'x' * 33).decode()}", "key 1 has 33 bytes"),
    ],
)
def test_a_malformed_key_is_named_by_its_number(text: str, reason: str) -> None:
    """The message says which key is wrong and repeats none."""
    with pytest.raises(ValueError, match=reason) as raised:
        read(text)
    assert KEY[:16] not in str(raised.value)


def test_no_repr_shows_a_key() -> None:
    """Settings may be logged."""
    shown = repr(read(f"k1:{KEY}")) + repr(EncryptionKeys({"k1": b"secret-bytes"}))
    assert KEY not in shown
    assert "secret-bytes" not in shown
    assert "0123456789abcdef" not in shown


def test_a_codec_of_ones_own_is_loaded_by_its_name() -> None:
    """The name is a class, a function that makes one, or a codec; it excludes keys."""
    environ = {"CLEW_ENCRYPTION_CODEC": f"{__name__}:Reversing"}
    assert isinstance(read_encryption(environ).codec, Reversing)
    with pytest.raises(ValueError, match="both set"):
        read_encryption({**environ, "CLEW_ENCRYPTION_KEYS": f"k1:{KEY}"})
    for name in ("nowhere:Codec", f"{__name__}", f"{__name__}:KEY", f"{__name__}:Missing"):
        with pytest.raises(ValueError, match="CLEW_ENCRYPTION_CODEC"):
            read_encryption({"CLEW_ENCRYPTION_CODEC": name})


class Reversing(PayloadCodec):
    """A codec that needs no key."""

    async def encode(self, payloads):  # type: ignore[no-untyped-def]
        return list(payloads)

    decode = encode
