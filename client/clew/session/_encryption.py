"""Encryption in clients: of the payloads that they send, and of the checkpoints that callers keep."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode

from temporalio.client import Client

from clew_workflows.contract.errors import InvalidInput, NewerVersion, TokenMalformed, TokenVersion
from clew_workflows.contract.limits import MAX_TOKEN_BYTES
from clew_workflows.encryption import Encryption, encrypt_payloads, find_sealer, read_encryption
from clew_workflows.values import Format


def encrypt_client(client: Client, encryption: Encryption | None) -> Client:
    """Make a client that encrypts, unless it has a codec already. None: with the keys of the environment.

    Raises:
        InvalidInput: A key is not valid, or the client cannot be given a codec.
    """
    if client.data_converter.payload_codec is not None:
        return client
    try:
        encryption = encryption or read_encryption()
    except ValueError as error:
        raise InvalidInput(str(error)) from None
    config = client.config()
    config["data_converter"] = encrypt_payloads(client.data_converter, encryption)
    encrypting = Client(**config)
    if encrypting.data_converter.payload_codec is None:
        raise InvalidInput("a plugin of the client replaces its data converter: give that converter a codec")
    return encrypting


TOKEN_FORMAT = Format("encrypted checkpoint")
_TOKEN_NAME = "checkpoint"


def encrypt_token(client: Client, token: str) -> str:
    """Encrypt a checkpoint's token, if the client encrypts."""
    sealer = find_sealer(client.data_converter)
    if not sealer.is_on:
        return token
    return f"ert{TOKEN_FORMAT.version}." + urlsafe_b64encode(sealer.seal(token.encode(), _TOKEN_NAME)).decode()


def decrypt_token(client: Client, token: str) -> str:
    """Decrypt a token of `encrypt_token`; another one is returned as it is.

    Raises:
        TokenMalformed: The token is not complete.
        TokenVersion: A newer version of Clew has encrypted it.
        UnknownKey: The client does not have the key, or the token was changed.
    """
    match = re.match(r"ert(\d{1,9})\.", token, re.ASCII)
    if match is None:
        return token
    try:
        TOKEN_FORMAT.check(int(match[1]), "the checkpoint")
    except (NewerVersion, ValueError) as error:
        raise TokenVersion(str(error)) from None
    if len(token) > 2 * MAX_TOKEN_BYTES:
        raise TokenMalformed(f"the token has more than {2 * MAX_TOKEN_BYTES} characters")
    try:
        data = urlsafe_b64decode(token[match.end() :])
    except ValueError:
        raise TokenMalformed("the token is incomplete: it cannot be decoded") from None
    return find_sealer(client.data_converter).unseal(data, _TOKEN_NAME).decode()
