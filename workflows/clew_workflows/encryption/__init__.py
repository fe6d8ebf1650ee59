"""Encryption of all texts of conversations: Temporal's payloads, the archive's objects, exports and checkpoints.

`CLEW_ENCRYPTION_KEYS` turns it on, in workers and in clients. `docs/security.md` lists the encrypted parts.
"""

from clew_workflows.encryption.cipher import (
    Changed,
    Cipher,
    EncryptionKeys,
    Unsealed,
    parse_keys,
    read_encryption_keys,
)
from clew_workflows.encryption.codec import (
    FOREIGN_FIELD,
    PLAIN_FIELD,
    SEAL_FIELD,
    UNDECODABLE,
    AdmittingCodec,
    EncryptionCodec,
    is_encrypted,
)
from clew_workflows.encryption.sealing import (
    HEADER_BYTES,
    MAX_OVERHEAD_BYTES,
    NO_ENCRYPTION,
    PLAIN_VARIABLE,
    KeySealer,
    Sealer,
    is_sealed,
)
from clew_workflows.encryption.settings import (
    Encryption,
    admit_payloads,
    encrypt_payloads,
    find_sealer,
    is_encrypting,
    read_encryption,
)

__all__ = [
    "FOREIGN_FIELD",
    "HEADER_BYTES",
    "MAX_OVERHEAD_BYTES",
    "NO_ENCRYPTION",
    "PLAIN_FIELD",
    "PLAIN_VARIABLE",
    "SEAL_FIELD",
    "UNDECODABLE",
    "AdmittingCodec",
    "Changed",
    "Cipher",
    "Encryption",
    "EncryptionCodec",
    "EncryptionKeys",
    "KeySealer",
    "Sealer",
    "Unsealed",
    "admit_payloads",
    "encrypt_payloads",
    "find_sealer",
    "is_encrypted",
    "is_encrypting",
    "is_sealed",
    "parse_keys",
    "read_encryption",
    "read_encryption_keys",
]
