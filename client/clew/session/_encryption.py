"""Temporal clients that encrypt."""

from __future__ import annotations

from temporalio.client import Client

from clew_workflows.contract.errors import InvalidInput
from clew_workflows.encryption import Encryption, encrypt_payloads, read_encryption


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
